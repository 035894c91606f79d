"""The control conversation of one Connection: presence, lanes, mapping, unmapping, goodbye. On the control thread.

Both sides say Setup first. They come to the same lane by the same rule: shm where both are on one host and both have
it, else tcp. For shm each sends the address of its own ring; for tcp the side that listens invites the other to open a
second, authenticated socket, which both then hand to the data plane.
"""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any, Final

from . import address, wire
from ._native import NativeError, Reason, Status
from .channel import ChannelEnded, copies_of
from .connection import again, lane_cost, silent_error
from .deferred import patience
from .errors import PeerLost, ProtocolError, Unsupported, ZerohopError, from_native, out_of_descriptors
from .handshake import Refused
from .routes import Import
from .settings import PROVIDERS

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from ._native import Endpoint
    from .address import Address
    from .channel import Channel
    from .connection import Connection
    from .context import Context
    from .remote_buffer import Share

# Seconds until a peer that came in must have agreed on a lane; whoever dials waits as long as its operations do.
SETUP_S: Final = 10.0
# How long what is no operation waits for the answer to a request.
REPLY_S: Final = 10.0
_GOODBYE_S: Final = 0.2
_WRITE: Final = 2


class Session:
    """What this side knows of the conversation."""

    def __init__(
        self,
        context: Context,
        connection: Connection,
        channel: Channel,
        *,
        initiator: bool,
        dialled: Address | None,
    ) -> None:
        """``dialled`` is the address that reached the peer, which may differ from the one it knows of itself."""
        self._context = context
        self._connection = connection
        self._channel = channel
        self.initiator = initiator
        self._dialled = dialled
        self._mine_ready = self._theirs_ready = False
        self._requests = 0
        self._replies: dict[int, asyncio.Future[tuple[wire.MapReply, list[int]]]] = {}
        self._importing: dict[int, asyncio.Task[None]] = {}
        # What opens the socket of a tcp lane, or waits for the peer to.
        self._opening: asyncio.Task[None] | None = None
        # The lane's end here, until the Connection has it.
        self._endpoint: Endpoint | None = None
        # Done when the lane is up; an error when it never will be.
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda future: future.cancelled() or future.exception())
        connection._session = self

    async def run(self) -> None:
        """Until the conversation ends."""
        try:
            fds = (self._context._engine.presence_fd, self._context._engine.doorbell_fd) if self._channel.unix else ()
            self._channel.post(
                wire.Setup(
                    providers=list(self._context._providers),
                    url=self._context.url,
                    name=self._context.name[:256],
                    nfds=len(fds),
                ),
                fds,
            )
            while True:
                message, received = await self._channel.receive()
                try:
                    self._handle(message, received)
                finally:
                    for fd in received:
                        os.close(fd)
        except ChannelEnded as ended:
            self._fail(PeerLost(f"the peer is gone: {ended}", peer=self._connection.peer), Reason.STREAM_CLOSED)
        except NativeError as error:
            self._fail(from_native(*error.args, peer=self._connection.peer), Reason.LANE_CLOSED)
        except (ProtocolError, ValueError, TypeError) as error:
            # Values that no peer of ours sends are caught here or by the native side's own checks.
            self._context._control.say_once(self._connection.peer, "protocol", "disconnected a peer: %s", error)
            self._fail(ProtocolError(f"malformed: {error}", peer=self._connection.peer), Reason.MALFORMED)
        except ZerohopError as error:
            self._fail(error, Reason.LANE_CLOSED)
        except OSError as error:
            reason = Reason.OUT_OF_DESCRIPTORS if out_of_descriptors(error) else Reason.STREAM_CLOSED
            self._fail(from_native(Status.PEER_LOST.value, reason.value, peer=self._connection.peer), reason)
        finally:
            # Whatever happened: without its conversation a Connection would wait for ever.
            self._fail(PeerLost("the conversation with the peer broke off", peer=self._connection.peer), Reason.NONE)

    async def say_goodbye(self, text: str) -> None:
        """Tell the peer that this side ends the Connection."""
        self._channel.post(wire.Bye(text=text))
        try:
            await asyncio.wait_for(self._channel.flush(), _GOODBYE_S)
        except (asyncio.TimeoutError, TimeoutError):
            pass

    def end(self, error: ZerohopError) -> None:
        """The Connection is lost: nobody waits any longer."""
        if not self.ready.done():
            self.ready.set_exception(again(error))
        for future in self._replies.values():
            if not future.done():
                future.set_exception(again(error))
        for task in self._importing.values():
            task.cancel()
        if self._opening is not None:
            self._opening.cancel()
        self._channel.close()
        self._endpoint = None

    def ask_to_unmap(self, share_id: int) -> None:
        """The peer is to give back what it mapped of our share."""
        self._channel.post(wire.Unmap(share=share_id))

    def release(self, share_id: int, imported: Import) -> None:
        """Unmap, and tell the owner when that is done."""
        self._context._control.start(self._give_back, share_id, imported)

    async def import_share(self, share: Share) -> None:
        """Map the memory behind the peer's share, or note why that is impossible.

        Raises:
            AccessDenied: the owner does not allow it.
            PeerLost: it is gone.
            DeadlineExceeded: it does not answer before the operation's deadline; the request stays under way.
        """
        key = share.share_id
        task = self._importing.get(key)
        if task is None:
            task = self._importing[key] = asyncio.get_running_loop().create_task(self._import(share))
            task.add_done_callback(lambda _: self._importing.pop(key, None))
            # Whoever waited may be gone by the time it fails.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Others may wait for the same one, each in its own time.
        await asyncio.wait([task], timeout=patience(REPLY_S))
        if not task.done():
            raise silent_error(self._connection.peer, "the peer does not answer")
        if task.cancelled() and self._connection._lost is not None:
            raise again(self._connection._lost)
        task.result()

    async def _import(self, share: Share) -> None:
        connection = self._connection
        self._requests += 1
        number = self._requests
        future = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            self._channel.post(wire.MapRequest(request=number, share=share.share_id, capability=share.capability))
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
        try:
            if reply.status == Status.UNSUPPORTED.value:
                connection._unmappable[share.share_id] = reply.text or "its owner cannot give it out"
            else:
                self._map(share, reply, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _map(self, share: Share, reply: wire.MapReply, fds: list[int]) -> None:
        connection = self._connection
        if reply.status != Status.OK.value:
            raise from_native(reply.status, reply.reason, "said by the peer", peer=connection.peer, provider="shm")
        if not fds:
            self._channel.post(wire.Unmapped(share=share.share_id))
            raise from_native(Status.NO_MEMORY.value, Reason.OUT_OF_DESCRIPTORS.value, peer=connection.peer)
        # Beyond the end of the file a copy would crash the process.
        if os.fstat(fds[0]).st_size < reply.offset + reply.nbytes:
            self._channel.post(wire.Unmapped(share=share.share_id))
            raise ProtocolError("malformed: the peer's file is shorter than what it shared", peer=connection.peer)
        try:
            mapping = self._context._engine.map(fds[0], reply.offset, reply.nbytes, bool(reply.rights & _WRITE))
        except NativeError as error:
            connection._unmappable[share.share_id] = f"it could not be mapped here: {error.args[2]}"
            self._channel.post(wire.Unmapped(share=share.share_id))
            return
        # By the owner's word, and not by that of the handle, which somebody may have changed.
        connection._imports[share.share_id] = Import(mapping, share.capability, reply.nbytes, reply.rights)
        connection._drop_old_imports()

    def _handle(self, message: wire.Message, fds: list[int]) -> None:
        if getattr(message, "nfds", 0) and not fds and not isinstance(message, wire.MapReply):
            raise OSError(errno.EMFILE, "no number left for a descriptor that the peer sent")
        if isinstance(message, wire.Setup):
            self._set_up(message, fds)
        elif isinstance(message, wire.Bye):
            self._fail(PeerLost(f"the peer left: {message.text}", peer=self._connection.peer), Reason.CONTEXT_CLOSED)
        elif self._connection._native_id < 0:
            raise ProtocolError(f"malformed: {type(message).__name__} before Setup")
        elif isinstance(message, wire.Lane):
            self._connect_lane(message.provider, message.address, fds)
        elif isinstance(message, wire.LaneInvite):
            self._open_beside(self._open_tcp, message.token)
        elif isinstance(message, wire.LaneReady):
            self._theirs_ready = True
            self._check_ready()
        elif isinstance(message, wire.LaneFailed):
            self._fail(PeerLost(f"the peer could not open its end of the lane: {message.text}"), Reason.LANE_CLOSED)
        elif isinstance(message, wire.MapRequest):
            self._answer_map(message)
        elif isinstance(message, wire.MapReply):
            future = self._replies.get(message.request)
            if future is not None and not future.done():
                future.set_result((message, copies_of(fds)))
        elif isinstance(message, wire.Unmap):
            self._unmap(message.share)
        elif isinstance(message, wire.Unmapped):
            self._context._shares.given_back(self._connection, message.share)
        else:
            raise ProtocolError(f"malformed: an unexpected {type(message).__name__}")

    def _set_up(self, setup: wire.Setup, fds: list[int]) -> None:
        connection, engine = self._connection, self._context._engine
        if connection._native_id >= 0 or len(fds) not in (0, 2):
            raise ProtocolError("malformed: Setup twice, or with too few descriptors")
        connection.name = setup.name
        connection.url = setup.url
        try:
            peer = address.parse(setup.url)
        except ValueError as error:
            raise ProtocolError(f"malformed: {error}") from None
        connection._native_id = engine.add_peer(*(fds or (-1, -1)))
        self._context._peers.introduce(connection)
        provider = self._choose(setup.providers)
        connection._provider = provider
        try:
            endpoint = self._endpoint = engine.endpoint(provider, connection._native_id)
            if provider == "shm":
                data, own = endpoint.address()
                self._channel.post(wire.Lane(provider=provider, address=data, nfds=len(own)), own)
        except (NativeError, OSError) as error:
            text = error.args[-1] if isinstance(error, NativeError) else str(error)
            self._channel.post(wire.LaneFailed(provider=provider, text=str(text)[:2000]))
            raise
        if provider == "tcp":
            self._arrange_tcp(peer)

    def _choose(self, theirs: list[str]) -> str:
        """The provider of the lane, by a rule that gives both sides the same; notes why the others are out."""
        chosen = ""
        for provider in PROVIDERS:
            if provider not in self._context._providers:
                why = "this Context does not use it"
            elif provider not in theirs:
                why = "the peer does not use it"
            elif provider == "shm" and not self._channel.unix:
                why = "the peer is not on this host, or its Unix socket cannot be reached"
            elif chosen:
                why = f"not needed beside {chosen}"
            else:
                chosen = provider
                continue
            self._connection._missing[provider] = why
        if not chosen:
            reasons = "; ".join(f"{name}: {why}" for name, why in self._connection._missing.items())
            self._channel.post(wire.Bye(text=f"no provider in common: {reasons}"[:2000]))
            raise Unsupported(
                f"no provider in common: {reasons}",
                fix="allow the same providers= on both sides",
                peer=self._connection.peer,
            )
        return chosen

    def _arrange_tcp(self, peer: Address) -> None:
        own = address.parse(self._context.url)
        acceptor_listens = peer.listens if self.initiator else own.listens
        if not own.listens and not peer.listens:
            raise Unsupported(
                "tcp: neither side listens on TCP", fix="give one of them listen=", peer=self._connection.peer
            )
        # The side that accepted listens if it can, so that the other need not be reachable.
        i_listen = not acceptor_listens if self.initiator else acceptor_listens
        if i_listen:
            token, future = self._context._listeners.invite()
            self._channel.post(wire.LaneInvite(provider="tcp", token=token))
            opening = self._open_beside(self._take_tcp, future)
            opening.add_done_callback(lambda _: _withdraw(future))

    def _open_beside(self, work: Callable[..., Coroutine[Any, Any, None]], argument: Any) -> asyncio.Task[None]:
        """Beside the conversation, until that ends: the peer may take as long as whoever dialled waits."""
        if self._opening is not None or self._connection._provider != "tcp":
            raise ProtocolError("malformed: a lane that was not agreed on")
        self._opening = self._context._control.start(self._guarded, work, argument)
        return self._opening

    async def _take_tcp(self, future: asyncio.Future[socket.socket]) -> None:
        self._use_tcp(await future)

    async def _open_tcp(self, token: bytes) -> None:
        where = self._dialled
        if where is None or not where.listens:
            where = address.parse(self._connection.url)
        self._use_tcp(await self._context._peers.open_lane(where, self._connection.peer, token))

    def _use_tcp(self, sock: socket.socket) -> None:
        try:
            if self._connection._lost is None:
                self._connect_lane("tcp", b"", [sock.fileno()])
        finally:
            sock.close()

    async def _guarded(self, work: Callable[..., Coroutine[Any, Any, None]], argument: Any) -> None:
        """Part of the setup that runs beside the conversation; its failure is the Connection's."""
        try:
            await work(argument)
        except ZerohopError as error:
            self._fail(error, Reason.LANE_CLOSED)
        except NativeError as error:
            self._fail(from_native(*error.args, peer=self._connection.peer), Reason.LANE_CLOSED)
        except Refused as refusal:
            self._fail(refusal.error(self._connection.peer), Reason.LANE_CLOSED)
        except OSError as error:
            self._fail(PeerLost(f"the lane could not be opened: {error}"), Reason.LANE_CLOSED)

    def _connect_lane(self, provider: str, data: bytes, fds: list[int]) -> None:
        if self._mine_ready or provider != self._connection._provider or self._endpoint is None:
            raise ProtocolError("malformed: a lane that was not agreed on")
        try:
            self._endpoint.connect(data, fds)
        except NativeError as error:
            self._channel.post(wire.LaneFailed(provider=provider, text=str(error.args[2])[:2000]))
            raise
        self._mine_ready = True
        if self.initiator:
            self._channel.post(wire.LaneReady(provider=provider))
        self._check_ready()

    def _check_ready(self) -> None:
        if self._mine_ready and self._theirs_ready and self._endpoint is not None and not self.ready.done():
            connection = self._connection
            if not self.initiator:
                # Only now, so that whoever dialled finds this side complete once it is told that it is connected.
                self._channel.post(wire.LaneReady(provider=connection._provider))
            connection._lane_costs[connection._provider] = lane_cost(self._endpoint)
            connection._endpoint_or_none = self._endpoint
            self._context._peers.established(connection)
            self.ready.set_result(None)

    def _answer_map(self, request: wire.MapRequest) -> None:
        if not self._channel.unix or self._connection._provider != "shm":
            # Nothing could be given to it, and as an importer it would hold up whoever takes the memory back.
            why = "memory is mapped only by peers on this host, over an shm lane"
            self._channel.post(wire.MapReply(request.request, Status.UNSUPPORTED.value, Reason.NONE.value, why))
            return
        grant = self._context._shares.grant(self._connection, request.share, request.capability)
        reply = wire.MapReply(
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

    def _unmap(self, share_id: int) -> None:
        imported = self._connection._imports.pop(share_id, None)
        if imported is None:
            self._channel.post(wire.Unmapped(share=share_id))
        else:
            self.release(share_id, imported)

    async def _give_back(self, share_id: int, imported: Import) -> None:
        await self._context._peers.drained(imported)
        self._channel.post(wire.Unmapped(share=share_id))

    def _fail(self, error: ZerohopError, reason: Reason) -> None:
        self._connection._lose(error, Status.PEER_LOST, reason)


def _withdraw(invitation: asyncio.Future[socket.socket]) -> None:
    """Nobody waits for it any longer; a socket that came all the same is closed. The data plane has its own."""
    if not invitation.cancel() and not invitation.cancelled():
        invitation.result().close()
