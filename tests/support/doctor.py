"""A server on which every check of the doctor is content, to break one thing of it at a time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from support.sysfs import HGX_GPUS, HGX_NICS, Sysfs, hgx_h100, soft_roce
from zerohop.machine.doctor import CHECKS, Check, System, read_system
from zerohop.machine.doctor.process import Compiler, Library, Process
from zerohop.machine.host import Limit
from zerohop.machine.io_uring import IoUring
from zerohop.machine.nvml import GpuPair, Nvidia, NvidiaGpu

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

IBVERBS = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.50.0"
RELEASE = "6.8.0-45-generic"
# Pairs of GPU and NIC of the HGX server: two of one NUMA node and one of the other.
PAIRS = (0, 1, 4)
GPU_ADDRESSES = tuple(HGX_GPUS[number] for number in PAIRS)
NIC_ADDRESSES = tuple(HGX_NICS[number] for number in PAIRS)
NICS = tuple(f"mlx5_{number}" for number in PAIRS)
NETDEVS = tuple(f"ens{int(address[5:7], 16)}s0" for address in NIC_ADDRESSES)
UNLIMITED = Limit(None, None)
NVIDIA = Nvidia(
    "",
    driver="550.127",
    cuda=(12, 4),
    gpus=tuple(NvidiaGpu(address, mig=False, fabric="") for address in GPU_ADDRESSES),
    pairs=tuple(GpuPair(a, b, "nvlink", "") for a, b in itertools.combinations(GPU_ADDRESSES, 2)),
)
# The downstream ports of the switch that joins GPU0 and mlx5_0.
SWITCH_PORTS = ("0000:17:02.0", "0000:17:00.0")


def facts(name: str, **changes: Any) -> dict[str, Any]:
    """What the native module says of an RDMA device."""
    port = {"number": 1, "state": "ACTIVE", "active_mtu": 4096}
    told = {"name": name, "why_not": "", "read_credit": 16, "atomics": "hca", "max_region": 2**64 - 1}
    return {**told, "max_queue_pairs": 131072, "ports": [port], **changes}


def process(**changes: Any) -> Process:
    """A process that may do everything, on the healthy server."""
    content = Process(
        locks_freely=False,
        memlock=UNLIMITED,
        descriptors=Limit(65536, 1 << 20),
        address_space=UNLIMITED,
        environment={},
        ibverbs=Library(IBVERBS, dma_buf=True),
        providers=(("shm", True, "", ""), ("verbs", True, "", "")),
        verbs=tuple(facts(name) for name in NICS),
        fastest=dict.fromkeys(NETDEVS, 400.0),
        gpu_drivers={"cuda": "", "hip": ""},
        compiler=Compiler((12, 4)),
        nvidia=NVIDIA,
        io_uring=IoUring(usable=True),
    )
    return replace(content, **changes)


def config_space(
    *, read_request: int | None = 4096, relaxed_ordering: bool = True, acs: int | None = None, nbytes: int = 4096
) -> bytes:
    """A configuration space with a power management, a PCI Express, and two extended capabilities."""
    space = bytearray(4096)
    space[0x06] = 0x10  # there is a list
    space[0x34] = 0x48
    space[0x48:0x4A] = 0x01, 0x60
    if read_request is not None:
        space[0x60:0x62] = 0x10, 0x00
        code = read_request.bit_length() - 8
        space[0x68:0x6A] = (code << 12 | relaxed_ordering << 4).to_bytes(2, "little")
    space[0x100:0x104] = (0x150 << 20 | 0x10001).to_bytes(4, "little")  # error reporting, then what is at 0x150
    if acs is not None:
        space[0x150:0x154] = (0x1000D).to_bytes(4, "little")
        space[0x156:0x158] = acs.to_bytes(2, "little")
    return bytes(space[:nbytes])


def healthy(root: Path, *, roce: bool = False) -> Sysfs:
    """3 H100 and 3 ConnectX-7 over two NUMA nodes, InfiniBand or RoCE, with everything in place."""
    sysfs = hgx_h100(root, roce=roce, only=PAIRS)
    sysfs.put("etc", **{"os-release": 'ID=ubuntu\nID_LIKE=debian\nPRETTY_NAME="Ubuntu 24.04.1 LTS"'})
    sysfs.put("proc", meminfo="MemTotal: 2113929216 kB", modules="ib_uverbs 1 0 - Live\nnvidia_peermem 1 0 - Live")
    sysfs.put("proc/sys/kernel", osrelease=RELEASE, numa_balancing=0)
    for module, version in {"mlx5_core": "24.10-1.1.4", "mlx5_ib": None, "ib_core": None, "nvidia": "550.127"}.items():
        sysfs.put(f"sys/module/{module}", **({"version": version} if version else {}))
    sysfs.put("usr/lib/x86_64-linux-gnu/libibverbs", **{"libmlx5-rdmav34.so": ""})
    for number, name, address in zip(PAIRS, NICS, NIC_ADDRESSES, strict=True):
        sysfs.put(f"sys/class/infiniband/{name}", node_type="1: CA", board_id="MT_0000000838", fw_ver="28.43.1014")
        sysfs.put(f"sys/class/infiniband/{name}/ports/1/counters", symbol_error=0, port_rcv_errors=0)
        sysfs.put(f"sys/class/infiniband/{name}/ports/1/hw_counters", out_of_sequence=0, local_ack_timeout_err=0)
        sysfs.put(f"sys/class/infiniband_verbs/uverbs{number}", ibdev=name)
        sysfs.put("dev/infiniband", **{f"uverbs{number}": ""})
        sysfs.put(f"sys/bus/pci/devices/{address}", **{"class": "0x020700"})
        express(sysfs, address, "32.0 GT/s PCIe", 16)
    for number, address in zip(PAIRS, GPU_ADDRESSES, strict=True):
        sysfs.put("dev", **{f"nvidia{number}": ""})
        express(sysfs, address, "32.0 GT/s PCIe", 16)
        windows = ["0x0 0xffffff 0x0", "0x200000000000 0x201fffffffff 0x0", "0x0 0x0 0x0"]
        sysfs.put(f"sys/bus/pci/devices/{address}", resource="\n".join(windows))
    for folder in (root / "sys/bus/pci/devices").iterdir():
        if (folder / "class").read_text().startswith("0x0604"):
            configure(sysfs, folder.name, acs=0)
            sysfs.put(f"sys/bus/pci/devices/{folder.name}", max_link_speed="32.0 GT/s PCIe", max_link_width=16)
    if roce:
        routes(sysfs, {name: f"10.0.{number}.0/24" for number, name in zip(PAIRS, NETDEVS, strict=True)})
    return sysfs


def guest(root: Path) -> Sysfs:
    """The Soft-RoCE guest of lab/: one software device and nothing else."""
    sysfs = Sysfs(root)
    soft_roce(sysfs, "rxe0", "d0", "10.9.0.1")
    sysfs.put("sys/class/infiniband/rxe0", node_type="1: CA")
    sysfs.put("sys/class/infiniband_verbs/uverbs0", ibdev="rxe0")
    sysfs.put("dev/infiniband", uverbs0="")
    sysfs.put("usr/lib/x86_64-linux-gnu/libibverbs", **{"librxe-rdmav34.so": ""})
    sysfs.put("proc/sys/kernel", osrelease="6.1.0-56-amd64")
    routes(sysfs, {"d0": "10.9.0.0/24"})
    return sysfs


def express(sysfs: Sysfs, address: str, speed: str, lanes: int) -> None:
    """Gives a function a PCI Express link at its best, and a configuration space."""
    link = {"current_link_speed": speed, "max_link_speed": speed, "current_link_width": lanes, "max_link_width": lanes}
    sysfs.put(f"sys/bus/pci/devices/{address}", **link)
    configure(sysfs, address)


def configure(sysfs: Sysfs, address: str, **settings: Any) -> None:
    """Writes the configuration space of a function."""
    (sysfs.root / "sys/bus/pci/devices" / address / "config").write_bytes(config_space(**settings))


def routes(sysfs: Sysfs, networks: dict[str, str]) -> None:
    """The routing table: default routes by a gateway and over a tunnel, a remote network, and those of interfaces."""
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
    lines = [
        head,
        "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0",
        "tun0\t00000000\t00000000\t0001\t0\t0\t200\t00000000\t0\t0\t0",
        "eth0\t0000630A\t0100000A\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0",
    ]
    for interface, network in networks.items():
        address, _, bits = network.partition("/")
        target = bytes(reversed([int(part) for part in address.split(".")])).hex().upper()
        mask = ((1 << int(bits)) - 1).to_bytes(4, "little")[::-1].hex().upper()
        lines.append(f"{interface}\t{target}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0")
    sysfs.put("proc/net", route="\n".join(lines))


def read(root: Path, of: Process | None = None) -> System:
    """Reads the tree; /dev/shm, which is asked of the system and not of a file, is large and empty."""
    system = read_system(root, of or process())
    return replace(system, memory=replace(system.memory, shared_total=64 << 30, shared_free=60 << 30))


def look(name: str, system: System) -> Check:
    """The result of one check."""
    (check,) = (check for check in CHECKS if check.name == name)
    return check(system)


def check(name: str, root: Path, of: Process | None = None) -> Check:
    """The result of one check on a tree."""
    return look(name, read(root, of))


def states(checks: Iterable[Check]) -> dict[str, str]:
    """Check -> state."""
    return {check.name: check.state.value for check in checks}
