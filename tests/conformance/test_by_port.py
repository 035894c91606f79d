"""Connecting to `zerohop://host:port`: whichever Context listens there, met as if its whole URL were known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from support.options import Options
from support.patience import PATIENCE_S, times
from support.pattern import expect_equal, pattern
from support.world import PROVIDERS
from zerohop.core.control import address

if TYPE_CHECKING:
    import zerohop as zh
    from support.fixtures import OpenContext, StartPeer

ROUNDS = times(10)


def _port(url: str) -> str:
    return f"zerohop://{urlsplit(url).netloc}"


def _over_unix(connection: zh.Connection) -> bool:
    session: Any = connection._link.session
    unix: bool = session._channel.unix
    return unix


@pytest.mark.parametrize("provider", PROVIDERS)
def test_there_is_one_connection_per_peer(open_context: OpenContext, provider: str) -> None:
    """Whoever made it, and by whichever address."""
    options = Options(providers=(provider,))
    first, second = open_context(options), open_context(options)
    pending = [first.connect(_port(second.url)) for _ in range(3)]
    connection = pending[0].result(PATIENCE_S)
    assert (connection.peer, connection.provider) == (second.id, provider)
    for url in (_port(second.url), f"{_port(second.url)}/", f"{_port(second.url)}/{second.id}", second.url):
        pending.append(first.connect(url))
    assert {id(operation.result(PATIENCE_S)) for operation in pending} == {id(connection)}
    assert second.connect(_port(first.url)).result(PATIENCE_S) is next(iter(second.connections))
    assert (len(list(first.connections)), len(list(second.connections))) == (1, 1)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_beside_a_first_use(open_context: OpenContext, provider: str) -> None:
    """The dial for a write by handle and that by port become one, whichever begins."""
    options = Options(providers=(provider,))
    for turn in range(ROUNDS):
        first, second = open_context(options), open_context(options)
        memory = second.alloc(64)
        if turn % 2:
            connected, written = first.connect(_port(second.url)), first.write(bytes(64), memory.share("rw"))
        else:
            written, connected = first.write(bytes(64), memory.share("rw")), first.connect(_port(second.url))
        assert written.result(PATIENCE_S) == 64
        assert connected.result(PATIENCE_S) is next(iter(first.connections))
        first.close()
        second.close()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("both", [False, True])
def test_both_at_once(open_context: OpenContext, provider: str, both: bool) -> None:
    """Each by the other's port, or one of them by the whole URL."""
    options = Options(providers=(provider,))
    for _ in range(ROUNDS):
        first, second = open_context(options), open_context(options)
        there = first.connect(_port(second.url))
        back = second.connect(_port(first.url) if both else first.url)
        one, other = there.result(PATIENCE_S), back.result(PATIENCE_S)
        assert (len(list(first.connections)), len(list(second.connections))) == (1, 1)
        data, room = pattern(1, 1000), np.zeros(1000, np.uint8)
        received = other.recv(room)
        assert one.send(data).result(PATIENCE_S) == received.result(PATIENCE_S) == 1000
        expect_equal(room, data, "the message")
        first.close()
        second.close()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_context_with_itself(open_context: OpenContext, provider: str) -> None:
    context = open_context(Options(providers=(provider,)))
    memory = context.alloc(1000)
    pending = [context.connect(_port(context.url)), context.connect(context.url), context.connect(_port(context.url))]
    assert context.write(pattern(1, 1000), memory.share("rw")).result(PATIENCE_S) == 1000
    assert {id(operation.result(PATIENCE_S)) for operation in pending} == {id(next(iter(context.connections)))}
    assert context.connect(_port(context.url)).result(PATIENCE_S).peer == context.id
    assert memory.read_bytes() == pattern(1, 1000).tobytes()


@pytest.mark.parametrize("by_id", [False, True])
def test_a_peer_on_this_host(open_context: OpenContext, start_peer: StartPeer, by_id: bool) -> None:
    """It has the lane that it would have by its whole URL: shm, with a presence page."""
    context, peer = open_context(Options()), start_peer(Options())
    url = _port(peer.identity.url) + (f"/{peer.identity.id}" if by_id else "")
    connection = context.connect(url).result(PATIENCE_S)
    assert (connection.peer, connection.provider) == (peer.identity.id, "shm")
    assert _over_unix(connection)


def test_memory_of_a_peer_on_this_host_is_mapped(open_context: OpenContext) -> None:
    context, owner = open_context(Options()), open_context(Options())
    handle = owner.alloc(4096).share("rw")
    context.connect(_port(owner.url)).result(PATIENCE_S)
    operation = context.write(pattern(1, 4096), handle)
    assert operation.result(PATIENCE_S) == 4096
    assert str(operation.explain()).startswith("shm (mapped)")


def test_tcp_alone(open_context: OpenContext) -> None:
    """On one host, asked for: the bytes go by TCP, and only they."""
    options = Options(providers=("tcp",))
    context, owner = open_context(options), open_context(options)
    connection = context.connect(_port(owner.url)).result(PATIENCE_S)
    assert connection.provider == "tcp"
    assert _over_unix(connection)


@pytest.mark.parametrize("secret", [None, "open sesame"])
def test_a_listener_on_another_address(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, secret: str | None
) -> None:
    """As in another network namespace of this host: it is believed where it has proved to know the secret."""
    context, owner = open_context(Options(secret=secret)), open_context(Options(secret=secret))
    monkeypatch.setattr(address, "connected_here", lambda _: False)
    connection = context.connect(_port(owner.url)).result(PATIENCE_S)
    assert (connection.peer, connection.provider) == (owner.id, "tcp" if secret is None else "shm")


def test_a_unix_socket_that_cannot_be_reached(open_context: OpenContext) -> None:
    """As between containers that share the network and no files."""
    context, owner = open_context(Options()), open_context(Options())
    path = Path(address.parse(owner.url).socket_path)
    path.rename(path.with_name("elsewhere"))
    connection = context.connect(_port(owner.url)).result(PATIENCE_S)
    path.with_name("elsewhere").rename(path)
    assert (connection.peer, connection.provider) == (owner.id, "tcp")
    handle = owner.alloc(64).share("rw")
    assert "cannot be reached from here" in context.explain(bytearray(64), handle).details()


def test_a_unix_socket_of_somebody_else(open_context: OpenContext) -> None:
    """At the path that the peer names there is another Context: that is not whom it is connected to."""
    context, owner, other = (open_context(Options()) for _ in range(3))
    path, others = (Path(address.parse(each.url).socket_path) for each in (owner, other))
    path.rename(path.with_name("elsewhere"))
    others.rename(path)
    connection = context.connect(_port(owner.url)).result(PATIENCE_S)
    path.rename(others)
    path.with_name("elsewhere").rename(path)
    assert (connection.peer, connection.provider) == (owner.id, "tcp")
    assert not list(other.connections)
