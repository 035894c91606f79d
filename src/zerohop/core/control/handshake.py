"""Does the handshake on every control-plane socket: both sides give ids, version and mode, and prove the secret.

Hello and Challenge go in the clear, so that sides that do not fit together can say why. With a secret, TLS follows on
TCP (tls.py), and inside it the proofs, which cover both messages: what somebody has changed in them does not get
through. A side never goes without TLS because the other asks for it. The socket of a lane stays in the clear, and its
proofs are made with the token that only the control channel has carried.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from zerohop.config import protection
from zerohop.core.base.deadlines import wait_with_timeout
from zerohop.core.base.peer_text import quoted
from zerohop.core.control import auth, wire
from zerohop.core.control.tls import Distrusted
from zerohop.errors import AccessDenied, PeerLost, ProtocolError, Unsupported, ZerohopError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zerohop.config.protection import Encryption
    from zerohop.core.control.channel import Channel
    from zerohop.core.control.secret import Secret
    from zerohop.core.control.wire import Challenge, Hello

# Seconds that the listening side gives a peer for the handshake. Dialling lasts at least as long.
TIMEOUT_S: Final = 5.0
# Seconds that a side which was refused has to hang up.
_LINGER_S: Final = 1.0
CONTROL: Final = "control"
LANE: Final = "lane"
# A socket of this purpose asks which Context listens at an address, and for its Unix socket if it is on this host.
LOCATE: Final = "locate"
Purpose = Literal["control", "lane", "locate"]
# Codes of Refuse.
VERSION, SECRET, DUPLICATE, TOKEN, CLOSED = "version", "secret", "duplicate", "token", "closed"
ENCRYPTION, THROTTLED, ITSELF, LIMIT = "encryption", "throttled", "itself", "limit"
_BOTH_THE_SAME: Final = "give both Contexts the same secret="
_FIXES: Final = {
    SECRET: _BOTH_THE_SAME,
    ENCRYPTION: "give both Contexts the same encryption=, and install zerohop[tls] on both sides",
    THROTTLED: f"{_BOTH_THE_SAME}, and wait some seconds",
    ITSELF: "connect to context.url, which has a Unix socket",
}


class Identity(NamedTuple):
    """Holds what one side says of itself, and its secret, which is never sent; ``tls``: it could protect a channel."""

    context: str
    host: str
    pid: int
    name: str
    socket_path: str
    secret: Secret | None
    encryption: Encryption
    tls: bool

    async def ready(self, *, over_tcp: bool) -> None:
        """Wait until the keys and certificates are made, before the time of a handshake begins to count.

        Raises:
            Unsupported: they cannot be.
            LimitReached: this process has reached a limit.
        """
        if self.secret is not None:
            await self.secret.proof_key()
            if over_tcp and self.tls:
                await self.secret.tls()

    async def lane_tls(self, tokens: list[bytes], *, dials: bool) -> bytes:
        """Return what the sockets of a lane need for TLS, for the side that dials them or the one that listens.

        Empty: bytes on lanes are not encrypted. ``tokens`` are those of the sockets' invitations.

        Raises:
            Unsupported: a library is missing, or the system refuses what it needs.
        """
        if self.secret is None or self.encryption != "all":
            return b""
        made = await self.secret.tls()
        of_each = made.dial_lane if dials else made.listen_lane
        return b"".join(of_each + auth.name_of(token).hex().encode() for token in tokens)


class Refused(Exception):
    """Raised if the listening side refuses; ``code`` says why in one word.

    Attributes:
        guess: whether the other side may have tried a secret.
    """

    def __init__(self, code: str, text: str, *, guess: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.guess = guess

    def error(self, peer: str = "") -> ZerohopError:
        """Return the error that the user gets."""
        if self.code in _FIXES:
            fix = _FIXES[self.code]
            return AccessDenied(f"refused by the peer: {self.text}", fix=fix, peer=peer, operation="connect")
        if self.code == VERSION:
            return ProtocolError(
                f"refused by the peer: {self.text}", fix="install the same version of zerohop on both sides", peer=peer
            )
        fix = "raise the limit that the peer names, in its process" if self.code == LIMIT else ""
        return PeerLost(f"refused by the peer: {self.text}", fix=fix, peer=peer, operation="connect")


class Gate(Protocol):
    """Decides on the listening side who may come in; each method raises Refused to keep the other side out."""

    def hello_came(self) -> None:
        """Note that the other side has introduced itself."""

    async def wait_turn(self) -> None:
        """Wait until the other side may try a proof."""

    def token_of(self, hello: Hello) -> bytes:
        """Return the token of the invitation that a lane names."""

    def admit(self, hello: Hello) -> None:
        """Check a side that has proved the secret; not called for the purpose LOCATE."""

    def refused(self, refusal: Refused) -> None:
        """Note a refusal before the other side is told, which could stay until the handshake's time is up."""


async def greet(
    channel: Channel,
    me: Identity,
    purpose: Purpose,
    token: bytes,
    expected: str,
    met: Callable[[], object] = lambda: None,
) -> None:
    """Do the connecting side's part of the handshake; ``token`` is that of the invitation, for a lane.

    ``met`` is called once the Context ``expected`` has answered, if it says the truth.

    Raises:
        Refused: the listening side refuses.
        AccessDenied: the listening side does not know the secret, or this side's is wrong.
        Unsupported: this side cannot protect the channel, and must.
        PeerLost: not the Context ``expected`` answers, but another; empty: any may.
        ChannelEnded, ProtocolError: the listening side hung up, or is no peer.
    """
    with _distrust_denies():
        _, transcript, key = await _introduce(channel, me, purpose, token, expected, met)
        accept = await _expect(channel, wire.Accept)
    if not transcript.verify(key, "server", accept.proof):
        raise _unproved()
    channel.limit, channel.most_fds = wire.MAX_FRAME, wire.SETUP_FDS


async def locate(channel: Channel, me: Identity, expected: str) -> tuple[Challenge, str]:
    """Find out who listens at an address, and the path of its Unix socket if it is on this host.

    Raises what ``greet`` raises.
    """
    with _distrust_denies():
        challenge, transcript, key = await _introduce(channel, me, LOCATE, b"", expected)
        location = await _expect(channel, wire.Location)
    # The proof covers the path, so that nobody in between sends this side to another socket.
    if not transcript.verify(key, "server", location.proof, location.socket_path):
        raise _unproved()
    return challenge, os.fsdecode(location.socket_path)


async def _introduce(
    channel: Channel,
    me: Identity,
    purpose: Purpose,
    token: bytes,
    expected: str,
    met: Callable[[], object] = lambda: None,
) -> tuple[Challenge, auth.Transcript, bytes]:
    """Do the handshake up to the proof of this side."""
    hello = wire.Hello(
        version=wire.VERSION,
        magic="zerohop",
        context=me.context,
        host=me.host,
        pid=me.pid,
        name=me.name,
        purpose=purpose,
        nonce=auth.new_nonce(),
        has_secret=me.secret is not None,
        encryption=me.encryption,
        tls=me.tls,
        token=auth.name_of(token) if token else b"",
    )
    if _must_protect(channel, me, purpose) and not me.tls:
        raise Unsupported(
            f"the peer is on another host, and what it says cannot be protected: {protection.why_not(me.encryption)}",
            fix=protection.fix(),
            operation="connect",
        )
    channel.post(hello)
    challenge = await _expect(channel, wire.Challenge)
    if expected and challenge.context != expected:
        raise PeerLost(
            "the Context that shared this memory is gone; another one answers at its address",
            fix="ask the peer that is there now for a new handle",
            peer=expected,
            operation="connect",
        )
    met()
    if why := _why_not(channel, me, purpose, challenge):
        raise AccessDenied(why, fix=_FIXES[ENCRYPTION], peer=expected, operation="connect")
    transcript = auth.Transcript(hello, challenge)
    key = await _key(me, token)
    if me.secret is not None and _protects(channel, me, purpose, challenge):
        await channel.protect((await me.secret.tls()).dial, server_side=False)
    channel.post(wire.Prove(proof=transcript.proof(key, "client")))
    return challenge, transcript, key


async def answer(channel: Channel, me: Identity, gate: Gate) -> Hello:
    """Do the listening side's part of the handshake, and return the Hello of the side that connects.

    Raises:
        Refused: this side has refused, and told the other side why.
        ChannelEnded, ProtocolError: the connecting side hung up, or is no peer.
    """
    try:
        return await _answer(channel, me, gate)
    except Refused as refusal:
        gate.refused(refusal)
        channel.post(wire.Refuse(version=wire.VERSION, code=refusal.code, text=refusal.text[:2000]))
        await channel.flush()
        raise
    except Distrusted:
        guess = Refused(SECRET, "wrong secret", guess=True)
        gate.refused(guess)
        # TLS has told the other side, which may have sent its proof meanwhile.
        with contextlib.suppress(TimeoutError):
            await wait_with_timeout(channel.linger(), _LINGER_S)
        raise guess from None


async def _answer(channel: Channel, me: Identity, gate: Gate) -> Hello:
    try:
        hello = await channel.receive_hello()
    except wire.OtherVersion as error:
        raise Refused(VERSION, error.reason) from error
    gate.hello_came()
    _check_secrets(hello, me)
    if why := _why_not(channel, me, hello.purpose, hello):
        raise Refused(ENCRYPTION, why)
    protects = _protects(channel, me, hello.purpose, hello)
    if (
        hello.context == me.context
        and me.secret is not None
        and not (protects or channel.unix or hello.purpose == LANE)
    ):
        # Somebody in between would have this side answer its own challenge.
        raise Refused(ITSELF, "a Context does not reach itself over TCP without TLS")
    if hello.purpose == LANE:
        # Its token has 128 random bits, which nobody guesses.
        token = gate.token_of(hello)
    else:
        token = b""
        await gate.wait_turn()
    challenge = wire.Challenge(
        context=me.context, host=me.host, nonce=auth.new_nonce(), encryption=me.encryption, tls=me.tls
    )
    channel.post(challenge)
    transcript = auth.Transcript(hello, challenge)
    try:
        key = await _key(me, token)
        contexts = await me.secret.tls() if me.secret is not None and protects else None
    except ZerohopError as error:
        raise Refused(ENCRYPTION if isinstance(error, Unsupported) else LIMIT, error.reason) from None
    if contexts is not None:
        await channel.protect(contexts.listen, server_side=True)
    try:
        prove = await _expect(channel, wire.Prove)
    except Refused as refusal:
        # This side has refused nothing, and a stranger does not choose the topic of a warning.
        raise ProtocolError(f"the connecting side has given up: {refusal.text}") from None
    if not transcript.verify(key, "client", prove.proof):
        # Without a secret there is nothing to guess, and nobody to slow down.
        raise Refused(SECRET, "wrong secret" if me.secret else "wrong proof", guess=me.secret is not None)
    if hello.purpose == LOCATE:
        path = os.fsencode(me.socket_path) if hello.host == me.host else b""
        channel.post(wire.Location(proof=transcript.proof(key, "server", path), socket_path=path))
        return hello
    gate.admit(hello)
    channel.post(wire.Accept(proof=transcript.proof(key, "server")))
    channel.limit, channel.most_fds = wire.MAX_FRAME, wire.SETUP_FDS
    return hello


def _must_protect(channel: Channel, me: Identity, purpose: Purpose) -> bool:
    """Tell whether a channel is worth nothing without TLS."""
    return _may_protect(channel, me, purpose) and (me.encryption == "all" or not channel.connected_here())


def _may_protect(channel: Channel, me: Identity, purpose: Purpose) -> bool:
    return me.encryption != "none" and purpose != LANE and not channel.unix


def _protects(channel: Channel, me: Identity, purpose: Purpose, other: Hello | Challenge) -> bool:
    """Tell whether TLS follows. On one host a side without OpenSSL goes without; nobody can feign that, see auth.py."""
    return _may_protect(channel, me, purpose) and me.tls and other.tls


def _why_not(channel: Channel, me: Identity, purpose: Purpose, other: Hello | Challenge) -> str:
    """Return why the modes of both sides do not fit together; empty if they do."""
    if other.encryption != me.encryption:
        which = "connecting" if isinstance(other, wire.Hello) else "listening"
        return f'the {which} side has encryption="{other.encryption}", the other one has "{me.encryption}"'
    if _must_protect(channel, me, purpose) and not (me.tls and other.tls):
        return "one side has no OpenSSL, or lacks the package cryptography"
    return ""


async def _key(me: Identity, token: bytes) -> bytes:
    """Return the key of proofs; ``token`` is a lane's."""
    key = b"" if me.secret is None else await me.secret.proof_key()
    return auth.lane_key(key, token) if token else key


def _check_secrets(hello: Hello, me: Identity) -> None:
    if hello.has_secret and me.secret is None:
        raise Refused(SECRET, "the connecting side has a secret, this one has none")
    if not hello.has_secret and me.secret is not None:
        raise Refused(SECRET, "this side has a secret, the connecting one has none")


@contextlib.contextmanager
def _distrust_denies() -> Iterator[None]:
    try:
        yield
    except Distrusted as error:
        raise AccessDenied(str(error), fix=_BOTH_THE_SAME, operation="connect") from None


def _unproved() -> AccessDenied:
    return AccessDenied("the peer does not know the secret", fix=_BOTH_THE_SAME, operation="connect")


async def _expect(channel: Channel, kind: type[wire.T]) -> wire.T:
    """Receive the next message, which must be of this kind; raise Refused if it is a refusal."""
    message, _ = await channel.receive()
    if isinstance(message, wire.Refuse):
        raise Refused(message.code, quoted(message.text))
    if not isinstance(message, kind):
        raise ProtocolError(f"malformed: a {type(message).__name__} where a {kind.__name__} was due")
    return message
