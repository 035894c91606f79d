"""Checks the family "device": RDMA devices, their kernel modules, device files and capabilities."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from zerohop.machine.doctor.check import Verdict, checks_of, combined, fail, not_here, ok, warn
from zerohop.machine.doctor.hcas import DRIVERS
from zerohop.machine.doctor.system import setting
from zerohop.machine.doctor.words import add_to_container, no_rdma, on_the_host, size

if TYPE_CHECKING:
    from zerohop.machine.doctor.hcas import Hca, Node
    from zerohop.machine.doctor.pci_functions import PciFunction
    from zerohop.machine.doctor.system import System

check = checks_of("device")
on_nic = checks_of("device", needs=no_rdma)

_GIVEN_AWAY = ("vfio-pci", "pci-stub", "uio_pci_generic")  # to a virtual machine, or to a driver in user space
# Resource that gives a pod the RDMA devices; its name depends on the cluster's device plugin.
_POD = "resources: limits: {rdma/hca: 1}, or the name that your RDMA device plugin gives"


@check("rdma-device", "without one there is no RDMA: bytes to other hosts go over tcp")
def rdma_device(system: System) -> Verdict:
    """Check that the kernel has RDMA devices (as ibv_devices lists them)."""
    if system.hcas:
        return ok(", ".join(_described(hca) for hca in system.hcas))
    if not system.nic_functions:
        return not_here("this machine has no RDMA NIC and no software device; shm and tcp need none")
    cards = ", ".join(function.address for function in system.nic_functions)
    found = f"the kernel shows no RDMA device, though the machine has RDMA NICs: {cards}"
    if system.container and "ib_core" in system.modules:
        return fail(
            f"{found}; the devices may be in the host's network namespace",
            *add_to_container(system, "--network=host --device=/dev/infiniband", "hostNetwork: true"),
            *on_the_host(system, "rdma system set netns shared"),
        )
    return fail(f"{found}: see kernel-modules")


@check("kernel-modules", "a card's Ethernet driver alone makes no RDMA device; ib_uverbs opens it to programs")
def kernel_modules(system: System) -> Verdict:
    """Check that ib_uverbs and the RDMA driver of each card are loaded."""
    if not system.hcas and not system.nic_functions:
        return not_here("this machine has no RDMA NIC")
    if system.hcas and not system.uverbs:
        load = on_the_host(system, "modprobe ib_uverbs", "echo ib_uverbs >/etc/modules-load.d/rdma.conf")
        return fail("ib_uverbs is not loaded", *load)
    found = [(function.address, _served(system, function)) for function in system.nic_functions]
    on_pci = {function.rdma for function in system.nic_functions}
    others = [hca for hca in system.hcas if hca.name not in on_pci]
    found += [(hca.name, ok(f"served by {hca.module or hca.device.driver}")) for hca in others]
    return combined(found, one_is_enough=True)


@on_nic("device-node", "a program opens /dev/infiniband/uverbsN to use a device")
def device_node(system: System) -> Verdict:
    """Check that the device files exist, and that this user may open them."""
    found = [
        (hca.name, _node(system, node) if node is not None else not_here("ib_uverbs is missing: see kernel-modules"))
        for hca in system.hcas
        for node in hca.nodes or (None,)
    ]
    # A container is often given only some of the devices that it sees.
    return combined(found, one_is_enough=True)


@on_nic("transport", "zerohop connects reliable queue pairs by itself; iWARP and EFA do not offer that")
def transport(system: System) -> Verdict:
    """Check that the devices speak InfiniBand or RoCE."""
    found = []
    for hca in system.hcas:
        if hca.driver == "efa":
            what = "EFA has no reliable connected queue pairs; zerohop goes over tcp there"
            found.append((hca.name, fail(what, "# set ZEROHOP_PROVIDERS=shm,tcp, which says so on purpose")))
        elif hca.kind == "RNIC":
            what = "iWARP: connections need its own connection manager"
            found.append((hca.name, fail(what, "# put the card in RoCE mode, where it has one")))
        elif hca.kind == "CA":
            layers = " and ".join(dict.fromkeys(port.link_layer for port in hca.device.ports)) or "no port"
            found.append((hca.name, ok({"Ethernet": "RoCE"}.get(layers, layers))))
        else:
            what = f"its kind ({hca.kind}) is not one that zerohop has been tried with"
            found.append((hca.name, warn(what, f"ibv_devinfo -d {hca.name}")))
    return combined(found, one_is_enough=True)


@check("soft-roce", "a software device runs the RDMA protocol on the processor: right for tests, not for speed")
def soft_roce(system: System) -> Verdict:
    """Check whether the devices are real hardware."""
    software = [hca for hca in system.hcas if hca.software]
    if not software:
        return not_here("no software device")
    each = ", ".join(
        f"{hca.name} ({hca.module} on {', '.join(hca.device.netdevs) or 'no interface'})" for hca in software
    )
    if len(software) < len(system.hcas):
        return ok(f"{each}: made in software; chosen after all others")
    return warn(
        f"{each}: made in software, and there is no other; expect tens of MB/s",
        f"# to remove it: rdma link delete {software[0].name}",
    )


@on_nic("capabilities", "what ibv_devinfo -v is asked for: atomics, reads in flight, how much memory may be registered")
def capabilities(system: System) -> Verdict:
    """Check that the devices can do what zerohop asks of them."""
    opened = [facts for facts in system.process.verbs or () if not facts["why_not"]]
    if not opened:
        return not_here("no device could be opened and asked: see verbs")
    memory = system.memory.total or 0
    found = []
    for facts in opened:
        name, credit, most = facts["name"], facts["read_credit"], facts["max_region"]
        lacks = []
        if facts["atomics"] == "none":
            lacks.append("no atomics: fetch_add and compare_swap do not go over it")
        if credit < system.options.read_credit:
            lacks.append(f"{credit} reads in flight instead of {system.options.read_credit}: reads are slower")
        if most < memory:
            lacks.append(f"at most {size(most)} in one registration: register larger memory in parts")
        if lacks:
            found.append((name, warn("; ".join(lacks), "# firmware settings of the card: mstconfig query")))
        else:
            found.append((name, ok(f"atomics, {credit} reads in flight, {facts['max_queue_pairs']} queue pairs")))
    return combined(found)


@check("settings", "a name that means no NIC, or an option that is not understood, changes what is used")
def settings(system: System) -> Verdict:
    """Check that ZEROHOP_NICS and ZEROHOP_VERBS are understood, and match something here."""
    given = {name: setting(system.process.environment, name) for name in ("ZEROHOP_NICS", "ZEROHOP_VERBS")}
    told = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
    if not told:
        return not_here("neither ZEROHOP_NICS nor ZEROHOP_VERBS is set")
    if system.setting_errors:
        return fail("; ".join(system.setting_errors), "# correct it, or unset it")
    unmatched = system.layout.served[0].selection.unmatched
    if unmatched:
        names = ", ".join(hca.name for hca in system.hcas) or "none"
        return warn(
            f"ZEROHOP_NICS: {', '.join(unmatched)} means no port of this machine; its devices: {names}",
            "# correct ZEROHOP_NICS, or unset it",
        )
    return ok(told)


def _described(hca: Hca) -> str:
    if hca.software:
        return f"{hca.name} (software)"
    return f"{hca.name} ({', '.join(filter(None, (hca.device.driver, hca.device.pci_address)))})"


def _served(system: System, function: PciFunction) -> Verdict:
    """Judge whether a card has become an RDMA device, and if not, what is missing."""
    if function.rdma is not None:
        return ok(f"served by {function.driver}")
    if function.driver is None:
        return fail("no driver serves this NIC", *on_the_host(system, f"modprobe {function.made_for}"))
    if function.driver in _GIVEN_AWAY:
        return not_here(f"given away to {function.driver}")
    _, module = DRIVERS.get(function.driver, ("", ""))
    if module and module not in system.modules:
        return fail(f"{module} is not loaded", *on_the_host(system, f"modprobe {module}"))
    if system.container and not system.hcas:
        return not_here("its RDMA device is not in this container: see rdma-device")
    what = f"{module or function.driver} is loaded and made no RDMA device of it"
    address = f"pci/{function.address}"
    turn_on = f"devlink dev param set {address} name enable_roce value true cmode driverinit"
    return fail(what, *on_the_host(system, f"dmesg | grep {function.driver}", turn_on, f"devlink dev reload {address}"))


def _node(system: System, node: Node) -> Verdict:
    """Judge the result of opening a device file."""
    if node.error == 0:
        return ok("may be opened")
    device = f"--device={node.path}"
    if node.error in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
        if system.container:
            what = f"{node.path} is not in this container"
            return fail(what, *add_to_container(system, "--device=/dev/infiniband", _POD))
        return fail(
            f"{node.path} is missing", "udevadm trigger --subsystem-match=infiniband_verbs", f"ls -l {node.path}"
        )
    if node.error == errno.EPERM and system.container:
        what = f"the rules of this container forbid {node.path}"
        return fail(what, *add_to_container(system, device, _POD))
    if node.error in (errno.EACCES, errno.EPERM):
        rule = """echo 'SUBSYSTEM=="infiniband_verbs", MODE="0666"' >/etc/udev/rules.d/90-uverbs.rules"""
        return fail(f"this user may not open {node.path}", f"chmod 0666 {node.path}", f"# and for good: {rule}")
    return fail(
        f"{node.path} cannot be opened: {os.strerror(node.error)}", f"dmesg | grep {node.path.rpartition('/')[2]}"
    )


CHECKS = (rdma_device, kernel_modules, device_node, transport, soft_roce, capabilities, settings)
