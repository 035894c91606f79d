"""Threads of Python where there may be too little memory for one."""

from __future__ import annotations

import threading

import pytest

import zerohop as zh
from support.patience import PATIENCE_S
from zerohop.core.base import threads


def test_a_thread_that_begins() -> None:
    ran = threading.Event()
    thread = threads.Thread(ran.set, name="quick")
    thread.begin()
    thread.join(PATIENCE_S)
    assert ran.is_set()
    assert not thread.is_alive()


def test_a_thread_that_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that finds no memory for its first frame: the kernel has started it, and it has ended without a word."""
    for start in ("_start_new_thread", "_start_joinable_thread"):
        if hasattr(threading, start):
            monkeypatch.setattr(threading, start, lambda *_, **__: 0)
    monkeypatch.setattr(threads, "_BEGINNING_S", 0.05)
    thread = threads.Thread(print, name="stillborn")
    with pytest.raises(zh.LimitReached, match="thread"):
        thread.begin("open")
    assert thread not in threading.enumerate()
