"""Processes whose kernels Triton's interpreter runs."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]


class KernelProcess:
    """A process with a Context and kernels. One call at a time."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(TESTS)}
        with theirs:
            command = [sys.executable, "-m", "device.kernel_main", str(theirs.fileno())]
            self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])

    def start(self, name: str, *arguments: Any, **options: Any) -> None:
        self._pipe.send((name, arguments, options))

    def result(self, timeout: float = ANSWER_S) -> Any:
        assert self._pipe.poll(timeout), "no answer in time"
        well, value = self._pipe.recv()
        assert well, value
        return value

    def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.start(name, *arguments, **options)
        return self.result()

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def reap(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()


class Launcher:
    """Starts processes, which `reap` ends."""

    def __init__(self) -> None:
        self._started: list[KernelProcess] = []

    def __call__(self, **settings: Any) -> KernelProcess:
        process = KernelProcess()
        self._started.append(process)
        process("open", **settings)
        return process

    def reap(self) -> None:
        for process in self._started:
            process.reap()


@pytest.fixture
def launch() -> Iterator[Launcher]:
    """Starts a process for this test, and opens its Context with these settings."""
    launcher = Launcher()
    yield launcher
    launcher.reap()


@pytest.fixture(scope="module")
def launch_for_all() -> Iterator[Launcher]:
    """Starts processes that the tests of a file share."""
    launcher = Launcher()
    yield launcher
    launcher.reap()
