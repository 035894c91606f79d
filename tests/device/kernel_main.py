"""`python -m device.kernel_main FD`: a process with a Context, and with kernels that one of the `runners` runs."""

from __future__ import annotations

import struct
import sys
import threading
import time
import traceback
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zerohop as zh
from device.runners import runner
from support.patience import PATIENCE_S, patience
from zerohop.device import Queue

LIMIT_S = patience(10.0)


class Main:
    """Serves the calls that a test may make in this process."""

    def __init__(self) -> None:
        self.memories: list[zh.Memory] = []
        self.queues: list[Queue] = []

    def open(self, language: str, device: str, **settings: Any) -> str:
        self.device = device
        self.runner = runner(language, device)
        self.context = zh.Context(**settings)
        self.report = self.context.alloc(16, device)
        return self.context.url

    def alloc(self, nbytes: int, device: str | None = None) -> int:
        self.memories.append(self.context.alloc(nbytes, device or self.device))
        return len(self.memories) - 1

    def share(self, number: int, rights: Any = "rw") -> bytes:
        return bytes(self.memories[number].share(rights))

    def revoke(self, number: int, timeout: float = PATIENCE_S) -> None:
        self.memories[number].revoke(timeout=timeout)

    def write(self, number: int, offset: int, data: bytes) -> None:
        self.memories[number].write_bytes(offset, data)

    def read(self, number: int, offset: int = 0, nbytes: int | None = None) -> bytes:
        return self.memories[number].read_bytes(offset, nbytes)

    def queue(self, peers: list[bytes], local: list[int], **options: Any) -> tuple[str, ...]:
        handles = [zh.RemoteBuffer.from_bytes(each) for each in peers]
        options.setdefault("device", self.device)
        queue = Queue(self.context, handles, [self.memories[each] for each in local], **options)
        self.queues.append(queue)
        return queue.modes

    def get(self, handle: bytes, into: int) -> None:
        """Read a peer's memory by the Context, without a kernel."""
        remote = zh.RemoteBuffer.from_bytes(handle)
        self.context.read(remote, self.memories[into][: remote.nbytes]).result()

    def stay_active(self, limit: float, started: str, path: str) -> None:
        """Let kernels use the Queue, which the file `started` tells, until there is a file `path`."""
        with self.queues[-1].active():
            Path(started).touch()
            until = time.monotonic() + limit
            while not Path(path).exists():
                assert time.monotonic() < until
                time.sleep(0.01)  # the test makes the file, and no event tells of that

    def taken(self) -> int:
        return self.queues[-1].taken

    def run(self, name: str, *arguments: int, active: bool = True) -> tuple[int, int]:
        queue = self.queues[-1]
        self.report.fill(0xEE)
        with queue.active() if active else nullcontext():
            self.runner(name, queue.pointer, self.report.address, arguments)
        status, value = struct.unpack("qq", self.report.read_bytes())
        return status, value

    def run_blocks(self, name: str, blocks: int, *arguments: int) -> tuple[int, int]:
        """Run a kernel whose blocks write a report only if something is wrong."""
        queue = self.queues[-1]
        self.report.fill(0)
        with queue.active():
            self.runner(name, queue.pointer, self.report.address, arguments, blocks)
        status, block = struct.unpack("qq", self.report.read_bytes())
        return status, block

    def replay(self, times: int, first: int, nbytes: int) -> tuple[int, int]:
        """Capture a kernel in a CUDA graph, and replay it; the first run of the kernel is none of the graph's."""
        import torch

        from device import kernels

        queue, counter = self.queues[-1], self.context.alloc(8, self.device)
        counter.fill(0)
        arguments = (queue.pointer, self.report.address, counter.address, first, nbytes)
        graph = torch.cuda.CUDAGraph()
        with queue.active():
            kernels.echo[(1,)](*arguments)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                kernels.echo[(1,)](*arguments)
            for _ in range(times - 1):
                graph.replay()
            torch.cuda.synchronize()
        status, turn = struct.unpack("qq", self.report.read_bytes())
        return status, turn

    def run_once(self, peers: list[bytes], local: list[int], mode: Any, name: str, *arguments: int) -> tuple[int, int]:
        """Run a kernel on a Queue that is closed at once."""
        self.queue(peers, local, mode=mode, timeout=LIMIT_S)
        with self.queues[-1]:
            return self.run(name, *arguments)

    def fails(self, name: str, *arguments: Any, **options: Any) -> str:
        try:
            getattr(self, name)(*arguments, **options)
        except zh.ZerohopError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def processor_seconds(self, seconds: float) -> float:
        """Return the processor time that this process takes while it does nothing for so long."""
        begin = time.process_time()
        time.sleep(seconds)  # the measured time
        return time.process_time() - begin

    def check(self) -> str:
        try:
            self.queues[-1].check()
        except zh.ZerohopError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def close_queue(self) -> None:
        self.queues[-1].close()

    def close_queue_later(self, seconds: float) -> None:
        threading.Timer(seconds, self.queues[-1].close).start()


def main() -> None:
    served = Main()
    with Connection(int(sys.argv[1])) as pipe:
        while True:
            try:
                name, arguments, options = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send((True, getattr(served, name)(*arguments, **options)))
            except Exception:  # whatever a call raises, the test is told, and decides
                pipe.send((False, traceback.format_exc()))


if __name__ == "__main__":
    main()
