"""Processes that run kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.patience import ANSWER_S, patience

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]
STARTS_S = patience(60.0)  # kernels are compiled


class KernelProcess:
    """A process with a Context, and kernels for a device. One call at a time."""

    def __init__(self, device: str) -> None:
        self._pipe, theirs = Pipe()
        environment = {**os.environ, "TRITON_INTERPRET": str(int(device == "host")), "PYTHONPATH": str(TESTS)}
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

    def __call__(self, language: str, device: str = "host", **settings: Any) -> KernelProcess:
        """Start a process that runs kernels of a language on a device, and give the settings to its Context."""
        process = KernelProcess(device)
        self._started.append(process)
        process.start("open", language, device, **settings)
        process.result(STARTS_S)
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
def launch_for_all(way: Any) -> Iterator[Launcher]:
    """Starts processes that the tests of one way share."""
    launcher = Launcher()
    yield launcher
    launcher.reap()
