"""Says why a path between two memories cannot be taken over a link, as far as that was tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.core.memory.registration import DEVICES
from zerohop.core.runtime.devices import HOST
from zerohop.errors import from_native

if TYPE_CHECKING:
    from zerohop._native import NativeError
    from zerohop.core.lanes.link import Link
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.remote_buffer import Share


def why_not_mapped(link: Link, remote: Share) -> str:
    """Return why the peer's memory cannot be mapped here; empty if it can."""
    if not remote.mappable:
        return "the memory is not in a shared file; ctx.alloc gives memory that is"
    return link.unreachable.why_not(("shm", remote.share_id, ()))


def why_not_reached(link: Link, registration: Registration, remote: Share) -> str:
    """Return why the NICs of the present lane cannot reach both memories; empty if they can, or may."""
    lane = link.lane_of("verbs")
    if lane is None:
        return ""
    for domain in lane.domains:
        if why := registration.unregistrable.why_not(domain.number):
            return f"the memory here: {why}"
    why = link.unreachable.why_not(("verbs", remote.share_id, lane.rails))
    return f"the memory there: {why}" if why else ""


def why_no_peer_link(link: Link, registration: Registration, remote: Share) -> str:
    """Return why no device here reaches both memories; empty if one does, or nobody has tried."""
    if remote.device == HOST and not remote.mappable:
        return "the memory there is not in a shared file; ctx.alloc gives memory that is"
    if why := registration.unregistrable.why_not(DEVICES):
        return f"the memory here: {why}"
    for device in ((), (registration.region.device,)):
        if why := link.unreachable.why_not(("p2p", remote.share_id, device)):
            return why
    return ""


def note_no_peer_link(link: Link, registration: Registration, remote: Share, error: NativeError) -> None:
    """Record that devices here were tried, and do not reach both memories."""
    if registration.unregistrable.why_not(DEVICES):
        return  # that is the failure, which concerns no other memory
    key = "p2p", remote.share_id, (registration.region.device,)
    link.unreachable.record_failure(key, from_native(*error.args).reason, *error.args[:2])


def device_link(link: Link, registration: Registration, remote: Share) -> str:
    """Return the hardware link by which a device here reaches both memories; empty if nobody has tried."""
    imported = link.imports.get(("p2p", remote.share_id))
    allocation = imported.allocation if imported is not None else None
    return allocation.links.get(registration.region.device, "") if allocation is not None else ""


def try_again_in(link: Link, registration: Registration, remote: Share) -> float:
    """Return the seconds until a memory that could not be reached may be tried again; infinite if there is none."""
    waits = [
        link.unreachable.seconds_left((provider, remote.share_id, device))
        for provider, device in (("shm", ()), ("p2p", ()), ("p2p", (registration.region.device,)))
    ]
    waits.append(registration.unregistrable.seconds_left(DEVICES))
    lane = link.lane_of("verbs")
    if lane is not None:
        waits += [registration.unregistrable.seconds_left(domain.number) for domain in lane.domains]
        waits.append(link.unreachable.seconds_left(("verbs", remote.share_id, lane.rails)))
    return min(waits)


def how_registered(link: Link, registration: Registration, remote: Share) -> tuple[tuple[str, str], ...]:
    """Return how the NICs of the present lane have registered both memories, as far as they have."""
    lane = link.lane_of("verbs")
    if lane is None:
        return ()
    here = dict.fromkeys(filter(None, (registration.how.get(domain.number, "") for domain in lane.domains)))
    imported = link.imports.get(("verbs", remote.share_id))
    there = imported.how if imported is not None and imported.rails == lane.rails else ""
    return tuple((where, how) for where, how in (("here", ", ".join(here)), ("there", there)) if how)


def rails(link: Link) -> tuple[tuple[str, str], ...]:
    """Return the NIC ports of the present lane, here and there."""
    lane = link.lane_of("verbs")
    if lane is None:
        return ()
    theirs = [link.their_nics[place] for place in lane.rails]
    return tuple(
        (f"{domain.device} port {domain.port}", f"{nic.name} port {nic.port}")
        for domain, nic in zip(lane.domains, theirs, strict=True)
    )
