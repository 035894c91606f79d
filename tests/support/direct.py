"""Two ranks with memory of GPUs, and what a receiver does when it is about to read a long message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.patience import PATIENCE_S
from support.pattern import pattern
from support.sizes import MIB
from zerohop.group import direct

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    import zerohop as zh

NBYTES = 3 * MIB + 5


class Ends:
    """Memory of a GPU at two ranks: the source is full of a pattern, and the target of something else."""

    def __init__(self, both: list[zh.Group], gpu: str, nbytes: int = NBYTES) -> None:
        self.source = both[0].context.alloc(nbytes, gpu)
        self.target = both[1].context.alloc(nbytes, gpu)
        self.bytes = pattern(7, nbytes).tobytes()
        self.source.write_bytes(0, self.bytes)
        self.target.fill(0xEE)

    def expect(self, nbytes: int = NBYTES) -> None:
        assert self.target.read_bytes(0, nbytes) == self.bytes[:nbytes]
        assert self.target.read_bytes(nbytes) == b"\xee" * (self.target.nbytes - nbytes)


def read_by_devices(group: zh.Group) -> int:
    connection = group.connect(1 - group.rank).result(PATIENCE_S)
    return connection.statistics().get("bytes_copied_by_devices", 0)


def before_reading(monkeypatch: pytest.MonkeyPatch, act: Callable[[zh.RemoteBuffer], object]) -> None:
    """Have something done when a rank is about to read a message."""
    read = direct.read

    def acting(core: Any, remote: zh.RemoteBuffer, *rest: Any) -> zh.Operation[int]:
        act(remote)
        return read(core, remote, *rest)

    monkeypatch.setattr(direct, "read", acting)
