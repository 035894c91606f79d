"""Chooses the address that peers are told for a listener, out of those of this host's interfaces."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from zerohop.shown import shown

_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFADDR: Final = 0x8915
_IFF_UP: Final = 1
# A request of the kernel's `struct ifreq`, as long as it is anywhere.
_IFREQ: Final = "16s24x"
# Scope of an address in /proc/net/if_inet6 that other hosts can use without naming an interface of theirs.
_GLOBAL: Final = "00"
_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


class Interface(NamedTuple):
    """Describes an interface that is there; ``addresses`` are those that other hosts can use, IPv4 first.

    Attributes:
        name: the name of the interface.
        up: whether it is up.
        card: whether there is a device behind it, as for no bridge or tunnel.
        addresses: the addresses.
    """

    name: str
    up: bool
    card: bool
    addresses: tuple[str, ...]


def interfaces() -> list[Interface]:
    """Return the interfaces of this host, or of the container of this process."""
    v6: dict[str, list[str]] = {}
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:  # this host has no IPv6
        lines = []
    for digits, _, _, scope, _, name in (line.split() for line in lines):
        if scope == _GLOBAL:
            v6.setdefault(name, []).append(str(ipaddress.IPv6Address(bytes.fromhex(digits))))
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            flags, address = _ask(sock, _SIOCGIFFLAGS, name), _ask(sock, _SIOCGIFADDR, name)
            up = flags is not None and bool(struct.unpack_from("H", flags, 16)[0] & _IFF_UP)
            v4 = [socket.inet_ntoa(address[20:24])] if address is not None else []
            card = Path("/sys/class/net", name, "device").exists()
            found.append(Interface(name, up, card, (*v4, *v6.get(name, []))))
    return found


def advertised_host(bound: str, advertise: str | None = None, source: str = "advertise", *, both: bool = False) -> str:
    """Return the host to tell peers for a listener.

    Args:
        bound: the address that it is bound to. If this is no wildcard, it is what peers are told by default.
        advertise: what the user wants them to be told: a host, an address, or an interface.
        source: name of ``advertise`` in errors.
        both: a listener bound to ``::`` takes IPv4, too.

    Raises:
        ValueError: there is nothing of the name ``advertise``, or no address that the listener has.
    """
    if advertise is not None:
        return _wanted(bound, advertise, source, both=both)
    if bound not in _WILDCARDS:
        return bound
    there = sorted((each for each in interfaces() if each.up), key=lambda each: not each.card)
    for family in _families(bound, both=both):
        # What other hosts see is told by the route to them; without one, by a card rather than by a bridge.
        if routed := _routed(family):
            return routed
        for each in there:
            for found in _of_family(each, family):
                if not ipaddress.ip_address(found).is_loopback:
                    return found
    return "::1" if bound == "::" else "127.0.0.1"


def _wanted(bound: str, advertise: str, source: str, *, both: bool) -> str:
    if _is_unspecified(advertise):
        raise ValueError(f"{source}={shown(advertise)} is no address that a peer could connect to. {_fix()}")
    try:
        ipaddress.ip_address(advertise)
    except ValueError:
        pass
    else:
        return advertise
    named = next((each for each in interfaces() if each.name == advertise), None)
    if named is None:
        try:
            socket.getaddrinfo(advertise, None)
        except (OSError, UnicodeError):
            raise ValueError(
                f"{source}={shown(advertise)} is neither an address, nor an interface, nor a host that is known here. "
                f"{_fix()}"
            ) from None
        return advertise
    if bound not in _WILDCARDS:
        if bound in named.addresses:
            return bound
        raise ValueError(
            f"{source}={shown(advertise)}: this Context listens on {bound} only, which is no address of {advertise}. "
            f'Fix: listen="0.0.0.0:0", or ZEROHOP_LISTEN=0.0.0.0:0'
        )
    for family in _families(bound, both=both):
        for found in _of_family(named, family):
            return found
    kind = "IPv6" if bound == "::" else "IPv4"
    raise ValueError(f"{source}={shown(advertise)}: the interface has no {kind} address. {_fix()}")


def _is_unspecified(host: str) -> bool:
    """Tell whether a host is 0.0.0.0 or ::, in any spelling."""
    try:
        return not any(socket.inet_aton(host))  # it takes 0 and 0x0, as connecting does
    except (OSError, ValueError):
        pass
    try:
        v6 = ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return v6.is_unspecified or (v6.ipv4_mapped is not None and v6.ipv4_mapped.is_unspecified)


def _fix() -> str:
    known = "; ".join(f"{each.name} ({', '.join(each.addresses) or 'no address'})" for each in interfaces())
    return f"Fix: advertise= an address of this host, or one of its interfaces: {known or 'none'}"


def _families(bound: str, *, both: bool) -> tuple[str, ...]:
    """Return the wildcards of the families that a listener takes."""
    return tuple(reversed(_WILDCARDS)) if both and bound == "::" else (bound,)


def _of_family(interface: Interface, bound: str) -> list[str]:
    return [each for each in interface.addresses if (":" in each) == (":" in bound)]


def _routed(bound: str) -> str:
    """Return the address of this host that other hosts see; empty without a route to any."""
    family = socket.AF_INET6 if bound == "::" else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # This sends nothing. It asks the routing table which address of this host other hosts see.
            probe.connect(("2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1", 9))
            host: str = probe.getsockname()[0]
    except OSError:
        return ""
    return "" if ipaddress.ip_address(host.partition("%")[0]).is_loopback or "%" in host else host


def _ask(sock: socket.socket, request: int, name: str) -> bytes | None:
    try:
        return fcntl.ioctl(sock, request, struct.pack(_IFREQ, name.encode()))
    except OSError:  # it has no address, or is gone by now
        return None
