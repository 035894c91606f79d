"""Runs ``zerohop info``: the facts of `zerohop.machine`, for people or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.markup import escape

import zerohop
from zerohop.cli.console import human_bytes, make_console, make_grid, print_table
from zerohop.config.settings import resolve
from zerohop.errors import ZerohopError
from zerohop.machine import inspect
from zerohop.machine.gids import choose_gid

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from zerohop.machine import Accelerator, Listening, Machine, Nic, RdmaDevice, RdmaPort
    from zerohop.machine.gpudirect import GpuDirect
    from zerohop.machine.io_uring import IoUring
    from zerohop.machine.nvml import Nvidia

_USABLE = "[green]usable[/]"
_NOT = "[yellow]not usable[/]"


def run(*, as_json: bool, sim_devices: int | None) -> int:
    """Print the facts; return the exit code, which is 0 whenever the machine could be inspected."""
    try:
        machine = inspect(sim_devices=_opened(sim_devices))
    except (ZerohopError, ValueError) as error:
        make_console(stderr=True).print(f"[red]error:[/] {escape(str(error))}")
        return 1
    if as_json:
        print(json.dumps(machine.to_json(), indent=2))
    else:
        show(machine, make_console())
    return 0


def _opened(sim_devices: int | None) -> list[str]:
    """Open so many simulated devices, or as many as ZEROHOP_SIM_DEVICES says, and return their names."""
    wanted = resolve({}).sim_devices if sim_devices is None else sim_devices
    if not wanted:
        return []
    with zerohop.Context(listen=None, sim_devices=wanted) as context:
        return [device.name for device in context.devices]


def show(machine: Machine, console: Console) -> None:
    """Print `machine` for people."""
    cpu, kernel, memory, limits = machine.cpu, machine.kernel, machine.memory, machine.limits
    console.print(f"[bold]zerohop {escape(machine.zerohop)}[/]")
    facts = make_grid()
    share = f", {cpu.quota:g} by quota" if cpu.quota is not None else ""
    virtual = ", virtual machine" if kernel.virtual else ""
    facts.add_row("processor", f"{cpu.usable} of {cpu.online} usable{share}, {escape(cpu.model)}, {cpu.architecture}")
    facts.add_row("kernel", f"Linux {escape(kernel.release)}, {escape(kernel.distribution)}{virtual}")
    group = f", control group allows {_size(memory.cgroup_limit)}" if memory.cgroup_limit is not None else ""
    facts.add_row("memory", f"{_size(memory.total)}, {_size(memory.available)} available{group}")
    facts.add_row("/dev/shm", f"{_size(memory.shared_total)}, {_size(memory.shared_free)} free")
    locked = _size(limits.locked_memory, "unlimited")
    facts.add_row("limits", f"{limits.descriptors or 'unlimited'} descriptors, {locked} locked memory")
    if machine.io_uring is not None:
        facts.add_row("files", _files(machine.io_uring))
    if machine.gpudirect_storage is not None:
        facts.add_row("files and GPUs", _gpu_files(machine.gpudirect_storage))
    if machine.nvidia is not None:
        facts.add_row("GPU driver", _driver(machine, machine.nvidia))
    facts.add_row("listens on", _listening(machine.listening))
    print_table(console, facts)
    accelerators = _accelerators(machine.accelerators, machine.nvidia)
    _section(console, "accelerators", accelerators, "none (--sim-devices N simulates some)")
    _section(console, "network interfaces", _nics(machine.nics), "none")
    _section(console, "RDMA devices", _rdma(machine.rdma_devices), "none")
    providers = make_grid()
    for provider in machine.providers:
        label = f"\n[magenta]{escape(provider.label)}[/]" if provider.label else ""
        providers.add_row(provider.name, _state(provider.usable, provider.why, provider.fix) + label)
    _section(console, "providers", providers, "none")


def _section(console: Console, title: str, rows: Table, otherwise: str) -> None:
    console.print(f"\n[bold]{title}[/]")
    if rows.row_count:
        print_table(console, rows)
    else:
        console.print(f"  {otherwise}")


def _state(usable: bool, why: str, fix: str) -> str:
    if usable:
        return _USABLE
    return f"{_NOT}: {escape(why)}" + (f"\n[bold]fix:[/] {escape(fix)}" if fix else "")


def _listening(listening: Listening) -> str:
    if listening.address is None and not listening.why:
        return "nothing (this process connects, nobody connects to it over the network)"
    address = escape(listening.address or "")
    if listening.insecure:
        return (
            f"[bold red]{address} INSECURE: no secret, whoever can reach this address can connect[/]"
            f"\n[bold]fix:[/] {escape(listening.fix)}"
        )
    if listening.why:
        return f"[red]{escape(listening.why)}[/]\n[bold]fix:[/] {escape(listening.fix)}"
    host, _, port = address.rpartition(":")
    where = f"{host}, a free port" if port == "0" else address
    return f"{where} ({'this host only' if listening.loopback else 'all who know the secret'}){_encryption(listening)}"


def _encryption(listening: Listening) -> str:
    if not listening.secret:
        return ""
    return {
        "none": "\n[yellow]nothing is encrypted[/]: who is in between can speak for a peer",
        "control": "\ncontrol channels go through TLS, bytes on lanes are not encrypted",
        "all": "\ncontrol channels and tcp lanes go through TLS, RDMA is for this host only",
    }[listening.encryption]


def _files(io_uring: IoUring) -> str:
    if io_uring.usable:
        return "read and written by io_uring"
    return (
        f"read and written by threads; [yellow]no io_uring[/]: {escape(io_uring.why)}"
        f"\n[bold]fix:[/] {escape(io_uring.fix)}"
    )


def _gpu_files(found: GpuDirect) -> str:
    if found.usable:
        return "GPUDirect Storage, [magenta]not verified on hardware[/]"
    return (
        f"through host buffers; [yellow]no GPUDirect Storage[/]: {escape(found.why)}\n[bold]fix:[/] {escape(found.fix)}"
    )


def _driver(machine: Machine, nvidia: Nvidia) -> str:
    visible = machine.cuda_visible_devices
    shown = {
        None: "",
        True: "\nopen kernel modules: GPU memory goes to NICs as dma-buf",
        False: "\nno open kernel modules: GPU memory goes to NICs with nvidia_peermem only",
    }[machine.nvidia_open_modules]
    shown += "" if visible is None else f"\nCUDA_VISIBLE_DEVICES={escape(visible)}"
    if nvidia.why_not:
        return f"[yellow]unknown:[/] {escape(nvidia.why_not)}; zerohop doctor says more{shown}"
    cuda = ", CUDA {}.{}".format(*nvidia.cuda) if nvidia.cuda else ""
    return f"NVIDIA {escape(nvidia.driver)}{cuda}{shown}"


def _peers(accelerator: Accelerator, nvidia: Nvidia | None) -> str:
    """List the other GPUs that an accelerator reaches, by which link, and those that it does not reach."""
    lines: dict[str, list[str]] = {}
    for pair in nvidia.pairs if nvidia is not None else ():
        if accelerator.pci_address in (pair.a, pair.b):
            how = f"reaches by {pair.link}" if pair.link else f"[yellow]does not reach[/] ({escape(pair.why)})"
            lines.setdefault(how, []).append(pair.b if pair.a == accelerator.pci_address else pair.a)
    return "".join(f"\n{how}: {', '.join(others)}" for how, others in lines.items())


def _accelerators(accelerators: tuple[Accelerator, ...], nvidia: Nvidia | None) -> Table:
    grid = make_grid()
    for accelerator in accelerators:
        label = "" if accelerator.verified or accelerator.kind == "sim" else "\n[magenta]not verified on hardware[/]"
        state = _state(accelerator.usable, accelerator.why, accelerator.fix)
        grid.add_row(accelerator.name, escape(accelerator.model), state + label + _peers(accelerator, nvidia))
    return grid


def _nics(nics: tuple[Nic, ...]) -> Table:
    grid = make_grid()
    for nic in nics:
        speed = f"{nic.gbps:g} Gb/s" if nic.gbps is not None else "speed unknown"
        where = f"{nic.driver or 'no driver'}{', PCI ' + nic.pci_address if nic.pci_address else ''}"
        device = where if nic.kind == "physical" else nic.kind
        node = f", NUMA node {nic.numa_node}" if nic.numa_node is not None else ""
        rdma = f", RDMA device {nic.rdma}" if nic.rdma else ""
        speed = speed if nic.kind == "physical" else ""
        grid.add_row(nic.name, nic.state, speed, f"MTU {nic.mtu}", escape(device + node + rdma))
    return grid


def _rdma(devices: tuple[RdmaDevice, ...]) -> Table:
    grid = make_grid()
    for device in devices:
        for port in device.ports:
            where = f"{device.driver or 'software'}{', PCI ' + device.pci_address if device.pci_address else ''}"
            node = f", NUMA node {device.numa_node}" if device.numa_node is not None else ""
            on = f", on {', '.join(port.netdevs)}" if port.netdevs else ""
            state = f"port {port.number} {port.state}"
            grid.add_row(device.name, state, port.rate, port.link_layer, escape(where + node + on) + _gid(port))
    return grid


def _gid(port: RdmaPort) -> str:
    if not port.active:
        return ""
    choice = choose_gid(port)
    if choice.gid is not None:
        return f"\n{escape(choice.why)}"
    return f"\n[yellow]no usable GID:[/] {escape(choice.why)}\n[bold]fix:[/] {escape(choice.fix)}"


def _size(nbytes: int | None, otherwise: str = "unknown") -> str:
    return otherwise if nbytes is None else human_bytes(nbytes)
