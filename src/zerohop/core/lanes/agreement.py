"""Finds out of which providers two Contexts can make lanes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from zerohop.config.providers import PROVIDERS, VERBS
from zerohop.core.control import address
from zerohop.core.lanes import nic_ports, path_choice
from zerohop.errors import Unsupported

if TYPE_CHECKING:
    from zerohop.core.control.wire import Setup
    from zerohop.core.lanes.lane_core import LaneCore
    from zerohop.core.lanes.link import Link
    from zerohop.core.lanes.path_choice import Cost


def agree(core: LaneCore, link: Link, setup: Setup, *, same_host: bool) -> None:
    """Fill in ``link.possible`` and ``link.missing`` from the peer's Setup.

    ``same_host``: the conversation goes over a Unix socket.

    Raises:
        Unsupported: the sides have no provider in common.
    """
    missing: dict[str, str] = {}
    possible: dict[str, Cost | None] = {}
    for provider in PROVIDERS:
        why = _why_not(core, provider, setup, same_host=same_host)
        if why:
            missing[provider] = why
        else:
            possible[provider] = _usual_cost(core, link) if provider == VERBS else None
    link.missing, link.possible = missing, possible
    if not possible:
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise Unsupported(f"no provider in common: {reasons}", fix=_fix(core, setup), peer=link.peer)


def _why_not(core: LaneCore, provider: str, setup: Setup, *, same_host: bool) -> str:
    """Return why there can be no lane of a provider; empty if there can."""
    if provider not in core.providers:
        return core.unusable.get(provider, "this Context does not use it")
    if provider not in setup.providers:
        return "the peer does not use it"
    if provider in ("shm", "p2p"):
        return "" if same_host else _why_apart(address.parse(setup.url))
    if provider == "tcp":
        listens = address.parse(core.url).listens or address.parse(setup.url).listens
        return "" if listens else "neither side listens on TCP; give one of them listen="
    if core.settings.encryption == "all" and not same_host:
        return 'NICs do not encrypt, and encryption="all" leaves nothing that goes to other hosts uncovered'
    mine = core.nic_ports.nics()
    if not any(nic.link for nic in mine):
        return core.nic_ports.why_not()
    if not any(nic.link for nic in setup.nics):
        return "the peer has no NIC port that can be used"
    return "" if nic_ports.pair(mine, setup.nics) else "no two NIC ports of the two sides have the same link layer"


def _why_apart(peer: address.Address) -> str:
    """Return why the two sides, which do not speak over a Unix socket, share no memory."""
    if peer.host_id != address.host_id():
        return "the peer is on another host"
    user = address.user_of(peer.socket_path)
    if user is not None and user != os.getuid():
        return f"the peer is on this host, and runs as user {user}, this process as user {os.getuid()}"
    return (
        f"the peer is on this host, and its Unix socket {peer.socket_path} cannot be reached from here, as if the two "
        f"had different file systems; mount the same {Path(peer.socket_path).parent.parent} for both"
    )


def _fix(core: LaneCore, setup: Setup) -> str:
    """Return what to do to give both sides a provider in common."""
    both = {*core.providers} & {*setup.providers}
    if not both:
        return "allow the same providers= on both sides"
    if VERBS in both and not any(nic.link for nic in core.nic_ports.nics()):
        return core.nic_ports.fix()
    return "allow more providers= on both sides"


def _usual_cost(core: LaneCore, link: Link) -> Cost:
    """Return the usual cost of a lane over the NIC ports of both sides."""
    mine = core.nic_ports.nics()
    return path_choice.rdma_cost(nic_ports.rate(mine, link.their_nics, nic_ports.pair(mine, link.their_nics)))
