"""Context.accept: each peer that connects by itself is given once, in order, and none is lost on the way."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S, times
from support.world import PROVIDERS

if TYPE_CHECKING:
    from support.fixtures import OpenContext

SHORT_S = 0.05


@pytest.fixture(params=PROVIDERS)
def options(request: pytest.FixtureRequest) -> Options:
    return Options(providers=(request.param,))


def test_peers_in_the_order_in_which_they_come(open_context: OpenContext, options: Options) -> None:
    server = open_context(options)
    waiting = server.accept()
    clients = [open_context(options) for _ in range(3)]
    for client in clients:
        client.connect(server.url).result(PATIENCE_S)
    accepted = [waiting.result(PATIENCE_S), *(server.accept().result(PATIENCE_S) for _ in range(2))]
    assert [connection.peer for connection in accepted] == [client.id for client in clients]
    assert set(accepted) == set(server.connections)
    room = np.zeros(5, np.uint8)
    received = accepted[1].recv(room)
    clients[1].connect(server.url).result(PATIENCE_S).send(b"hello").result(PATIENCE_S)
    received.result(PATIENCE_S)
    assert room.tobytes() == b"hello"
    with pytest.raises(zh.DeadlineExceeded, match="no peer connected"):
        server.accept(timeout=SHORT_S).result()


def test_what_this_side_has_made_is_not_given(open_context: OpenContext, options: Options) -> None:
    first, second = open_context(options), open_context(options)
    first.connect(second.url).result(PATIENCE_S)
    assert second.accept().result(PATIENCE_S).peer == first.id
    first.connect(first.url).result(PATIENCE_S)
    with pytest.raises(zh.DeadlineExceeded):
        first.accept(timeout=SHORT_S).result()


def test_a_peer_that_is_gone_is_left_out(open_context: OpenContext, options: Options) -> None:
    server, early = open_context(options), open_context(options)
    early.connect(server.url).result(PATIENCE_S)
    eventually(lambda: len(server.connections) == 1, "the peer has not come")
    early.close()
    eventually(lambda: not server.connections, "the peer has not gone")
    late = open_context(options)
    late.connect(server.url).result(PATIENCE_S)
    assert server.accept().result(PATIENCE_S).peer == late.id


def test_a_peer_that_comes_again(open_context: OpenContext, options: Options) -> None:
    server, client = open_context(options), open_context(options)
    first = client.connect(server.url).result(PATIENCE_S)
    assert server.accept().result(PATIENCE_S).peer == client.id
    first.close()
    client.connect(server.url).result(PATIENCE_S)
    assert server.accept().result(PATIENCE_S).peer == client.id


def _accepts(wait: zh.Operation[zh.Connection]) -> bool:
    try:
        wait.result(PATIENCE_S)
    except (CancelledError, zh.DeadlineExceeded):
        return False
    return True


def test_a_wait_that_is_given_up_takes_none(open_context: OpenContext, options: Options) -> None:
    """Whether it is cancelled, or its deadline passes, just before a peer comes or in the same moment."""
    server = open_context(options)
    for _ in range(times(20)):
        client = open_context(options)
        waits = [server.accept(), server.accept(timeout=0.001)]
        connecting = client.connect(server.url)
        waits[0].cancel()
        connecting.result(PATIENCE_S)
        won = [each for each in waits if _accepts(each)]
        accepted = won[0].result() if won else server.accept().result(PATIENCE_S)
        assert accepted.peer == client.id
        assert len(won) < 2
        client.close()


@pytest.mark.parametrize("lost", [False, True], ids=["alive", "lost"])
def test_the_peer_of_a_wait_that_told_nobody(open_context: OpenContext, options: Options, lost: bool) -> None:
    """As where a signal's handler raises before the caller has it: the next wait has the peer, if that is not lost."""
    server, client = open_context(options), open_context(options)
    client.connect(server.url).result(PATIENCE_S)
    wait = server.accept()
    eventually(wait._poll, "the peer has not come")
    if lost:
        client.close()
        eventually(lambda: not server.connections, "the peer has not gone")
    del wait
    if lost:
        with pytest.raises(zh.DeadlineExceeded):
            server.accept(timeout=SHORT_S).result()
    else:
        assert server.accept().result(PATIENCE_S).peer == client.id


def test_more_come_and_go_than_anybody_asks_for(open_context: OpenContext) -> None:
    options = Options(providers=("shm",))
    server, last = open_context(options), open_context(options)
    for _ in range(100):
        with options.open() as client:
            client.connect(server.url).result(PATIENCE_S)
    last.connect(server.url).result(PATIENCE_S)
    found = server.accept().result(PATIENCE_S)
    while found.peer != last.id:  # the others are being lost
        found = server.accept().result(PATIENCE_S)


def test_awaited(open_context: OpenContext, options: Options) -> None:
    server, client = open_context(options), open_context(options)

    async def both() -> None:
        accepting = asyncio.ensure_future(server.accept())
        await client.connect(server.url)
        assert (await accepting).peer == client.id

    asyncio.run(asyncio.wait_for(both(), PATIENCE_S))


def test_closing_ends_a_wait(open_context: OpenContext, options: Options) -> None:
    server = open_context(options)
    waiting = server.accept()
    server.close()
    with pytest.raises(zh.Closed):
        waiting.result(PATIENCE_S)
    with pytest.raises(zh.Closed):
        server.accept()
