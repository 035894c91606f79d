"""Finds the place of a PCI function, and the distance between two functions.

``/sys/bus/pci/devices/<address>`` links into ``/sys/devices``. The path there leads from the root complex to the
function: ``pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0`` is the host bridge, a root port, the
upstream and a downstream port of a switch, and the function.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zerohop.machine import files

if TYPE_CHECKING:
    from pathlib import Path

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


class Distance(enum.IntEnum):
    """Names the distance between two PCI functions, nearest first, in the terms of ``nvidia-smi topo``."""

    PIX = 1
    PXB = 2
    PHB = 3
    NODE = 4
    SYS = 5

    @property
    def words(self) -> str:
        """Return the distance in words."""
        return _WORDS[self]


_WORDS = {
    Distance.PIX: "behind the same PCIe switch",
    Distance.PXB: "across several PCIe switches below one root port",
    Distance.PHB: "across a PCIe host bridge",
    Distance.NODE: "across the host bridges of one NUMA node",
    Distance.SYS: "across NUMA nodes",
}


@dataclass(frozen=True, slots=True)
class PciPlace:
    """Holds the place of a PCI function.

    Attributes:
        address: PCI address, such as "0000:18:00.0".
        host_bridge: the root of its tree, "pci0000:15".
        bridges: addresses of the PCI bridges between the host bridge and the function, the root port first. A switch
            is two of them: its upstream port, and the downstream port that leads to the function.
        numa_node: memory node that the function is attached to, or None if the kernel does not say.
    """

    address: str
    host_bridge: str
    bridges: tuple[str, ...]
    numa_node: int | None

    @property
    def switches(self) -> tuple[str, ...]:
        """Return the upstream ports of the switches on the way, outermost first: every second bridge below a root port.

        A bridge that leads to the function alone (a card's own) is not counted.
        """
        return self.bridges[1:-1:2]


def pci_address(text: str) -> str:
    """Return an address as sysfs writes it: the management libraries print "00000000:18:00.0" and capital letters.

    Raises:
        ValueError: `text` does not have the form domain:bus:device.function.
    """
    parts = _ADDRESS.fullmatch(text.strip().lower())
    if parts is None:
        raise ValueError(f"{text!r} is no PCI address; one looks like 0000:18:00.0")
    domain, bus, device, function = parts.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def read_place(root: Path, address: str | None) -> PciPlace | None:
    """Read the place of the function `address`; None if this machine does not have it, or if there is no address.

    Raises:
        ValueError: `address` is no PCI address.
    """
    return place_of(root / "sys/bus/pci/devices" / pci_address(address)) if address is not None else None


def place_of(device: Path) -> PciPlace | None:
    """Read the place of a device, given its sysfs folder or a link to that; None if it is not on PCI.

    A device below a PCI function (a virtio or auxiliary device) has the place of the function.
    """
    try:
        resolved = device.resolve(strict=True)
    except OSError:
        return None
    while not _ADDRESS.fullmatch(resolved.name):
        if resolved.parent == resolved:
            return None
        resolved = resolved.parent
    parts = resolved.parts
    # Take the first one: devices behind a volume management device have a second host bridge below it.
    bridges = [at for at, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)]
    if not bridges:
        return None
    first = bridges[0]
    return PciPlace(
        address=resolved.name,
        host_bridge=parts[first],
        bridges=tuple(part for part in parts[first + 1 : -1] if _ADDRESS.fullmatch(part)),
        numa_node=numa_node(resolved),
    )


def numa_node(device: Path) -> int | None:
    """Read the memory node of the device folder `device`; the kernel writes -1 if it does not know."""
    node = files.number(device / "numa_node")
    return node if node is not None and node >= 0 else None


def numa_nodes(root: Path) -> tuple[int, ...]:
    """Read the numbers of the memory nodes below `root`; a kernel without NUMA has none."""
    names = (folder.name for folder in files.entries(root / "sys/devices/system/node"))
    return tuple(sorted(int(name[4:]) for name in names if re.fullmatch(r"node\d+", name)))


def distance(one: PciPlace, other: PciPlace, *, nodes: int) -> Distance:
    """Return the distance between two functions.

    Args:
        one: the place of one function of this machine.
        other: the place of the other.
        nodes: number of memory nodes of the machine. If the kernel does not say which node a function belongs to, two
            host bridges count as one node only if the machine has no second node.
    """
    if one.host_bridge == other.host_bridge:
        return _below_one_host_bridge(one, other)
    if nodes <= 1 or (one.numa_node is not None and one.numa_node == other.numa_node):
        return Distance.NODE
    return Distance.SYS


def _below_one_host_bridge(one: PciPlace, other: PciPlace) -> Distance:
    shared = 0
    for here, there in zip(one.bridges, other.bridges, strict=False):
        if here != there:
            break
        shared += 1
    if shared == 0:
        return Distance.PHB
    # Below the last shared bridge each has at most its own downstream port, so that bridge's switch joins them.
    if max(len(one.bridges), len(other.bridges)) - shared <= 1:
        return Distance.PIX
    return Distance.PXB
