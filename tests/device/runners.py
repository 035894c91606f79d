"""Runs the kernels of `kernels.py` and of `kernels.hpp`: by Triton or its interpreter, by CuPy, or as threads."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from support.patience import patience
from zerohop.device import include_dir

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(__file__).with_name("kernels.hpp")
THREADS = {"thread": 1, "warp": 32, "block": 256}


class Runner(Protocol):
    def __call__(self, name: str, queue: int, report: int, arguments: tuple[int, ...], blocks: int = 1) -> None:
        """Run a kernel to its end, in so many blocks: programs, or threads of the host."""


class InTriton:
    """Runs kernels by Triton, on a GPU; or on the host, by its interpreter."""

    def __init__(self, device: str) -> None:
        from device import kernels

        self._kernels = kernels
        self._wait: Callable[[], None] = lambda: None
        if device != "host":
            import torch

            torch.cuda.set_device(device)
            self._wait = torch.cuda.synchronize

    def __call__(self, name: str, queue: int, report: int, arguments: tuple[int, ...], blocks: int = 1) -> None:
        getattr(self._kernels, name)[(blocks,)](queue, report, *arguments)
        self._wait()


class OnHost:
    """Compiles kernels for the host, and runs each block in a thread."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "kernels.so"
            command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-DSCOPE=thread", "-I", include_dir()]
            command += ["-x", "c++", str(SOURCE), "-o", str(library)]
            subprocess.run(command, check=True, timeout=patience(60))
            self._library = ctypes.CDLL(str(library))

    def __call__(self, name: str, queue: int, report: int, arguments: tuple[int, ...], blocks: int = 1) -> None:
        numbers = [ctypes.c_uint64(each & (1 << 64) - 1) for each in (queue, report, *arguments)]

        def run(block: int) -> None:
            self._library.set_block(ctypes.c_uint64(block))
            getattr(self._library, name)(*numbers)

        with ThreadPoolExecutor(blocks) as pool:
            for _ in pool.map(run, range(blocks)):
                pass


class OnGpu:
    """Compiles kernels by CuPy, which asks NVRTC, and runs them on a GPU."""

    def __init__(self, device: str, scope: str) -> None:
        import cupy

        self._cupy: Any = cupy
        self._threads = THREADS[scope]
        self._device = cupy.cuda.Device(int(device.partition(":")[2]))
        self._device.use()
        options = ("-std=c++17", f"-I{include_dir()}", f"-DSCOPE={scope}")
        self._module = cupy.RawModule(code=SOURCE.read_text("utf-8"), options=options)

    def __call__(self, name: str, queue: int, report: int, arguments: tuple[int, ...], blocks: int = 1) -> None:
        self._device.use()
        numbers = [self._cupy.uint64(each & (1 << 64) - 1) for each in (queue, report, *arguments)]
        self._module.get_function(name)((blocks,), (self._threads,), tuple(numbers))
        self._device.synchronize()


def runner(language: str, device: str) -> Runner:
    """Return the runner of a language, "triton" or the scope of a C++ kernel, and a device."""
    if language == "triton":
        return InTriton(device)
    return OnHost() if device == "host" else OnGpu(device, language)
