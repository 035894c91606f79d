"""Gives memory of this side to a peer that asks for it and has the right to it, and asks for it back.

On the control thread. import_client.py, the asking side, describes the forms in which memory goes to a peer.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, Reason, Status
from zerohop.config.providers import P2P, SHM, VERBS
from zerohop.core.base.deadlines import wait_with_timeout
from zerohop.core.control import wire
from zerohop.core.control.channel import close_all
from zerohop.core.memory.remote_buffer import share_of
from zerohop.core.peers.import_client import LAST_COPIES_S
from zerohop.core.runtime.devices import HOST
from zerohop.errors import ProtocolError, from_native

if TYPE_CHECKING:
    from zerohop.core.control.channel import Channel
    from zerohop.core.memory.local_share import LocalShare
    from zerohop.core.peers.peer_core import PeerCore
    from zerohop.core.peers.peer_link import PeerLink

# Requests of one peer that may wait for a driver or a NIC.
_MAX_REQUESTS: Final = 1 << 16

# The result of Engine.export_share.
_Exported = tuple[str, str, int, int, int, int, list[tuple[int, bytes]], list[int]]


def _close_exported(exported: _Exported) -> None:
    close_all(exported[-1])


class Exports:
    """Exports memory of this side over one Connection."""

    def __init__(self, core: PeerCore, link: PeerLink, channel: Channel) -> None:
        self._core = core
        self._link = link
        self._channel = channel
        # Requests that wait for a driver or a NIC, which handle one request after the other.
        self._reaching: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    def on_import_request(self, request: wire.ImportRequest) -> None:
        """Handle ImportRequest: answer a peer that wants to import."""
        link = self._link
        if link.closing is not None:  # this side is just asking for all its memory back
            self._refuse(request, Status.UNSUPPORTED, Reason.LANE_CLOSED)
        elif request.provider == SHM and SHM in link.possible:
            self._give_descriptor(request)
        elif request.provider in (VERBS, P2P) and request.provider in link.possible:
            if len(self._reaching) >= _MAX_REQUESTS:
                raise ProtocolError("malformed: the peer asks for more than anybody needs at once")
            # This is a task of its own, because pinning pages and exporting memory take long.
            task = asyncio.get_running_loop().create_task(self._give(request))
            self._reaching.add(task)
            task.add_done_callback(self._reaching.discard)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        else:
            # The peer must not count as an importer, because revoking would then wait for it in vain.
            why = "memory is given to peers on this host that use shm or p2p, and to NICs of peers that use verbs"
            self._refuse(request, Status.UNSUPPORTED, Reason.NONE, why)

    def on_released(self, message: wire.Released) -> None:
        """Handle Released: the peer has given back memory of this side."""
        self._core.shares.given_back(self._link, message.provider, message.share)
        self._returned.set()

    def ask_back(self, provider: str, share_id: int) -> None:
        """Ask the peer to give back its import of a share."""
        self._channel.post(wire.Release(provider=provider, share=share_id))

    async def ask_all_back(self) -> None:
        """Ask, before this side leaves, for all memory that the peer has mapped; wait for it a short time."""
        loop, shares = asyncio.get_running_loop(), self._core.shares
        limit = loop.time() + LAST_COPIES_S
        for provider, share_id in shares.mapped_by(self._link):
            self.ask_back(provider, share_id)
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

    def _give_descriptor(self, request: wire.ImportRequest) -> None:
        grant = self._core.shares.grant(self._link, request.provider, request.share, request.capability)
        reply = wire.ImportReply(
            request=request.request,
            status=grant.status.value,
            reason=grant.reason.value,
            offset=grant.offset,
            nbytes=grant.nbytes,
            rights=grant.rights,
            nfds=int(grant.fd >= 0),
        )
        try:
            self._channel.post(reply, [grant.fd] if grant.fd >= 0 else [])
        finally:
            if grant.fd >= 0:
                os.close(grant.fd)

    async def _give(self, request: wire.ImportRequest) -> None:
        """Give memory to a peer's NICs or devices, once the requests before have ended."""
        async with self._turn:
            share = self._core.shares.admit(self._link, request.provider, request.share, request.capability)
            if isinstance(share, tuple):
                self._refuse(request, *share)
                return
            try:
                if request.provider == VERBS:
                    await self._give_keys(request, share)
                else:
                    await self._give_memory(request, share)
            except NativeError as error:
                status, reason, text = error.args
                said = from_native(status, reason, text).reason
                self._refuse_importer(request, Status(status), Reason(reason), said)

    async def _give_memory(self, request: wire.ImportRequest, share: LocalShare) -> None:
        """Give memory to a peer for its devices: a device's as the driver exports it, host memory by a descriptor."""
        if share.registration.device == HOST:
            self._give_descriptor(request)
            return
        export = self._core.engine.export_share
        exported = await self._core.control.run_in_thread(export, share.share_id, discard=_close_exported)
        try:
            if self._still_wanted(request):
                self._post_memory(request, share, exported)
        finally:
            _close_exported(exported)

    def _post_memory(self, request: wire.ImportRequest, share: LocalShare, exported: _Exported) -> None:
        form, device, process, address, offset, nbytes, pieces, fds = exported
        left = list(fds)
        for start in range(0, len(pieces), wire.MAX_FDS):
            some = pieces[start : start + wire.MAX_FDS]
            theirs, left = left[: (count := sum(not handle for _, handle in some))], left[count:]
            more = start + wire.MAX_FDS < len(pieces)
            if start:
                part = wire.ImportPart(request=request.request, pieces=some, more=more, nfds=len(theirs))
                self._channel.post(part, theirs)
                continue
            reply = wire.ImportReply(
                request=request.request,
                status=Status.OK.value,
                reason=Reason.NONE.value,
                nbytes=nbytes,
                rights=share_of(share.handle).rights,
                exported=wire.Exported(form, device, process, address, offset, some),
                more=more,
                nfds=len(theirs),
            )
            self._channel.post(reply, theirs)

    async def _give_keys(self, request: wire.ImportRequest, share: LocalShare) -> None:
        """Register memory with each NIC at which the peer's lane ends, unless that was done before."""
        engine, nic_ports = self._core.engine, self._core.nic_ports
        if why := "; ".join(filter(None, map(nic_ports.port_down, request.rails))):
            self._refuse_importer(request, Status.UNSUPPORTED, Reason.PORT_DOWN, why)
            return
        domains = nic_ports.domains(request.rails)
        found = [
            await self._core.control.run_in_thread(engine.reach, share.share_id, domain, share.revocable)
            for domain in domains
        ]
        if len({address for address, _, _ in found}) != 1:
            raise NativeError(Status.UNSUPPORTED.value, Reason.NONE.value, "its NICs do not know it by one address")
        described = share_of(share.handle)
        reply = wire.ImportReply(
            request=request.request,
            status=Status.OK.value,
            reason=Reason.NONE.value,
            nbytes=described.nbytes,
            rights=described.rights,
            address=found[0][0],
            text=", ".join(dict.fromkeys(how for _, _, how in found))[: wire.MAX_LONG_TEXT],
            keys=[key for _, key, _ in found],
            atomics=all(bool(domain.facts().get("atomics")) for domain in domains),
        )
        if self._still_wanted(request):
            self._channel.post(reply)

    def _still_wanted(self, request: wire.ImportRequest) -> bool:
        """Tell whether the peer is still there, and the share has not been withdrawn meanwhile."""
        if self._link.lost is not None:
            return False
        # A peer that was asked to give a share back must get a refusal now, not the share.
        if not self._core.shares.has(request.share):
            self._refuse_importer(request, Status.ACCESS_DENIED, Reason.REVOKED)
            return False
        return True

    def _refuse_importer(self, request: wire.ImportRequest, status: Status, reason: Reason, text: str = "") -> None:
        """Refuse a peer that counted as an importer already."""
        self._core.shares.given_back(self._link, request.provider, request.share)
        self._refuse(request, status, reason, text)

    def _refuse(self, request: wire.ImportRequest, status: Status, reason: Reason, text: str = "") -> None:
        self._channel.post(
            wire.ImportReply(request=request.request, status=status.value, reason=reason.value, text=text[:2000])
        )
