"""Ends the link to a peer: in good order from this side, or because the peer is lost. On the control thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, Reason, Status
from zerohop.core.base.log import logger
from zerohop.core.base.peer_text import printable, quoted
from zerohop.core.peers.peer_core import CLOSES_CONTEXT
from zerohop.core.peers.releases import unmap
from zerohop.errors import PEER_LOST, PeerLost, copy_of, from_native

# Seconds that lanes have to end what is under way, and between two looks.
_LAST_WORK_S: Final = 1.0
_LOOK_PAUSE_S: Final = 0.001
# Seconds after which what there was no memory for is tried again.
_AGAIN_S: Final = 0.1

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.lanes.lane import Lane
    from zerohop.core.peers.peer_core import PeerCore
    from zerohop.core.peers.peer_link import PeerLink
    from zerohop.errors import ZerohopError


def farewell_error(text: str, fix: str, peer: str) -> tuple[ZerohopError, Reason]:
    """Return the error for what a peer has said as it left, and the reason for operations in flight."""
    if text == CLOSES_CONTEXT:  # in the words of the data plane, which may have heard it first
        return from_native(PEER_LOST, Reason.CONTEXT_CLOSED.value, peer=peer), Reason.CONTEXT_CLOSED
    there = f"in the peer's process: {quoted(fix)}" if fix else ""
    return PeerLost(f"the peer left: {quoted(text)}", fix=there, peer=peer), Reason.PEER_CLOSED


def out_of_memory_for(peer: str) -> PeerLost:
    """Return the error of a link that is given up, because there was no memory for a step of its conversation."""
    text = "out of memory: this process has lost a step of its conversation with the peer"
    return PeerLost(text, fix="free memory of this machine, and post it again", peer=peer)


async def close(
    core: PeerCore, link: PeerLink, farewell: str, error: ZerohopError, status: Status, reason: Reason
) -> None:
    """Say goodbye and close a link."""
    try:
        await part(core, link, farewell, error, status, reason)
    finally:  # out of memory, for one, must not leave a link that is neither open nor lost
        lose(core, link, error, status, reason)


async def part(
    core: PeerCore, link: PeerLink, farewell: str, error: ZerohopError, status: Status, reason: Reason
) -> None:
    """Give back each other's memory, end operations in flight, and say goodbye, in this order.

    Memory that the peer has not given back by then stays out of use until the peer's process ends. The peer answers a
    goodbye by closing its end; operations that are still in flight then end with PeerLost.
    """
    if link.parting is None and link.lost is None:
        link.closing = error

        async def work() -> None:
            if link.session is not None:
                await link.session.give_back()
            # Notifications of operations that have ended would end with the lanes.
            await wait_while(link, lambda lane: lane.endpoint.telling)
            _drop_peer(core, link, status, reason)
            if link.session is not None:
                await link.session.say_goodbye(farewell)

        link.parting = link.start(work)
    if link.parting is not None:
        # The task is shared, so a caller that stops waiting must not cancel it.
        await asyncio.wait([link.parting])


async def wait_while(link: PeerLink, busy: Callable[[Lane], bool]) -> None:
    """Wait until none of a link's lanes is busy, for a second at most."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _LAST_WORK_S
    while loop.time() < deadline and any(map(busy, link.lanes.values())):  # noqa: ASYNC110 - no event reports that
        await asyncio.sleep(_LOOK_PAUSE_S)


def lose(core: PeerCore, link: PeerLink, error: ZerohopError, status: Status, reason: Reason) -> None:
    """Lose a link: nothing goes to or comes from its peer any more. Idempotent.

    A call that fails, out of memory, leaves the link lost; the rest is done soon, or by the next call.
    """
    if link.losing or link.gone:
        return
    link.losing = True
    try:
        core.arrivals.forget(link)  # first: nobody is to be given a peer that is known to be lost
        error = link.lost or link.closing or error
        # The error is copied, because its traceback would keep alive everything that its frames know.
        link.lost = link.lost or copy_of(error)
        _take_apart(core, link, error, status, reason)
        link.gone = True
    except MemoryError:
        link.losing = False  # first: the next line may have no memory, either
        core.control.loop.call_later(_AGAIN_S, lose, core, link, error, status, reason)
        raise
    finally:
        link.losing = False


def lose_everyone(core: PeerCore, error: ZerohopError, status: Status, reason: Reason) -> None:
    """Lose all links."""
    for link in {*core.connected.values(), *core.young, *core.introduced.values()}:
        lose(core, link, error, status, reason)


def _take_apart(core: PeerCore, link: PeerLink, error: ZerohopError, status: Status, reason: Reason) -> None:
    _drop_peer(core, link, status, reason)
    for route in list(link.routes):
        route.drop()
    # No route is made of them from now on; what could not be unmapped for lack of memory is left to the next call.
    with link.imports_lock:
        link.unmapping.extend(link.imports.values())
        link.imports.clear()
        link.grants = None
    while link.unmapping:
        unmap(core, link.unmapping[-1])
        link.unmapping.pop()
    link.allocations.clear()
    while link.queue_pairs:
        link.queue_pairs.popitem()[1].close()
    core.shares.lost(link)
    _forget(core, link)
    for reference in core.watchers.valuerefs():
        watcher = reference()
        if watcher is not None:
            watcher.peer_lost(link, error)
    link.message_lane, link.lanes = None, {}
    link.ending, link.session = link.session or link.ending, None
    if link.ending is not None:
        link.ending.end(error)
        link.ending = None


def _forget(core: PeerCore, link: PeerLink) -> None:
    """Take a lost link out of the tables."""
    core.young.discard(link)
    # The error goes in as text, because a kept log record would keep its traceback alive.
    logger.info("%s: %s is gone: %s", printable(core.name), link.label, str(link.lost))
    if core.connected.get(link.peer) is link:
        del core.connected[link.peer]
    partner = link.partner
    if partner is not None and not partner.gone:
        error = link.lost
        assert error is not None  # lose() has set it
        lose(core, partner, copy_of(error), Status.PEER_LOST, Reason.LANE_CLOSED)
    link.partner = None


def _drop_peer(core: PeerCore, link: PeerLink, status: Status, reason: Reason) -> None:
    """End the operations in flight. The first call counts."""
    if link.native_id >= 0:
        try:
            core.engine.drop_peer(link.native_id, status, reason)
        except NativeError:  # the engine is closed, and all its peers dropped
            pass
