"""Chooses the RDMA ports that serve a GPU, or the memory of the host, and their order.

A port is usable if its state is ACTIVE, no filter leaves it out and it has a GID (`zerohop.machine.gids`). Usable ports
are ordered by

1. distance to the GPU, if there is one, nearest first: PIX, PXB, PHB, NODE, SYS (`zerohop.machine.pci`); a software
   device, which has no place on PCI, comes last;
2. link speed, fastest first;
3. NUMA node: that of the GPU, or the requested one, goes before an unknown one, and that before the others;
4. name and port, with numbers in their order: mlx5_2 before mlx5_10.

The order depends on the machine and the arguments only, so that every process gets the same result. To spread those
processes of a host that work without GPUs over its NICs, each asks with the NUMA node that it runs on
(`process_numa_node`): among equally fast NICs it gets those of its node first. Processes of one node get the same
order; to keep them apart, give each its own filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zerohop.config.nic_filter import NicFilter, matches
from zerohop.config.processors import usable_processors
from zerohop.machine import files
from zerohop.machine.gids import choose_gid
from zerohop.machine.nics import by_number
from zerohop.machine.pci import Distance, distance, numa_nodes, read_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zerohop.machine.nics import Gid, RdmaDevice, RdmaPort
    from zerohop.machine.pci import PciPlace


@dataclass(frozen=True, slots=True)
class NicChoice:
    """Describes one usable port.

    Attributes:
        device: name of the RDMA device.
        port: number of the port.
        gid: the entry of the port's GID table that queue pairs use.
        distance: distance to the GPU; None without a GPU, or if either place is not known.
        gbit_per_s: link speed in gigabits a second, or None.
        numa_node: memory node, or None.
        why: in words, the reasons for its place in the order.
    """

    device: str
    port: int
    gid: Gid
    distance: Distance | None
    gbit_per_s: float | None
    numa_node: int | None
    why: str

    @property
    def name(self) -> str:
        """Return device and port as a filter names them: "mlx5_0:1"."""
        return f"{self.device}:{self.port}"


@dataclass(frozen=True, slots=True)
class RejectedNic:
    """Describes one unusable port: name ("mlx5_0:1"), reason, and what to do about it ("" if a filter left it out)."""

    name: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class NicSelection:
    """Holds the result of `choose_nics`.

    Attributes:
        chosen: the usable ports, best first.
        rejected: the other ports, by name.
        unmatched: patterns of the filters that match no port of this machine; most likely typing errors.
        why: the reason why `chosen` is empty, else "".
        fix: what to do about that, else "".
    """

    chosen: tuple[NicChoice, ...]
    rejected: tuple[RejectedNic, ...]
    unmatched: tuple[str, ...]
    why: str
    fix: str


def choose_nics(
    devices: Iterable[RdmaDevice],
    near: str | None = None,
    numa: int | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    *,
    gid_index: int | None = None,
    root: Path = Path("/"),
) -> NicSelection:
    """Order the ports of `devices` by the rules of this module.

    Args:
        devices: the result of `read_rdma_devices`.
        near: PCI address of the GPU whose memory is moved; None for the memory of the host.
        numa: memory node to prefer; None takes the one of `near`.
        include: patterns of a filter, at least one of which must match; empty: all ports.
        exclude: patterns of a filter, none of which may match.
        gid_index: entry of the GID table to use on every port, instead of the entry that the rules choose.
        root: root of the file system with the PCI devices.

    Raises:
        ValueError: `near` is no PCI address. An address that this machine does not have is no error: the order then
            ignores distances, and the reasons say so.
    """
    gpu = read_place(root, near)
    numa = gpu.numa_node if numa is None and gpu is not None else numa
    view = _View(NicFilter(tuple(include), tuple(exclude)), root, near, gpu, numa, len(numa_nodes(root)))
    ports = [(device, port) for device in devices for port in device.ports]
    ports.sort(key=lambda pair: (by_number(pair[0].name), pair[1].number))
    judged = [_judged(view, device, port, gid_index) for device, port in ports]
    rejected = tuple(each for each in judged if isinstance(each, RejectedNic))
    # The order is stable: equal ports stay in the order of their names.
    chosen = tuple(sorted((each for each in judged if isinstance(each, NicChoice)), key=view.rank))
    patterns = (*include, *exclude)
    unmatched = tuple(
        pattern for pattern in patterns if not any(matches(pattern, device.name, port.number) for device, port in ports)
    )
    why, fix = ("", "") if chosen else _why_none(rejected, unmatched)
    return NicSelection(chosen, rejected, unmatched, why, fix)


def process_numa_node(root: Path = Path("/"), cpus: Iterable[int] | None = None) -> int | None:
    """Return the memory node that this process is bound to; None if it may run on several, or there are none.

    Args:
        root: root of the file system with the nodes.
        cpus: processors to consider; None: those that this process may run on.
    """
    wanted = set(usable_processors() if cpus is None else cpus)
    holding = [
        node
        for node in numa_nodes(root)
        if wanted & _cpu_list(files.text(root / f"sys/devices/system/node/node{node}/cpulist") or "")
    ]
    return holding[0] if len(holding) == 1 else None


def _cpu_list(text: str) -> set[int]:
    """Read a list such as "0-3,8,10-11"; a node without processors has an empty list."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


@dataclass(frozen=True, slots=True)
class _View:
    """Holds the point from which ports are ranked, a GPU or a memory node, and the filter."""

    wanted: NicFilter
    root: Path
    near: str | None
    gpu: PciPlace | None
    numa: int | None
    nodes: int

    def distance(self, device: RdmaDevice) -> Distance | None:
        place = read_place(self.root, device.pci_address)
        if place is None or self.gpu is None:
            return None
        return distance(self.gpu, place, nodes=self.nodes)

    def rank(self, choice: NicChoice) -> tuple[int, float, int]:
        same = choice.numa_node == self.numa if None not in (self.numa, choice.numa_node) else None
        return choice.distance or len(Distance) + 1, -(choice.gbit_per_s or 0.0), {True: 0, None: 1, False: 2}[same]


def _judged(view: _View, device: RdmaDevice, port: RdmaPort, gid_index: int | None) -> NicChoice | RejectedNic:
    name = f"{device.name}:{port.number}"
    if left_out := view.wanted.why_not(device.name, port.number):
        return RejectedNic(name, left_out, "")
    if not port.active:
        why = f"the port is {port.state} (physical state {port.physical_state})"
        return RejectedNic(name, why, _raise_port(port))
    try:
        gid = choose_gid(port, gid_index)
    except ValueError as error:
        return RejectedNic(name, f"no usable GID: {error}", "ask for an index that the table has, or for none")
    if gid.gid is None:
        return RejectedNic(name, f"no usable GID: {gid.why}", gid.fix)
    far = view.distance(device)
    speed = f"{port.gbps:g} Gb/s" if port.gbps is not None else "speed not known"
    node = f"NUMA node {device.numa_node}" if device.numa_node is not None else "NUMA node not known"
    why = f"{_where(view, device, far)}{speed}, {node}, {gid.why}"
    return NicChoice(device.name, port.number, gid.gid, far, port.gbps, device.numa_node, why)


def _where(view: _View, device: RdmaDevice, far: Distance | None) -> str:
    if view.near is None:
        return ""
    if far is not None:
        return f"{far.name} to {view.near} ({far.words}), "
    if view.gpu is None:
        return f"distance not known (this machine has no PCI device {view.near}), "
    return f"distance not known ({device.name} is not on PCI), "


def _raise_port(port: RdmaPort) -> str:
    if port.physical_state == "Disabled" and port.netdevs:
        return f"ip link set {port.netdevs[0]} up"
    if port.link_layer == "InfiniBand" and port.physical_state == "LinkUp":
        return "the link is up but no subnet manager has made it active: start one (opensm) or ask who runs the fabric"
    return "look at the cable and at the other end of the link"


def _why_none(rejected: tuple[RejectedNic, ...], unmatched: tuple[str, ...]) -> tuple[str, str]:
    if not rejected:
        return (
            "this machine has no RDMA device",
            "with an RDMA NIC: load its driver (modprobe mlx5_ib); without one, use shm or tcp",
        )
    fix = next((port.fix for port in rejected if port.fix), None)
    if fix is None:  # every port has a fix unless a filter left it out
        typed = f"; {', '.join(unmatched)} means no port of this machine" if unmatched else ""
        names = ", ".join(port.name for port in rejected)
        return f"the filter leaves no RDMA port{typed}; there are {names}", "correct the filter (ZEROHOP_NICS)"
    # Ports that a filter left out are not wanted; to list them would hide the others.
    each = "; ".join(f"{port.name}: {port.why}" for port in rejected if port.fix)
    return f"no RDMA port can be used: {each}", fix
