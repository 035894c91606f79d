"""Memory regions of a device that is not there, for whatever needs none."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from zerohop.fabric import Access, MemoryRegion
from zerohop.fabric.resource import Resource

if TYPE_CHECKING:
    from zerohop._native import FabricRegion
    from zerohop.fabric import DeviceContext


class Parent(Resource):
    """In place of a device context."""

    __slots__ = ()

    _kind = "Parent"
    _copy_refusal = "a Parent stays"


class NativeRegion:
    """In place of a registration; says when it was closed or abandoned."""

    local_key = 11
    remote_key = 22
    how = "not at all"

    def __init__(self, said: list[str] | None = None, name: str = "region") -> None:
        self.said = [] if said is None else said
        self.name = name

    def close(self) -> None:
        self.said.append(f"{self.name} closed")

    def abandon(self) -> None:
        self.said.append(f"{self.name} abandoned")


def region(
    nbytes: int = 64,
    access: Access = Access.LOCAL_WRITE,
    device: str = "host",
    *,
    parent: Resource | None = None,
    native: NativeRegion | None = None,
    keep: object = None,
) -> MemoryRegion:
    parent = Parent(None) if parent is None else parent
    return MemoryRegion(
        cast("DeviceContext", parent),
        cast("FabricRegion", NativeRegion() if native is None else native),
        0x1000,
        nbytes,
        access,
        device,
        keep,
    )
