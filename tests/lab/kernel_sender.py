"""An endpoint for kernels, and a kernel that sends through it, which is a function for threads of the host."""

from __future__ import annotations

import ctypes
import random
import subprocess
from typing import TYPE_CHECKING, Any

from lab.fabric_pair import IMPATIENT, TIMEOUT, Buffer, Lab
from zerohop.device import include_dir
from zerohop.fabric import EndpointConfig

if TYPE_CHECKING:
    from pathlib import Path

KERNELS = """
#include "zerohop/device/work_queue.hpp"
using zerohop::device::Word;
using namespace zerohop::device::mlx5;
extern "C" Word send(const WorkQueue* queue, Word local, Word local_key, Word remote, Word remote_key, Word nbytes,
                     Word count) {
    Posted posted{};
    for (Word i = 0; i < count; ++i) {
        posted = PostWrite(queue, local + i * nbytes, static_cast<unsigned>(local_key), remote + i * nbytes,
                           static_cast<unsigned>(remote_key), nbytes);
        Word status = UpdateSendDbrRecord(queue, posted);
        status = status == 0 ? RingDoorbell(queue, posted) : status;
        if (status != 0) {
            return status;
        }
    }
    const Word status = PollCq(queue, posted);
    UpdateCqDbrRecord(queue);
    return status;
}
"""
CONFIG = EndpointConfig(max_messages=16, timeout=10, retry_count=2, rnr_retry=2, on_gpu=True)


def compiled(folder: Path) -> Any:
    """Return the kernel: of a queue, addresses and keys of both sides, bytes of a part, and the number of parts."""
    library = folder / "kernels.so"
    command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-I", include_dir(), "-x", "c++", "-"]
    subprocess.run([*command, "-o", str(library)], input=KERNELS, text=True, check=True, timeout=TIMEOUT)
    function: Any = ctypes.CDLL(str(library)).send
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_uint64] * 7
    return function


class Sender:
    """An endpoint for kernels, which is connected to one of the CPU's, with memory on both sides."""

    def __init__(self, lab: Lab, nbytes: int) -> None:
        self.near = lab.device.create_endpoint(CONFIG)
        self.far = lab.device.create_endpoint(IMPATIENT)
        self.near.connect(self.far.handle)
        self.far.connect(self.near.handle)
        self.source = Buffer(lab.context, lab.device, nbytes, "host", 0x11)
        self.target = Buffer(lab.context, lab.device, nbytes, "host", 0xA5)
        self.data = random.randbytes(nbytes)
        self.source.put(self.data)

    def arguments(self, offset: int, nbytes: int, count: int) -> tuple[int, ...]:
        there, region = self.target.remote(), self.source.region
        return region.addr + offset, region.lkey, there.addr + offset, there.rkey, nbytes, count

    def close(self) -> None:
        for each in (self.near, self.far, self.source, self.target):
            each.close()
