"""What a Context says of its devices and of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Device(NamedTuple):
    """An accelerator of this Context.

    Attributes:
        name: what ``alloc`` and ``register`` take, such as ``"sim:0"``.
        kind: of driver: ``"sim"``, ``"cuda"``, ``"hip"``.
        capabilities: what it can do, by name.
        pci_address: empty for one that is not on a bus.
        total_bytes: its memory.
    """

    name: str
    kind: str
    capabilities: tuple[str, ...]
    pci_address: str
    total_bytes: int


class Statistics(NamedTuple):
    """Counters of a Context.

    Attributes:
        connections: peers that it is connected to.
        registrations: registered regions, cached ones included.
        pinned: Memories that are gone and whose memory transfers, peers or devices still use.
        shares: handles that can be used.
        mapped: peers' memories that are mapped here, or that a NIC here reaches by their keys.
        routes: pairs (memory, remote memory) whose path is chosen.
        engine: counters of the data plane, by name.
    """

    connections: int
    registrations: int
    pinned: int
    shares: int
    mapped: int
    routes: int
    engine: Mapping[str, int]
