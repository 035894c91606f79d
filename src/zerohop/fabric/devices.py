"""RDMA devices and their ports, as values: what verbs says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

LinkLayer = Literal["InfiniBand", "Ethernet", "unknown"]


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an RDMA device, as it was when it was asked.

    Attributes:
        number: 1, 2, ...
        state: ``"ACTIVE"``, ``"DOWN"``, ``"INIT"``, ``"ARMED"``, ``"ACTIVE_DEFER"`` or ``"unknown"``.
        link_layer: ``"InfiniBand"``, ``"Ethernet"`` (RoCE) or ``"unknown"``.
        lid: the subnet manager's local id; 0 on Ethernet.
        max_mtu: bytes of payload in one packet, at most.
        active_mtu: bytes of payload in one packet now.
        max_message: bytes of the longest message.
        gid_entries: length of the GID table, empty entries included.
    """

    number: int
    state: str
    link_layer: LinkLayer
    lid: int
    max_mtu: int
    active_mtu: int
    max_message: int
    gid_entries: int

    @property
    def active(self) -> bool:
        """Traffic can flow."""
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a device can do at most.

    Attributes:
        queue_pairs: of the device.
        requests: outstanding in one send or receive queue.
        sge: local ranges of one request.
        completions: entries of one completion queue.
        regions: registrations.
        region_bytes: of one registration.
        read_credit: RDMA reads and atomics that one queue pair answers at once.
        atomics: ``"none"``; ``"hca"``: atomic among the queue pairs of this device; ``"global"``: also against the CPU.
    """

    queue_pairs: int
    requests: int
    sge: int
    completions: int
    regions: int
    region_bytes: int
    read_credit: int
    atomics: Literal["none", "hca", "global"]


@dataclass(frozen=True, slots=True)
class Device:
    """One RDMA device.

    Attributes:
        name: ``"mlx5_0"``, ``"rxe0"``, ...
        why_not: empty, or why it cannot be opened; then the other fields are empty.
        guid: node GUID, unique among devices: four groups of four hexadecimal digits.
        firmware: version of its firmware; empty for a software device.
        vendor: PCI vendor id.
        part: the vendor's number for the kind of device.
        limits: what it can do at most.
        ports: by number.
    """

    name: str
    why_not: str
    guid: str
    firmware: str
    vendor: int
    part: int
    limits: DeviceLimits
    ports: tuple[Port, ...]


def from_facts(facts: dict[str, Any]) -> Device:
    """The value for what native code found."""
    return Device(
        name=facts["name"],
        why_not=facts["why_not"],
        guid=facts["guid"],
        firmware=facts["firmware"],
        vendor=facts["vendor"],
        part=facts["part"],
        limits=DeviceLimits(
            queue_pairs=facts["max_queue_pairs"],
            requests=facts["max_requests"],
            sge=facts["max_sge"],
            completions=facts["max_completions"],
            regions=facts["max_regions"],
            region_bytes=facts["max_region"],
            read_credit=facts["read_credit"],
            atomics=facts["atomics"] or "none",
        ),
        ports=tuple(Port(**port) for port in facts["ports"]),
    )
