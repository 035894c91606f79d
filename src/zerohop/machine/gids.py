"""Chooses the entry of a port's GID table that a queue pair uses.

The rules, in this order:

1. A requested index is taken, whatever its entry says, if the table has it; else it is an error.
2. On InfiniBand entry 0 is taken, the port's own GID. Packets are addressed by LID. They carry the GID, in the global
   routing header (GRH), only if the peer is on another subnet, or if the header is requested: `needs_grh`.
3. On Ethernet only entries of RoCE v2 count: v1 is not routed, and switches of today do not expect it. An entry whose
   interface is down does not count either, since no address of that interface answers.
4. Of the rest, an IPv4-mapped address goes before a global IPv6 address, and that before a link-local one: IPv4 is what
   administrators of RoCE networks set up and route, and a link-local address reaches nothing beyond the own link.
5. Of equal entries, one whose interface is up goes before one whose interface's state is not known.
6. Of entries that are still equal, the one with the lowest index.

The order of a table is not the same on two hosts, nor on one host before and after a reboot: an index that is right on
one host says nothing about another.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerohop.machine.nics import Gid, RdmaPort

_ROCE_V2 = "RoCE v2"
_KINDS = ("IPv4", "global IPv6", "link-local IPv6")


@dataclass(frozen=True, slots=True)
class GidChoice:
    """Holds the entry that a port's queue pairs use, or the reason why there is none.

    Attributes:
        gid: the entry, or None.
        why: in words, the reason for this entry, or for none.
        fix: what to do if there is none, else "".
    """

    gid: Gid | None
    why: str
    fix: str


def choose_gid(port: RdmaPort, index: int | None = None) -> GidChoice:
    """Choose an entry by the rules of this module.

    Args:
        port: the port, with its table.
        index: a requested entry, or None.

    Raises:
        ValueError: the table has no entry `index`; the text lists its entries.
    """
    if index is not None:
        return _asked_for(port, index)
    if port.link_layer == "InfiniBand":
        return _infiniband(port)
    if port.link_layer == "Ethernet":
        return _ethernet(port)
    why = f"its link layer is {port.link_layer}; queue pairs are connected over InfiniBand or RoCE v2 only"
    return GidChoice(None, why, "use another NIC, or tcp")


def needs_grh(port: RdmaPort, gid: Gid, remote_gid: str, *, asked: bool = False) -> bool:
    """Tell whether packets from `port` to the port with `remote_gid` need the global routing header.

    On Ethernet always; on InfiniBand between two subnets, which the first 64 bits of a GID tell apart.

    Args:
        port: the local port.
        gid: the entry of the local port.
        remote_gid: text of the peer's GID.
        asked: the header is requested.
    """
    if asked or port.link_layer != "InfiniBand":
        return True
    return _packed(gid.text)[:8] != _packed(remote_gid)[:8]


def _packed(text: str) -> bytes:
    return ipaddress.IPv6Address(text).packed


def _asked_for(port: RdmaPort, index: int) -> GidChoice:
    for gid in port.gids:
        if gid.index == index:
            return GidChoice(gid, f"GID {_words(gid)}, asked for by its index", "")
    table = "; ".join(_words(gid) for gid in port.gids) or "nothing"
    raise ValueError(f"the GID table of port {port.number} has no entry {index}; it has {table}")


def _infiniband(port: RdmaPort) -> GidChoice:
    for gid in port.gids:
        if gid.index == 0:
            return GidChoice(gid, "GID 0, the port's own on InfiniBand", "")
    why = "the GID table of this InfiniBand port has no entry 0"
    return GidChoice(None, why, "look at the port and its subnet manager: ibstat")


def _ethernet(port: RdmaPort) -> GidChoice:
    routed = [gid for gid in port.gids if gid.type == _ROCE_V2]
    usable = [gid for gid in routed if gid.netdev_up is not False]
    if usable:
        gid = min(usable, key=lambda gid: (_kind(gid), not gid.netdev_up, gid.index))
        return GidChoice(gid, f"GID {_words(gid)}", "")
    interface = port.netdevs[0] if port.netdevs else "INTERFACE"
    give_address = f"give the interface an address: ip address add ADDRESS/PREFIX dev {interface}"
    if routed:
        down = ", ".join(dict.fromkeys(str(gid.netdev) for gid in routed))
        why = f"every RoCE v2 entry of its GID table belongs to an interface that is down: {down}"
        return GidChoice(None, why, f"ip link set {routed[0].netdev} up")
    if port.gids:
        why = "its GID table has no RoCE v2 entry: " + "; ".join(_words(gid) for gid in port.gids)
        return GidChoice(None, why, f"{give_address}; a NIC that offers RoCE v1 only needs other settings or firmware")
    return GidChoice(None, "its GID table is empty", give_address)


def _kind(gid: Gid) -> int:
    """Return the place of an address in the order of _KINDS."""
    address = ipaddress.IPv6Address(gid.text)
    if address.ipv4_mapped is not None:
        return 0
    return 2 if address.is_link_local else 1


def _words(gid: Gid) -> str:
    where = f" on {gid.netdev}" if gid.netdev is not None else ""
    state = {True: "", False: " (down)", None: " (state not known)"}[gid.netdev_up] if gid.netdev is not None else ""
    return f"{gid.index}: {gid.type or 'type not known'} {gid.address} ({_KINDS[_kind(gid)]}){where}{state}"
