"""How two Transports find each other: what they say, and which one is the peer of one, or is about to be.

Who connects reserves the other, which then is nobody else's, and joins it; only that makes the other one of a pair. Who
gives up before the answer takes back what it has said, so that nobody waits for one that is gone.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from zerohop._native import Reason, Status
from zerohop.core.control import address
from zerohop.core.peers.service import Refusal
from zerohop.errors import PeerLost, ProtocolError

if TYPE_CHECKING:
    from zerohop.core.context import Context
    from zerohop.core.runtime.operation import Operation
    from zerohop.core.transfers.connection import Connection
    from zerohop.transport.transport import Transport

ID_BYTES: Final = 16
_SERVICE: Final = "transport"
_PARAMETER: Final = "transport"
_Id = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
_Queue = Annotated[int, msgspec.Meta(ge=1, lt=1 << 16)]


class _Reserve(msgspec.Struct, tag="reserve"):
    """The sender's Transport ``me`` wants to join ``to``; answered with the queue that it is to notify."""

    to: _Id
    me: _Id


class _Join(msgspec.Struct, tag="join"):
    """It does, and is notified in that queue of its own."""

    to: _Id
    me: _Id
    queue: _Queue


class _Leave(msgspec.Struct, tag="leave"):
    """It is closed, or does not want to any more. Nobody waits for the answer."""

    to: _Id
    me: _Id


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Reserve | _Join | _Leave).decode
_decode_queue: Final = msgspec.msgpack.Decoder(_Queue).decode
_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)


class Attempt:
    """To join one other Transport."""

    def __init__(self, url: str) -> None:
        """Raises ValueError and TypeError: not what a Transport's ``bind`` gives."""
        self.where = address.parse(url)
        told = dict(parse_qsl(urlsplit(url).query)).get(_PARAMETER, "")
        try:
            self.peer = bytes.fromhex(told)
        except ValueError:
            self.peer = b""
        if len(self.peer) != ID_BYTES:
            raise ValueError(f"{url!r} names no Transport. Fix: pass what the peer's bind() gave")
        # For as long as it takes; it is over when its user can see that it is.
        self.operation: Operation[Transport] | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.operation is not None and self.operation.done()

    def check_wanted(self) -> None:
        """Raises where it is over: to join the other one and leave at once would end that, too."""
        if self.over:
            raise PeerLost("given up meanwhile")


class Joining:
    """Of one Transport. ``lock`` is held where it changes; messages come on the control thread.

    Attributes:
        id: the Transport's, in its URL.
        peer: id of the other one of the pair; empty while there is none.
    """

    def __init__(self, transport: Transport) -> None:
        self.id: Final = os.urandom(ID_BYTES)
        self.peer = b""
        self.lock: Final = threading.Lock()
        # Not in a circle, so that a Transport ends when it is dropped, and not when the collector next comes by.
        self._of = weakref.ref(transport)
        self._attempts: list[Attempt] = []
        # Who has reserved this one, and over what.
        self._reserved: tuple[bytes, Connection] | None = None

    @property
    def _transport(self) -> Transport:
        transport = self._of()
        if transport is None:
            raise _gone()
        return transport

    def bind(self) -> str:
        """From now on a peer may join; where."""
        context = self._transport.context
        directory = context._services.setdefault(_SERVICE, _Directory())
        assert isinstance(directory, _Directory)
        directory.bound[self.id] = self
        separator = "&" if "?" in context.url else "?"
        return f"{context.url}{separator}{_PARAMETER}={self.id.hex()}"

    def free_for(self, peer: bytes) -> bool:
        """With the lock: whether that one is the peer, or may still become it."""
        self._attempts = [attempt for attempt in self._attempts if not attempt.over]
        taken = {self.peer, *(attempt.peer for attempt in self._attempts)}
        if self._reserved is not None:
            taken.add(self._reserved[0])
        return taken <= {b"", peer}

    def begin(self, attempt: Attempt) -> None:
        """With the lock, if it is free."""
        self._attempts.append(attempt)

    async def join(self, attempt: Attempt) -> None:
        """On the control thread."""
        transport, to = self._transport, attempt.peer
        connection = await transport.context._peers.connect(attempt.where)
        session = connection._session
        if session is None:
            raise PeerLost("the peer is gone", peer=connection.peer)
        if self.peer:
            self.end()  # it has joined us meanwhile
            return
        try:
            queue = _queue_of(await session.rpc.call(_SERVICE, _encode(_Reserve(to=to, me=self.id))))
            attempt.check_wanted()
            # It may write before its answer has come.
            transport._scope.expect(connection)
            join = _Join(to=to, me=self.id, queue=transport._scope.number)
            await session.rpc.call(_SERVICE, _encode(join), lambda _: self._answered(connection, to, queue))
        except BaseException:
            if self._given_up(attempt):
                tell(connection, to, self.id)
            raise
        self.end()

    def _answered(self, connection: Connection, to: bytes, queue: int) -> None:
        """At once, and not when its task has its turn: the next that the other one says may be that it leaves."""
        with self.lock:
            both = self._meet(connection, to, queue)
        if not both:
            tell(connection, to, self.id)

    def _given_up(self, attempt: Attempt) -> bool:
        """That one has failed: whether there is neither a peer nor another attempt to have one."""
        with self.lock:
            self._attempts = [other for other in self._attempts if other is not attempt and not other.over]
            return not (self.peer or self._attempts)

    def end(self) -> None:
        """Lets go of the attempts, which keep what their Operations do. Without the lock: this may be any thread."""
        self._attempts = []

    def lost(self, connection: Connection) -> None:
        """On the control thread: what was reserved over it is not any more."""
        with self.lock:
            if self._reserved is not None and self._reserved[1] is connection:
                self._reserved = None

    def _meet(self, connection: Connection, peer: bytes, queue: int) -> bool:
        """With the lock: that is the peer. False where this one has ended."""
        transport = self._transport
        if not self.peer:
            self._reserved, self.peer = None, peer
            return transport._meet(connection, queue)
        return transport._scope.ended is None

    def _reserve(self, connection: Connection, said: _Reserve) -> bytes:
        with self.lock:
            if not (self.free_for(said.me) and self._may_be(connection, said.me)):
                raise Refusal(Status.ACCESS_DENIED, "that Transport is connected to another, or about to be")
            if not self.peer:
                self._reserved = said.me, connection
        return _encode(self._transport._scope.number)

    def _join(self, connection: Connection, said: _Join) -> bytes:
        with self.lock:
            if not (self._has_reserved(connection, said.me) or self._is_peer(connection, said.me)):
                raise Refusal(Status.ACCESS_DENIED, "that Transport was not reserved before")
            if not self._meet(connection, said.me, said.queue):
                raise _gone()
        return b""

    def _left(self, connection: Connection, peer: bytes) -> None:
        with self.lock:
            if self._has_reserved(connection, peer):
                self._reserved = None
        if self._is_peer(connection, peer):
            self._transport._left()

    # Ids are in URLs: whoever knows one is not yet whose it is.

    def _is_peer(self, connection: Connection, other: bytes) -> bool:
        return bool(self.peer) and other == self.peer and connection.peer == self._transport.peer

    def _has_reserved(self, connection: Connection, other: bytes) -> bool:
        return self._reserved is not None and (other, connection) == self._reserved

    def _may_be(self, connection: Connection, other: bytes) -> bool:
        """With the lock: whether the Context there is the one that has that Transport, as far as it is known."""
        if self.peer:
            return self._is_peer(connection, other)
        if self._reserved is not None and self._reserved[1] is not connection:
            return False
        return all(attempt.where.context in ("", connection.peer) for attempt in self._attempts)


class _Directory:
    """The service of a Context that answers for its Transports.

    Attributes:
        bound: those that a peer may join, by their ids.
    """

    def __init__(self) -> None:
        self.bound: Final[weakref.WeakValueDictionary[bytes, Joining]] = weakref.WeakValueDictionary()

    def __call__(self, _context: Context, connection: Connection, body: bytes) -> bytes:
        try:
            said = _decode(body)
        except _DECODE_ERRORS:
            raise Refusal(Status.UNSUPPORTED, "that is not what a Transport says") from None
        joining = self.bound.get(said.to)
        # Whoever asks holds it until it has its answer.
        transport = None if joining is None else joining._of()
        if joining is None or transport is None or transport._scope.ended is not None:
            raise _gone()
        if isinstance(said, _Reserve):
            return joining._reserve(connection, said)
        if isinstance(said, _Join):
            return joining._join(connection, said)
        joining._left(connection, said.me)
        return b""


def _gone() -> Refusal:
    return Refusal(Status.PEER_LOST, "there is no such Transport any more", Reason.PEER_CLOSED)


def _queue_of(answer: bytes) -> int:
    try:
        return _decode_queue(answer)
    except _DECODE_ERRORS:
        raise ProtocolError("malformed: the peer's Transport names no queue to notify") from None


def tell(connection: Connection, to: bytes, me: bytes) -> None:
    """On the control thread: that this end of the two is closed, or does not want to join any more."""
    if connection._session is not None:
        connection._session.rpc.send(_SERVICE, _encode(_Leave(to=to, me=me)))
