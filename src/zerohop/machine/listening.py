"""Judges where a Context of this process would listen, and whether strangers could reach it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listening:
    """Holds the meaning of this process's settings for its peers.

    Attributes:
        address: "host:port", or None if nothing listens on the network.
        loopback: whether only this host can connect.
        secret: whether peers must prove that they know a secret.
        insecure: whether listening off loopback without a secret was requested, so that anybody can connect.
        why: the reason why a Context would refuse these settings, else "".
        fix: what to do about that, or about an insecure listener, else "".
    """

    address: str | None
    loopback: bool
    secret: bool
    insecure: bool
    why: str
    fix: str


def describe(address: str | None, *, secret: bool, insecure: bool) -> Listening:
    """Judge a listening address.

    Args:
        address: "host:port" or None.
        secret: whether a shared secret is set.
        insecure: whether listening without a secret was explicitly allowed.
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
        return False  # a name may resolve to any address; "" is every interface
