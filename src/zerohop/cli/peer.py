"""Runs the second process of the demo and of the benchmark, and the pipe that drives it.

The process is a fresh interpreter (`python -m MODULE`), never a fork: a library with its own threads must not be
forked. Commands and answers are lines of JSON on its standard input and output; the payload of the demo and the
benchmark never travels there.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

from zerohop import RemoteBuffer
from zerohop.errors import named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

Answer = dict[str, Any]
# Seconds for which the system waits at most in one call: it refuses very long ones.
_LONGEST_S: Final = 3600.0


class PeerFailed(RuntimeError):
    """Raised if the second process reports an error, ends, or does not answer in time; the text has its last words."""


class PeerProcess:
    """Starts ``python -m module`` and calls commands in it, one at a time."""

    def __init__(self, module: str, *, pass_fds: Sequence[int] = (), timeout: float = 60.0) -> None:
        """Start the process.

        Args:
            module: a module whose main part calls `serve`.
            pass_fds: descriptors that the process inherits under the same numbers.
            timeout: seconds that a command may take, unless the call says otherwise.
        """
        self._timeout = timeout
        # It needs no directory that may be written to, as a temporary file would.
        self._errors = os.fdopen(os.memfd_create("zerohop-last-words"), "w+b")
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            pass_fds=tuple(pass_fds),
            # Commands, answers and last words have an encoding of their own, whatever the user's terminal has.
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        )

    @property
    def pid(self) -> int:
        """Return the process id of the second process."""
        return self._process.pid

    def call(self, command: str, /, *, timeout: float | None = None, **arguments: Any) -> Answer:
        """Run a command in the second process, and return its answer.

        Raises:
            PeerFailed: see the class.
        """
        self.begin(command, **arguments)
        return self.finish(timeout=timeout)

    def begin(self, command: str, /, **arguments: Any) -> None:
        """Start a command in the second process without waiting; `finish` must follow."""
        line = json.dumps({"command": command, "arguments": arguments}) + "\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise PeerFailed(self._last_words("the second process has ended")) from error

    def finish(self, *, timeout: float | None = None) -> Answer:
        """Wait for the answer of the command that `begin` started."""
        answer: Answer = json.loads(self._line(self._timeout if timeout is None else timeout))
        if "error" in answer:
            raise PeerFailed(f"in the second process: {answer['error']}")
        result: Answer = answer["result"]
        return result

    def _line(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([fd], [], [], max(0.0, min(left, _LONGEST_S)))
            if not ready and left > _LONGEST_S:
                continue
            if not ready:
                raise PeerFailed(self._last_words(f"the second process did not answer within {timeout:.2g} s"))
            received = os.read(fd, 1 << 16)
            if not received:
                self._process.wait(5.0)
                raise PeerFailed(self._last_words(f"the second process ended ({_ending(self._process.returncode)})"))
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self, text: str) -> str:
        self._errors.seek(0)
        words = self._errors.read()[-2000:].decode(errors="replace").strip()
        return f"{text}; its last words:\n{words}" if words else text

    def close(self, timeout: float = 5.0) -> None:
        """End the process by closing its input, and after `timeout` seconds by killing it. Idempotent."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._errors.close()

    def __enter__(self) -> PeerProcess:  # noqa: PYI034 - typing.Self is younger than Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # After an error the other side may be in the middle of a command that nobody will answer.
        self.close(5.0 if kind is None else 0.5)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def commands_of(*holders: object) -> dict[str, Callable[..., Answer | None]]:
    """Return the public methods of objects, by name: the commands that they run."""
    return {
        name: getattr(holder, name)
        for holder in holders
        for name, member in vars(type(holder)).items()
        if callable(member) and not name.startswith("_")
    }


def accept(handle: str) -> RemoteBuffer:
    """Return the handle that came from the other process as hexadecimal text."""
    return RemoteBuffer.from_bytes(bytes.fromhex(handle))


def serve(commands: Mapping[str, Callable[..., Answer | None]]) -> None:
    """Answer commands from standard input until it is closed. All prints go to standard error meanwhile."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process handles Ctrl-C, and closes this one's input
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            result = commands[request["command"]](**request["arguments"])
        except Exception as error:  # noqa: BLE001 - every failure is an answer
            traceback.print_exc()
            told = named(error)
            answers.write(json.dumps({"error": f"{type(told).__name__}: {told}"}) + "\n")
        else:
            answers.write(json.dumps({"result": result or {}}) + "\n")
        answers.flush()
