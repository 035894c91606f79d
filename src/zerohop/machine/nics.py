"""Network interfaces and RDMA devices, from sysfs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zerohop.machine import files

if TYPE_CHECKING:
    from pathlib import Path

_LOOPBACK = 772  # ARPHRD_LOOPBACK in the kernel's if_arp.h


@dataclass(frozen=True, slots=True)
class Nic:
    """One network interface.

    Attributes:
        name: the kernel's name.
        kind: "physical" (has a device behind it, a virtio device too), "loopback" or "virtual".
        driver: kernel driver of the device, or None.
        pci_address: or None.
        state: operational state, "up", "down", "unknown" (loopback says that).
        gbps: link speed in gigabits a second, or None where the driver does not say.
        mtu: bytes, or None.
        numa_node: memory node that the device is attached to, or None.
        rdma: the RDMA device of the same function, or None.
    """

    name: str
    kind: str
    driver: str | None
    pci_address: str | None
    state: str
    gbps: float | None
    mtu: int | None
    numa_node: int | None
    rdma: str | None


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port: number, state ("ACTIVE", "DOWN", ...), rate as the kernel prints it, link layer."""

    number: int
    state: str
    rate: str
    link_layer: str


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One RDMA device: its name, kernel driver (None for a software device), PCI address and ports."""

    name: str
    driver: str | None
    pci_address: str | None
    ports: tuple[RdmaPort, ...]


def read_nics(root: Path) -> tuple[Nic, ...]:
    """Reads the interfaces below `root`; physical ones first, then loopback, then virtual ones."""
    found = [_nic(folder) for folder in files.entries(root / "sys/class/net") if (folder / "mtu").exists()]
    order = {"physical": 0, "loopback": 1, "virtual": 2}
    return tuple(sorted(found, key=lambda nic: (order[nic.kind], nic.name)))


def read_rdma_devices(root: Path) -> tuple[RdmaDevice, ...]:
    """Reads the RDMA devices below `root`."""
    return tuple(_rdma_device(folder) for folder in files.entries(root / "sys/class/infiniband"))


def _nic(folder: Path) -> Nic:
    device = folder / "device"
    kind = "physical" if device.exists() else "virtual"
    if files.number(folder / "type") == _LOOPBACK:
        kind = "loopback"
    speed = files.number(folder / "speed")
    node = files.number(device / "numa_node")
    rdma = files.entries(device / "infiniband")
    return Nic(
        name=folder.name,
        kind=kind,
        driver=files.link_name(device / "driver"),
        pci_address=_pci_address(device),
        state=files.text(folder / "operstate") or "unknown",
        gbps=speed / 1000 if speed is not None and speed > 0 else None,
        mtu=files.number(folder / "mtu"),
        numa_node=node if node is not None and node >= 0 else None,
        rdma=rdma[0].name if rdma else None,
    )


def _rdma_device(folder: Path) -> RdmaDevice:
    ports = [port for port in files.entries(folder / "ports") if port.name.isdigit()]
    return RdmaDevice(
        name=folder.name,
        driver=files.link_name(folder / "device/driver"),
        pci_address=_pci_address(folder / "device"),
        ports=tuple(
            RdmaPort(
                number=int(port.name),
                state=(files.text(port / "state") or "unknown").rpartition(":")[2].strip(),
                rate=files.text(port / "rate") or "unknown",
                link_layer=files.text(port / "link_layer") or "unknown",
            )
            for port in sorted(ports, key=lambda port: int(port.name))
        ),
    )


def _pci_address(device: Path) -> str | None:
    """Returns the PCI address in a device's path: a virtio device sits one level below its PCI function."""
    try:
        resolved = device.resolve(strict=True)
    except OSError:
        return None
    for part in reversed(resolved.parts):
        if part.count(":") == 2 and "." in part:
            return part
    return None
