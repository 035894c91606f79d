"""Checks the family "address": GID, partition and network of each port."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from zerohop.machine.doctor.check import Verdict, checks_of, combined, fail, not_here, ok, warn
from zerohop.machine.doctor.words import as_command, no_active_port
from zerohop.machine.gids import choose_gid

if TYPE_CHECKING:
    from zerohop.machine.doctor.system import System
    from zerohop.machine.nics import RdmaPort

check = checks_of("address", needs=no_active_port)

_FULL_MEMBER = 0x8000
_DEFAULT_KEY = 0x7FFF


@check("gid", "a RoCE queue pair is addressed by an entry of the port's GID table; the index differs on every host")
def gid(system: System) -> Verdict:
    """Check that active ports have a GID that other hosts can reach, by the rules of docs/nics.md."""
    return combined(((name, _gid(system, port)) for name, _, port in system.ports(active=True)), one_is_enough=True)


@check("subnets", "both ends need addresses that reach each other; two interfaces in one network answer for each other")
def subnets(system: System) -> Verdict:
    """Check the IPv4 networks of RoCE ports: interfaces may share one only if ARP is set up for that."""
    networks: dict[ipaddress.IPv4Network, list[str]] = {}
    for interface, address in _roce_addresses(system).items():
        for network in system.subnets.get(interface, ()):
            if address in network:
                networks.setdefault(network, []).append(interface)
    if not networks:
        return not_here("no active port has an IPv4 address of RoCE v2")
    shared = {network: names for network, names in networks.items() if len(names) > 1 and not _separated(system, names)}
    if shared:
        return warn(
            "; ".join(f"{', '.join(names)} are all in {network}" for network, names in shared.items()),
            "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
            "# or a network of its own for each interface",
        )
    each = ", ".join(f"{network} on {', '.join(names)}" for network, names in networks.items())
    return ok(f"{each}; a peer's address has to be in one of these, or routed")


@check("pkey", "a port talks to ports of the same partition; limited members talk to full members only")
def pkey(system: System) -> Verdict:
    """Check that the P_Key table has the entry that queue pairs use, and that it is a full member."""
    index = system.options.pkey_index
    found = [(name, _pkey(port, index)) for name, _, port in system.ports(active=True)]
    return combined(found, one_is_enough=True)


def _gid(system: System, port: RdmaPort) -> Verdict:
    try:
        choice = choose_gid(port, system.options.gid_index)
    except ValueError as error:
        return fail(str(error), "# correct gid_index in ZEROHOP_VERBS, or leave it out")
    if choice.gid is None:
        return fail(choice.why, as_command(choice.fix))
    address = ipaddress.IPv6Address(choice.gid.text)
    if port.link_layer == "Ethernet" and address.is_link_local:
        interface = choice.gid.netdev or "INTERFACE"
        return warn(
            f"{choice.why}: it reaches no other network than its own link",
            f"ip address add ADDRESS/PREFIX dev {interface}",
        )
    return ok(choice.why)


def _roce_addresses(system: System) -> dict[str, ipaddress.IPv4Address]:
    """Return interface -> IPv4 address of the GIDs that are used."""
    found = {}
    for _, _, port in system.ports(active=True):
        try:
            chosen = choose_gid(port, system.options.gid_index).gid
        except ValueError:  # the check "gid" reports it
            continue
        if chosen is not None and chosen.netdev is not None:
            address = ipaddress.IPv6Address(chosen.text).ipv4_mapped
            if address is not None:
                found[chosen.netdev] = address
    return found


def _separated(system: System, interfaces: list[str]) -> bool:
    """Tell whether each interface answers for its own address only, and drops no packet routed by another interface."""
    settings = [system.arp.get(name, {}) for name in interfaces]
    return all(
        each.get("arp_ignore", 0) >= 1 and each.get("arp_announce", 0) >= 1 and each.get("rp_filter", 0) != 1
        for each in settings
    )


def _pkey(port: RdmaPort, index: int) -> Verdict:
    keys = {entry.index: entry.value for entry in port.pkeys}
    if index not in keys:
        has = ", ".join(f"{each}: {key:#06x}" for each, key in keys.items()) or "nothing"
        return fail(f"no entry {index}; the table has {has}", "# set pkey_index in ZEROHOP_VERBS to one that it has")
    key = keys[index]
    if not key & _FULL_MEMBER:
        who = "of the default partition" if key == _DEFAULT_KEY else f"of partition {key:#06x}"
        return warn(
            f"entry {index} is a limited member {who}",
            "# have the subnet manager make it a full member, or set pkey_index in ZEROHOP_VERBS",
        )
    return ok(f"entry {index} is {key:#06x}, a full member")


CHECKS = (gid, subnets, pkey)
