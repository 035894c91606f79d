"""The other process of tests of torchcomms' names: written as torchcomms' users write theirs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np

from support.patience import ANSWER_S
from support.pattern import pattern

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from zerohop.compat.torchcomms import RdmaTransport


def serve(pipe: Connection, nbytes: int, pushes: bool, device: str, tensors: bool) -> None:
    """Gives its URL and its memory, and waits to be told that it was written to; or writes itself."""
    from zerohop.compat.torchcomms import RdmaMemory, RdmaTransport

    source: Any = pattern(2, nbytes).copy() if pushes else np.zeros(nbytes, np.uint8)
    if tensors:
        import torch

        source = torch.from_numpy(source).to(device)
        if source.is_cuda:
            torch.cuda.synchronize(device)  # what fills it is only queued
        transport = RdmaTransport(torch.device(device))
    else:
        transport = RdmaTransport(device)
    memory = RdmaMemory(source)
    url, remote = pipe.recv()
    pipe.send((transport.bind(), memory.to_remote_buffer()))
    code = transport.connect(url)
    if pushes:
        code = code or transport.write(memory.to_view(), remote)
    pipe.send((code, transport.connected()))
    pipe.recv()
    pipe.send((source.cpu().numpy() if tensors else source).tobytes())
    pipe.recv()


class Far:
    """The other process, from here."""

    def __init__(self, process: multiprocessing.process.BaseProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe

    def tell(self, message: object) -> None:
        self._pipe.send(message)

    def hear(self) -> Any:
        assert self._pipe.poll(ANSWER_S), "the other process says nothing"
        return self._pipe.recv()

    def kill(self) -> None:
        """It is gone when this returns."""
        self._process.kill()
        self._process.join(ANSWER_S)
        assert self._process.exitcode is not None

    def stop(self) -> None:
        """It stands still when this returns."""
        pid = self._process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)


@contextlib.contextmanager
def other_process(nbytes: int, *, pushes: bool = False, device: str = "cpu", tensors: bool = False) -> Iterator[Far]:
    """A process that runs `serve`; it is gone afterwards, whatever happened."""
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs, nbytes, pushes, device, tensors), daemon=True)
    process.start()
    theirs.close()
    far = Far(process, pipe)
    try:
        yield far
    finally:
        far.kill()
        pipe.close()


@contextlib.contextmanager
def own_shared_context() -> Iterator[None]:
    """Within, the process's Context is as a process finds it, and none is left."""
    import gc

    from zerohop.compat import process

    process._reset_after_fork()
    try:
        yield
    finally:
        gc.collect()
        context = process._process.context
        if context is not None:
            context.close()
        process._reset_after_fork()


def pair(device: Any = "cpu", other: Any = "cpu") -> tuple[RdmaTransport, RdmaTransport]:
    """Two that are connected to each other, in this process."""
    from zerohop.compat.torchcomms import RdmaTransport

    here, there = RdmaTransport(device), RdmaTransport(other)
    url, other_url = here.bind(), there.bind()
    assert (here.connect(other_url), there.connect(url)) == (0, 0)
    assert here.connected()
    assert there.connected()
    return here, there
