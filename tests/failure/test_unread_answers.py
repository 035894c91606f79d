"""Checks that little is open for a peer that asks for memory and reads no answer, and that others are served."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from support.lanes import eventually
from support.leaks import holdings
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.raw_control import RawControl
from zerohop._native import Status
from zerohop.core.control import wire
from zerohop.core.control.channel import Channel
from zerohop.core.peers.export_server import _MAX_REQUESTS, Exports

if TYPE_CHECKING:
    import asyncio

    import zerohop as zh
    from support.fixtures import OpenContext

NBYTES = 4096
# So many memories are asked for, each of which has a file of its own; the socket has room for a few answers only.
_MEMORIES = 100
_BUFFER_BYTES = 4096
# Turns of the owner's event loop in which all would be answered, were it not for the peer: each takes some.
_TURNS = 10 * _MEMORIES
# Of the answers that wait, one alone may have its descriptor open.
_MOST_OPEN = 1
NOWHERE = f"zerohop:///{'0' * 32}?unix=/nowhere"


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kernel take few messages before somebody has to read them, so that a test needs not many."""
    begin = Channel.__init__

    def begin_small(self: Channel, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        begin(self, sock)

    monkeypatch.setattr(Channel, "__init__", begin_small)


@pytest.fixture
def all_asked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Tell when the owner has seen to all requests: it has answered them, or waits with that."""
    asked, done, handle = list[int](), threading.Event(), Exports.on_import_request

    def count(self: Exports, request: wire.ImportRequest) -> None:
        handle(self, request)
        asked.append(request.request)
        if len(asked) == _MEMORIES:
            after_turns(self._core.control.loop, _TURNS)

    def after_turns(loop: asyncio.AbstractEventLoop, turns: int) -> None:
        if turns:
            loop.call_soon(after_turns, loop, turns - 1)
        else:
            done.set()

    monkeypatch.setattr(Exports, "on_import_request", count)
    return done


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("provider", ["shm", "p2p"])
def test_descriptors_do_not_pile_up(open_context: OpenContext, all_asked: threading.Event, provider: str) -> None:
    """Give out no more until the peer has read what it was given, because what waits keeps its descriptor open."""
    options = Options(providers=(provider,), sim_devices=1 if provider == "p2p" else 0)
    context, friend = open_context(options), open_context(options)
    memories = [context.alloc(NBYTES) for _ in range(_MEMORIES)]
    handles = [memory.share("rw") for memory in memories]
    with contextlib.closing(RawControl(context.url, unix=True)) as client:
        client.shake_hands()
        client.send(wire.Setup(providers=[provider], url=NOWHERE, name="hostile"))
        _ask(client, provider, 0, handles[0])
        assert _given_until(client, 0) == 1
        before = holdings().descriptors.total()
        for number, handle in enumerate(handles[1:], 1):
            _ask(client, provider, number, handle)
        assert all_asked.wait(PATIENCE_S)
        assert holdings().descriptors.total() <= before + _MOST_OPEN
        _is_served(friend, memories[0], handles[0])
        # That was back-pressure: all of it comes, in its order, once it is read.
        assert [_given_until(client, number) for number in range(1, _MEMORIES)] == [1] * (_MEMORIES - 1)
    _is_served(friend, memories[-1], handles[-1])


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("provider", ["shm", "p2p"])
def test_requests_do_not_pile_up(open_context: OpenContext, caplog: pytest.LogCaptureFixture, provider: str) -> None:
    """Count those that wait, because each takes memory; a peer with too many of them loses its connection alone."""
    options = Options(providers=(provider,), sim_devices=1 if provider == "p2p" else 0)
    context, friend = open_context(options), open_context(options)
    memory = context.alloc(NBYTES)
    handle = memory.share("rw")
    with contextlib.closing(RawControl(context.url, unix=True)) as client:
        client.shake_hands()
        client.send(wire.Setup(providers=[provider], url=NOWHERE, name="hostile"))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for number in range(2 * _MAX_REQUESTS):
                _ask(client, provider, number, handle)
        eventually(lambda: "more than anybody needs at once" in caplog.text, "it may ask without end")
        assert client.hung_up()
        _is_served(friend, memory, handle)


def _ask(client: RawControl, provider: str, number: int, handle: zh.RemoteBuffer) -> None:
    """Ask for a share, in a request of that number."""
    share = handle._share
    wanted = [wire.Wanted(share.share_id, share.capability)]
    client.send(wire.ImportRequest(request=number, provider=provider, wanted=wanted))


def _given_until(client: RawControl, number: int) -> int:
    """Receive up to the answer to this request, which is the next, and return how many files were given before it."""
    given = 0
    while True:
        received = client.receive()
        assert received is not None, "hung up on, although it reads"
        message, fds = received
        given += isinstance(message, wire.Allocation) * len(fds)
        for fd in fds:
            os.close(fd)
        if isinstance(message, wire.ImportReply):
            assert message.request == number
            assert [answer.status for answer in message.answers] == [Status.OK.value]
            return given


def _is_served(friend: zh.Context, memory: zh.Memory, handle: zh.RemoteBuffer) -> None:
    """Another peer imports memory, and writes to it."""
    friend.write(pattern(1, NBYTES), handle).result(PATIENCE_S)
    assert memory.read_bytes() == pattern(1, NBYTES).tobytes()
