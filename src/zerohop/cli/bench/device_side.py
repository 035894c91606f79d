"""Runs kernels that send, in Triton or C++, in either process of a benchmark, through a Queue to the other process."""

from __future__ import annotations

import ctypes
import functools
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop.cli.bench.tensors import import_torch
from zerohop.cli.payload import digest
from zerohop.core.base.importing import importing
from zerohop.device import OK, Queue, include_dir

if TYPE_CHECKING:
    import zerohop
    from zerohop.cli.payload import Octets

TRITON: Final = "triton"
CPP: Final = "c++"
PAYLOAD_AT: Final = 4096  # in an inbox, behind its signal
_POISON: Final = 0xA5
_OUT_BYTES: Final = 24
_WAIT_S: Final = 20.0  # of a kernel


class KernelFails(RuntimeError):
    """Raised if a kernel returned another status than OK."""


class Launcher:
    """Launches the kernels of `device_kernels.py` or `device_kernels.hpp` on one GPU, and waits for each."""

    def __init__(self, device: str, language: str) -> None:
        """Compile the kernels in C++; Triton compiles its own when they run first."""
        self._device = device
        self._language = language
        if language == CPP:
            self._open_cpp(int(device.partition(":")[2]))
        else:
            import_torch().cuda.set_device(device)

    def _open_cpp(self, number: int) -> None:
        with importing():
            from cuda import core
        self._core: Any = core
        self._gpu: Any = core.Device(number)
        self._gpu.set_current()
        self._stream = self._gpu.create_stream()
        source = Path(__file__).with_name("device_kernels.hpp").read_text("utf-8")
        options = core.ProgramOptions(std="c++17", arch=f"sm_{self._gpu.arch}", include_path=[include_dir()])
        self._code = core.Program(source, "c++", options).compile("cubin")

    @property
    def processors(self) -> int:
        """Return the number of multiprocessors."""
        properties = import_torch().cuda.get_device_properties(self._device)
        return int(properties.multi_processor_count)

    def __call__(self, name: str, blocks: int, warps: int, *arguments: int, how: int | None, block: int) -> int:
        """Launch a kernel, and wait for it; return how many nanoseconds that took.

        Args:
            name: of the kernel.
            blocks: how many, which Triton calls programs.
            warps: of each.
            arguments: those of both languages, each an integer.
            how: see `device_kernels`; None: the kernel does not ask.
            block: elements that a Triton program copies at a time; 0: the kernel does not ask.
        """
        if self._language == CPP:
            values = [ctypes.c_uint64(each) for each in (*arguments, *([] if how is None else [how]))]
            config = self._core.LaunchConfig(grid=blocks, block=32 * warps)
            kernel = self._code.get_kernel(name)
            self._gpu.set_current()
            begun = time.perf_counter_ns()
            self._core.launch(self._stream, config, kernel, *values)
            self._stream.sync()
            return time.perf_counter_ns() - begun
        from zerohop.cli.bench import device_kernels

        constants = {**({} if how is None else {"how": how}), **({"block": block} if block else {})}
        torch = import_torch()
        torch.cuda.set_device(self._device)
        begun = time.perf_counter_ns()
        getattr(device_kernels, name)[(blocks,)](*arguments, **constants, num_warps=warps)
        torch.cuda.synchronize()
        return time.perf_counter_ns() - begun


class KernelSide:
    """Holds one process's memory for kernels: what they send, and an inbox, which begins with a signal."""

    def __init__(self, context: zerohop.Context, device: str, nbytes: int, *, on_host: bool = False) -> None:
        """Allocate both, with room for `nbytes`; `on_host`: in memory of the host, though kernels run on a GPU."""
        self._context = context
        self.device = device
        place = "host" if on_host else device
        self.source = context.alloc(max(nbytes, 8), place)
        self.inbox = context.alloc(PAYLOAD_AT + nbytes, place)
        self._out = context.alloc(_OUT_BYTES, device)
        self._launcher = functools.cache(functools.partial(Launcher, device))
        self._queue: Queue | None = None
        self.clear()

    @property
    def queue(self) -> Queue:
        """Return the Queue, which `open` has made."""
        assert self._queue is not None
        return self._queue

    def open(self, remote: zerohop.RemoteBuffer, mode: Any) -> None:
        """Open the Queue to the other process's inbox."""
        self._queue = Queue(
            self._context, [remote], [self.source, self.inbox], mode=mode, device=self.device, timeout=_WAIT_S
        )

    def processors(self, language: str) -> int:
        """Return the number of multiprocessors of the GPU."""
        return self._launcher(language).processors

    def run(
        self,
        language: str,
        name: str,
        *arguments: int,
        blocks: int = 1,
        warps: int = 4,
        how: int | None = None,
        block: int = 0,
    ) -> int:
        """Run a kernel while the Queue is active; return its nanoseconds.

        They are those that the kernel has counted; if it has not, those from its launch to its end.

        Raises:
            KernelFails: its status is not OK.
        """
        self._out.fill(0)
        launcher = self._launcher(language)
        with self.queue.active():
            took = launcher(
                name, blocks, warps, self.queue.pointer, self._out.address, *arguments, how=how, block=block
            )
        status, begun, ended = struct.unpack("QQQ", self._out.read_bytes())
        self.queue.check()
        if status != OK:
            raise KernelFails(f"the kernel {name} in {language} ended with status {status}")
        return int(ended - begun) if ended else took

    def clear(self) -> None:
        """Make the signal zero, and poison the rest of the inbox."""
        self.inbox.fill(_POISON)
        self.inbox.write_bytes(0, bytes(PAYLOAD_AT))

    def put(self, data: Octets) -> None:
        """Fill the memory that kernels send from."""
        self.source.write_bytes(0, data.tobytes())

    def digest(self, nbytes: int) -> str:
        """Return the digest of the first bytes that kernels of the other process have put here."""
        return digest(np.frombuffer(self.inbox.read_bytes(PAYLOAD_AT, nbytes), np.uint8))

    def close(self) -> None:
        """Close the Queue and the memory."""
        if self._queue is not None:
            self._queue.close()
        for memory in (self.source, self.inbox, self._out):
            memory.close()
