"""The thread with the event loop on which a Context's conversations go on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
import sys
import tempfile
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from support.patience import PATIENCE_S
from zerohop.core.runtime.control_loop import new_loop
from zerohop.core.runtime.control_thread import ControlThread

if TYPE_CHECKING:
    from collections.abc import Callable


def test_what_nobody_waits_for_any_more_is_given_back() -> None:
    """A thread beside the loop has opened something, and whoever asked for it has left."""
    control = ControlThread()
    opened, go_on, discarded = threading.Event(), threading.Event(), threading.Event()

    def work() -> str:
        opened.set()
        assert go_on.wait(PATIENCE_S)
        return "descriptors"

    def discard(value: str) -> None:
        assert value == "descriptors"
        discarded.set()

    async def ask_and_leave() -> None:
        asking = asyncio.ensure_future(control.run_in_thread(work, discard=discard))
        while not opened.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.001)
        asking.cancel()
        await asyncio.wait([asking])

    try:
        control.run(ask_and_leave, timeout=10)
        go_on.set()
        assert discarded.wait(PATIENCE_S)
    finally:
        control.stop(10)


class _Engine:
    def work(self) -> _Engine:
        return self

    def fail(self) -> None:
        raise RuntimeError("failed")


@pytest.mark.parametrize("name", ["work", "fail"])
def test_a_thread_that_ends_late_keeps_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A Context that is closed has then given all back, and its engine is not kept by a thread that has handed over."""
    control = ControlThread()
    handed_over, go_on = threading.Event(), threading.Event()
    call = control.call

    def slow_call(callback: Callable[..., object], *args: object) -> bool:
        done = call(callback, *args)
        if threading.current_thread().name == "zerohop-aside":
            handed_over.set()
            assert go_on.wait(PATIENCE_S)
        return done

    monkeypatch.setattr(control, "call", slow_call)
    engine = _Engine()
    reference = weakref.ref(engine)

    async def ask(engine: _Engine) -> None:
        with contextlib.suppress(RuntimeError):
            await control.run_in_thread(getattr(engine, name))

    try:
        control.run(ask, engine, timeout=PATIENCE_S)
        assert handed_over.wait(PATIENCE_S)
        del engine
        gc.collect()
        assert reference() is None
    finally:
        go_on.set()
        control.stop(10)


def test_the_loop_goes_on_after_an_exception_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop that is out of memory while it looks at its sockets must serve its peers again when there is some."""
    control = ControlThread()
    selector = control.loop._selector  # type: ignore[attr-defined]
    select, failures = selector.select, [MemoryError()] * 3

    def select_or_fail(timeout: float | None) -> object:
        if failures:
            raise failures.pop()
        return select(timeout)

    monkeypatch.setattr(selector, "select", select_or_fail)
    ran = threading.Event()
    try:
        control.call(ran.set)
        assert ran.wait(PATIENCE_S)
        again = threading.Event()
        control.call(again.set)
        assert again.wait(PATIENCE_S)
        assert not failures
        assert caplog.text.count("in a way that it should not") == 1, "once for each place"
        assert "select_or_fail" in caplog.text
    finally:
        assert control.stop(10)


def test_errors_of_calls_are_logged_at_a_rate(caplog: pytest.LogCaptureFixture) -> None:
    """A peer that finds a way to raise one fills no log, and the calls behind it run."""
    control = ControlThread()
    ran = threading.Event()

    def fail() -> None:
        raise ValueError("as a peer said")

    async def fail_later() -> None:
        fail()

    try:
        for _ in range(100):
            control.call(fail)
            control.spawn(fail_later)
        control.call(control.loop.call_later, 0, ran.set)
        assert ran.wait(PATIENCE_S)
        assert caplog.text.count("in a way that it should not") == 1
        assert 'raise ValueError("as a peer said")' in caplog.text
    finally:
        assert control.stop(10)


def test_a_stop_that_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal's handler, which raises when the loop was woken, and has ended meanwhile: the next stop goes on."""
    control = ControlThread()
    wake = control.loop.call_soon_threadsafe

    def wake_and_raise(*arguments: Any) -> object:
        monkeypatch.setattr(control.loop, "call_soon_threadsafe", wake)
        wake(*arguments)
        control._thread.join(PATIENCE_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(control.loop, "call_soon_threadsafe", wake_and_raise)
    with pytest.raises(KeyboardInterrupt):
        control.stop(10)
    assert not control.descriptors_closed()
    assert control.stop(10)


@pytest.mark.parametrize("lost", ["before", "within"])
def test_a_step_that_the_loop_loses(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """For lack of memory, before or within the run of what other threads have queued: that is run again."""
    control = ControlThread()
    told, ran = threading.Event(), threading.Event()
    control.when_step_lost = told.set
    run_calls, failures = control._run_calls, [MemoryError()]

    def fail_once() -> None:
        if failures and lost == "within":
            control._woken = False
        if failures:
            raise failures.pop()
        run_calls()

    monkeypatch.setattr(control, "_run_calls", fail_once)
    try:
        control.call(ran.set)
        assert ran.wait(PATIENCE_S)
        assert told.wait(PATIENCE_S)
    finally:
        assert control.stop(10)


class _Closing:
    """Stands for a socket that another thread closes between two looks at its number, which is another file's then."""

    def __init__(self, number: int) -> None:
        self._numbers = [number]

    def fileno(self) -> int:
        return self._numbers.pop() if self._numbers else -1


def test_a_socket_that_is_closed_meanwhile_was_not_taken() -> None:
    """The control thread goes on: the program has closed nothing beneath it."""
    control = ControlThread()
    try:
        with tempfile.TemporaryFile() as file:
            closing = _Closing(file.fileno())
            control._sockets[closing] = (1, 1)  # type: ignore[index] # no socket, but weakly referenced as one
            assert not control.descriptors_closed()
    finally:
        assert control.stop(PATIENCE_S)


def test_a_loop_that_could_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of sockets too few, after the trial has had one: the error alone, and nothing from a destructor."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    pairs = iter([socket.socketpair()])

    def pair() -> tuple[socket.socket, socket.socket]:
        try:
            return next(pairs)
        except StopIteration:
            raise OSError(errno.EMFILE, "no more") from None

    monkeypatch.setattr(socket, "socketpair", pair)
    with pytest.raises(OSError, match="no more"):
        new_loop()
    gc.collect()
    assert unraisable == []
