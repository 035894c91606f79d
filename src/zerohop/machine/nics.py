"""Reads network interfaces and RDMA devices from sysfs.

The kernel's ``Documentation/ABI/stable/sysfs-class-infiniband`` describes the files of an RDMA port.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path

from zerohop.machine import files
from zerohop.machine.pci import numa_node, place_of

_LOOPBACK = 772  # ARPHRD_LOOPBACK in the kernel's if_arp.h
# The kernel leaves room for these headers when it derives a RoCE port's MTU: GRH, UDP, BTH, the longest extended
# headers and the checksum (iboe_get_mtu in rdma/ib_addr.h).
_ROCE_HEADERS = 96
_IB_MTUS = (4096, 2048, 1024, 512, 256)


@dataclass(frozen=True, slots=True)
class Nic:
    """Describes one network interface.

    Attributes:
        name: the kernel's name.
        kind: "physical" (with a device behind it, also a virtio device), "loopback" or "virtual".
        driver: kernel driver of the device, or None.
        pci_address: PCI address of the device, or None.
        state: operational state, "up", "down" or "unknown" (the state of loopback).
        gbps: link speed in gigabits a second, or None if the driver does not say.
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
class Gid:
    """Describes one entry of a port's GID table.

    Attributes:
        index: its place in the table, which names it to a queue pair.
        text: the GID as the kernel writes it, eight groups of four hexadecimal digits.
        type: "IB/RoCE v1" or "RoCE v2"; "" if the kernel does not say.
        netdev: network interface that the entry belongs to, or None (InfiniBand, or not readable).
        netdev_up: whether that interface is up; None if its state is not known, as for an interface in another network
            namespace, or a driver that keeps no carrier state.
    """

    index: int
    text: str
    type: str
    netdev: str | None
    netdev_up: bool | None

    @property
    def address(self) -> str:
        """Return the GID as an address: "10.0.0.1" if it maps IPv4, else IPv6 in its short form."""
        address = ipaddress.IPv6Address(self.text)
        return str(address.ipv4_mapped or address)


@dataclass(frozen=True, slots=True)
class PKey:
    """Holds one entry of a port's P_Key table: index, and key with the membership bit (0xffff: default, full)."""

    index: int
    value: int


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """Describes one port of an RDMA device.

    Attributes:
        number: 1, 2, ...
        state: "ACTIVE", "DOWN", "INIT", "ARMED", ... or "unknown".
        rate: as the kernel prints it, "400 Gb/sec (4X NDR)", or "unknown".
        link_layer: "InfiniBand", "Ethernet" or "unknown".
        physical_state: "LinkUp", "Disabled", "Polling", ... or "unknown".
        gbps: the rate in gigabits a second, or None.
        active_mtu: bytes of payload in one packet. sysfs does not give it; on Ethernet it follows from the interface's
            MTU by the kernel's rule, on InfiniBand it is None.
        lid: the port's local id; 0 until the subnet manager gives one, None if unknown.
        netdevs: interfaces of this port; those of its GID table come first.
        gids: the used entries of the GID table, by index.
        pkeys: the used entries of the P_Key table, by index.
    """

    number: int
    state: str
    rate: str
    link_layer: str
    physical_state: str = "unknown"
    gbps: float | None = None
    active_mtu: int | None = None
    lid: int | None = None
    netdevs: tuple[str, ...] = ()
    gids: tuple[Gid, ...] = ()
    pkeys: tuple[PKey, ...] = ()

    @property
    def active(self) -> bool:
        """Tell whether traffic can flow."""
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """Describes one RDMA device.

    Attributes:
        name: "mlx5_0", "rxe0", ...
        driver: kernel driver of the PCI function, or None for a software device.
        pci_address: PCI address, or None for a software device, even if its interface has one.
        ports: its ports, by number.
        numa_node: memory node that the device is attached to, or None.
        netdevs: network interfaces of the same function; for a software device, the interface that it runs on.
    """

    name: str
    driver: str | None
    pci_address: str | None
    ports: tuple[RdmaPort, ...]
    numa_node: int | None = None
    netdevs: tuple[str, ...] = ()


def read_nics(root: Path) -> tuple[Nic, ...]:
    """Read the interfaces below `root`; physical ones first, then loopback, then virtual ones."""
    found = [_nic(folder) for folder in files.entries(root / "sys/class/net") if (folder / "mtu").exists()]
    order = {"physical": 0, "loopback": 1, "virtual": 2}
    return tuple(sorted(found, key=lambda nic: (order[nic.kind], nic.name)))


def read_rdma_devices(root: Path = Path("/")) -> tuple[RdmaDevice, ...]:
    """Read the RDMA devices below `root`, in the order of their names: mlx5_2 before mlx5_10."""
    folders = files.entries(root / "sys/class/infiniband")
    return tuple(_rdma_device(root, folder) for folder in sorted(folders, key=lambda folder: by_number(folder.name)))


def has_gid(device: str, port: int, gid: Gid, root: Path = Path("/")) -> bool:
    """Tell whether an entry of a port's table is still as it was read; this reads two files."""
    folder = root / f"sys/class/infiniband/{device}/ports/{port}"
    now = files.text(folder / f"gids/{gid.index}"), files.text(folder / f"gid_attrs/types/{gid.index}") or ""
    return now == (gid.text, gid.type)


def by_number(name: str) -> tuple[tuple[str, int], ...]:
    """Return a sorting key that respects numbers: mlx5_2 comes before mlx5_10."""
    return tuple((text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name))


def _nic(folder: Path) -> Nic:
    device = folder / "device"
    kind = "physical" if device.exists() else "virtual"
    if files.number(folder / "type") == _LOOPBACK:
        kind = "loopback"
    speed = files.number(folder / "speed")
    rdma = files.entries(device / "infiniband")
    place = place_of(device)
    return Nic(
        name=folder.name,
        kind=kind,
        driver=files.link_name(device / "driver"),
        pci_address=place.address if place is not None else None,
        state=files.text(folder / "operstate") or "unknown",
        gbps=speed / 1000 if speed is not None and speed > 0 else None,
        mtu=files.number(folder / "mtu"),
        numa_node=place.numa_node if place is not None else numa_node(device),
        rdma=rdma[0].name if rdma else None,
    )


def _rdma_device(root: Path, folder: Path) -> RdmaDevice:
    device = folder / "device"
    ports = sorted((port for port in files.entries(folder / "ports") if port.name.isdigit()), key=lambda p: int(p.name))
    # Older kernels make the interface's PCI function the parent of a software device, although it is no hardware.
    parent = files.text(folder / "parent")
    description = files.text(folder / "node_desc") or ""
    if parent is not None or description == "rxe" or description.startswith("Software iWARP"):
        below = (parent,) if parent else ()
        return RdmaDevice(folder.name, None, None, tuple(_port(root, port, below) for port in ports), None, below)
    place = place_of(device)
    interfaces = files.entries(device / "net")
    return RdmaDevice(
        name=folder.name,
        driver=files.link_name(device / "driver"),
        pci_address=place.address if place is not None else None,
        ports=tuple(_port(root, port, _of_port(interfaces, int(port.name))) for port in ports),
        numa_node=place.numa_node if place is not None else numa_node(device),
        netdevs=tuple(interface.name for interface in interfaces),
    )


def _of_port(interfaces: list[Path], number: int) -> tuple[str, ...]:
    """Name the interfaces of port `number`: dev_port counts a function's ports from 0."""
    return tuple(folder.name for folder in interfaces if files.number(folder / "dev_port") == number - 1)


def _port(root: Path, folder: Path, netdevs: tuple[str, ...]) -> RdmaPort:
    rate = files.text(folder / "rate") or "unknown"
    link_layer = files.text(folder / "link_layer") or "unknown"
    gids = _gids(root, folder)
    # The GID table goes first: the kernel uses it, and it names the VLANs and bonds above the interface, too.
    names = tuple(dict.fromkeys([*(gid.netdev for gid in gids if gid.netdev is not None), *netdevs]))
    mtu = files.number(root / "sys/class/net" / names[0] / "mtu") if names and link_layer == "Ethernet" else None
    return RdmaPort(
        number=int(folder.name),
        state=_after_colon(files.text(folder / "state")),
        rate=rate,
        link_layer=link_layer,
        physical_state=_after_colon(files.text(folder / "phys_state")),
        gbps=_gbps(rate),
        active_mtu=_roce_mtu(mtu) if mtu is not None else None,
        lid=files.number(folder / "lid"),
        netdevs=names,
        gids=gids,
        pkeys=_pkeys(folder),
    )


def _after_colon(text: str | None) -> str:
    """Return the word in "4: ACTIVE"."""
    return (text or "unknown").rpartition(":")[2].strip()


def _gbps(rate: str) -> float | None:
    number = re.match(r"(\d+(?:\.\d+)?) Gb/sec", rate)
    return float(number[1]) if number else None


def _roce_mtu(interface_mtu: int) -> int | None:
    return next((mtu for mtu in _IB_MTUS if mtu + _ROCE_HEADERS <= interface_mtu), None)


# The kernel puts a new GID into the first free entry, so that gaps come only from removed interfaces and addresses.
# After so many empty entries in a row, no further entry is expected.
_EMPTY_GIDS = 64


def _gids(root: Path, port: Path) -> tuple[Gid, ...]:
    found = []
    empty = 0
    for index in _indices(port / "gids"):
        text = files.text(f"{port}/gids/{index}")
        # The table is long (255 entries on mlx5, 1024 on rxe) and mostly empty, and each entry is a file.
        if not text or not text.strip("0:"):
            empty += 1
            if empty == _EMPTY_GIDS:
                break
            continue
        empty = 0
        netdev = files.text(f"{port}/gid_attrs/ndevs/{index}")
        state = files.text(root / "sys/class/net" / netdev / "operstate") if netdev else None
        found.append(
            Gid(
                index=index,
                text=text,
                type=files.text(f"{port}/gid_attrs/types/{index}") or "",
                netdev=netdev or None,
                netdev_up=None if state in (None, "unknown") else state == "up",
            )
        )
    return tuple(found)


def _pkeys(port: Path) -> tuple[PKey, ...]:
    read = ((index, files.number(f"{port}/pkeys/{index}")) for index in _indices(port / "pkeys"))
    return tuple(PKey(index, value) for index, value in read if value)


def _indices(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - to make a thousand Paths takes longer than to read the files
        return sorted(int(name) for name in names if name.isdigit())
    except OSError:
        return []
