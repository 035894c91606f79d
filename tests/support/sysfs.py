"""Builds the part of /sys and /proc that `zerohop.machine` reads, with the folders and links that the kernel makes.

The forms are those of real machines: the path of a PCI function is the way to it, class folders are relative links into
``devices``, and what a driver has no answer for cannot be read.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

V1, V2 = "IB/RoCE v1", "RoCE v2"
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
# The bus and root complex of each GPU and of the NIC beside it in a DGX H100: (NUMA node, root, GPU's bus, NIC's bus).
_HGX = (
    (0, 0x15, 0x1B, 0x18),
    (0, 0x3D, 0x43, 0x40),
    (0, 0x4C, 0x52, 0x4F),
    (0, 0x5B, 0x61, 0x5E),
    (1, 0x97, 0x9D, 0x9A),
    (1, 0xBD, 0xC3, 0xC0),
    (1, 0xCB, 0xD1, 0xCE),
    (1, 0xD9, 0xDF, 0xDC),
)
HGX_GPUS = tuple(f"0000:{gpu:02x}:00.0" for _, _, gpu, _ in _HGX)
HGX_NICS = tuple(f"0000:{nic:02x}:00.0" for _, _, _, nic in _HGX)


def gid_text(address: str) -> str:
    """An address in the form of the `gids` files: eight groups of four digits; IPv4 becomes IPv4-mapped."""
    parsed = ipaddress.ip_address(address)
    if parsed.version == 4:
        parsed = ipaddress.IPv6Address(f"::ffff:{parsed}")
    return parsed.exploded


@dataclass(frozen=True)
class Entry:
    """One entry of a GID table that is in use."""

    index: int
    address: str
    type: str = V2
    netdev: str | None = None


@dataclass(frozen=True)
class Port:
    """One port as its files say it; what is None has no file."""

    number: int = 1
    state: str | None = "4: ACTIVE"
    phys_state: str | None = "5: LinkUp"
    rate: str | None = "400 Gb/sec (4X NDR)"
    link_layer: str | None = "InfiniBand"
    lid: str | None = "0x1"
    gids: tuple[Entry, ...] = ()
    gid_entries: int = 8
    pkeys: tuple[str, ...] = ("0xffff", "0x0000", "0x0000")


class Sysfs:
    """A tree below `root`, which starts empty."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, **files: object) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (folder / file).write_text(f"{content}\n")
        return folder

    def link(self, name: str, target: Path) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(target, path.parent))

    def pci(self, address: str, driver: str | None = None, *, below: str = "pci0000:00", **files: object) -> Path:
        """A PCI function; `below` is the way to it, "pci0000:15/0000:15:01.0/…", whose bridges are made."""
        way = f"sys/devices/{below}"
        for at, step in enumerate(below.split("/")):
            bridge = "/".join(below.split("/")[: at + 1])
            if not step.startswith("pci") and not (self.root / "sys/devices" / bridge).exists():
                self.link(f"sys/bus/pci/devices/{step}", self.put(f"sys/devices/{bridge}", **{"class": "0x060400"}))
        folder = self.put(f"{way}/{address}", **files)
        if driver is not None:
            self.link(f"{way}/{address}/driver", self.put(f"sys/bus/pci/drivers/{driver}"))
        self.link(f"sys/bus/pci/devices/{address}", folder)
        return folder

    def nodes(self, *cpulists: str) -> None:
        for number, cpulist in enumerate(cpulists):
            self.put(f"sys/devices/system/node/node{number}", cpulist=cpulist)
        self.put("sys/devices/system/node", online=f"0-{len(cpulists) - 1}")

    def gpu(self, address: str, *, below: str, numa_node: int) -> None:
        nvidia = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "numa_node": numa_node}
        self.pci(address, "nvidia", below=below, **nvidia)
        self.put(f"proc/driver/nvidia/gpus/{address}", information="Model: \t\t NVIDIA H100 80GB HBM3")

    def netdev(
        self, name: str, device: Path | None = None, *, mtu: int = 1500, state: str = "up", port: int = 0
    ) -> None:
        parent = device if device is not None else self.root / "sys/devices/virtual"
        folder = self.put(
            f"{parent.relative_to(self.root)}/net/{name}", mtu=mtu, operstate=state, type=1, dev_port=port
        )
        if device is not None:
            self.link(f"{folder.relative_to(self.root)}/device", device)
        self.link(f"sys/class/net/{name}", folder)

    def rdma(self, name: str, function: Path | None, *ports: Port, **files: object) -> Path:
        """An RDMA device of a PCI function, or with None a software device."""
        parent = function if function is not None else self.root / "sys/devices/virtual"
        folder = self.put(f"{parent.relative_to(self.root)}/infiniband/{name}", **files)
        if function is not None:
            self.link(f"{folder.relative_to(self.root)}/device", function)
        self.link(f"sys/class/infiniband/{name}", folder)
        for port in ports:
            self._port(f"{folder.relative_to(self.root)}/ports/{port.number}", port)
        return folder

    def _port(self, folder: str, port: Port) -> None:
        texts = {name: getattr(port, name) for name in ("state", "phys_state", "rate", "link_layer", "lid")}
        self.put(folder, **{name: text for name, text in texts.items() if text is not None})
        self.put(f"{folder}/pkeys", **{str(index): key for index, key in enumerate(port.pkeys)})
        used = {entry.index: entry for entry in port.gids}
        for index in range(port.gid_entries):
            entry = used.get(index)
            self.put(f"{folder}/gids", **{str(index): gid_text(entry.address) if entry else EMPTY_GID})
            self._attribute(f"{folder}/gid_attrs/types", index, entry.type if entry else None)
            self._attribute(f"{folder}/gid_attrs/ndevs", index, entry.netdev if entry else None)

    def _attribute(self, folder: str, index: int, text: str | None) -> None:
        if text is not None:
            self.put(folder, **{str(index): text})
        else:
            # The file is there, and reading it fails (EINVAL); a folder in its place fails as well (EISDIR).
            self.put(f"{folder}/{index}")


def infiniband_port(number: int) -> Port:
    """A port of an InfiniBand NIC at NDR, with the GID that its GUID gives it."""
    guid = f"fe80::a088:c203:4d:{number:x}"
    keys = ("0xffff", "0x7fff", *["0x0000"] * 6)
    return Port(lid=f"{number + 0x10:#x}", gids=(Entry(0, guid, V1),), pkeys=keys)


def roce_port(netdev: str, address: str | None, *, link_local: str = "fe80::1") -> Port:
    """A port of a RoCE NIC with the table that mlx5 makes: link-local and IPv4, each for v1 and v2."""
    gids = [Entry(0, link_local, V1, netdev), Entry(1, link_local, V2, netdev)]
    if address is not None:
        gids += [Entry(2, address, V1, netdev), Entry(3, address, V2, netdev)]
    return Port(link_layer="Ethernet", lid="0x0", gids=tuple(gids), pkeys=("0xffff",))


def hgx_h100(root: Path, *, roce: bool = False, only: Collection[int] = range(8)) -> Sysfs:
    """8 GPUs, each behind one PCIe switch with one NIC (mlx5_0 … mlx5_7), over 2 NUMA nodes; InfiniBand or RoCE.

    With `only` some of these pairs, for tests that need no more.
    """
    sysfs = Sysfs(root)
    sysfs.nodes("0-55,112-167", "56-111,168-223")
    for number in only:
        node, bus, gpu, nic = _HGX[number]
        switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        nic_way, gpu_way = (f"{switch}/0000:{bus + 2:02x}:{device}.0" for device in ("00", "02"))
        function = sysfs.pci(
            f"0000:{nic:02x}:00.0", "mlx5_core", below=nic_way, vendor="0x15b3", device="0x1021", numa_node=node
        )
        netdev = f"{'ens' if roce else 'ibp'}{nic}s0"
        sysfs.netdev(netdev, function, mtu=9000 if roce else 4092)
        port = (
            roce_port(netdev, f"10.0.{number}.1", link_local=f"fe80::{number + 1:x}")
            if roce
            else infiniband_port(number + 1)
        )
        sysfs.rdma(f"mlx5_{number}", function, port, node_desc=f"node7 mlx5_{number}")
        sysfs.gpu(f"0000:{gpu:02x}:00.0", below=gpu_way, numa_node=node)
    return sysfs


def dual_port_roce(root: Path) -> Sysfs:
    """A server without GPUs: one card of two functions, mlx5_0 up at 100 Gb/s and mlx5_1 down; 2 NUMA nodes."""
    sysfs = Sysfs(root)
    sysfs.nodes("0-15", "16-31")
    for number, state in enumerate(("up", "down")):
        card = {"vendor": "0x15b3", "device": "0x101d", "numa_node": 1}
        function = sysfs.pci(f"0000:3b:00.{number}", "mlx5_core", below="pci0000:3a/0000:3a:00.0", **card)
        netdev = f"ens1f{number}np{number}"
        sysfs.netdev(netdev, function, mtu=1500, state=state)
        if state == "up":
            port = replace(roce_port(netdev, "192.168.7.21"), rate="100 Gb/sec (4X EDR)")
        else:
            port = replace(
                roce_port(netdev, None), rate="40 Gb/sec (4X QDR)", state="1: DOWN", phys_state="3: Disabled"
            )
        sysfs.rdma(f"mlx5_{number}", function, port)
    return sysfs


def soft_roce(sysfs: Sysfs, name: str, netdev: str, address: str) -> None:
    """A Soft-RoCE device on an interface that keeps no carrier state, as a dummy interface does."""
    sysfs.netdev(netdev, mtu=4200, state="unknown")
    gids = (Entry(0, "fe80::5", V2, netdev), Entry(1, address, V2, netdev))
    port = Port(rate="2.5 Gb/sec (1X SDR)", link_layer="Ethernet", lid="0x0", gids=gids, pkeys=("0xffff",))
    sysfs.rdma(name, None, port, parent=netdev, node_desc="rxe")
