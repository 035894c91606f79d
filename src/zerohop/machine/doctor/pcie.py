"""Checks the family "pcie": links, redirection and address translation between NICs, GPUs and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.machine.doctor.check import Verdict, checks_of, combined, not_here, ok, shortened, warn
from zerohop.machine.doctor.pci_functions import ACS_REDIRECTS
from zerohop.machine.doctor.words import kernel_argument, no_gpu_beside_nic, no_nic, on_the_host
from zerohop.machine.pci import Distance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zerohop.machine.doctor.pci_functions import PciFunction
    from zerohop.machine.doctor.system import System
    from zerohop.machine.pci import PciPlace

check = checks_of("pcie", needs=no_nic)
beside_gpu = checks_of("pcie", needs=no_gpu_beside_nic)

_PASSED_THROUGH = ("iommu=pt", "iommu.passthrough=1", "intel_iommu=off", "amd_iommu=off")
_FAST_GBIT_PER_S = 200
_LEAST_REQUEST_BYTES, _LEAST_FAST_REQUEST_BYTES = 512, 4096
_AS_ROOT = "sudo zerohop doctor --only"


@checks_of("pcie")("pcie-link", "a card is no faster than its slot, if that has fewer lanes, or slower ones")
def pcie_link(system: System) -> Verdict:
    """Check that NICs and GPUs use all lanes at full speed, and that a NIC's slot is as fast as its port."""
    if not system.hardware and not system.gpus:
        return not_here(f"{no_nic(system)}, and no GPU")
    found = [(_name(function), _nic_link(system, function)) for function in system.hardware]
    found += [(_name(gpu.function), _lanes(gpu.function, gpu=True)) for gpu in system.gpus]
    return combined(found)


@beside_gpu("pcie-acs", "with ACS, switches send what goes between GPU and NIC by the processor, or drop it")
def pcie_acs(system: System) -> Verdict:
    """Check that no switch between a GPU and its NIC redirects traffic (lspci -vvv shows this as ACSCtl)."""
    ports = list(dict.fromkeys(_between(system)))
    if not ports:
        return not_here("no GPU shares a PCIe switch with its NIC")
    unread = [address for address in ports if address not in system.bridges or not system.bridges[address].readable]
    if unread:
        return not_here(f"only root may read the switches' settings ({', '.join(unread)})", f"{_AS_ROOT} pcie-acs")
    redirecting = [address for address in ports if system.bridges[address].redirects]
    if not redirecting:
        return ok(f"the ports of the switches redirect nothing: {shortened(ports)}")
    clear = [f"setpci -s {address} ECAP_ACS+0x6.w=0:{ACS_REDIRECTS:x}" for address in redirecting]
    argument = f"pci=disable_acs_redir={';'.join(redirecting)}"
    return warn(
        f"{', '.join(redirecting)} redirect what goes between GPU and NIC",
        *on_the_host(system, *clear, f"# until the next boot; for good, on the kernel's command line: {argument}"),
    )


@check("iommu", "an IOMMU that translates looks up each page, and closes the direct way between GPU and NIC")
def iommu(system: System) -> Verdict:
    """Check that the IOMMU is off, or passes addresses of NICs and GPUs through."""
    functions = [*system.hardware, *(gpu.function for gpu in system.gpus)]
    passing = any(word in system.command_line for word in _PASSED_THROUGH)
    found = []
    for function in functions:
        name = _name(function)
        if function.iommu is None:
            found.append((name, ok("not behind an IOMMU")))
        elif function.iommu == "identity" or (function.iommu == "" and passing):
            found.append((name, ok("the IOMMU passes its addresses through")))
        else:
            what = f"the IOMMU translates its addresses ({function.iommu})"
            if function.iommu == "":
                what = "behind an IOMMU, of a mode that the kernel does not tell; iommu=pt is not on its command line"
            found.append((name, warn(what, *kernel_argument(system, "iommu=pt"))))
    return combined(found)


@check("pcie-requests", "small read requests and strict ordering hold a fast NIC up")
def pcie_requests(system: System) -> Verdict:
    """Check that NICs may use relaxed ordering, and make large read requests."""
    if not all(function.config.readable for function in system.hardware):
        return not_here("only root may read the NICs' settings", f"{_AS_ROOT} pcie-requests")
    return combined((_name(function), _requests(system, function)) for function in system.hardware)


@check(
    "numa-balancing", "to move pages between memory nodes the kernel makes them fault, which disturbs registered ones"
)
def numa_balancing(system: System) -> Verdict:
    """Check that automatic NUMA balancing is off on a machine with several memory nodes."""
    if len(system.layout.numa_nodes) < 2 or system.numa_balancing is None:
        return not_here("this machine has one memory node, or its kernel does not balance")
    if system.numa_balancing == 0:
        return ok("off")
    return warn("on", *on_the_host(system, "sysctl -w kernel.numa_balancing=0"))


def _name(function: PciFunction) -> str:
    return function.rdma or f"GPU {function.address}"


def _nic_link(system: System, function: PciFunction) -> Verdict:
    lanes = _lanes(function, gpu=False)
    port = _port_gbit_per_s(system, function)
    carries = function.link.gbit_per_s
    if lanes.found and carries is not None and port > carries:
        what = f"{lanes.found}: it carries {carries:.0f} Gb/s, and the port {port:g}"
        return warn(what, *(lanes.fix or ("# move the card to a slot of a newer generation, or with more lanes",)))
    return lanes


def _port_gbit_per_s(system: System, function: PciFunction) -> float:
    return max((port.gbps or 0 for _, hca, port in system.ports(active=True) if hca.name == function.rdma), default=0)


def _lanes(function: PciFunction, *, gpu: bool) -> Verdict:
    link, most, slot = function.link, function.most, function.slot
    if link.lanes is None or most.lanes is None:
        return not_here("its PCIe link is not shown (as in many virtual machines)")
    fewer = link.lanes < most.lanes
    # An idle GPU lowers the speed of its link and raises it when there is work; the number of lanes stays.
    slower = not gpu and link.gts is not None and most.gts is not None and link.gts < most.gts
    if not fewer and not slower:
        return ok(str(link))
    what = f"{link} of {most}"
    if slot is not None and (
        (slot.lanes is not None and slot.lanes < most.lanes)
        or (slot.gts is not None and most.gts is not None and slot.gts < most.gts and slower)
    ):
        return warn(f"{what}: its slot offers no more than {slot}", "# move the card to another slot")
    return warn(what, f"lspci -vvs {function.address} | grep Lnk", "# seat the card again; look at riser and BIOS")


def _between(system: System) -> Iterator[str]:
    """Yield the downstream ports of switches between each GPU and the NIC that serves it, if they share one."""
    places = {nic.device.name: nic.place for nic in system.layout.nics}
    for served in system.layout.served:
        chosen = next((choice for choice in served.selection.chosen if choice.distance is not None), None)
        gpu = next((gpu.place for gpu in system.layout.gpus if gpu.name == served.name), None)
        if gpu is None or chosen is None or chosen.distance not in (Distance.PIX, Distance.PXB):
            continue
        nic = places[chosen.device]
        if nic is not None:
            yield from _below_shared(gpu, nic)


def _below_shared(one: PciPlace, other: PciPlace) -> Iterator[str]:
    shared = {*one.bridges} & {*other.bridges}
    yield from (bridge for place in (one, other) for bridge in place.bridges if bridge not in shared)


def _requests(system: System, function: PciFunction) -> Verdict:
    config = function.config
    if config.read_request is None:
        return not_here("it shows no PCI Express registers")
    fast = _port_gbit_per_s(system, function) >= _FAST_GBIT_PER_S
    least = _LEAST_FAST_REQUEST_BYTES if fast else _LEAST_REQUEST_BYTES
    # Device Control: bits 12 to 14 hold log2(bytes / 128), bit 4 is relaxed ordering.
    wrong, fixes = [], []
    if config.read_request < least:
        wrong.append(f"read requests of {config.read_request} bytes")
        fixes.append(f"setpci -s {function.address} CAP_EXP+8.w={least.bit_length() - 8 << 12:x}:7000")
    if not config.relaxed_ordering:
        wrong.append("relaxed ordering off")
        fixes.append(f"setpci -s {function.address} CAP_EXP+8.w=10:10")
    if wrong:
        return warn(", ".join(wrong), *on_the_host(system, *fixes))
    return ok(f"read requests of {config.read_request} bytes, relaxed ordering on")


CHECKS = (pcie_link, pcie_acs, iommu, pcie_requests, numa_balancing)
