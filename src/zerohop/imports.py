"""What each side of a Connection has of the other's memory: asked for at first use, given back when asked.

On the control thread. Memory on this host is mapped (shm): its owner sends a descriptor. Memory of a device on this
host (p2p) is mapped for devices here: its owner sends what its driver exports it as. Memory that NICs reach (verbs) has
one key for each rail of the lane, by which the owner's NIC knows what it may touch. None of these travels with a
handle: the owner is asked, so it knows who holds what, and registers with a NIC only what somebody wants to reach
through it.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from . import wire
from ._native import NativeError, Reason, RemoteKeys, Status
from .channel import copies_of
from .deferred import patience, settled
from .errors import ProtocolError, ZerohopError, again, from_native
from .fabrics import VERBS
from .inputs import HOST
from .routes import Import
from .setbacks import lasts

if TYPE_CHECKING:
    from ._native import Mapping, PeerMemory
    from .channel import Channel
    from .connection import Connection
    from .context import Context
    from .registry import Registration
    from .remote_buffer import Share
    from .shares import LocalShare

SHM: Final = "shm"
P2P: Final = "p2p"
_WRITE: Final = 2
# How long a side that leaves waits for what is still being copied.
_LAST_COPIES_S: Final = 0.2
_LOOK_EVERY_S: Final = 0.002
_MAX_REQUESTS: Final = 1 << 16
# What an owner that cannot give memory out in one way says; there may be another.
_CANNOT: Final = (Status.UNSUPPORTED.value, Status.NO_MEMORY.value, Status.DEVICE_ERROR.value)

# Of one memory; of 2 MiB each, and mostly larger.
_MAX_PIECES: Final = 1 << 17

_Reply = tuple[wire.ImportReply, list[int]]
_Key = tuple[str, int, tuple[int, ...]]
# What Engine.export_share returns.
_Exported = tuple[str, str, int, int, int, int, list[tuple[int, bytes]], list[int]]


class Imports:
    """The part of a conversation that is about memory."""

    def __init__(self, context: Context, connection: Connection, channel: Channel) -> None:
        self._context = context
        self._connection = connection
        self._channel = channel
        self._requests = 0
        self._replies: dict[int, asyncio.Future[_Reply]] = {}
        # Answers of which more is to come.
        self._unfinished: dict[int, _Reply] = {}
        self._importing: dict[_Key, asyncio.Task[None]] = {}
        # Requests of the peer that NICs are being asked about, one after the other.
        self._reaching: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    async def ask(self, share: Share, provider: str, rails: tuple[int, ...]) -> None:
        """Import the memory behind the peer's share, or note why that is impossible. ``rails``: NICs of the peer.

        Raises:
            AccessDenied: the owner does not allow it.
            PeerLost: it is gone.
            DeadlineExceeded: it does not answer before the operation's deadline; the request stays under way.
        """
        key = (provider, share.share_id, rails)
        task = self._importing.get(key)
        if task is None:
            task = self._importing[key] = asyncio.get_running_loop().create_task(self._import(share, provider, rails))
            task.add_done_callback(lambda _: self._importing.pop(key, None))
            # Whoever waited may be gone by the time it fails.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await settled(task, self._connection, patience())

    def replied(self, reply: wire.ImportReply, fds: list[int]) -> None:
        """The owner's answer; the descriptors are the caller's."""
        future = self._replies.get(reply.request)
        if future is None or future.done():
            return
        if reply.request in self._unfinished or (reply.more and reply.exported is None):
            raise ProtocolError("malformed: an answer begun twice, or without pieces")
        if reply.more:
            self._unfinished[reply.request] = reply, copies_of(fds)
        else:
            future.set_result((reply, copies_of(fds)))

    def went_on(self, part: wire.ImportPart, fds: list[int]) -> None:
        """More of an answer that has begun; the descriptors are the caller's."""
        begun = self._unfinished.get(part.request)
        if begun is None:
            return  # nobody waits for it any more
        reply, gathered = begun
        assert reply.exported is not None  # or it would not be there
        pieces = reply.exported.pieces
        pieces.extend(part.pieces)
        if len(pieces) > _MAX_PIECES:
            raise ProtocolError("malformed: more pieces than any memory has")
        gathered.extend(copies_of(fds))
        if not part.more:
            del self._unfinished[part.request]
            self._replies[part.request].set_result((reply, gathered))

    async def make_ready(self, imported: Import, share: Share, registration: Registration) -> None:
        """Have a device here reach the memory behind the peer's share and that here, or note why none can."""
        context = self._context
        await context._control.aside(context._load_kernels)
        try:
            await context._control.aside(imported.make_ready, context._engine, registration)
        except NativeError as error:
            if error.args[0] == Status.CLOSED.value:
                raise
            self._connection._note_no_peer_link(registration, share, error)

    def answer(self, request: wire.ImportRequest) -> None:
        """Answer a peer that wants to import."""
        connection = self._connection
        if request.provider == SHM and SHM in connection._possible:
            self._give_descriptor(request)
        elif request.provider in (VERBS, P2P) and request.provider in connection._possible:
            if len(self._reaching) >= _MAX_REQUESTS:
                raise ProtocolError("malformed: the peer asks for more than anybody needs at once")
            # Registering takes as long as it takes to pin the pages; drivers take their time to export.
            give = self._give_keys if request.provider == VERBS else self._give_memory
            task = asyncio.get_running_loop().create_task(give(request))
            self._reaching.add(task)
            task.add_done_callback(self._reaching.discard)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        else:
            # Nothing could be given to it, and as an importer it would hold up whoever takes the memory back.
            why = "memory is given to peers on this host that use shm or p2p, and to NICs of peers that use verbs"
            self._refuse(request, Status.UNSUPPORTED, Reason.NONE, why)

    def take_back(self, message: wire.Release) -> None:
        """The owner wants it back."""
        imported = self._connection._imports.pop((message.provider, message.share), None)
        if imported is None:
            self._channel.post(wire.Released(provider=message.provider, share=message.share))
        else:
            self.release(message.provider, message.share, imported)

    def returned(self, message: wire.Released) -> None:
        """The peer has let go of memory of ours."""
        self._context._shares.given_back(self._connection, message.provider, message.share)
        self._returned.set()

    def release(self, provider: str, share_id: int, imported: Import) -> None:
        """Let go of it, and tell the owner when that is done."""
        self._context._control.start(self._give_back, provider, share_id, imported)

    def ask_back(self, provider: str, share_id: int) -> None:
        """The peer is to give back what it imported of our share."""
        self._channel.post(wire.Release(provider=provider, share=share_id))

    async def give_all_back(self) -> None:
        """Before this side leaves: what nothing uses any more, or soon."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + _LAST_COPIES_S
        left = dict(self._connection._imports)
        while left:
            given_back = [key for key, imported in left.items() if imported.close()]
            for provider, share_id in given_back:
                del left[provider, share_id]
                self._connection._imports.pop((provider, share_id), None)
                self._channel.post(wire.Released(provider=provider, share=share_id))
            if left and loop.time() > limit:
                return
            await asyncio.sleep(_LOOK_EVERY_S if left else 0)

    async def ask_all_back(self) -> None:
        """Before this side leaves: what the peer has mapped of ours, as far as it answers soon."""
        loop, shares = asyncio.get_running_loop(), self._context._shares
        limit = loop.time() + _LAST_COPIES_S
        for provider, share_id in shares.mapped_by(self._connection):
            self.ask_back(provider, share_id)
        try:
            while shares.mapped_by(self._connection):
                self._returned.clear()
                await asyncio.wait_for(self._returned.wait(), limit - loop.time())
        except (asyncio.TimeoutError, TimeoutError):
            pass

    def end(self, error: ZerohopError) -> None:
        """The Connection is lost."""
        for future in self._replies.values():
            if not future.done():
                future.set_exception(again(error))
        for task in [*self._importing.values(), *self._reaching]:
            task.cancel()

    async def _import(self, share: Share, provider: str, rails: tuple[int, ...]) -> None:
        connection = self._connection
        old = connection._imports.pop((provider, share.share_id), None)
        if old is not None:
            # Over NICs that the lane does not use any more. To its owner the new one is the same.
            self._context._peers.unmap(old)
        self._requests += 1
        number = self._requests
        future = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            request = wire.ImportRequest(
                request=number,
                provider=provider,
                share=share.share_id,
                capability=share.capability,
                rails=list(rails),
            )
            self._channel.post(request)
            # As long as the Connection lasts: a late answer still serves whoever asks next.
            reply, fds = await future
        except BaseException:
            # The answer may have come just before: then nobody else closes what came with it.
            if future.done() and not future.cancelled() and future.exception() is None:
                for fd in future.result()[1]:
                    os.close(fd)
            raise
        finally:
            self._replies.pop(number, None)
            for fd in self._unfinished.pop(number, (None, ()))[1]:
                os.close(fd)
        try:
            if reply.status == Status.UNSUPPORTED.value or (provider != SHM and reply.status in _CANNOT):
                why = reply.text or "its owner cannot give it out"
                connection._unreachable.note(
                    (provider, share.share_id, rails), why, for_good=lasts(reply.status, reply.reason)
                )
            elif reply.status != Status.OK.value:
                raise from_native(
                    reply.status, reply.reason, "said by the peer", peer=connection.peer, provider=provider
                )
            else:
                await self._accept(share, provider, rails, reply, fds)
        finally:
            for fd in fds:
                os.close(fd)

    async def _accept(
        self, share: Share, provider: str, rails: tuple[int, ...], reply: wire.ImportReply, fds: list[int]
    ) -> None:
        connection = self._connection
        access: Mapping | RemoteKeys | PeerMemory
        try:
            if provider == SHM:
                access = self._map(reply, fds)
            elif provider == P2P:
                access = await self._context._control.aside(self._take_memory, reply, fds)
            elif len(reply.keys) == len(rails):
                access = RemoteKeys(reply.address, reply.nbytes, reply.rights, reply.keys, reply.atomics)
            else:
                raise ProtocolError("malformed: not one key for each rail", peer=connection.peer)
        except NativeError as error:
            why = f"it could not be mapped here: {error.args[2]}"
            connection._unreachable.note((provider, share.share_id, rails), why, for_good=lasts(*error.args[:2]))
            self._channel.post(wire.Released(provider=provider, share=share.share_id))
            return
        except ZerohopError:
            self._channel.post(wire.Released(provider=provider, share=share.share_id))
            raise
        # By the owner's word, and not by that of the handle, which somebody may have changed.
        device = reply.exported.device if reply.exported is not None else ""
        imported = Import(access, share.capability, reply.nbytes, reply.rights, rails, reply.text, device)
        key = provider, share.share_id
        other = connection._imports.pop(key, None)
        if other is not None:
            # Asked for over other NICs at the same time.
            self._context._peers.unmap(other)
        connection._imports[key] = imported
        connection._unreachable.forget((provider, share.share_id, rails))
        connection._drop_old_imports()

    def _take_memory(self, reply: wire.ImportReply, fds: list[int]) -> PeerMemory:
        """On a thread of its own."""
        engine, exported, writable = self._context._engine, reply.exported, bool(reply.rights & _WRITE)
        if exported is None:
            self._check_file(reply, fds)
            return engine.import_host(fds[0], reply.offset, reply.nbytes, writable)
        if sum(not handle for _, handle in exported.pieces) != len(fds):
            raise from_native(Status.NO_MEMORY.value, Reason.OUT_OF_DESCRIPTORS.value, peer=self._connection.peer)
        return engine.import_memory(
            exported.form,
            exported.device,
            exported.process,
            exported.address,
            exported.offset,
            reply.nbytes,
            exported.pieces,
            fds,
            writable,
        )

    def _check_file(self, reply: wire.ImportReply, fds: list[int]) -> None:
        peer = self._connection.peer
        if not fds:
            raise from_native(Status.NO_MEMORY.value, Reason.OUT_OF_DESCRIPTORS.value, peer=peer)
        # Beyond the end of the file a copy would crash the process.
        if os.fstat(fds[0]).st_size < reply.offset + reply.nbytes:
            raise ProtocolError("malformed: the peer's file is shorter than what it shared", peer=peer)

    def _map(self, reply: wire.ImportReply, fds: list[int]) -> Mapping:
        self._check_file(reply, fds)
        return self._context._engine.map(fds[0], reply.offset, reply.nbytes, bool(reply.rights & _WRITE))

    def _give_descriptor(self, request: wire.ImportRequest) -> None:
        grant = self._context._shares.grant(self._connection, request.provider, request.share, request.capability)
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

    async def _give_memory(self, request: wire.ImportRequest) -> None:
        """To a peer whose devices reach it themselves: as the driver exports it, or host memory by its descriptor."""
        shares = self._context._shares
        async with self._turn:
            share = shares.admit(self._connection, P2P, request.share, request.capability)
            if isinstance(share, tuple):
                self._refuse(request, *share)
                return
            if share.registration.device == HOST:
                self._give_descriptor(request)
                return
            try:
                exported = await self._context._control.aside(self._context._engine.export_share, share.share_id)
            except NativeError as error:
                shares.given_back(self._connection, P2P, request.share)
                status, reason, text = error.args
                self._refuse(request, Status(status), Reason(reason), from_native(status, reason, text).reason)
                return
            *_, fds = exported
            try:
                if self._connection._lost is None:
                    self._post_memory(request, share, exported)
            finally:
                for fd in fds:
                    os.close(fd)

    def _post_memory(self, request: wire.ImportRequest, share: LocalShare, exported: _Exported) -> None:
        form, device, process, address, offset, nbytes, pieces, fds = exported
        if not self._context._shares.has(request.share):  # taken back meanwhile
            self._context._shares.given_back(self._connection, P2P, request.share)
            self._refuse(request, Status.ACCESS_DENIED, Reason.REVOKED)
            return
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
                rights=share.handle._share.rights,
                exported=wire.Exported(form, device, process, address, offset, some),
                more=more,
                nfds=len(theirs),
            )
            self._channel.post(reply, theirs)

    async def _give_keys(self, request: wire.ImportRequest) -> None:
        """Register with each NIC that the peer's lane ends at, as far as that was not done before."""
        shares = self._context._shares
        async with self._turn:
            share = shares.admit(self._connection, VERBS, request.share, request.capability)
            if isinstance(share, tuple):
                self._refuse(request, *share)
                return
            fabric = self._context._fabric
            if why := "; ".join(filter(None, map(fabric.port_down, request.rails))):
                shares.given_back(self._connection, VERBS, request.share)
                self._refuse(request, Status.UNSUPPORTED, Reason.PORT_DOWN, why)
                return
            try:
                reply = await self._reach(request, share)
            except NativeError as error:
                shares.given_back(self._connection, VERBS, request.share)
                status, reason, text = error.args
                self._refuse(request, Status(status), Reason(reason), from_native(status, reason, text).reason)
                return
            if self._connection._lost is None:
                # Somebody may have taken it back meanwhile; and who is asked to give it back must have got it.
                if shares.has(request.share):
                    self._channel.post(reply)
                else:
                    shares.given_back(self._connection, VERBS, request.share)
                    self._refuse(request, Status.ACCESS_DENIED, Reason.REVOKED)

    async def _reach(self, request: wire.ImportRequest, share: LocalShare) -> wire.ImportReply:
        engine, fabric = self._context._engine, self._context._fabric
        domains = fabric.domains(request.rails)
        found = [
            await self._context._control.aside(engine.reach, share.share_id, domain, share.revocable)
            for domain in domains
        ]
        if len({address for address, _, _ in found}) != 1:
            raise NativeError(Status.UNSUPPORTED.value, Reason.NONE.value, "its NICs do not know it by one address")
        described = share.handle._share
        return wire.ImportReply(
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

    def _refuse(self, request: wire.ImportRequest, status: Status, reason: Reason, text: str = "") -> None:
        self._channel.post(
            wire.ImportReply(request=request.request, status=status.value, reason=reason.value, text=text[:2000])
        )

    async def _give_back(self, provider: str, share_id: int, imported: Import) -> None:
        await self._context._peers.drained(imported)
        self._channel.post(wire.Released(provider=provider, share=share_id))
