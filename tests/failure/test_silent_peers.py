"""Peers that connect and say nothing: they give way to those that speak."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.raw_control import RawControl, proof_key
from support.strangers import NOWHERE
from zerohop.core.control import address, handshake, waiting_room, wire
from zerohop.core.control.throttle import source_of
from zerohop.core.peers import peers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zerohop as zh
    from support.fixtures import OpenContext

FOREVER_S = 3600.0


@pytest.fixture
def nobody_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that only a peer that needs a place can end a silent one."""
    monkeypatch.setattr(waiting_room, "HELLO_S", FOREVER_S)
    monkeypatch.setattr(handshake, "TIMEOUT_S", FOREVER_S)
    monkeypatch.setattr(peers, "SETUP_S", FOREVER_S)


def _stand_still(context: zh.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock of a Context's loop go on by a day between two of its turns, as if its process had been stopped."""
    loop = context._core.control.loop
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 24 * FOREVER_S)
    for _ in range(3):
        turned = threading.Event()
        context._core.control.call(turned.set)
        assert turned.wait(PATIENCE_S)


@pytest.fixture
def silent() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as sockets:
        yield sockets


def _connect(sockets: contextlib.ExitStack, context: zh.Context, count: int, source: str = "") -> list[socket.socket]:
    where = address.parse(context.url)
    return [
        sockets.enter_context(
            socket.create_connection((where.host, where.port), PATIENCE_S, (source, 0) if source else None)
        )
        for _ in range(count)
    ]


def _hung_up(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_they_shut_nobody_out(
    open_context: OpenContext, nobody_is_late: None, silent: contextlib.ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    context = open_context(Options(providers=("tcp",)))
    first, *others = _connect(silent, context, waiting_room.PLACES)
    others += _connect(silent, context, 8)
    with contextlib.closing(RawControl(context.url, unix=False)) as client:
        client.shake_hands()
    assert _hung_up(first), "the oldest goes first"
    assert not all(_hung_up(sock) for sock in others), "no more go than others come"
    assert sum("too many peers connect and do not speak" in said for said in caplog.messages) == 1


def test_not_even_at_the_same_moment(open_context: OpenContext, silent: contextlib.ExitStack) -> None:
    """As they come back again and again, others get in between, with the times as they are."""
    context, other = open_context(Options(providers=("tcp",))), open_context(Options(providers=("tcp",)))
    for _ in range(3):
        _connect(silent, context, waiting_room.PLACES)
        connection = other.connect(context.url.partition("?")[0]).result(PATIENCE_S)
        connection.close()


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "a byte each"])
def test_crowds_that_come_again_and_again(
    open_context: OpenContext,
    monkeypatch: pytest.MonkeyPatch,
    nobody_is_late: None,
    silent: contextlib.ExitStack,
    drips: bool,
) -> None:
    """They get no time any more, so that others do not wait behind all of them."""
    context = open_context(Options(providers=("tcp",), listen="127.0.0.1:0"))
    crowd = _connect(silent, context, 2 * waiting_room.PLACES, "127.0.0.2")
    for sock in crowd if drips else ():
        with contextlib.suppress(OSError):  # it may have been sent away
            sock.send(b"\0")
    eventually(lambda: sum(map(_hung_up, crowd)) >= waiting_room.PLACES, "they stay")
    monkeypatch.setattr(waiting_room, "GRACE_S", FOREVER_S)
    for sock in _connect(silent, context, 8 * waiting_room.PLACES, "127.0.0.2"):
        if drips:
            with contextlib.suppress(OSError):  # it may have been sent away
                sock.send(b"\0")
    with contextlib.closing(RawControl(context.url, unix=False)) as client:
        client.shake_hands()


def test_who_has_begun_to_speak_stays(
    open_context: OpenContext, nobody_is_late: None, silent: contextlib.ExitStack
) -> None:
    context = open_context(Options(providers=("tcp",)))
    with contextlib.closing(RawControl(context.url, unix=False)) as slow:
        hello = slow.hello()
        slow.send(hello)
        assert slow.receive() is not None
        _connect(silent, context, 2 * waiting_room.PLACES)
        with contextlib.closing(RawControl(context.url, unix=False)) as client:
            client.shake_hands()
        assert not _hung_up(slow.socket)


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_after_the_handshake(
    open_context: OpenContext, nobody_is_late: None, silent: contextlib.ExitStack, unix: bool
) -> None:
    """A peer that has proved who it is and sends no Setup has a place as others have, and loses it to them."""
    context, other = open_context(Options(providers=("tcp",))), open_context(Options(providers=("tcp",)))
    clients = [
        silent.enter_context(contextlib.closing(RawControl(context.url, unix=unix)))
        for _ in range(waiting_room.PLACES + 8)
    ]
    for client in clients:
        client.shake_hands()
    assert clients[0].hung_up(), "the oldest goes first"
    assert len(context._core.young) <= waiting_room.PLACES
    where = context.url if unix else context.url.partition("?")[0]
    assert other.connect(where).result(PATIENCE_S).alive
    # The other's two sockets, of its conversation and of its lane, may have taken two places.
    assert len(context._core.young) >= waiting_room.PLACES - 2, "no more go than others come"


def test_who_has_sent_its_setup_stays(
    open_context: OpenContext, nobody_is_late: None, silent: contextlib.ExitStack
) -> None:
    context = open_context(Options(providers=("tcp",)))
    with contextlib.closing(RawControl(context.url, unix=False)) as slow:
        slow.shake_hands()
        slow.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="slow"))
        eventually(lambda: bool(context._core.introduced), "it is not introduced")
        _connect(silent, context, 2 * waiting_room.PLACES)
        with contextlib.closing(RawControl(context.url, unix=False)) as client:
            client.shake_hands()
        assert len(context._core.introduced) == 1
        assert all(link.lost is None for link in context._core.introduced.values())


def _introduced(sockets: contextlib.ExitStack, context: zh.Context, count: int) -> list[RawControl]:
    """Peers that have sent their Setup, and open no lane."""
    clients = [sockets.enter_context(contextlib.closing(RawControl(context.url, unix=False))) for _ in range(count)]
    for client in clients:
        client.shake_hands()
        client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="slow"))
    return clients


def test_who_opens_no_lane_gives_way(
    open_context: OpenContext, nobody_is_late: None, monkeypatch: pytest.MonkeyPatch, silent: contextlib.ExitStack
) -> None:
    """After its Setup, too, and to peers of its source."""
    monkeypatch.setattr(waiting_room, "LANE_S", 0.0)
    context, other = open_context(Options(providers=("tcp",))), open_context(Options(providers=("tcp",)))
    clients = _introduced(silent, context, waiting_room.PLACES + 8)
    assert clients[0].hung_up(), "the oldest goes first"
    eventually(lambda: len(context._core.young) <= waiting_room.PLACES, "more are there than may be")
    assert other.connect(context.url.partition("?")[0]).result(PATIENCE_S).alive
    assert len(context._core.young) >= waiting_room.PLACES - 1, "no more go than others come"


def test_many_of_one_host_may_open_their_lanes_at_once(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, silent: contextlib.ExitStack
) -> None:
    monkeypatch.setattr(waiting_room, "LANE_S", FOREVER_S)
    context = open_context(Options(providers=("tcp",)))
    count = waiting_room.PLACES + 8
    _introduced(silent, context, count)
    eventually(lambda: len(context._core.introduced) == count, "they were not all let in")
    assert all(link.lost is None for link in context._core.introduced.values())


def test_a_source_takes_no_place_of_another(
    open_context: OpenContext, nobody_is_late: None, silent: contextlib.ExitStack
) -> None:
    """The one with the most gives way, though another has been silent for longer."""
    context = open_context(Options(providers=("tcp",), listen="127.0.0.1:0"))
    [oldest] = _connect(silent, context, 1, "127.0.0.3")
    crowd = _connect(silent, context, 2 * waiting_room.PLACES, "127.0.0.2")
    with contextlib.closing(RawControl(context.url, unix=False)) as client:
        client.shake_hands()
    assert not _hung_up(oldest)
    assert any(_hung_up(sock) for sock in crowd)


def test_a_short_time_to_speak(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, silent: contextlib.ExitStack
) -> None:
    """Without any crowd, and long before the time for the whole handshake."""
    monkeypatch.setattr(waiting_room, "HELLO_S", 0.05)
    monkeypatch.setattr(handshake, "TIMEOUT_S", FOREVER_S)
    context = open_context(Options())
    for unix in (False, True):
        with contextlib.closing(RawControl(context.url, unix=unix)) as client:
            assert client.hung_up()


def test_many_of_one_host_at_once(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, silent: contextlib.ExitStack
) -> None:
    """They come faster than they are let in, and wait for each other: none of them is sent away."""
    monkeypatch.setattr(waiting_room, "GRACE_S", FOREVER_S)
    context = open_context(Options(providers=("tcp",)))
    clients = [silent.enter_context(contextlib.closing(RawControl(context.url, unix=False))) for _ in range(200)]
    for client in clients:
        client.send(client.hello())
    for client in clients:
        assert client.receive() is not None
        client.close()


@pytest.mark.parametrize("waits_for", ["hello", "proof"])
def test_a_machine_that_stood_still_waits_for_its_peers(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    """They may have stood still with it: the time in which this process heard nothing is not theirs."""
    context = open_context(Options(providers=("tcp",)))
    monkeypatch.setattr(waiting_room, "HELLO_S", PATIENCE_S)
    monkeypatch.setattr(handshake, "TIMEOUT_S", PATIENCE_S)
    with contextlib.closing(RawControl(context.url, unix=False)) as client:
        if waits_for == "hello":
            _seated(context)
            _stand_still(context, monkeypatch)
            client.shake_hands()
        else:
            seen = client.introduce(client.hello())
            _stand_still(context, monkeypatch)
            client.send(wire.Prove(proof=seen.proof(proof_key(None), "client")))
            accepted = client.receive()
            assert accepted is not None
            assert isinstance(accepted[0], wire.Accept)


def _seated(context: zh.Context) -> None:
    """Wait until all that have connected have their places: one that comes after them is let in."""
    with contextlib.closing(RawControl(context.url, unix=False)) as later:
        later.shake_hands()


def test_a_machine_that_stood_still_sends_no_crowd_away(
    open_context: OpenContext, nobody_is_late: None, monkeypatch: pytest.MonkeyPatch, silent: contextlib.ExitStack
) -> None:
    """Peers that came before may still speak when others come."""
    monkeypatch.setattr(waiting_room, "GRACE_S", PATIENCE_S)
    context = open_context(Options(providers=("tcp",)))
    clients = [
        silent.enter_context(contextlib.closing(RawControl(context.url, unix=False)))
        for _ in range(waiting_room.PLACES - 1)
    ]
    _seated(context)
    _stand_still(context, monkeypatch)
    _connect(silent, context, 8)
    for client in clients:
        client.shake_hands()


def test_a_machine_that_stood_still_waits_for_lanes(
    open_context: OpenContext, nobody_is_late: None, monkeypatch: pytest.MonkeyPatch, silent: contextlib.ExitStack
) -> None:
    monkeypatch.setattr(waiting_room, "LANE_S", PATIENCE_S)
    monkeypatch.setattr(peers, "SETUP_S", PATIENCE_S)
    context = open_context(Options(providers=("tcp",)))
    _introduced(silent, context, waiting_room.PLACES)
    eventually(lambda: len(context._core.introduced) == waiting_room.PLACES, "they were not all let in")
    _stand_still(context, monkeypatch)
    _introduced(silent, context, 1)
    eventually(lambda: len(context._core.introduced) == waiting_room.PLACES + 1, "the next one was not let in")
    assert all(link.lost is None for link in context._core.introduced.values())


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("this host", "this host"),
    ],
)
def test_what_one_source_is(host: str, source: str) -> None:
    """A host has as many IPv6 addresses as it wants, within one network."""
    assert source_of(host) == source
