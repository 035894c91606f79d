"""Pairs two Transports: the messages by which they find each other, and the state of one end.

The end that connects reserves the other one, which then belongs to nobody else, and joins it; only joining makes the
two a pair. An end that gives up before the answer takes its request back, so that the other does not wait for it.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

import msgspec

from zerohop._native import Reason, Status
from zerohop.core.face import After, Refusal, call, parse_url, random_bytes, send
from zerohop.errors import PeerLost, ProtocolError
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.core.face import Address, Link, Operation, OperationGroup

ID_BYTES: Final = 16
SERVICE: Final = "transport"
_PARAMETER: Final = "transport"
# Seconds for which a Transport that has reserved another, and has not joined it yet, keeps all others from it.
RESERVED_S: Final = 10.0
_Id = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
_Queue = Annotated[int, msgspec.Meta(ge=1, lt=1 << 16)]


class _Reserve(msgspec.Struct, tag="reserve"):
    """Asks the Transport ``to`` to wait for ``me``; the answer is the number of the queue that ``me`` is to notify."""

    to: _Id
    me: _Id


class _Join(msgspec.Struct, tag="join"):
    """Makes ``to`` and ``me`` a pair; ``to`` is to notify this queue of ``me``."""

    to: _Id
    me: _Id
    queue: _Queue


class _Leave(msgspec.Struct, tag="leave"):
    """Says that ``me`` is closed, or does not want to join any more. Nobody waits for the answer."""

    to: _Id
    me: _Id


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Reserve | _Join | _Leave).decode
_decode_queue: Final = msgspec.msgpack.Decoder(_Queue).decode
_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)


class End(Protocol):
    """Names the parts of a Transport that pairing uses."""

    @property
    def peer(self) -> str:
        """Return the id of the peer's Context; empty before there is a peer."""

    # The operations of the Transport, which end together.
    _group: OperationGroup

    def _meet(self, link: Link, queue: int) -> bool:
        """Take a peer, on the control thread; return False if the Transport has ended meanwhile."""

    def _left(self) -> None:
        """Handle that the peer has closed its end, on the control thread."""


class Attempt:
    """Holds one attempt to join another Transport."""

    def __init__(self, url: str) -> None:
        """Read the URL; raise ValueError or TypeError unless a Transport's ``bind`` has given it."""
        self.where = parse_url(url)
        hexadecimal = dict(parse_qsl(urlsplit(url).query)).get(_PARAMETER, "")
        try:
            self.peer = bytes.fromhex(hexadecimal)
        except ValueError:
            self.peer = b""
        if len(self.peer) != ID_BYTES:
            raise ValueError(f"{shown(url)} names no Transport. Fix: pass what the peer's bind() gave")
        # The Operation that the user waits for. The attempt ends with it.
        self.operation: Operation[Any] | None = None

    @property
    def over(self) -> bool:
        """Tell whether the attempt has ended, well or not."""
        return self.operation is not None and self.operation.done()

    def check_wanted(self) -> None:
        """Raise PeerLost if the attempt is over: to join and then leave would end the other end, too."""
        if self.over:
            raise PeerLost("given up meanwhile")


class _Reservation(NamedTuple):
    """Names the Transport that has reserved another, the link over which it did, and when that lapses."""

    peer: bytes
    link: Link
    until: float


class Pairing:
    """Holds which Transport is the peer of one Transport, or is about to be. Messages come on the control thread.

    Attributes:
        id: the id of the Transport, in its URL.
        peer: the id of the other Transport of the pair; empty while there is none.
        lock: held while the pairing changes.
    """

    def __init__(self, end: End) -> None:
        self.id: Final = random_bytes(ID_BYTES)
        self.peer = b""
        self.lock: Final = threading.Lock()
        # The reference is weak, so that a dropped Transport ends at once, and not with the next garbage collection.
        self._end = weakref.ref(end)
        self._attempts: list[Attempt] = []
        self._reserved: _Reservation | None = None

    @property
    def end(self) -> End | None:
        """Return the Transport; None once it was dropped."""
        return self._end()

    def _living_end(self) -> End:
        end = self._end()
        if end is None:
            raise _gone()
        return end

    def url(self, context_url: str) -> str:
        """Return the URL by which a peer finds this Transport in its Context."""
        separator = "&" if "?" in context_url else "?"
        return f"{context_url}{separator}{_PARAMETER}={self.id.hex()}"

    def free_for(self, peer: bytes, link: Link | None = None) -> bool:
        """Tell whether a Transport, asking over ``link``, is the peer or may become it. The caller holds the lock."""
        self._attempts = [attempt for attempt in self._attempts if not attempt.over]
        taken = {self.peer, *(attempt.peer for attempt in self._attempts)}
        # One that has lapsed is good until another Transport comes: its own may only have been slow. One from another
        # Context is another one, because anybody may say an id.
        held = self._reserved
        another = held is not None and (held.peer != peer or link not in (None, held.link))
        if held is not None and another:
            # Other Contexts come first, so that one whose Transports take turns does not keep them away.
            turn = held.until + (RESERVED_S if link is held.link else 0.0)
            if time.monotonic() > turn:
                self._reserved = None
        if self._reserved is not None:
            taken.add(self._reserved.peer)
        return taken <= {b"", peer}

    def begin(self, attempt: Attempt) -> None:
        """Add an attempt, after ``free_for``. The caller holds the lock."""
        self._attempts.append(attempt)

    async def join(self, attempt: Attempt, connect: Callable[[Address], Coroutine[Any, Any, Link]]) -> None:
        """Join another Transport, on the control thread; ``connect`` returns the link to its Context."""
        end, to = self._living_end(), attempt.peer
        link = await connect(attempt.where)
        if link.lost is not None:
            raise PeerLost("the peer is gone", peer=link.peer)
        if self.peer:
            self.forget_attempts()  # the other end has joined this one meanwhile
            return
        try:
            queue = _queue_of(await call(link, SERVICE, _encode(_Reserve(to=to, me=self.id))))
            attempt.check_wanted()
            # The queue takes the peer's notifications before the call, because the peer may write before it answers.
            end._group.expect(link)
            join = _Join(to=to, me=self.id, queue=end._group.number)
            await call(link, SERVICE, _encode(join), After(then=lambda _: self._answered(link, to, queue)))
        except BaseException:
            if self._given_up(attempt):
                leave(link, to, self.id)
            raise
        self.forget_attempts()

    def _answered(self, link: Link, to: bytes, queue: int) -> None:
        """Take the peer before its next message is handled, because that message may be Leave."""
        with self.lock:
            alive = self._meet(link, to, queue)
        if not alive:
            leave(link, to, self.id)

    def _given_up(self, attempt: Attempt) -> bool:
        """Remove a failed attempt; tell whether there is neither a peer nor another attempt to have one."""
        with self.lock:
            self._attempts = [other for other in self._attempts if other is not attempt and not other.over]
            return not (self.peer or self._attempts)

    def forget_attempts(self) -> None:
        """Drop the attempts, which keep their Operations alive. Any thread may call this; it takes no lock."""
        self._attempts = []

    def lost(self, link: Link) -> None:
        """Forget a reservation that came over a lost link. On the control thread."""
        with self.lock:
            if self._reserved is not None and self._reserved.link is link:
                self._reserved = None

    def _meet(self, link: Link, peer: bytes, queue: int) -> bool:
        """Take the peer; return False if this end has ended. The caller holds the lock."""
        end = self._living_end()
        if not self.peer:
            self._reserved, self.peer = None, peer
            return end._meet(link, queue)
        return end._group.ended is None

    def on_reserve(self, link: Link, peer: bytes) -> bytes:
        """Handle Reserve: keep this end for ``peer``; return the queue to notify."""
        with self.lock:
            if not (self.free_for(peer, link) and self._may_be(link, peer)):
                raise Refusal(Status.ACCESS_DENIED, "that Transport is connected to another, or about to be")
            if not self.peer and self._reserved is None:  # who reserves twice has it no longer
                self._reserved = _Reservation(peer, link, time.monotonic() + RESERVED_S)
        return _encode(self._living_end()._group.number)

    def on_join(self, link: Link, peer: bytes, queue: int) -> bytes:
        """Handle Join: take the peer that has reserved this end."""
        with self.lock:
            if not (self._has_reserved(link, peer) or self._is_peer(link, peer)):
                raise Refusal(Status.ACCESS_DENIED, "that Transport was not reserved before")
            if not self._meet(link, peer, queue):
                raise _gone()
        return b""

    def on_leave(self, link: Link, peer: bytes) -> None:
        """Handle Leave: drop the reservation, or break because the peer is gone."""
        with self.lock:
            if self._has_reserved(link, peer):
                self._reserved = None
        if self._is_peer(link, peer):
            self._living_end()._left()

    # Ids stand in URLs, so a message with an id proves nothing by itself: it must come over the right link, too.

    def _is_peer(self, link: Link, other: bytes) -> bool:
        return bool(self.peer) and other == self.peer and link.peer == self._living_end().peer

    def _has_reserved(self, link: Link, other: bytes) -> bool:
        return self._reserved is not None and (other, link) == self._reserved[:2]

    def _may_be(self, link: Link, other: bytes) -> bool:
        """Tell whether the Context at a link is the one that has that Transport, as far as that is known."""
        if self.peer:
            return self._is_peer(link, other)
        if self._reserved is not None and self._reserved.link is not link:
            return False
        return all(attempt.where.context in ("", link.peer) for attempt in self._attempts)


class Directory:
    """Answers peers as the service of a Context, for all its Transports that a peer may join.

    Attributes:
        bound: the pairings of these Transports, by their ids.
    """

    def __init__(self) -> None:
        self.bound: Final[weakref.WeakValueDictionary[bytes, Pairing]] = weakref.WeakValueDictionary()

    def __call__(self, link: Link, body: bytes) -> bytes:
        """Answer a Transport of the peer."""
        try:
            message = _decode(body)
        except _DECODE_ERRORS:
            raise Refusal(Status.UNSUPPORTED, "that is not what a Transport says") from None
        pairing = self.bound.get(message.to)
        # This reference keeps the Transport alive until the answer is made.
        end = None if pairing is None else pairing.end
        if pairing is None or end is None or end._group.ended is not None:
            raise _gone()
        if isinstance(message, _Reserve):
            return pairing.on_reserve(link, message.me)
        if isinstance(message, _Join):
            return pairing.on_join(link, message.me, message.queue)
        pairing.on_leave(link, message.me)
        return b""


def _gone() -> Refusal:
    return Refusal(Status.PEER_LOST, "there is no such Transport any more", Reason.PEER_CLOSED)


def _queue_of(answer: bytes) -> int:
    try:
        return _decode_queue(answer)
    except _DECODE_ERRORS:
        raise ProtocolError("malformed: the peer's Transport names no queue to notify") from None


def leave(link: Link, to: bytes, me: bytes) -> None:
    """Tell a Transport that this end is closed, or does not want to join any more. On the control thread."""
    send(link, SERVICE, _encode(_Leave(to=to, me=me)))
