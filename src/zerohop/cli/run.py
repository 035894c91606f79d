"""Runs ``zerohop run``: starts the ranks of a program on this host, and ends all of them when one fails."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zerohop.group.launchers import RANK, SIZE, STORE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Seconds between the request to end and the kill.
_GRACE_S: Final = 5.0
_NO_COMMAND: Final = 2
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def run(command: Sequence[str], *, ranks: int) -> int:
    """Run a command as so many ranks; return 0, or the exit status of the first that failed, or 2 for no command.

    SIGTERM and SIGHUP are passed on to the ranks; SIGINT comes to all of them from the terminal. Ranks that have not
    ended 5 seconds later are ended.
    """
    try:
        argv = _argv(command)
    except ValueError as error:
        _say(f"error: {error}")
        return _NO_COMMAND
    processes = _Ranks()
    with tempfile.TemporaryDirectory(prefix="zerohop-run-") as folder, processes.stopped_by_signals():
        try:
            for rank in range(ranks):
                processes.start(argv, {RANK: str(rank), SIZE: str(ranks), STORE: folder})
            return processes.wait()
        except OSError as error:
            _say(f"error: rank {len(processes.all)} cannot be started: {error}")
            return _NO_COMMAND
        except _Stopped as stopped:
            return processes.stop(stopped.number)
        finally:
            processes.end()


class _Stopped(Exception):
    """Raised in the main thread by the first signal that is to end the ranks."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


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


class _Ranks:
    """Holds the processes."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []
        self._ending = False

    def start(self, argv: Sequence[str], told: dict[str, str]) -> None:
        """Start the next rank. The first one has the standard input."""
        stdin = subprocess.DEVNULL if self.all else None
        self.all.append(
            subprocess.Popen(
                argv,
                env={**os.environ, **told},
                stdin=stdin,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - no thread runs here that could hold a lock meanwhile
            )
        )

    def wait(self) -> int:
        """Wait until all have ended, or one has failed; return the exit status."""
        poll, numbers = select.poll(), {}
        for rank, process in enumerate(self.all):
            descriptor = os.pidfd_open(process.pid)
            numbers[descriptor] = rank
            poll.register(descriptor, select.POLLIN)
        try:
            while numbers:
                for descriptor, _ in poll.poll():
                    rank = numbers.pop(descriptor)
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    status = self.all[rank].wait()
                    if status:
                        return self._failed(rank, status, others=len(numbers))
        finally:
            for descriptor in numbers:
                os.close(descriptor)
        return 0

    def _failed(self, rank: int, status: int, *, others: int) -> int:
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        _say(f"rank {rank} has ended {how}" + ("; the others are ended now" if others else ""))
        return status if status > 0 else 128 - status

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Within, the first SIGINT, SIGTERM or SIGHUP raises _Stopped, unless the ranks are being ended already."""

        def handler(number: int, _: object) -> None:
            if not self._ending:
                self._ending = True
                raise _Stopped(number)

        before = {each: signal.signal(each, handler) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def stop(self, number: int) -> int:
        """Let the ranks end by themselves after a signal; return the exit status."""
        if number != signal.SIGINT:
            self._signal(number)
        self._wait_until(time.monotonic() + _GRACE_S)
        return 128 + number

    def end(self) -> None:
        """End those that still run: with SIGTERM, and with SIGKILL those that do not follow."""
        self._ending = True
        self._signal(signal.SIGTERM)
        self._wait_until(time.monotonic() + _GRACE_S)
        self._signal(signal.SIGKILL)
        for process in self.all:
            process.wait()

    def _signal(self, number: int) -> None:
        for process in self.all:
            process.send_signal(number)  # nothing, if it has ended

    def _wait_until(self, until: float) -> None:
        for process in self.all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))


def _end_with_parent() -> None:
    """Have the kernel end this process when the launcher is gone, also when that was killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _say(text: str) -> None:
    print(f"zerohop run: {text}", file=sys.stderr, flush=True)
