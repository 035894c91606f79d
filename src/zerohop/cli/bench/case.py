"""Declares the description of one row to measure, and the numbers that plan, targets and documentation share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_KI, _MI = 1 << 10, 1 << 20
# The documentation of torchcomms' RdmaTransport: two hosts with H100 GPUs and NICs of 400 Gb/s.
# Median microseconds of a write, by number of bytes.
SEED_US: Final = {
    8 * _KI: 27.0,
    16 * _KI: 27.4,
    32 * _KI: 27.1,
    64 * _KI: 29.2,
    128 * _KI: 33.7,
    256 * _KI: 33.2,
    512 * _KI: 38.6,
    1 * _MI: 49.2,
    2 * _MI: 70.7,
    4 * _MI: 113.0,
    8 * _MI: 200.0,
    16 * _MI: 371.0,
    32 * _MI: 717.0,
    64 * _MI: 1409.0,
    128 * _MI: 2790.0,
    256 * _MI: 5552.0,
}
# Median microseconds to register 8 KiB and to deregister it.
_REGISTER_US: Final = {8 * _KI: 54.5}
SEED_SIZES: Final = tuple(SEED_US)
# Operations posted together, writes or tensors of one list, bytes of each such tensor, and pages of one list on a GPU.
TOGETHER: Final = 1000
LIST: Final = 10_000
TENSOR_BYTES: Final = 200_000
PAGES: Final = 4096
_OBJECTS_BYTES: Final = 512


def is_gpu(place: str | None) -> bool:
    """Tell whether a place is a real GPU."""
    return place is not None and place.partition(":")[0] in ("cuda", "hip")


@dataclass(frozen=True, slots=True)
class Case:
    """Describes one row to measure.

    Attributes:
        name: one of `plan.NAMES`, or "wheel".
        provider: one of `plan.PROVIDERS`, or None if no transfer is measured.
        src: place of the source: "host", "sim" or "sim:1", or a GPU such as "cuda:0".
        dst: place of the target.
        bytes: size of one operation, or of one page.
        batch: operations in flight, or pages in one operation.
        form: "mapped" (memory from `Context.alloc`), "ring" (any other host memory), "stream" (TCP) or "staged"
            (device memory).
        mode: how the callers wait ("result", "await", "await-asleep"); "cold", "cached", or a "list" of tensors;
            "expandable" for memory of PyTorch's expandable segments, where callers wait as in "result".
        target: "polling" if the target's Python waits while its Context spins, "asleep" if everything there sleeps;
            None: not controlled.
    """

    name: str
    provider: str | None = None
    src: str | None = None
    dst: str | None = None
    bytes: int = 0
    batch: int = 1
    form: str | None = None
    mode: str | None = None
    target: str | None = None

    @property
    def reads(self) -> bool:
        """Tell whether the bytes come to the process that asks for them."""
        return self.name in ("read", "read_pages", "transport_read")

    @property
    def on_gpu(self) -> bool:
        """Tell whether the bytes come from a real GPU, or go to one."""
        return is_gpu(self.src) or is_gpu(self.dst)

    @property
    def between_gpus(self) -> bool:
        """Tell whether the bytes come from a real GPU and go to one, possibly the same."""
        return is_gpu(self.src) and is_gpu(self.dst)

    @property
    def seed_us(self) -> float | None:
        """Return the documented median for a row of a Transport; None if there is none, as for reads."""
        table = {"transport_write": SEED_US, "transport_register": _REGISTER_US}.get(self.name, {})
        return table.get(self.bytes)

    @property
    def sim_devices(self) -> int:
        """Return the number of simulated GPUs that each process needs."""
        places = [place.partition(":") for place in (self.src, self.dst) if place is not None]
        return max((int(number or 0) + 1 for kind, _, number in places if kind == "sim"), default=0)

    @property
    def memory_bytes(self) -> int:
        """Return the least memory that measuring takes, in both processes together."""
        if self.provider is None:
            return self.bytes if self.name.endswith("register") else 0
        # The source, the target and the payload that they are compared with; and an object or two per operation.
        many = ("write", "read", "transport_write_many")
        objects = _OBJECTS_BYTES * self.batch if self.name in many else 0
        return 3 * self.bytes * self.batch + objects
