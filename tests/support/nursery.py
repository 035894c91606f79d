"""Where peer processes come from: a process that has imported everything, and forks each of them.

A fork takes milliseconds where starting the interpreter and importing the library takes a third of a second, and ten
in the lab. The nursery itself opens nothing: what it forks is as fresh as a process that was just started.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
_PR_SET_CHILD_SUBREAPER = 36
MOST_BYTES = 1 << 20


class Child:
    """A process that was born in the nursery, but whose parent is this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """How it ended, as `subprocess` says it; None when it has not."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended; subprocess.TimeoutExpired when that takes longer."""
        if self._code is None and timeout is not None:
            ended = os.pidfd_open(self.pid)
            try:
                if not select.select([ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(f"peer {self.pid}", timeout)
            finally:
                os.close(ended)
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def kill(self) -> None:
        os.kill(self.pid, 9)


class Nursery:
    """One per test process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def start(self) -> None:
        """Idempotent."""
        if self._process is not None:
            return
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-X", "faulthandler", "-m", "support.peer_main", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # A process with one thread is what may fork.
                env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            )
        atexit.register(self.stop)

    def stop(self) -> None:
        """Idempotent."""
        if self._process is not None and self._requests is not None:
            self._requests.close()
            self._process.wait()
            self._process = self._requests = None

    def bear(self, pipe: int, errors: int, runtime: Path) -> Child:
        """A process that serves the pipe's other end, writes to `errors`, and has the environment that this one has,
        but for its runtime directory."""
        with self._lock:
            self.start()
            assert self._requests is not None
            wish = pickle.dumps({**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
            assert len(wish) < MOST_BYTES
            # Its parent ends at once, and what is orphaned then becomes our child. For this moment only: whatever else
            # is orphaned would wait for us to drain it.
            _adopt(True)
            try:
                socket.send_fds(self._requests, [wish], [pipe, errors])
                answer = self._requests.recv(64)
            finally:
                _adopt(False)
        if not answer:
            raise RuntimeError("the process that starts peers is gone")
        return Child(int(answer))


def _adopt(orphans: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans))


NURSERY = Nursery()
