"""Runs ``zerohop info --topology``: places of GPUs and RDMA NICs, their distances, and the NICs that serve each GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from zerohop.cli.console import make_console, make_grid, print_table
from zerohop.config.nic_filter import parse_nic_filter
from zerohop.machine.layout import read_layout

if TYPE_CHECKING:
    from rich.console import Console

    from zerohop.machine import RdmaDevice, RdmaPort
    from zerohop.machine.layout import Layout, PlacedNic, Served
    from zerohop.machine.pci import PciPlace

_LEGEND = "  * first   (…) cannot be used   – not known   local, remote: memory of its NUMA node, of another"
_GPU_LEGEND = (
    "\n  PIX one PCIe switch   PXB several switches   PHB host bridge   NODE host bridges of one NUMA node"
    "\n  SYS across NUMA nodes"
)


def run(*, as_json: bool, nics: str | None) -> int:
    """Print the topology; return the exit code, which is 0 unless the filter `nics` cannot be understood."""
    try:
        wanted = parse_nic_filter(nics) if nics is not None else None
    except ValueError as error:
        make_console(stderr=True).print(f"[red]error:[/] --nics (ZEROHOP_NICS): {escape(str(error))}")
        return 1
    layout = read_layout(nics=wanted)
    if as_json:
        print(json.dumps(layout.to_json(), indent=2))
    else:
        show(layout, make_console())
    return 0


def show(layout: Layout, console: Console) -> None:
    """Print `layout` for people."""
    if not layout.gpus and not layout.nics:
        nodes = len(layout.numa_nodes) or 1
        console.print(f"no GPU and no RDMA NIC on this machine ({nodes} NUMA node{'s' if nodes > 1 else ''})")
        return
    for tree in _trees(layout):
        print_table(console, tree)
    if layout.nics:
        console.print("\n[bold]distances[/]")
        print_table(console, _matrix(layout))
        console.print(f"[dim]{_LEGEND}{_GPU_LEGEND if layout.gpus else ''}[/]", soft_wrap=True)
    console.print("\n[bold]chosen[/]")
    any_of_them = layout.served[0].selection  # the reasons why a port cannot be used are equal for all
    if any_of_them.chosen:
        print_table(console, _chosen(layout))
    else:
        console.print(f"  [yellow]none:[/] {escape(any_of_them.why)}", soft_wrap=True)
        console.print(f"  [bold]fix:[/] {escape(any_of_them.fix)}", soft_wrap=True)
    if any_of_them.rejected:
        console.print("\n[bold]not used[/]")
        grid = make_grid()
        for port in any_of_them.rejected:
            grid.add_row(
                escape(port.name), escape(port.why) + (f"\n[bold]fix:[/] {escape(port.fix)}" if port.fix else "")
            )
        print_table(console, grid)
    for pattern in any_of_them.unmatched:
        console.print(f"[yellow]the filter's {escape(pattern)} means no port of this machine[/]")


def _trees(layout: Layout) -> list[Tree]:
    """Return one tree for each memory node, with host bridges, switches and devices; then one of software devices."""
    labels = [(gpu.place, f"[cyan]{gpu.name}[/] {escape(gpu.accelerator.model)}") for gpu in layout.gpus]
    labels += [(nic.place, _nic_label(nic.device)) for nic in layout.nics if nic.place is not None]
    seen = {place.numa_node for place, _ in labels if place.numa_node is not None}
    trees = []
    for node in sorted({*layout.numa_nodes, *seen}):
        here = [pair for pair in labels if pair[0].numa_node == node]
        trees.append(_branch(f"[bold]NUMA node {node}[/]{'' if here else ' (no GPU, no RDMA NIC)'}", here))
    unknown = [pair for pair in labels if pair[0].numa_node is None]
    if unknown:
        trees.append(_branch("[bold]NUMA node not known[/]", unknown))
    software = [nic for nic in layout.nics if nic.place is None]
    if software:
        tree = Tree("[bold]not on PCI[/]")
        for nic in software:
            tree.add(_nic_label(nic.device))
        trees.append(tree)
    return trees


def _branch(title: str, labels: list[tuple[PciPlace, str]]) -> Tree:
    tree = Tree(title)
    known: dict[tuple[str, ...], Tree] = {(): tree}
    for place, label in sorted(labels, key=lambda pair: (pair[0].host_bridge, pair[0].bridges, pair[0].address)):
        way: tuple[str, ...] = ()
        for step, what in [(place.host_bridge, "host bridge"), *((switch, "PCIe switch") for switch in place.switches)]:
            before, way = way, (*way, step)
            if way not in known:
                known[way] = known[before].add(f"{step} [dim]{what}[/]")
        known[way].add(f"{place.address} {label}")
    return tree


def _nic_label(device: RdmaDevice) -> str:
    ports = "; ".join(_port_label(port, alone=len(device.ports) == 1) for port in device.ports) or "no port"
    interfaces = f" on {escape(', '.join(device.netdevs))}" if device.netdevs else ""
    return f"[green]{escape(device.name)}[/]{interfaces}: {ports}"


def _port_label(port: RdmaPort, *, alone: bool) -> str:
    speed = f"{port.gbps:g} Gb/s" if port.gbps is not None else "speed not known"
    state = escape(port.state) if port.active else f"[yellow]{escape(port.state)}[/]"
    return f"{'' if alone else f'port {port.number} '}{escape(port.link_layer)} {speed} {state}"


def _matrix(layout: Layout) -> Table:
    columns = [(at, nic, port) for at, nic in enumerate(layout.nics) for port in nic.device.ports]
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    table.add_column("", style="bold", no_wrap=True)
    for _, nic, port in columns:
        alone = len(nic.device.ports) == 1
        table.add_column(nic.device.name if alone else f"{nic.device.name}:{port.number}", no_wrap=True)
    for served in layout.served:
        chosen = [choice.name for choice in served.selection.chosen]
        cells = []
        for at, nic, port in columns:
            far = _far(served, at, nic)
            name = f"{nic.device.name}:{port.number}"
            if name not in chosen:
                cells.append(f"[dim]({far})[/]")
            else:
                cells.append(f"[bold green]{far}*[/]" if name == chosen[0] else far)
        table.add_row(served.name, *cells)
    return table


def _far(served: Served, at: int, nic: PlacedNic) -> str:
    distance = served.distances[at]
    if distance is not None:
        return distance.name
    node = nic.device.numa_node
    if served.gpu is not None or served.numa_node is None or node is None:
        return "–"
    return "local" if node == served.numa_node else "remote"


def _chosen(layout: Layout) -> Table:
    grid = make_grid()
    for served in layout.served:
        first, *rest = served.selection.chosen
        then = f"\n[dim]then {escape(', '.join(choice.name for choice in rest))}[/]" if rest else ""
        grid.add_row(served.name, f"[green]{escape(first.name)}[/]", escape(first.why) + then)
    return grid
