"""What `encryption=` covers, what it needs, and that both sides must have the same."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.raw_control import RawControl
from support.relay import Relay
from zerohop.config import protection
from zerohop.core.control import wire
from zerohop.core.control.channel import Channel
from zerohop.core.lanes import agreement
from zerohop.core.lanes.lane_setup import LaneSetup
from zerohop.core.peers.peer_link import PeerLink

if TYPE_CHECKING:
    import socket

    from support.fixtures import OpenContext
    from zerohop.core.lanes.lane import Lane

pytestmark = pytest.mark.unprivileged

SECRET = "open sesame"
KNOWS = Options(providers=("tcp",), secret=SECRET)


@pytest.mark.parametrize("dials", ["control", "none"])
def test_modes_that_differ(open_context: OpenContext, dials: Literal["control", "none"]) -> None:
    other: Literal["control", "none"] = "none" if dials == "control" else "control"
    owner = open_context(Options(providers=("tcp",), secret=SECRET, encryption=other))
    friend = open_context(Options(providers=("tcp",), secret=SECRET, encryption=dials))
    for url in (owner.url, _by_hand(owner.url)):
        with pytest.raises(zh.AccessDenied, match=r'"control".*"none"|"none".*"control"') as caught:
            friend.connect(url).result(PATIENCE_S)
        assert "encryption=" in caught.value.fix


def _by_hand(url: str) -> str:
    return url.partition("?")[0]


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends take each other for another host's."""
    monkeypatch.setattr(Channel, "connected_here", lambda self: False)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh installation, without the extra."""
    monkeypatch.setattr(protection, "why_not", _lacks)


def _lacks(encryption: str) -> str:
    return "" if encryption == "none" else "the package cryptography is not installed"


@pytest.mark.usefixtures("bare")
def test_without_openssl_on_one_host(open_context: OpenContext) -> None:
    """It goes on as before: both prove the secret."""
    owner, friend = open_context(KNOWS), open_context(KNOWS)
    with Relay(owner.url) as relay:
        assert friend.connect(relay.url(of=owner.url)).result(PATIENCE_S).peer == owner.id


@pytest.mark.usefixtures("bare")
def test_without_openssl_nobody_listens_to_other_hosts(open_context: OpenContext) -> None:
    with pytest.raises(zh.Unsupported, match="cryptography") as caught:
        open_context(Options(listen="0.0.0.0:0", secret=SECRET))
    assert "zerohop[tls]" in caught.value.fix
    assert "encryption='none'" in caught.value.fix
    open_context(Options(listen="0.0.0.0:0", secret=SECRET, encryption="none"))


@pytest.mark.usefixtures("bare", "far")
def test_without_openssl_nobody_dials_other_hosts(open_context: OpenContext) -> None:
    owner, friend = open_context(KNOWS), open_context(KNOWS)
    with Relay(owner.url) as relay:
        with pytest.raises(zh.Unsupported, match="cryptography") as caught:
            friend.connect(relay.url(of=owner.url)).result(PATIENCE_S)
        assert "zerohop[tls]" in caught.value.fix
        assert not relay.pairs or not relay.heard


@pytest.mark.usefixtures("far")
def test_a_peer_from_another_host_without_openssl(open_context: OpenContext) -> None:
    """Refused before it proves anything, with the fix."""
    owner = open_context(KNOWS)
    client = RawControl(owner.url, unix=False)
    client.send(client.hello(has_secret=True))
    answered = client.receive()
    assert answered is not None
    assert isinstance(answered[0], wire.Refuse)
    assert answered[0].code == "encryption"
    client.close()


def test_one_side_without_openssl_on_one_host(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = open_context(KNOWS)
    monkeypatch.setattr(protection, "why_not", _lacks)
    friend = open_context(KNOWS)
    with Relay(owner.url) as relay:
        assert friend.connect(relay.url(of=owner.url)).result(PATIENCE_S).peer == owner.id


def test_everything_goes_through_tls(open_context: OpenContext) -> None:
    """With encryption="all" a lane's bytes are not to be seen, and both sides still get them right."""
    options = Options(providers=("tcp",), secret=SECRET, encryption="all")
    owner, friend = open_context(options), open_context(options)
    data = pattern(7, 300_000)
    target = np.zeros(len(data), np.uint8)
    handle = owner.register(target).share("rw")
    with Relay(owner.url) as relay:
        friend.connect(relay.url(of=owner.url)).result(PATIENCE_S)
        friend.write(data, handle).result(PATIENCE_S)
        back = np.zeros_like(data)
        friend.read(handle, into=back).result(PATIENCE_S)
        assert target.tobytes() == back.tobytes() == data.tobytes()
        assert len(relay.heard) > 2 * len(data)
        for at in range(0, len(data), 50_000):
            assert data[at : at + 64].tobytes() not in relay.heard


def test_bytes_on_lanes_are_seen_otherwise(open_context: OpenContext) -> None:
    """What docs/guarantees.md says of encryption="control"; and it shows that the test above sees what there is."""
    owner, friend = open_context(KNOWS), open_context(KNOWS)
    data = pattern(7, 1000)
    target = np.zeros(len(data), np.uint8)
    handle = owner.register(target).share("rw")
    with Relay(owner.url) as relay:
        friend.connect(relay.url(of=owner.url)).result(PATIENCE_S)
        friend.write(data, handle).result(PATIENCE_S)
        assert data.tobytes() in relay.heard


def test_a_byte_that_changes_on_a_lane(open_context: OpenContext) -> None:
    """With encryption="all" it breaks the lane, and no changed byte arrives."""
    options = Options(providers=("tcp",), secret=SECRET, encryption="all")
    owner, friend = open_context(options), open_context(options)
    data = pattern(7, 100_000)
    target = np.zeros(len(data), np.uint8)
    handle = owner.register(target).share("rw")
    begun = threading.Event()

    def change(piece: bytes) -> bytes:
        return piece[:-1] + bytes([piece[-1] ^ 1]) if begun.is_set() else piece

    with Relay(owner.url, forth=change) as relay:
        friend.connect(relay.url(of=owner.url)).result(PATIENCE_S)
        friend.write(data[:1000], handle[:1000]).result(PATIENCE_S)
        begun.set()
        with pytest.raises(zh.PeerLost):
            friend.write(data, handle).result(PATIENCE_S)
    arrived = target != 0
    assert (target[arrived] == data[arrived]).all()


def test_sockets_of_lanes_are_not_exchanged(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody in between waits for the proofs on both, and then lets each go on as the other."""
    options = Options(providers=("tcp",), secret=SECRET, encryption="all", tcp_flows=2)
    owner, friend = open_context(options), open_context(options)
    handle = owner.register(np.zeros(64, np.uint8)).share("rw")
    use_sockets = LaneSetup._use_sockets

    def exchanged(self: LaneSetup, lane: Lane, sockets: list[socket.socket], tls: bytes) -> None:
        use_sockets(self, lane, sockets[::-1] if self._core is owner._core else sockets, tls)

    monkeypatch.setattr(LaneSetup, "_use_sockets", exchanged)
    with pytest.raises(zh.PeerLost):
        friend.write(b"x" * 64, handle).result(PATIENCE_S)


@pytest.mark.parametrize(
    ("encryption", "control", "lane"),
    [
        ("control", "through TLS", "not encrypted"),
        ("all", "through TLS", "through TLS"),
        ("none", "not encrypted", "not encrypted"),
    ],
)
def test_explain_says_what_is_in_force(
    open_context: OpenContext, encryption: Literal["control", "all", "none"], control: str, lane: str
) -> None:
    options = Options(providers=("tcp",), secret=SECRET, encryption=encryption)
    owner, friend = open_context(options), open_context(options)
    memory = friend.register(np.zeros(8, np.uint8))
    handle = owner.register(np.zeros(8, np.uint8)).share("rw")
    with Relay(owner.url) as relay:
        connection = friend.connect(relay.url(of=owner.url)).result(PATIENCE_S)
        send = connection.send(b"x")
        for explanation in (friend.explain(memory, handle), send.explain()):
            assert explanation.protection == f"control channel: {control}; bytes on this lane: {lane}"
            assert explanation.protection in explanation.details()
        send.cancel()


@pytest.mark.parametrize(
    ("provider", "encryption", "said"),
    [
        ("tcp", "control", "control channel: a Unix socket of this user; bytes on this lane: not encrypted"),
        ("tcp", "all", "control channel: a Unix socket of this user; bytes on this lane: through TLS"),
        ("shm", "all", ""),
    ],
)
def test_on_one_host(
    open_context: OpenContext, provider: str, encryption: Literal["control", "all"], said: str
) -> None:
    options = Options(providers=(provider,), secret=SECRET, encryption=encryption)
    owner, friend = open_context(options), open_context(options)
    data = pattern(7, 3_000_000)
    target = np.zeros_like(data)
    handle = owner.register(target).share("rw")
    assert friend.explain(data, handle).protection == said
    friend.write(data, handle).result(PATIENCE_S)
    back = np.zeros_like(data)
    friend.read(handle, into=back).result(PATIENCE_S)
    assert target.tobytes() == back.tobytes() == data.tobytes()


@pytest.mark.parametrize("same_host", [False, True])
def test_nics_do_not_encrypt(open_context: OpenContext, same_host: bool) -> None:
    """With encryption="all" they are for peers on this host."""
    context = open_context(Options(secret=SECRET, encryption="all"))
    context._core.providers = ("verbs", "tcp")
    link = PeerLink(context._core, "0" * 32)
    setup = wire.Setup(providers=["verbs", "tcp"], url=context.url, name="")
    agreement.agree(context._core, link, setup, same_host=same_host)
    assert ("do not encrypt" in link.missing["verbs"]) == (not same_host)
    assert "tcp" in link.possible


def test_all_is_refused_where_it_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback, too: it was asked for."""
    monkeypatch.setattr(protection, "why_not", lambda encryption: "libssl.so.3: cannot open shared object file")
    with pytest.raises(zh.Unsupported, match="libssl") as caught:
        zh.Context(secret=SECRET, encryption="all", listen=None)
    assert "zerohop[tls]" in caught.value.fix
