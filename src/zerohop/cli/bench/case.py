"""Declares the description of one row to measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_OBJECTS_BYTES: Final = 512


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
