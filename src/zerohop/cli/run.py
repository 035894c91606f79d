"""Runs ``zerohop run``: starts the ranks of a program on this host, and ends all of them when one fails."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zerohop.group.launchers import RANK, SIZE, STORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

# Seconds between the request to end and the kill.
_GRACE_S: Final = 5.0
_NO_COMMAND: Final = 2
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def run(command: Sequence[str], *, ranks: int) -> int:
    """Run a command as so many ranks; return 0, or the exit status of the first that failed, or 2 for no command.

    SIGTERM and SIGHUP are passed on to the ranks; SIGINT comes to all of them from the terminal. Ranks that are still
    there 5 seconds later are ended.
    """
    try:
        argv = _argv(command)
    except ValueError as error:
        _say(f"error: {error}")
        return _NO_COMMAND
    with tempfile.TemporaryDirectory(prefix="zerohop-run-") as folder, _Signals() as signals:
        processes = _Ranks(signals)
        try:
            for rank in range(ranks):
                if signals.first is not None:
                    break
                try:
                    processes.start(argv, {RANK: str(rank), SIZE: str(ranks), STORE: folder})
                except OSError as error:
                    _say(f"error: rank {rank} cannot be started: {error.strerror}")
                    return _NO_COMMAND
            return processes.wait()
        finally:
            processes.end()


def _argv(command: Sequence[str]) -> list[str]:
    """Return what to execute; raise ValueError if there is no such command."""
    name = command[0]
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise ValueError(f"there is no file {name}")
        return [sys.executable, *command]
    if shutil.which(name) is None:
        raise ValueError(f"{name} is no command that can be executed, and no file whose name ends with .py")
    return list(command)


class _Signals:
    """Takes the signals that are to end the ranks, for as long as its block lasts. One that was ignored stays so.

    A handler that raises could do so in the middle of a fork, where Python drops what is raised.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before: dict[int, Any] = {}
        self._first: int | None = None

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        """Return the descriptor that can be read when a signal has come."""
        return self._reader

    @property
    def first(self) -> int | None:
        """Return the first signal that has come; None if none has."""
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._reader, 1 << 12):
                if self._first is None and number in self._before:
                    self._first = number
        return self._first


class _Ranks:
    """Holds the processes."""

    def __init__(self, signals: _Signals) -> None:
        self._signals = signals
        self._all: list[subprocess.Popen[bytes]] = []
        # The numbers of those that run, by a descriptor that can be read when the process has ended.
        self._running: dict[int, int] = {}
        self._asked = False

    def start(self, argv: Sequence[str], told: dict[str, str]) -> None:
        """Start the next rank. The first one has the standard input."""
        stdin = subprocess.DEVNULL if self._all else None
        process = subprocess.Popen(
            argv,
            env={**os.environ, **told},
            stdin=stdin,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has one thread, so none holds a lock at a fork
        )
        self._all.append(process)
        self._running[os.pidfd_open(process.pid)] = len(self._all) - 1

    def wait(self) -> int:
        """Wait until all have ended, or one has failed, or a signal has come; return the exit status."""
        poll, until = select.poll(), math.inf
        for descriptor in (self._signals.fileno(), *self._running):
            poll.register(descriptor, select.POLLIN)
        while self._running and time.monotonic() < until:
            first = self._signals.first
            if first is not None and until == math.inf:
                until = time.monotonic() + _GRACE_S
                if first != signal.SIGINT:
                    self._asked = True
                    self._signal(first)
            left_s = until - time.monotonic()
            for descriptor, _ in poll.poll(None if left_s == math.inf else max(0.0, 1000 * left_s)):
                if descriptor != self._signals.fileno():
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    rank = self._running.pop(descriptor)
                    status = self._all[rank].wait()
                    if status and first is None and self._signals.first is None:
                        return self._failed(rank, status)
        first = self._signals.first
        return 0 if first is None else 128 + first

    def end(self) -> None:
        """End those that still run: with SIGTERM, if they were not asked, and with SIGKILL those that do not follow."""
        if not self._asked:
            self._signal(signal.SIGTERM)
            until = time.monotonic() + _GRACE_S
            for process in self._all:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))
        self._signal(signal.SIGKILL)
        for process in self._all:
            process.wait()
        for descriptor in self._running:
            os.close(descriptor)

    def _failed(self, rank: int, status: int) -> int:
        how = f"by {_name_of(-status)}" if status < 0 else f"with status {status}"
        _say(f"rank {rank} has ended {how}" + ("; the others are ended now" if self._running else ""))
        return status if status > 0 else 128 - status

    def _signal(self, number: int) -> None:
        for process in self._all:
            process.send_signal(number)  # nothing, if it has ended


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _end_with_parent() -> None:
    """Have the kernel kill this process when the launcher is gone, also when that was killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the exit status says it, too
        print(f"zerohop run: {text}", file=sys.stderr, flush=True)
