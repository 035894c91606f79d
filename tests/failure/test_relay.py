"""Somebody in between, who knows no secret: nothing that he says counts, and nobody is talked down."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.raw_control import RawControl, proof_key
from support.relay import Relay
from zerohop.core.control import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext

pytestmark = pytest.mark.unprivileged

SECRET = "open sesame"
KNOWS = Options(providers=("tcp",), secret=SECRET)


def _first(change: Callable[[Any], wire.Message | None]) -> Callable[[bytes], bytes]:
    """Changes the first message of each socket that goes through; a Context sends it in one piece."""

    def changed(data: bytes) -> bytes:
        size = wire.HEADER.size
        try:
            length = wire.body_length(data[:size], len(data))
            message = wire.decode(data[size : size + length])
        except (zh.ProtocolError, ValueError):
            return data
        other = change(message)
        return data if other is None else wire.encode(other) + data[size + length :]

    return changed


def _set(kind: type[wire.Hello | wire.Challenge], **fields: Any) -> Callable[[bytes], bytes]:
    return _first(lambda message: msgspec.structs.replace(message, **fields) if isinstance(message, kind) else None)


def _lost(owner: zh.Context, friend: zh.Context) -> None:
    eventually(lambda: not (list(owner.connections) or list(friend.connections)), "a Connection is left")


def test_who_speaks_for_the_peer_is_not_heard(open_context: OpenContext) -> None:
    """He lets the two shake hands, and goes on in the name of one of them."""
    owner, friend = open_context(KNOWS), open_context(KNOWS)
    target = np.zeros(64, np.uint8)
    handle = owner.register(target).share("rw")
    with Relay(owner.url) as relay:
        connection = friend.connect(relay.url(of=owner.url)).result(PATIENCE_S)
        friend.write(pattern(1, 64), handle).result(PATIENCE_S)
        assert target.tobytes() == pattern(1, 64).tobytes()
        # What is in nobody's interest to tell: the address of the peer, and what opens its memory.
        assert friend.url.encode() not in relay.heard
        relay.say(wire.encode(wire.Bye(text="said in between")))
        _lost(owner, friend)
        with pytest.raises(zh.ZerohopError) as caught:
            connection.send(b"x").result(PATIENCE_S)
        assert "said in between" not in str(caught.value)


def test_a_byte_that_changes_is_noticed(open_context: OpenContext, caplog: pytest.LogCaptureFixture) -> None:
    owner, friend = open_context(KNOWS), open_context(KNOWS)
    begun = threading.Event()

    def change(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if begun.is_set() else data

    with Relay(owner.url, forth=change) as relay:
        friend.connect(relay.url(of=owner.url)).result(PATIENCE_S)
        begun.set()
        session = friend._core.connected[owner.id].session
        assert session is not None
        friend._core.control.call(session.send, "a service", b"any message")
        eventually(lambda: "TLS failed" in caplog.text, "nothing was noticed")
    eventually(lambda: not list(owner.connections), "the Connection is left")
    assert "should not" not in caplog.text


def test_who_connects_is_told_that_a_byte_has_changed(
    open_context: OpenContext, caplog: pytest.LogCaptureFixture
) -> None:
    owner, friend = open_context(KNOWS), open_context(KNOWS)

    def change(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if friend._core.young else data  # after the handshake

    with Relay(owner.url, back=change) as relay:
        with pytest.raises(zh.ProtocolError, match="decryption failed or bad record mac"):
            friend.connect(relay.url(of=owner.url)).result(PATIENCE_S)
        eventually(lambda: "alert bad record mac" in caplog.text, "the owner does not learn it")
    assert "should not" not in caplog.text


DOWN: dict[str, tuple[Callable[[bytes], bytes] | None, Callable[[bytes], bytes] | None]] = {
    "the dialler could not": (_set(wire.Hello, tls=False), None),
    "the listener could not": (None, _set(wire.Challenge, tls=False)),
    "neither could": (_set(wire.Hello, tls=False), _set(wire.Challenge, tls=False)),
    "the dialler would not": (_set(wire.Hello, encryption="none"), None),
    "the listener would not": (None, _set(wire.Challenge, encryption="none")),
    "neither would": (_set(wire.Hello, encryption="none"), _set(wire.Challenge, encryption="none")),
    "no secret": (_set(wire.Hello, has_secret=False), None),
    "another name": (_set(wire.Hello, name="somebody else"), None),
    "another process": (_set(wire.Hello, pid=1), None),
    "another host": (None, _set(wire.Challenge, host="1" * 32)),
}


@pytest.mark.parametrize("how", DOWN)
@pytest.mark.parametrize("encryption", ["control", "none"])
def test_nobody_changes_what_the_two_say(
    open_context: OpenContext, how: str, encryption: Literal["control", "none"]
) -> None:
    options = Options(providers=("tcp",), secret=SECRET, encryption=encryption)
    owner, friend = open_context(options), open_context(options)
    forth, back = DOWN[how]
    changes = threading.Event()
    said = [0]

    def heard(data: bytes, change: Callable[[bytes], bytes] | None) -> bytes:
        other = data if change is None else change(data)
        if other != data:
            said[0] += 1
            changes.set()
        return other

    with Relay(owner.url, lambda data: heard(data, forth), lambda data: heard(data, back)) as relay:
        dial = friend.connect(relay.url(of=owner.url))
        # It is as the relay wants it already.
        if encryption == "none" and ("could" in how or "would" in how):
            dial.result(PATIENCE_S)
            assert not changes.is_set()
            return
        with pytest.raises((zh.AccessDenied, zh.PeerLost, zh.ProtocolError)):
            dial.result(PATIENCE_S)
        assert changes.is_set()
    assert not list(owner.connections)
    assert not list(friend.connections)


def test_a_context_does_not_answer_its_own_challenge(open_context: OpenContext) -> None:
    """He has a Context dial him, under its own name, and hands everything on to that Context's own port."""
    victim = open_context(Options(providers=("tcp",), secret=SECRET, encryption="none"))
    with Relay(victim.url) as relay, pytest.raises(zh.AccessDenied, match="itself"):
        victim.connect(relay.url(of=victim.url)).result(PATIENCE_S)
    assert not list(victim.connections)


def test_who_reaches_itself_is_alone_with_itself(open_context: OpenContext) -> None:
    """With TLS the same is no harm: nobody reads it, and what is said in between ends it."""
    victim = open_context(KNOWS)
    with Relay(victim.url) as relay:
        victim.connect(relay.url(of=victim.url)).result(PATIENCE_S)
        relay.say(wire.encode(wire.Bye(text="said in between")))
        eventually(lambda: not list(victim.connections), "the Connection is left")


def test_a_lane_that_somebody_else_brings(open_context: OpenContext) -> None:
    """He hears the name of the invitation and is there first; without the token that is worth nothing."""
    owner, friend = open_context(KNOWS), open_context(KNOWS)
    refused: list[wire.Message | None] = []

    def be_first(message: wire.Message) -> None:
        if isinstance(message, wire.Hello) and message.purpose == "lane":
            thief = RawControl(owner.url, unix=False)
            seen = thief.introduce(thief.hello(purpose="lane", token=message.token, has_secret=True))
            # He may even know the secret of another session, or this one's, if he is a peer.
            thief.send(wire.Prove(proof=seen.proof(proof_key(SECRET.encode()), "client")))
            answered = thief.receive()
            refused.append(None if answered is None else answered[0])
            thief.close()

    with Relay(owner.url, forth=_first(be_first)) as relay:
        target = np.zeros(1000, np.uint8)
        handle = owner.register(target).share("rw")
        friend.connect(relay.url(of=owner.url)).result(PATIENCE_S)
        friend.write(pattern(1, 1000), handle).result(PATIENCE_S)
        assert target.tobytes() == pattern(1, 1000).tobytes()
    assert refused
    assert all(isinstance(answer, wire.Refuse) and answer.code == "secret" for answer in refused)
