"""The first exchange on every control-plane socket: who is there, in which version, and does it know the secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from . import auth, wire
from .errors import AccessDenied, PeerLost, ProtocolError, ZerohopError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .channel import Channel
    from .wire import Hello

# Seconds for the whole exchange, for a peer that comes in; and at least, for one that is dialled.
TIMEOUT_S: Final = 5.0
CONTROL: Final = "control"
LANE: Final = "lane"
# Codes of Refuse.
VERSION, SECRET, DUPLICATE, TOKEN, BUSY, CLOSED = "version", "secret", "duplicate", "token", "busy", "closed"


_BOTH_THE_SAME: Final = "give both Contexts the same secret="


class Identity(NamedTuple):
    """What one side says about itself."""

    context: str
    host: str
    pid: int
    name: str
    secret: bytes | None


class Refused(Exception):
    """The listening side will not go on; ``code`` says why in one word."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    def error(self, peer: str = "") -> ZerohopError:
        """What the user gets."""
        if self.code == SECRET:
            return AccessDenied(f"refused by the peer: {self.text}", fix=_BOTH_THE_SAME, peer=peer, operation="connect")
        if self.code == VERSION:
            return ProtocolError(
                f"refused by the peer: {self.text}", fix="install the same version of zerohop on both sides", peer=peer
            )
        return PeerLost(f"refused by the peer: {self.text}", peer=peer, operation="connect")


async def greet(channel: Channel, me: Identity, purpose: str, token: bytes, expected: str) -> wire.Challenge:
    """The connecting side's part; returns who answered.

    Raises:
        Refused: the listening side refuses.
        AccessDenied: it does not know the secret.
        PeerLost: another Context than ``expected`` (where not empty) answers.
        ChannelEnded, ProtocolError: it is no peer.
    """
    nonce = auth.new_nonce()
    channel.post(
        wire.Hello(
            version=wire.VERSION,
            magic="zerohop",
            context=me.context,
            host=me.host,
            pid=me.pid,
            name=me.name,
            purpose=CONTROL if purpose == CONTROL else LANE,
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
    seen = auth.Transcript(me.context, challenge.context, nonce, challenge.nonce, purpose, token)
    channel.post(wire.Prove(proof=seen.proof(me.secret, "client")))
    accept = await _expect(channel, wire.Accept)
    if not seen.verify(me.secret, "server", accept.proof):
        raise AccessDenied("the peer does not know the secret", fix=_BOTH_THE_SAME, operation="connect")
    channel.limit = wire.MAX_FRAME
    return challenge


async def answer(channel: Channel, me: Identity, admit: Callable[[Hello], None]) -> Hello:
    """The listening side's part; returns who connected. ``admit`` raises Refused for what else stands against it.

    Raises:
        Refused: this side has refused, and said so.
        ChannelEnded, ProtocolError: no peer connected.
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
        seen = auth.Transcript(hello.context, me.context, hello.nonce, nonce, hello.purpose, hello.token)
        _check_proof(seen, me, prove.proof)
        admit(hello)
    except Refused as refusal:
        channel.post(wire.Refuse(version=wire.VERSION, code=refusal.code, text=refusal.text[:2000]))
        await channel.flush()
        raise
    channel.post(wire.Accept(proof=seen.proof(me.secret, "server")))
    channel.limit = wire.MAX_FRAME
    return hello


def _check_secrets(hello: Hello, me: Identity) -> None:
    if hello.has_secret and me.secret is None:
        raise Refused(SECRET, "the connecting side has a secret, this one has none")
    if not hello.has_secret and me.secret is not None:
        raise Refused(SECRET, "this side has a secret, the connecting one has none")


def _check_proof(seen: auth.Transcript, me: Identity, proof: bytes) -> None:
    if not seen.verify(me.secret, "client", proof):
        raise Refused(SECRET, "wrong secret")


async def _expect(channel: Channel, kind: type[wire.T]) -> wire.T:
    """The next message, which must be of that kind; Refused when it is a refusal."""
    message, _ = await channel.receive()
    if isinstance(message, wire.Refuse):
        raise Refused(message.code, message.text)
    if not isinstance(message, kind):
        raise ProtocolError(f"malformed: a {type(message).__name__} where a {kind.__name__} was due")
    return message
