"""The other side of a transfer: a peer process of its own, or a second Context in this process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import traceback
from abc import ABC, abstractmethod
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from support.messages import Command, Failure, Result
from support.nursery import NURSERY
from support.outcomes import Outcome, outcome_of
from support.patience import ANSWER_S, PATIENCE_S
from support.service import Identity, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.options import Options

P = ParamSpec("P")
T = TypeVar("T")


class RemoteError(Exception):
    """A call on the other side raised; `outcome` says what."""

    def __init__(self, outcome: Outcome, trace: str) -> None:
        super().__init__(f"{outcome.kind}: {outcome.text}\n{trace}")
        self.outcome = outcome


class PeerGoneError(Exception):
    """The peer process ended, or said nothing in time; the text carries what it wrote to stderr."""


class Job(ABC, Generic[T]):
    """A call that goes on at the other side."""

    @abstractmethod
    def result(self, timeout: float = ANSWER_S) -> T:
        """What the call returned. Raises RemoteError when it raised."""


class Remote(ABC):
    """The other side. One call at a time."""

    identity: Identity

    @abstractmethod
    def start(self, method: Callable[Concatenate[Service, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Begin the call and return."""

    def call(self, method: Callable[Concatenate[Service, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.start(method, *args, **kwargs).result()


class Neighbour(Remote):
    """A second Context in this process."""

    def __init__(self, options: Options) -> None:
        self._service = Service(options)
        self.identity = self._service.identity()

    def call(self, method: Callable[Concatenate[Service, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self._service, *args, **kwargs)

    def start(self, method: Callable[Concatenate[Service, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        return _ThreadJob(lambda: method(self._service, *args, **kwargs))

    def finish(self) -> None:
        self._service.shutdown()


class _ThreadJob(Job[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._value: list[T] = []
        self._failure: RemoteError | None = None
        self._thread = threading.Thread(target=self._run, name="neighbour", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._work())
        except Exception as error:
            self._failure = RemoteError(outcome_of(error), traceback.format_exc())

    def result(self, timeout: float = ANSWER_S) -> T:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"not done within {timeout} s"
        if self._failure is not None:
            raise self._failure
        return self._value[0]


class Peer(Remote):
    """A process with one Context, which `open` gives it. `finish` ends it in good order, `reap` in any case."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by reap
        self._pending: _PipeJob[Any] | None = None
        self._stopped = self._killed = False
        # Its own: a killed process leaves its sockets behind, which is nobody's leak.
        self._runtime = Path(tempfile.mkdtemp(prefix="zh-peer-"))
        with theirs:
            self._process = NURSERY.bear(theirs.fileno(), self._errors.fileno(), self._runtime)
        self.pid = self._process.pid

    def open(self, options: Options) -> Peer:
        """Open its Context; returns itself. The process is gone when that fails."""
        try:
            self._pipe.send(options)
            opened: _PipeJob[Identity] = _PipeJob(self)
            self._pending = opened
            self.identity = opened.result()
        except BaseException:
            self.reap()
            raise
        return self

    def start(self, method: Callable[Concatenate[Service, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        assert self._pending is None, "the peer is busy"
        try:
            self._pipe.send(Command(method.__name__, args, kwargs))
        except BrokenPipeError:
            raise self.gone("is not there any more") from None
        job: _PipeJob[T] = _PipeJob(self)
        self._pending = job
        return job

    def stop(self) -> None:
        """SIGSTOP; returns when the process has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)
        self._stopped = True

    def resume(self) -> None:
        self._stopped = False
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns at once, before the kernel has torn the process down."""
        self._killed = True
        os.kill(self.pid, signal.SIGKILL)

    @property
    def idle(self) -> bool:
        """Whether it is there, runs, and has answered everything."""
        return self._process.poll() is None and self._pending is None and not self._stopped and not self._killed

    def clear(self) -> None:
        """Have it close its Context; `open` gives it another. Raises PeerGoneError when something is left behind."""
        self.call(Service.shutdown)
        self._expect_nothing_left()

    def finish(self) -> None:
        """Have it close its Context and end; raises PeerGoneError unless it ends well and leaves nothing behind."""
        try:
            self._pipe.send(None)
            if self._process.wait(ANSWER_S) != 0:
                raise self.gone("did not end well")
            self._expect_nothing_left()
        except (BrokenPipeError, subprocess.TimeoutExpired):
            raise self.gone("did not end") from None
        finally:
            self.reap()

    def reap(self) -> None:
        """The process is gone afterwards, whatever state it was in. Only ever this one."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._pipe.close()
        self._errors.close()
        shutil.rmtree(self._runtime, ignore_errors=True)

    def _expect_nothing_left(self) -> None:
        left = list(self._runtime.iterdir())
        if left:
            raise self.gone(f"left {left} behind")

    def gone(self, what: str) -> PeerGoneError:
        """The exception that tells what became of the process, after having it say where its threads are."""
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            os.kill(self.pid, signal.SIGABRT)  # faulthandler prints every thread's stack
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return PeerGoneError(f"peer {self.pid} {what} (exit {code}); it wrote:\n{self.said()[-8000:]}")

    def said(self) -> str:
        """Return all that it has written to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


class _PipeJob(Job[T]):
    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def result(self, timeout: float = ANSWER_S) -> T:
        peer = self._peer
        try:
            if not peer._pipe.poll(timeout):
                raise peer.gone(f"gave no answer within {timeout} s")
            answer: Result | Failure = peer._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise peer.gone("ended in the middle of a call") from None
        peer._pending = None
        if isinstance(answer, Failure):
            raise RemoteError(answer.outcome, answer.trace)
        value: T = answer.value
        return value


def finish_all(peers: Sequence[Peer]) -> None:
    """Reap all of them, even where one fails to finish; then raise the first failure."""
    failures = []
    for peer in peers:
        try:
            if peer.idle:
                peer.finish()
            else:
                peer.reap()
        except PeerGoneError as error:
            failures.append(error)
    if failures:
        raise failures[0]
