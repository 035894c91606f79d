"""Declares RDMA devices and their ports as values, with the facts that verbs reports, and an opened device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from zerohop.config.providers import VERBS
from zerohop.errors import Unsupported
from zerohop.fabric.resource import Resource

if TYPE_CHECKING:
    from zerohop._native import FabricDevice

LinkLayer = Literal["InfiniBand", "Ethernet", "unknown"]


@dataclass(frozen=True, slots=True)
class Port:
    """Describes one port of an RDMA device, in the state that it had when it was queried.

    Attributes:
        number: 1, 2, ...
        state: ``"ACTIVE"``, ``"DOWN"``, ``"INIT"``, ``"ARMED"``, ``"ACTIVE_DEFER"`` or ``"unknown"``.
        link_layer: ``"InfiniBand"``, ``"Ethernet"`` (RoCE) or ``"unknown"``.
        lid: the subnet manager's local id; 0 on Ethernet.
        max_mtu: largest payload of one packet that the port supports, in bytes.
        active_mtu: largest payload of one packet now, in bytes.
        max_message: length of the longest message, in bytes.
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
        """Tell whether traffic can flow."""
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Holds the limits of a device.

    Attributes:
        queue_pairs: queue pairs of the device.
        requests: outstanding requests in one send or receive queue.
        sge: local ranges (scatter/gather entries) of one request.
        completions: entries of one completion queue.
        regions: memory regions of the device.
        region_bytes: length of one memory region.
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
    """Describes one RDMA device.

    Attributes:
        name: ``"mlx5_0"``, ``"rxe0"``, ...
        why_not: empty, or the reason why the device cannot be opened; then the other fields are empty.
        guid: node GUID, unique among devices: four groups of four hexadecimal digits.
        firmware: version of its firmware; empty for a software device.
        vendor: PCI vendor id.
        part: the vendor's number for the kind of device.
        limits: its limits.
        ports: its ports, in the order of their numbers.
    """

    name: str
    why_not: str
    guid: str
    firmware: str
    vendor: int
    part: int
    limits: DeviceLimits
    ports: tuple[Port, ...]


class OpenedDevice(Resource):
    """Holds an opened port of an RDMA device, with a protection domain.

    Attributes:
        device: the device, in the state that it had when it was opened.
        port: number of the port.
    """

    __slots__ = ("device", "port")

    _native: FabricDevice

    def __init__(self, parent: Resource, native: FabricDevice, device: Device, port: int) -> None:
        self.device = device
        self.port = port
        super().__init__(parent, native)

    @property
    def name(self) -> str:
        """Return device and port in the form ``"mlx5_0:1"``."""
        return f"{self.device.name}:{self.port}"

    def _check_atomics(self) -> None:
        if self.device.limits.atomics == "none":
            raise Unsupported(f"{self.device.name} has no atomics", fix="leave REMOTE_ATOMIC out", provider=VERBS)


def from_facts(facts: dict[str, Any]) -> Device:
    """Return the Device for the facts that native code found."""
    return Device(
        **{name: facts[name] for name in ("name", "why_not", "guid", "firmware", "vendor", "part")},
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
