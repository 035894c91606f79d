"""The shared secret: wrong or missing means refused, said once, and told to nobody."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S, times
from support.pattern import pattern
from support.raw_control import RawControl, proof_key
from zerohop.core.control import auth, throttle, wire

if TYPE_CHECKING:
    from support.fixtures import OpenContext

pytestmark = [pytest.mark.unprivileged, pytest.mark.parametrize("provider", ["shm", "tcp"])]

SECRET = "open sesame"


def _tcp_only(url: str) -> str:
    """The URL as one writes it by hand: host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("zerohop") and "refused" in record.getMessage()
    ]


@pytest.mark.parametrize("theirs", [None, "open sesam", "open sesame ", "OPEN SESAME"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_refused_and_logged_once(
    open_context: OpenContext, caplog: pytest.LogCaptureFixture, provider: str, theirs: str | None, by_hand: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    owner = open_context(Options(providers=(provider,), secret=SECRET))
    target = np.zeros(64, np.uint8)
    memory = owner.register(target)
    handle = memory.share("rw")
    url = _tcp_only(owner.url) if by_hand else owner.url
    for _ in range(3):
        stranger = open_context(Options(providers=(provider,), secret=theirs))
        for _ in range(2):
            with pytest.raises(zh.AccessDenied, match="secret") as caught:
                stranger.connect(url).result(PATIENCE_S)
            assert caught.value.fix
        with pytest.raises(zh.AccessDenied):
            stranger.write(pattern(1, 64), handle).result(PATIENCE_S)
        assert not list(stranger.connections)
        stranger.close()
    assert not target.any()
    assert not list(owner.connections)
    said = _refusals(caplog)
    # Once for each address: 127.0.0.1, and the Unix socket's.
    assert 1 <= len(said) <= 2, said
    assert len(set(said)) == len(said)
    assert "secret" in said[0]
    for record in caplog.records:
        assert SECRET not in record.getMessage()


def test_a_peer_without_one_where_the_other_has_one(open_context: OpenContext, provider: str) -> None:
    """Refused in that direction too: who has a secret connects to nobody who has none."""
    careless = open_context(Options(providers=(provider,)))
    careful = open_context(Options(providers=(provider,), secret=SECRET))
    with pytest.raises(zh.AccessDenied, match="secret"):
        careful.connect(careless.url).result(PATIENCE_S)


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_right_one(open_context: OpenContext, provider: str, by_hand: bool) -> None:
    owner = open_context(Options(providers=(provider,), secret=SECRET))
    friend = open_context(Options(providers=(provider,), secret=SECRET))
    target = np.zeros(1000, np.uint8)
    memory = owner.register(target)
    handle = memory.share("rw")
    if by_hand:
        friend.connect(_tcp_only(owner.url)).result(PATIENCE_S)
    friend.write(pattern(1, 1000), handle).result(PATIENCE_S)
    assert target.tobytes() == pattern(1, 1000).tobytes()
    for text in (
        owner.url,
        repr(owner),
        bytes(handle).decode("latin-1"),
        repr(handle),
        str(friend.explain(target, handle)),
    ):
        assert SECRET not in text


def test_text_and_bytes_are_the_same_secret(provider: str) -> None:
    with (
        zh.Context(providers=[provider], secret=SECRET) as text,
        zh.Context(providers=[provider], secret=SECRET.encode()) as raw,
    ):
        assert text.connect(raw.url).result(PATIENCE_S).peer == raw.id


def test_listening_to_other_hosts(open_context: OpenContext, provider: str) -> None:
    """Not without a secret, unless the user insists."""
    with pytest.raises((ValueError, zh.ZerohopError), match="secret"):
        zh.Context(listen="0.0.0.0:0", providers=[provider])
    with zh.Context(listen="0.0.0.0:0", providers=[provider], insecure=True) as context:
        assert context.url
    owner = open_context(Options(listen="0.0.0.0:0", providers=(provider,), secret=SECRET))
    friend = open_context(Options(providers=(provider,), secret=SECRET))
    assert friend.connect(owner.url).result(PATIENCE_S).peer == owner.id


@pytest.mark.parametrize("unix", [False, True])
def test_a_proof_from_another_conversation(open_context: OpenContext, provider: str, unix: bool) -> None:
    """Replayed, reflected or made for another purpose, it proves nothing."""
    owner = open_context(Options(providers=(provider,), secret=SECRET))
    key = proof_key(SECRET.encode())
    for forge in ("replay", "reflect", "purpose", "name", "zeros"):
        client = RawControl(owner.url, unix=unix)
        seen = client.introduce(client.hello(has_secret=True))
        hello, challenge = seen
        if forge == "replay":
            challenge = msgspec.structs.replace(challenge, nonce=auth.new_nonce())
        elif forge == "purpose":
            hello = msgspec.structs.replace(hello, purpose="locate")
        elif forge == "name":
            hello = msgspec.structs.replace(hello, name="another")
        proof = auth.Transcript(hello, challenge).proof(key, "server" if forge == "reflect" else "client")
        client.send(wire.Prove(proof=bytes(32) if forge == "zeros" else proof))
        answered = client.receive()
        assert answered is None or isinstance(answered[0], wire.Refuse), answered
        assert client.hung_up()
        client.close()
    assert not list(owner.connections)


@pytest.mark.parametrize("theirs", [SECRET, "open sesam", None])
@pytest.mark.parametrize("here", [False, True])
def test_where_the_unix_socket_is(open_context: OpenContext, provider: str, theirs: str | None, here: bool) -> None:
    """Told, in words that are proved, to who knows the secret and says that it is on this host."""
    owner = open_context(Options(providers=(provider,), secret=SECRET))
    client = RawControl(owner.url, unix=False)
    hello = client.hello(purpose="locate", has_secret=True, **({} if here else {"host": "0" * 32}))
    seen = client.introduce(hello)
    client.send(wire.Prove(proof=seen.proof(proof_key(theirs.encode() if theirs else None), "client")))
    answered = client.receive()
    assert answered is not None
    location = answered[0]
    if theirs == SECRET:
        assert isinstance(location, wire.Location)
        assert location.socket_path.decode() == (client.where.socket_path if here else "")
        assert seen.verify(proof_key(SECRET.encode()), "server", location.proof, location.socket_path)
    else:
        assert isinstance(location, wire.Refuse)
    assert client.hung_up()
    client.close()
    assert not list(owner.connections)


@pytest.mark.parametrize("unix", [False, True])
def test_another_version(open_context: OpenContext, provider: str, unix: bool) -> None:
    """Both versions are named."""
    owner = open_context(Options(providers=(provider,)))
    client = RawControl(owner.url, unix=unix)
    client.send(client.hello(version=wire.VERSION + 41))
    answered = client.receive()
    assert answered is not None
    refusal = answered[0]
    assert isinstance(refusal, wire.Refuse)
    assert str(wire.VERSION + 41) in refusal.text
    assert str(wire.VERSION) in refusal.text.replace(str(wire.VERSION + 41), "")
    assert client.hung_up()
    client.close()


def _invited(owner: zh.Context, *, give_up: bool = False) -> bytes:
    """Return the token of a lane that the Context waits for, or has waited for."""

    async def invite() -> bytes:
        token, future = owner._core.listeners.invite()
        if give_up:
            future.cancel()
        return token

    return asyncio.run_coroutine_threadsafe(invite(), owner._core.control.loop).result(PATIENCE_S)


def test_a_lane_that_nobody_invited(open_context: OpenContext, provider: str) -> None:
    owner = open_context(Options(providers=(provider,)))
    client = RawControl(owner.url, unix=False)
    hello = client.hello(purpose="lane", token=bytes(16))
    client.send(hello)
    answered = client.receive()
    assert answered is None or isinstance(answered[0], wire.Refuse)
    assert client.hung_up()
    client.close()


def test_a_lane_by_the_unix_socket(open_context: OpenContext, provider: str) -> None:
    """No peer brings one so. The data plane would close descriptors beside its bytes, and might wait for that."""
    owner = open_context(Options(providers=(provider,)))
    token = _invited(owner)
    client = RawControl(owner.url, unix=True)
    client.send(client.hello(purpose="lane", token=auth.name_of(token)))
    answered = client.receive()
    assert answered is not None
    assert isinstance(answered[0], wire.Refuse)
    assert answered[0].text == "a lane comes by TCP"
    assert client.hung_up()
    client.close()


def test_a_lane_whose_invitation_was_given_up(
    open_context: OpenContext, caplog: pytest.LogCaptureFixture, provider: str
) -> None:
    """The peer was on its way while this side closed the connection: it is turned away, and nobody is warned."""
    owner = open_context(Options(providers=(provider,)))
    token = _invited(owner, give_up=True)
    client = RawControl(owner.url, unix=False)
    client.send(client.hello(purpose="lane", token=auth.name_of(token)))
    answered = client.receive()
    assert answered is not None
    assert isinstance(answered[0], wire.Refuse)
    assert answered[0].code == "closed"
    client.close()
    stranger = RawControl(owner.url, unix=False)
    stranger.send(stranger.hello(purpose="lane", token=bytes(16)))
    assert stranger.hung_up()
    stranger.close()
    eventually(lambda: bool(_refusals(caplog)), "the stranger is not told of")
    assert len(_refusals(caplog)) == 1


def test_both_leave_in_the_middle_of_a_setup(
    open_context: OpenContext, caplog: pytest.LogCaptureFixture, provider: str
) -> None:
    """At many moments; a normal close is no reason for a warning."""
    for moment in range(30):
        here, there = (open_context(Options(providers=(provider,))) for _ in range(2))
        connecting = there.connect(here.url)
        (here, there)[moment % 2].close(1.0)
        connecting.exception(PATIENCE_S)
        here.close()
        there.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def _guess(owner: zh.Context, *, has_secret: bool = True) -> RawControl:
    """A wrong proof, by a peer that has no OpenSSL."""
    client = RawControl(owner.url, unix=False)
    client.introduce(client.hello(has_secret=has_secret))
    client.send(wire.Prove(proof=bytes(32)))
    answered = client.receive()
    assert answered is not None
    assert isinstance(answered[0], wire.Refuse)
    return client


def test_guesses_are_slowed_down(
    open_context: OpenContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    """That is logged once; a peer on this host does not notice, and one at that address gets in at its turn."""
    monkeypatch.setattr(throttle, "_FREE", 3)
    monkeypatch.setattr(throttle, "_FORGET_S", 1e9)
    options = Options(providers=(provider,), secret=SECRET)
    owner = open_context(options)
    for _ in range(2):
        _guess(owner).close()
    assert "slowed down" not in caplog.text
    for _ in range(2):
        _guess(owner).close()
    eventually(lambda: "slowed down" in caplog.text, "it was not logged")
    turns = owner._core.listeners._throttle._sources["127.0.0.1"]
    waited = turns.next_turn
    assert open_context(options).connect(owner.url).result(PATIENCE_S).peer == owner.id
    assert turns.next_turn == waited
    friend = open_context(options)
    assert friend.connect(_tcp_only(owner.url)).result(PATIENCE_S).peer == owner.id
    assert turns.next_turn > waited
    said = [record.getMessage() for record in caplog.records if "slowed down" in record.getMessage()]
    assert len(said) == 1


@pytest.mark.parametrize("secret", [None, SECRET], ids=["owner without a secret", "owner with one"])
def test_what_is_no_guess_slows_nobody_down(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, provider: str, secret: str | None
) -> None:
    """A peer that has no secret where one is needed, or has one where none is, or whose proof of none is wrong."""
    monkeypatch.setattr(throttle, "_FREE", 1)
    owner = open_context(Options(providers=(provider,), secret=secret))
    for _ in range(times(50)):
        client = RawControl(owner.url, unix=False)
        client.send(client.hello(has_secret=secret is None))
        answered = client.receive()
        assert answered is not None
        assert isinstance(answered[0], wire.Refuse)
        client.close()
    if secret is None:
        _guess(owner, has_secret=False).close()
    assert not owner._core.listeners._throttle._sources
    friend = open_context(Options(providers=(provider,), secret=secret))
    assert friend.connect(_tcp_only(owner.url)).result(PATIENCE_S).peer == owner.id


def test_guesses_at_once_are_refused(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    """Those that would wait long for their turn, before they are told anything to try secrets on."""
    monkeypatch.setattr(throttle, "_FREE", 1)
    for name in ("_FORGET_S", "_SHORTEST_S", "_LONGEST_S"):
        monkeypatch.setattr(throttle, name, 1e9)
    owner = open_context(Options(providers=(provider,), secret=SECRET))
    _guess(owner).close()
    clients = [RawControl(owner.url, unix=False) for _ in range(4)]
    for client in clients:
        client.send(client.hello(has_secret=True))
    answers = [client.receive() for client in clients]
    for client in clients:
        client.close()
    refused = [answer[0] for answer in answers if answer is not None and isinstance(answer[0], wire.Refuse)]
    assert [refusal.code for refusal in refused] == ["throttled"] * 3


@pytest.mark.parametrize("stays", [False, True])
def test_a_wrong_certificate_is_a_guess(open_context: OpenContext, provider: str, stays: bool) -> None:
    """Also if its side does not hang up when it is refused."""
    owner = open_context(Options(providers=(provider,), secret=SECRET))
    client = RawControl(owner.url, unix=False)
    client.introduce(client.hello(has_secret=True, tls=True))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(client.socket, do_handshake_on_connect=True) as stranger:
        with pytest.raises(ssl.SSLError, match=r"UNKNOWN_CA|CERTIFICATE"):
            stranger.recv(1)
        if not stays:
            stranger.close()
        counted = owner._core.listeners._throttle._sources
        eventually(lambda: "127.0.0.1" in counted, "it was not counted")
