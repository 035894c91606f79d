"""Checks the family "port": state, speed, errors and packet size of each port."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zerohop.machine.doctor.check import Verdict, checks_of, combined, fail, not_here, ok, warn
from zerohop.machine.doctor.hcas import DAMAGED
from zerohop.machine.doctor.words import as_command, no_active_port, no_rdma

if TYPE_CHECKING:
    from zerohop.machine.doctor.hcas import Hca
    from zerohop.machine.doctor.system import System
    from zerohop.machine.nics import RdmaPort

on_nic = checks_of("port", needs=no_rdma)
check = checks_of("port", needs=no_active_port)

_CLEAN = "clean or replace the cable or transceiver"
_LINK_LANES = 4  # InfiniBand
_FULL_MTU = 4096
_INTERFACE_MTU = 4200  # an Ethernet MTU that leaves room for _FULL_MTU and the RoCE headers


@on_nic("port-state", "bytes flow through a port that is ACTIVE, and through no other")
def port_state(system: System) -> Verdict:
    """Check that at least one port is active (as ibstat shows)."""
    # No GPU and no memory node decides which ports are rejected, so that all of `served` have the same ones.
    fixes = {port.name: port.fix for port in system.layout.served[0].selection.rejected}
    found = []
    for name, _, port in system.ports():
        state = f"{port.state}, {port.physical_state}"
        if port.active:
            found.append((name, ok(state)))
        else:
            found.append((name, fail(state, as_command(fixes.get(name, "")))))
    if not found:
        return not_here(no_active_port(system))
    return combined(found, one_is_enough=True)


@check("link-speed", "a link that lost lanes, or agreed on less than the card can, still works, at that speed")
def link_speed(system: System) -> Verdict:
    """Check that active ports run as fast as their card, and as other cards of the same kind."""
    fastest: dict[str, float] = {}
    for _, hca, port in system.ports(active=True):
        if hca.board:
            fastest[hca.board] = max(fastest.get(hca.board, 0), port.gbps or 0)
    ports = list(system.ports(active=True))
    return combined((name, _speed(system, hca, port, fastest.get(hca.board, 0))) for name, hca, port in ports)


@check("link-errors", "damaged or lost packets are sent again: the transfer succeeds, late")
def link_errors(system: System) -> Verdict:
    """Check that all error counters of active ports are 0."""
    found = []
    for name, hca, port in system.ports(active=True):
        counters = hca.counters.get(port.number, {})
        told = ", ".join(f"{counter} {count}" for counter, count in counters.items())
        if hca.software:
            found.append((name, not_here("a software device has no link")))
        elif not counters:
            found.append((name, ok("no packet damaged or lost")))
        else:
            damaged = any(counter in DAMAGED for counter in counters)
            cure = _CLEAN if damaged else "set up flow control (PFC or ECN) on NICs and switches"
            fix = f"# if they grow while you transfer: {cure}"
            found.append((name, warn(f"{told}, since its driver was loaded", fix)))
    return combined(found)


@check("mtu", "a packet carries at most the port's MTU: below 4096 bytes there are more packets, and more work")
def mtu(system: System) -> Verdict:
    """Check that active ports send packets of 4096 bytes."""
    asked = {
        (facts["name"], port["number"]): port["active_mtu"]
        for facts in system.process.verbs or ()
        for port in facts["ports"]
    }
    found = []
    for name, hca, port in system.ports(active=True):
        size = asked.get((hca.name, port.number)) or port.active_mtu
        if size is None:
            found.append((name, not_here(f"only verbs tells the MTU of {port.link_layer}: ibv_devinfo -d {hca.name}")))
        elif size >= _FULL_MTU:
            found.append((name, ok(f"{size} bytes")))
        elif port.link_layer == "Ethernet" and port.netdevs:
            found.append((name, _short_packets(system, port.netdevs[0], size)))
        else:
            found.append((name, warn(f"{size} bytes", "# raise the MTU in the subnet manager's partitions.conf")))
    return combined(found)


def _short_packets(system: System, interface: str, size: int) -> Verdict:
    nic = system.interfaces.get(interface)
    own = f", because the MTU of {interface} is {nic.mtu}" if nic is not None else ""
    return warn(
        f"{size} bytes{own}",
        f"ip link set {interface} mtu {_INTERFACE_MTU}",
        "# the switches and the other end need at least as much",
    )


def _speed(system: System, hca: Hca, port: RdmaPort, alike: float) -> Verdict:
    """Judge one port's speed; `alike` is the speed of the fastest active port of the same kind of card."""
    if hca.software:
        return not_here("a software device has no link")
    if port.gbps is None:
        return not_here("its driver does not tell the speed")
    lanes = re.search(r"\((\d+)X", port.rate)
    at = f"{port.gbps:g} Gb/s"
    if port.link_layer == "InfiniBand" and lanes is not None and int(lanes[1]) < _LINK_LANES:
        return warn(f"{at} over {lanes[1]} of {_LINK_LANES} lanes", f"# right with a split cable; else {_CLEAN}")
    most = max((system.process.fastest.get(name, 0) for name in port.netdevs), default=0)
    if port.link_layer == "Ethernet" and most > port.gbps:
        return warn(f"{at}, and the card offers {most:g}", *_look_at_link(port))
    if alike > port.gbps:
        return warn(f"{at}, and a card of the same kind here runs at {alike:g}", *_look_at_link(port))
    return ok(at)


def _look_at_link(port: RdmaPort) -> tuple[str, ...]:
    see = (f"ethtool {port.netdevs[0]}",) if port.netdevs and port.link_layer == "Ethernet" else ("iblinkinfo",)
    return (*see, "# compare with what the cable and the switch port are made for")


CHECKS = (port_state, link_speed, link_errors, mtu)
