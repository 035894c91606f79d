"""Does the handshake on every control-plane socket: both sides give ids and versions, and prove the secret."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from zerohop.core.control import auth, wire
from zerohop.errors import AccessDenied, PeerLost, ProtocolError, ZerohopError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.control.channel import Channel
    from zerohop.core.control.wire import Hello

# Seconds that the listening side gives a peer for the handshake. Dialling lasts at least as long.
TIMEOUT_S: Final = 5.0
CONTROL: Final = "control"
LANE: Final = "lane"
# A socket of this purpose asks which Context listens at an address, and for its Unix socket if it is on this host.
LOCATE: Final = "locate"
Purpose = Literal["control", "lane", "locate"]
# Codes of Refuse.
VERSION, SECRET, DUPLICATE, TOKEN, CLOSED = "version", "secret", "duplicate", "token", "closed"
_BOTH_THE_SAME: Final = "give both Contexts the same secret="


class Identity(NamedTuple):
    """Holds what one side says of itself, and its secret, which is never sent."""

    context: str
    host: str
    pid: int
    name: str
    secret: bytes | None
    socket_path: str


class Refused(Exception):
    """Raised if the listening side refuses; ``code`` says why in one word."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    def error(self, peer: str = "") -> ZerohopError:
        """Return the error that the user gets."""
        if self.code == SECRET:
            return AccessDenied(f"refused by the peer: {self.text}", fix=_BOTH_THE_SAME, peer=peer, operation="connect")
        if self.code == VERSION:
            return ProtocolError(
                f"refused by the peer: {self.text}", fix="install the same version of zerohop on both sides", peer=peer
            )
        return PeerLost(f"refused by the peer: {self.text}", peer=peer, operation="connect")


async def greet(channel: Channel, me: Identity, purpose: Purpose, token: bytes, expected: str) -> None:
    """Do the connecting side's part of the handshake.

    Raises:
        Refused: the listening side refuses.
        AccessDenied: the listening side does not know the secret.
        PeerLost: not the Context ``expected`` answers, but another; empty: any may.
        ChannelEnded, ProtocolError: the listening side hung up, or is no peer.
    """
    _, transcript = await _introduce(channel, me, purpose, token, expected)
    accept = await _expect(channel, wire.Accept)
    if not transcript.verify(me.secret, "server", accept.proof):
        raise _unproved()
    channel.limit = wire.MAX_FRAME


async def locate(channel: Channel, me: Identity, expected: str) -> tuple[wire.Challenge, str]:
    """Find out who listens at an address, and the path of its Unix socket if it is on this host."""
    challenge, transcript = await _introduce(channel, me, LOCATE, b"", expected)
    location = await _expect(channel, wire.Location)
    # The proof covers the path, so that nobody in between sends this side to another socket.
    if not transcript._replace(token=location.socket_path).verify(me.secret, "server", location.proof):
        raise _unproved()
    return challenge, os.fsdecode(location.socket_path)


async def _introduce(
    channel: Channel, me: Identity, purpose: Purpose, token: bytes, expected: str
) -> tuple[wire.Challenge, auth.Transcript]:
    """Do the handshake up to the proof of this side."""
    nonce = auth.new_nonce()
    channel.post(
        wire.Hello(
            version=wire.VERSION,
            magic="zerohop",
            context=me.context,
            host=me.host,
            pid=me.pid,
            name=me.name,
            purpose=purpose,
            nonce=nonce,
            has_secret=me.secret is not None,
            token=token,
        )
    )
    challenge = await _expect(channel, wire.Challenge)
    if expected and challenge.context != expected:
        raise PeerLost(
            "the Context that shared this memory is gone; another one answers at its address",
            fix="ask the peer that is there now for a new handle",
            peer=expected,
            operation="connect",
        )
    transcript = auth.Transcript(me.context, challenge.context, nonce, challenge.nonce, purpose, token)
    channel.post(wire.Prove(proof=transcript.proof(me.secret, "client")))
    return challenge, transcript


async def answer(channel: Channel, me: Identity, admit: Callable[[Hello], None]) -> Hello:
    """Do the listening side's part of the handshake, and return the Hello of the side that connects.

    ``admit`` raises Refused to keep that side out; it is not called for the purpose LOCATE.

    Raises:
        Refused: this side has refused, and told the other side why.
        ChannelEnded, ProtocolError: the connecting side hung up, or is no peer.
    """
    try:
        try:
            hello = await channel.receive_hello()
        except wire.OtherVersion as error:
            raise Refused(VERSION, error.reason) from error
        nonce = auth.new_nonce()
        _check_secrets(hello, me)
        channel.post(wire.Challenge(context=me.context, host=me.host, nonce=nonce))
        prove = await _expect(channel, wire.Prove)
        transcript = auth.Transcript(hello.context, me.context, hello.nonce, nonce, hello.purpose, hello.token)
        _check_proof(transcript, me, prove.proof)
        if hello.purpose != LOCATE:
            admit(hello)
    except Refused as refusal:
        channel.post(wire.Refuse(version=wire.VERSION, code=refusal.code, text=refusal.text[:2000]))
        await channel.flush()
        raise
    if hello.purpose == LOCATE:
        path = os.fsencode(me.socket_path) if hello.host == me.host else b""
        proof = transcript._replace(token=path).proof(me.secret, "server")
        channel.post(wire.Location(proof=proof, socket_path=path))
        return hello
    channel.post(wire.Accept(proof=transcript.proof(me.secret, "server")))
    channel.limit = wire.MAX_FRAME
    return hello


def _check_secrets(hello: Hello, me: Identity) -> None:
    if hello.has_secret and me.secret is None:
        raise Refused(SECRET, "the connecting side has a secret, this one has none")
    if not hello.has_secret and me.secret is not None:
        raise Refused(SECRET, "this side has a secret, the connecting one has none")


def _check_proof(transcript: auth.Transcript, me: Identity, proof: bytes) -> None:
    if not transcript.verify(me.secret, "client", proof):
        raise Refused(SECRET, "wrong secret")


def _unproved() -> AccessDenied:
    return AccessDenied("the peer does not know the secret", fix=_BOTH_THE_SAME, operation="connect")


async def _expect(channel: Channel, kind: type[wire.T]) -> wire.T:
    """Receive the next message, which must be of this kind; raise Refused if it is a refusal."""
    message, _ = await channel.receive()
    if isinstance(message, wire.Refuse):
        raise Refused(message.code, message.text)
    if not isinstance(message, kind):
        raise ProtocolError(f"malformed: a {type(message).__name__} where a {kind.__name__} was due")
    return message
