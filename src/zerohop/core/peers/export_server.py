"""Gives memory of this side to a peer that asks for it and has the right to it, and asks for it back.

On the control thread. import_client.py, the asking side, describes the forms in which memory goes to a peer. What peers
map goes out once for all shares of one allocation; this side notes what a peer has, until the peer says that it has
dropped it. Each share is checked by itself, and counts its importers by itself.
"""

from __future__ import annotations

import asyncio
import bisect
import math
from typing import TYPE_CHECKING, Final, NamedTuple

from zerohop._native import NativeError, Reason, Status
from zerohop.config.providers import P2P, SHM, VERBS
from zerohop.core.base import sandbox
from zerohop.core.base.deadlines import wait_with_timeout
from zerohop.core.control import wire
from zerohop.core.control.descriptors import close_all
from zerohop.core.memory.remote_buffer import share_of
from zerohop.core.peers.granting import grant_further
from zerohop.core.peers.import_client import LAST_COPIES_S
from zerohop.core.peers.releases import in_parts
from zerohop.core.runtime.devices import HOST
from zerohop.errors import LimitReached, ProtocolError, from_native, out_of_descriptors

if TYPE_CHECKING:
    from collections.abc import Hashable

    from zerohop.core.control.channel import Channel
    from zerohop.core.memory.local_share import LocalShare
    from zerohop.core.peers.peer_core import PeerCore
    from zerohop.core.peers.peer_link import PeerLink

_WRITE: Final = 2
# Requests of one peer that may wait for a driver or a NIC. A peer sends one for each provider and choice of NICs.
_MAX_REQUESTS: Final = 1024

# The result of Engine.export_share.
_Exported = tuple[str, str, int, int, int, int, list[tuple[int, bytes]], list[int]]


def _close_exported(exported: _Exported) -> None:
    close_all(exported[-1])


class _Given(NamedTuple):
    """Describes memory that the peer has: its addresses in this process, and the number by which both sides know it."""

    start: int
    stop: int
    number: int


class Exports:
    """Exports memory of this side over one Connection."""

    def __init__(self, core: PeerCore, link: PeerLink, channel: Channel) -> None:
        self._core = core
        self._link = link
        self._channel = channel
        # Memory that the peer has, by what it is part of, in the order of addresses; and the key of each, by number.
        self._given: dict[Hashable, list[_Given]] = {}
        self._keys: dict[int, Hashable] = {}
        self._last_number = 0
        # Requests that wait for a driver or a NIC, which handle one request after the other.
        self._reaching: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    def on_import_request(self, request: wire.ImportRequest) -> None:
        """Handle ImportRequest: answer a peer that wants to import."""
        link, provider = self._link, request.provider
        if link.closing is not None:  # this side is just asking for all its memory back
            self._refuse_all(request, Status.UNSUPPORTED, Reason.LANE_CLOSED)
        elif provider == SHM and SHM in link.possible and not (self._reaching or self._channel.unsent()):
            self._answer(request, [self._admit_to_file(request, wanted) for wanted in request.wanted])
        elif provider in (SHM, VERBS, P2P) and provider in link.possible:
            if len(self._reaching) >= _MAX_REQUESTS:
                raise ProtocolError("malformed: the peer asks for more than anybody needs at once")
            # This is a task of its own, because pinning pages and exporting memory take long, and a peer that reads
            # slowly is given nothing more until it has read what it has: messages that wait keep descriptors open.
            task = self._link.start(self._give, request)
            self._reaching.add(task)
            task.add_done_callback(self._reaching.discard)
        else:
            # The peer must not count as an importer, because revoking would then wait for it in vain.
            why = "memory is given to peers on this host that use shm or p2p, and to NICs of peers that use verbs"
            self._refuse_all(request, Status.UNSUPPORTED, Reason.NONE, why)

    def on_released(self, message: wire.Released) -> None:
        """Handle Released: the peer has given back memory of this side."""
        for number in message.allocations:
            key = self._keys.pop(number, None)
            left = [each for each in self._given.pop(key, ()) if each.number != number]
            if left:
                self._given[key] = left
        self._core.shares.given_back(self._link, message.provider, message.shares)
        self._returned.set()

    def ask_back(self, provider: str, share_ids: list[int]) -> None:
        """Ask the peer to give back its imports of shares."""
        for some in in_parts(share_ids):
            self._channel.post(wire.Release(provider=provider, shares=some))

    async def ask_all_back(self) -> None:
        """Ask, before this side leaves, for all memory that the peer has mapped; wait for it a short time."""
        loop, shares = asyncio.get_running_loop(), self._core.shares
        limit = loop.time() + LAST_COPIES_S
        shares.stop_granting(self._link)
        for provider, share_ids in shares.mapped_by(self._link).items():
            self.ask_back(provider, share_ids)
        try:
            while self._link.lost is None and shares.mapped_by(self._link):
                self._returned.clear()
                await wait_with_timeout(self._returned.wait(), limit - loop.time())
        except TimeoutError:
            pass

    def end(self) -> None:
        """End all answers that are under way, because the Connection is lost."""
        for task in self._reaching:
            task.cancel()
        self._returned.set()  # the peer gives nothing back any more

    async def _give(self, request: wire.ImportRequest) -> None:
        """Give memory to a peer's NICs or devices, once the requests before have ended."""
        async with self._turn:
            await self._channel.flush()
            self._answer(request, [await self._admit(request, wanted) for wanted in request.wanted])

    def _answer(self, request: wire.ImportRequest, answers: list[wire.Imported]) -> None:
        """Post the answers, in the order of the request."""
        for place, (wanted, answer) in enumerate(zip(request.wanted, answers, strict=True)):
            # A peer that was asked to give a share back meanwhile must get a refusal now, not the share.
            if answer.status == Status.OK.value and not self._core.shares.has(wanted.share):
                answers[place] = self._refuse_importer(request, wanted, Status.ACCESS_DENIED, Reason.REVOKED)
        self._channel.post(wire.ImportReply(request=request.request, answers=answers))

    def _admit_to_file(self, request: wire.ImportRequest, wanted: wire.Wanted) -> wire.Imported:
        share = self._core.shares.admit(self._link, request.provider, wanted.share, wanted.capability)
        if isinstance(share, tuple):
            return _refusal(*share)
        return self._give_file(request, wanted, share)

    async def _admit(self, request: wire.ImportRequest, wanted: wire.Wanted) -> wire.Imported:
        share = self._core.shares.admit(self._link, request.provider, wanted.share, wanted.capability)
        if isinstance(share, tuple):
            return _refusal(*share)
        try:
            if request.provider == VERBS:
                return await self._give_keys(request, wanted, share)
            if request.provider == SHM or share.registration.device == HOST:
                return self._give_file(request, wanted, share)
            return await self._give_memory(request, share)
        except Exception as error:  # noqa: BLE001 - whatever it is, the peer waits for an answer
            return self._refuse_importer(request, wanted, *self._outcome(error))

    def _give_file(self, request: wire.ImportRequest, wanted: wire.Wanted, share: LocalShare) -> wire.Imported:
        """Give the file of a share by a descriptor, for readers or for writers, unless the peer has it."""
        extent, writable = share.registration.extent, bool(share_of(share.handle).rights & _WRITE)
        key = request.provider, extent.number, writable
        given = self._find(key, share)
        if given is None:
            try:
                fd = self._core.shares.open_file(share, writable=writable)
            except OSError as error:
                return self._refuse_importer(request, wanted, *self._outcome(error))
            if fd < 0:
                return self._refuse_importer(request, wanted, Status.UNSUPPORTED, Reason.NONE)
            try:
                given = self._note(key, extent.address, extent.nbytes)
                where = extent.number, extent.address, extent.fd_offset
                place = given.number, request.provider, extent.nbytes, writable, *where
                self._post(wire.Allocation(*place, nfds=1), [fd])
            finally:
                sandbox.close(fd)
        return _part(share, given)

    async def _give_memory(self, request: wire.ImportRequest, share: LocalShare) -> wire.Imported:
        """Give memory of a device as its driver exports it, unless the peer has it."""
        key = request.provider, share.registration.extent.number
        given = self._find(key, share)
        if given is None:
            export = self._core.engine.export_share
            exported = await self._core.control.run_in_thread(export, share.share_id, discard=_close_exported)
            form, device, process, address, offset, _, pieces, fds = exported
            try:
                start = address - offset
                nbytes = sum(size for size, _ in pieces)
                given = self._note(key, start, nbytes)
                first = wire.Exported(form, device, process, start, 0, pieces[: wire.MAX_FDS])
                place = given.number, request.provider, nbytes, True, share.registration.extent.number, start
                self._post_pieces(wire.Allocation(*place, exported=first), pieces, fds)
            finally:
                _close_exported(exported)
        return _part(share, given)

    def _post_pieces(self, first: wire.Allocation, pieces: list[tuple[int, bytes]], fds: list[int]) -> None:
        """Post memory of however many pieces, with no more in one message than it may have descriptors."""
        left = list(fds)
        message: wire.Allocation | wire.AllocationPart = first
        for start in range(0, len(pieces), wire.MAX_FDS):
            some = pieces[start : start + wire.MAX_FDS]
            if start:
                message = wire.AllocationPart(number=first.number, pieces=some)
            count = sum(not handle for _, handle in some)
            message.more, message.nfds = start + wire.MAX_FDS < len(pieces), count
            self._post(message, left[:count])
            left = left[count:]

    def _post(self, message: wire.Allocation | wire.AllocationPart, fds: list[int]) -> None:
        """Post a message with descriptors; at the limit of this process without them, which the peer then notices."""
        try:
            self._channel.post(message, fds)
        except OSError:
            message.nfds = 0
            self._channel.post(message)

    def _find(self, key: Hashable, share: LocalShare) -> _Given | None:
        """Return the memory that the peer has, and that contains a share."""
        known = self._given.get(key)
        if known is None:
            return None
        start = share.registration.address + share.offset
        place = bisect.bisect_right(known, (start, math.inf)) - 1
        return known[place] if place >= 0 and start + share_of(share.handle).nbytes <= known[place].stop else None

    def _note(self, key: Hashable, start: int, nbytes: int) -> _Given:
        """Note that the peer has memory from now on."""
        self._last_number += 1
        given = _Given(start, start + nbytes, self._last_number)
        if self._last_number == 1:
            grant_further(self._core, self._link, self._channel)
        bisect.insort(self._given.setdefault(key, []), given)
        self._keys[given.number] = key
        return given

    async def _give_keys(self, request: wire.ImportRequest, wanted: wire.Wanted, share: LocalShare) -> wire.Imported:
        """Register memory with each NIC at which the peer's lane ends, unless that was done before."""
        engine, nic_ports = self._core.engine, self._core.nic_ports
        if why := "; ".join(filter(None, map(nic_ports.port_down, request.rails))):
            return self._refuse_importer(request, wanted, Status.UNSUPPORTED, Reason.PORT_DOWN, why)
        domains = nic_ports.domains(request.rails)
        found = [
            await self._core.control.run_in_thread(engine.reach, share.share_id, domain, share.revocable)
            for domain in domains
        ]
        if len({address for address, _, _ in found}) != 1:
            raise NativeError(Status.UNSUPPORTED.value, Reason.NONE.value, "its NICs do not know it by one address")
        described = share_of(share.handle)
        return wire.Imported(
            status=Status.OK.value,
            nbytes=described.nbytes,
            rights=described.rights,
            address=found[0][0],
            text=", ".join(dict.fromkeys(how for _, _, how in found))[: wire.MAX_LONG_TEXT],
            keys=[key for _, key, _ in found],
            atomics=all(bool(domain.facts().get("atomics")) for domain in domains),
        )

    def _refuse_importer(
        self, request: wire.ImportRequest, wanted: wire.Wanted, status: Status, reason: Reason, text: str = ""
    ) -> wire.Imported:
        """Refuse a peer that counted as an importer already."""
        self._core.shares.given_back(self._link, request.provider, [wanted.share])
        return _refusal(status, reason, text)

    def _refuse_all(self, request: wire.ImportRequest, status: Status, reason: Reason, text: str = "") -> None:
        answers = [_refusal(status, reason, text) for _ in request.wanted]
        self._channel.post(wire.ImportReply(request=request.request, answers=answers))

    def _outcome(self, error: Exception) -> tuple[Status, Reason, str]:
        """Return why memory cannot be given out."""
        if isinstance(error, NativeError):
            status, reason, text = error.args
            if status == Status.CLOSED.value:  # of the memory: it was closed meanwhile
                return Status.ACCESS_DENIED, Reason.REVOKED, ""
            return Status(status), Reason(reason), from_native(status, reason, text).reason
        if isinstance(error, LimitReached):
            return Status.NO_MEMORY, Reason.NONE, error.reason
        if isinstance(error, OSError):
            if out_of_descriptors(error):
                return Status.NO_MEMORY, Reason.OUT_OF_DESCRIPTORS, ""
            return Status.UNSUPPORTED, Reason.NONE, f"its file cannot be opened: {error.strerror}"
        self._core.control.warn_once.bug(error, "zerohop failed to give memory to a peer, in a way that it should not")
        return Status.NO_MEMORY, Reason.NONE, f"its owner failed: {type(error).__name__}"


def _refusal(status: Status, reason: Reason, text: str = "") -> wire.Imported:
    return wire.Imported(status=status.value, reason=reason.value, text=text[:2000])


def _part(share: LocalShare, given: _Given) -> wire.Imported:
    """Return the answer for a share that lies in memory that the peer has."""
    described = share_of(share.handle)
    return wire.Imported(
        status=Status.OK.value,
        nbytes=described.nbytes,
        rights=described.rights,
        allocation=given.number,
        offset=share.registration.address + share.offset - given.start,
    )
