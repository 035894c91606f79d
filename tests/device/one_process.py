"""`python -m device.one_process WAY [MODE]`: a kernel that sends from one Context of a process to another one.

WAY: how the kernel is compiled: "numba", "torch" (a C++ extension), or the scope of a kernel by CuPy, which then does
all that kernels can do. It ends with an error if a byte or a status is wrong.
"""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import zerohop as zh
from device.runners import OnGpu
from zerohop.device import OK, Queue, include_dir

if TYPE_CHECKING:
    from collections.abc import Callable

NBYTES = 100_000
AT = NBYTES - NBYTES % 8  # of the signal, behind the bytes
DEVICE = "cuda:0"

WRAPPER = """
#include "zerohop/device.hpp"
namespace zd = zerohop::device;
extern "C" __device__ int zh_send(unsigned long long* status, unsigned long long queue, unsigned long long nbytes,
                                  unsigned long long at) {
    const auto* q = reinterpret_cast<const zd::Queue*>(queue);
    *status = zd::put_signal(q, 0, 0, 0, 0, nbytes, at, 1);
    *status = *status == zd::kOk ? zd::flush(q, 0) : *status;
    return 0;
}
"""
EXTENSION = """
#include <torch/extension.h>
#include "zerohop/device.hpp"
namespace zd = zerohop::device;
__global__ void send_kernel(const zd::Queue* queue, long long* status, zd::Word nbytes, zd::Word at) {
    const zd::Word sent = zd::put_signal(queue, 0, 0, 0, 0, nbytes, at, 1);
    const zd::Word ended = sent == zd::kOk ? zd::flush(queue, 0) : sent;
    if (threadIdx.x == 0) {
        *status = static_cast<long long>(ended);
    }
}
void send(int64_t queue, torch::Tensor status, int64_t nbytes, int64_t at) {
    send_kernel<<<1, 128>>>(reinterpret_cast<const zd::Queue*>(queue),
                            reinterpret_cast<long long*>(status.data_ptr<int64_t>()), nbytes, at);
}
"""


def by_numba() -> Callable[[Queue, int, int], int]:
    os.environ["NUMBA_CUDA_NVRTC_EXTRA_SEARCH_PATHS"] = include_dir()
    import numpy as np
    from numba import cuda

    zh_send: Any = cuda.declare_device("zh_send", "uint64(uint64, uint64, uint64)", link=cuda.CUSource(WRAPPER))

    # Numba has no types of its own.
    @cuda.jit  # type: ignore[untyped-decorator,unused-ignore]
    def kernel(queue: Any, status: Any, nbytes: Any, at: Any) -> None:
        found = zh_send(queue, nbytes, at)
        if cuda.threadIdx.x == 0:
            status[0] = found

    def send(queue: Queue, nbytes: int, at: int) -> int:
        status = cuda.to_device(np.full(1, 99, np.uint64))
        kernel[1, 128](np.uint64(queue.pointer), status, np.uint64(nbytes), np.uint64(at))
        # The driver would start no copy for the proxy while a synchronous copy waits for the kernel.
        cuda.synchronize()
        return int(status.copy_to_host()[0])

    return send


def by_torch() -> Callable[[Queue, int, int], int]:
    import torch
    from torch.utils import cpp_extension

    extension: Any = cpp_extension
    module = extension.load_inline(
        "zerohop_device_test",
        cpp_sources="void send(int64_t queue, torch::Tensor status, int64_t nbytes, int64_t at);",
        cuda_sources=EXTENSION,
        functions=["send"],
        extra_include_paths=[include_dir()],
    )

    def send(queue: Queue, nbytes: int, at: int) -> int:
        status = torch.full((1,), 99, dtype=torch.int64, device=DEVICE)
        module.send(queue.pointer, status, nbytes, at)
        torch.cuda.synchronize()
        return int(status.item())

    return send


def everything(here: zh.Context, scope: str) -> Callable[[Queue, int, int], int]:
    """Return a function that runs every kernel; the last one puts and signals."""
    run = OnGpu(DEVICE, scope)
    report = here.alloc(16, DEVICE)

    def send(queue: Queue, nbytes: int, at: int) -> int:
        calls: list[tuple[Any, ...]] = [
            ("get", 0, 3, 1, 5, 20_001),
            ("signal", 0, at, 0),
            ("signal_add", 0, at, 5),
            ("fetch_add", 0, at, -5),
            ("compare_swap", 0, at, 0, 0),
            ("fence", 0),
            ("quiet",),
            ("put_blocks", 16, 3, at),
            ("wait_signal", 1, AT, 0, -1),
            ("put_signal", 0, 0, 0, 0, nbytes, at, 1),
            ("flush", 0),
        ]
        for name, *arguments in calls:
            report.fill(0)
            run(name, queue.pointer, report.address, tuple(arguments), 8 if name == "put_blocks" else 1)
            status = int.from_bytes(report.read_bytes(0, 8), "little")
            assert status == OK, f"{name}: {status}"
        return OK

    return send


def main(way: str, mode: Any = "peer") -> None:
    with ExitStack() as opened:
        here, there = (opened.enter_context(zh.Context()) for _ in range(2))
        source, inbox, own = here.alloc(NBYTES, DEVICE), there.alloc(AT + 8, DEVICE), here.alloc(AT + 8, DEVICE)
        data = secrets.token_bytes(NBYTES)
        source.write_bytes(0, data)
        inbox.fill(0xA5)
        own.fill(0)
        send = by_numba() if way == "numba" else by_torch() if way == "torch" else everything(here, way)
        queue = opened.enter_context(Queue(here, [inbox.share("rw")], [source, own], mode=mode, timeout=60.0))
        assert queue.modes == (mode,)
        with queue.active():
            status = send(queue, NBYTES - 1, AT)
        queue.check()
        assert status == OK, status
        assert inbox.read_bytes(AT, 8) == (1).to_bytes(8, "little")
        found = inbox.read_bytes(0, AT)
        assert found[: NBYTES - 1] == data[: NBYTES - 1]
        assert found[NBYTES - 1 :] == bytes([0xA5]) * (AT - NBYTES + 1)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
