"""A call on a thread of its own that never gets to its first line, because it has no memory for it."""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING

from zerohop.core.base.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def test_a_thread_that_ends_before_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller does the work itself, and does not wait for the thread for ever."""
    start = _thread.start_new_thread

    def start_and_end(_: Callable[..., object], arguments: tuple[object, ...]) -> int:
        return start(lambda *_: None, arguments)

    monkeypatch.setattr(_thread, "start_new_thread", start_and_end)
    undone: list[int] = []
    assert uninterrupted(lambda: 7, undone.append) == 7
    assert undone == []
