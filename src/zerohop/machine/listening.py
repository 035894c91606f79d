"""Where a Context of this process would listen, and whether strangers could reach it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listening:
    """What the settings of this process mean for its peers.

    Attributes:
        address: "host:port", or None when nothing listens on the network.
        loopback: only this host can connect.
        secret: peers have to prove that they know a secret.
        insecure: listening off loopback without a secret was asked for: whoever can reach the address can connect.
        why: why a Context would refuse these settings, else "".
        fix: what to do about it, or about an insecure listener, else "".
    """

    address: str | None
    loopback: bool
    secret: bool
    insecure: bool
    why: str
    fix: str


def describe(address: str | None, *, secret: bool, insecure: bool) -> Listening:
    """Judges a listening address.

    Args:
        address: "host:port" or None.
        secret: a shared secret is set.
        insecure: listening without one was explicitly allowed.
    """
    loopback = address is None or _is_loopback(address.rpartition(":")[0].strip("[]"))
    exposed = not loopback and not secret
    why = fix = ""
    if exposed:
        fix = "set ZEROHOP_SECRET to the same value on every host, or listen on 127.0.0.1"
        if not insecure:
            why = f"listening on {address} without a secret is refused"
    return Listening(address, loopback, secret, exposed and insecure, why, fix)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to anything; "" is every interface
