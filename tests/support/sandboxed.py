"""What a peer process does in a sandbox that refuses it a system call, and how each of its steps ends."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, overload

import numpy as np

import zerohop as zh
from support import seccomp
from support.outcomes import Outcome, outcome_of
from support.patience import ANSWER_S, patience

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.options import Options

T = TypeVar("T")
# When the sandbox closes: before the Context opens, before it has met a peer, or once all has worked.
Moment = Literal["opening", "opened", "used"]
# What each operation may take.
LIMIT_S: Final = patience(1.0)
_NBYTES: Final = 4096


class Step(NamedTuple):
    """One call of a user's: how it ended, and after how many seconds."""

    name: str
    outcome: Outcome
    seconds: float


class _Steps:
    def __init__(self) -> None:
        self.taken: list[Step] = []

    def take(self, name: str, action: Callable[[], T]) -> T | None:
        """Do it, and note how it ended; None where it has failed."""
        started = time.monotonic()
        value, error = None, None
        try:
            value = action()
        except Exception as raised:
            error = raised
        self.taken.append(Step(name, outcome_of(error), time.monotonic() - started))
        return value


def report_without_write(error: int, moment: Moment, options: Options, url: str, handles: dict[str, bytes]) -> None:
    """Do what ``Sandboxed.live_without`` does, refused write(), and tell stdout of the steps by another call."""
    alone = Sandboxed()
    alone.context = options.open()
    steps = alone.live_without("write", error, moment, options, url, handles)
    os.writev(1, [pickle.dumps(steps)])
    os._exit(0)


class Sandboxed:
    """Mixed into Service."""

    context: zh.Context

    def forbid(self, call: str, error: int = errno.EPERM) -> None:
        """Let a system call fail from now on, as in a sandbox; on this thread and those that it starts."""
        seccomp.forbid(call, error)

    def forbid_everywhere(self, call: str, error: int = errno.EPERM) -> None:
        """Let a system call of any thread fail from now on."""
        seccomp.forbid(call, error, everywhere=True)

    def leave_root(self, path: str) -> None:
        """Have another root from now on, as a service does that locks itself in."""
        os.chroot(path)
        os.chdir("/")

    def live_without(
        self, call: str, error: int, moment: Moment, options: Options, url: str, handles: dict[str, bytes]
    ) -> list[Step]:
        """Open a Context, use it for all that there is, and close it, in a process that is refused the call from some
        moment on; `handles` are to memory of the peer at the URL, by their kind."""
        steps = _Steps()
        self.context.close()
        if moment == "opening":
            seccomp.forbid(call, error, everywhere=True)
        context = steps.take("open", options.open)
        if context is None:
            return steps.taken
        if moment == "used":
            _use(_Steps(), context, url, handles)
        if moment != "opening":
            seccomp.forbid(call, error, everywhere=True)
        _use(steps, context, url, handles)
        steps.take("close", lambda: context.close(LIMIT_S))
        return steps.taken


def _use(steps: _Steps, context: zh.Context, url: str, handles: dict[str, bytes]) -> None:
    made: list[Any] = [
        steps.take("alloc", lambda: context.alloc(_NBYTES)),
        steps.take("alloc on a device", lambda: context.alloc(_NBYTES, device="sim:0")),
        steps.take("register", lambda: context.register(np.zeros(_NBYTES, np.uint8))),
    ]
    memory = next((each for each in made if each is not None), np.zeros(_NBYTES, np.uint8))
    if isinstance(memory, zh.Memory):
        steps.take("share", lambda: memory.share("rw"))
    steps.take("connect", lambda: context.connect(url, timeout=LIMIT_S).result())
    for kind, handle in handles.items():
        there = zh.RemoteBuffer.from_bytes(handle)
        steps.take(f"read {kind}", partial(_read, context, there, memory))
    steps.take(
        "notify", lambda: context.notify(context.connect(url, timeout=LIMIT_S).result(), 7, timeout=LIMIT_S).result()
    )
    steps.take("close memory", lambda: [each.close() for each in made if each is not None])


def _read(context: zh.Context, there: zh.RemoteBuffer, memory: Any) -> None:
    context.read(there, memory, timeout=LIMIT_S).result()


@overload
def run_program(program: str, *arguments: str, text: Literal[True] = ...) -> subprocess.CompletedProcess[str]: ...
@overload
def run_program(program: str, *arguments: str, text: Literal[False]) -> subprocess.CompletedProcess[bytes]: ...
def run_program(program: str, *arguments: str, text: bool = True) -> subprocess.CompletedProcess[Any]:
    """Run a program that may import `support`, in a process of its own, which it may then close in."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(seccomp.__file__).parents[1])},
        capture_output=True,
        text=text,
        timeout=ANSWER_S,
        check=False,
    )
