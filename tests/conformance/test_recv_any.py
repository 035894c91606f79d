"""Context.recv: the next message of any peer, whole, once, with the Connection by which it came."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import ON_GPUS, Buffer, Kind
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S, times
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from support.world import PROVIDERS, Target

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer
    from support.pattern import Bytes

SHORT_S = 0.05
MEMORIES: tuple[Kind, ...] = ("numpy", "alloc", "sim", *ON_GPUS)
# On both sides of what travels at once, and of a piece.
LENGTHS = (0, 1, 8, 4096, 70_000, 2 * MIB + 3)


@pytest.fixture(params=PROVIDERS)
def options(request: pytest.FixtureRequest) -> Options:
    return Options(providers=(request.param,), sim_devices=2)


def _senders(open_context: OpenContext, options: Options, server: zh.Context, count: int) -> list[zh.Connection]:
    return [open_context(options).connect(server.url).result(PATIENCE_S) for _ in range(count)]


@pytest.mark.parametrize("kind", MEMORIES)
@pytest.mark.parametrize("first", ["receiver", "sender"])
def test_who_waits_first(open_context: OpenContext, options: Options, kind: Kind, first: str) -> None:
    server = open_context(options)
    senders = _senders(open_context, options, server, 3)
    into = Buffer(server, kind, LENGTHS[-1] + 100)
    for number, nbytes in enumerate(LENGTHS):
        sender = senders[number % 3]
        room = into.memory[: nbytes + 100]
        receiving = server.recv(room) if first == "receiver" else None
        sent = sender.send(pattern(number, nbytes))
        if receiving is None:
            receiving = server.recv(room)
        received = receiving.result(PATIENCE_S)
        assert received.nbytes == nbytes
        # The message may be here before this side's control thread has heard that the lane is up.
        eventually(partial(getattr, received.peer, "alive"), "the peer is not connected")
        assert sent.result(PATIENCE_S) == nbytes
        into.settle(0, nbytes, number)
    into.expect_poison()
    into.close()


def test_who_has_sent(open_context: OpenContext, options: Options) -> None:
    server = open_context(options)
    clients = [open_context(options) for _ in range(3)]
    for client in clients:
        client.connect(server.url).result(PATIENCE_S)
    room = np.zeros(8, np.uint8)
    for client in (*clients, *reversed(clients)):
        sent = client.connections[0].send(b"question")
        received = server.recv(room).result(PATIENCE_S)
        sent.result(PATIENCE_S)
        assert received == (8, received.peer)
        assert received.peer.peer == client.id
        answer = np.zeros(6, np.uint8)
        waiting = client.connections[0].recv(answer)
        received.peer.send(b"answer").result(PATIENCE_S)
        waiting.result(PATIENCE_S)
        assert answer.tobytes() == b"answer"


def test_the_messages_of_one_peer_keep_their_order(open_context: OpenContext, options: Options) -> None:
    """While others send, too; each message ends one receive, and all come."""
    server = open_context(options)
    senders, each = _senders(open_context, options, server, 3), times(100)
    lengths = [8 + (k * 7919) % 9000 for k in range(each)]
    sends: list[zh.Operation[int]] = []

    def send(number: int, sender: zh.Connection) -> None:
        for k, length in enumerate(lengths):
            message = np.full(length, number, np.uint8)
            message[:8] = np.frombuffer(k.to_bytes(8, "little"), np.uint8)
            sends.append(sender.send(message))

    threads = [threading.Thread(target=send, args=each) for each in enumerate(senders)]
    for thread in threads:
        thread.start()
    rooms = [np.zeros(9008, np.uint8) for _ in range(3 * each)]
    seen: dict[int, list[int]] = {}
    for room in rooms:
        received = server.recv(room).result(PATIENCE_S)
        number, k = int(room[8]) if received.nbytes > 8 else -1, int.from_bytes(room[:8].tobytes(), "little")
        assert received.nbytes == lengths[k]
        seen.setdefault(id(received.peer), []).append(k)
        assert number in (-1, 0, 1, 2)
    for thread in threads:
        thread.join(PATIENCE_S)
    zh.wait_all(sends, PATIENCE_S)
    assert sorted(seen.values()) == [list(range(each))] * 3


def test_a_receive_of_its_connection_goes_first(open_context: OpenContext, options: Options) -> None:
    server = open_context(options)
    one, other = _senders(open_context, options, server, 2)
    anybodys, own = np.zeros(1, np.uint8), np.zeros(1, np.uint8)
    of_any = server.recv(anybodys)
    first = next(each for each in server.connections if each.peer != "")
    of_first = first.recv(own)
    for sender in (one, other):
        sender.send(b"x").result(PATIENCE_S)
    assert of_first.result(PATIENCE_S) == 1
    assert of_any.result(PATIENCE_S).peer is not first


def test_one_that_is_given_up_takes_none(open_context: OpenContext, options: Options) -> None:
    server = open_context(options)
    (sender,) = _senders(open_context, options, server, 1)
    room, late = np.zeros(8, np.uint8), np.zeros(8, np.uint8)
    for number in range(times(50)):
        waits = [server.recv(late), server.recv(late, timeout=0.001)]
        sending = sender.send(number.to_bytes(8, "little"))
        waits[0].cancel()
        won = []
        for wait in waits:
            try:
                wait.result(PATIENCE_S)
            except (CancelledError, zh.DeadlineExceeded):
                pass
            else:
                won.append(late.copy())
        if not won:
            server.recv(room).result(PATIENCE_S)
            won.append(room)
        sending.result(PATIENCE_S)
        assert [int.from_bytes(each.tobytes(), "little") for each in won] == [number]


def test_its_memory_is_given_back(open_context: OpenContext, options: Options) -> None:
    """Soon after it was cancelled, or too late, without a message, and with the Context."""
    server = open_context(options)
    waits = [server.recv(np.zeros(MIB, np.uint8), timeout=timeout) for timeout in (None, 0.01, None)]
    assert waits[0].cancel()
    with pytest.raises(zh.DeadlineExceeded):
        waits[1].result(PATIENCE_S)
    eventually(lambda: not waits[0].memory_in_use and not waits[1].memory_in_use, "its buffer is in use")
    assert waits[2].memory_in_use
    server.close()
    with pytest.raises(zh.Closed):
        waits[2].result(PATIENCE_S)
    with pytest.raises(zh.Closed):
        server.recv(bytearray(8))


def test_a_message_longer_than_the_room_for_it(open_context: OpenContext, options: Options) -> None:
    server = open_context(options)
    (sender,) = _senders(open_context, options, server, 1)
    room = np.full(8, 7, np.uint8)
    received = server.recv(room[:4])
    sender.send(b"too long").exception(PATIENCE_S)
    with pytest.raises(zh.ZerohopError, match="truncated"):
        received.result(PATIENCE_S)
    assert room[4:].tobytes() == bytes([7]) * 4
    received = server.recv(room)
    sender.send(b"it fits!").result(PATIENCE_S)
    assert received.result(PATIENCE_S).nbytes == 8
    assert room.tobytes() == b"it fits!"


def test_where_nothing_can_be_received(open_context: OpenContext) -> None:
    server = open_context(Options(providers=("shm",)))
    with pytest.raises(ValueError, match="read-only"):
        server.recv(b"bytes")
    with pytest.raises(ValueError, match="contiguous"):
        server.recv(np.zeros((4, 4), np.uint8).T)
    with pytest.raises(TypeError):
        server.recv("text")
    with pytest.raises(zh.DeadlineExceeded):
        server.recv(bytearray(8), timeout=SHORT_S).result(PATIENCE_S)


def test_awaited_and_dropped(open_context: OpenContext, options: Options) -> None:
    server = open_context(options)
    (sender,) = _senders(open_context, options, server, 1)
    room = np.zeros(8, np.uint8)

    async def echo() -> None:
        for number in range(20):
            waiting = asyncio.ensure_future(_received(server, room))
            await asyncio.sleep(0)
            await sender.send(number.to_bytes(8, "little"))
            assert (await waiting).nbytes == 8
            assert int.from_bytes(room.tobytes(), "little") == number
        task = asyncio.ensure_future(_received(server, room))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(echo(), PATIENCE_S))


async def _received(server: zh.Context, room: Bytes) -> zh.Received:
    return await server.recv(room)


def test_one_that_is_dropped_warns(open_context: OpenContext) -> None:
    server = open_context(Options(providers=("shm",)))
    with pytest.warns(ResourceWarning, match="recv"):
        _drop(server)


def _drop(server: zh.Context) -> None:
    server.recv(bytearray(8))
    gc.collect()


def test_with_itself(open_context: OpenContext, options: Options) -> None:
    alone = open_context(options)
    connection = alone.connect(alone.url).result(PATIENCE_S)
    room = np.zeros(8, np.uint8)
    sent = connection.send(b"to mysel")
    assert alone.recv(room).result(PATIENCE_S).nbytes == 8
    sent.result(PATIENCE_S)
    assert room.tobytes() == b"to mysel"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_peer_that_is_killed(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """Before, within or after its message: the receive has that whole, ends with PeerLost, or waits for another's."""
    options = Options(providers=(provider,), sim_devices=2)
    server = open_context(options)
    (other,) = _senders(open_context, options, server, 1)
    room, nbytes = np.zeros(4 * MIB, np.uint8), 4 * MIB
    for number in range(times(6)):
        peer = start_peer(options)
        source = Target(peer, "numpy", nbytes)
        source.fill(0, nbytes, 99)
        received = server.recv(room)
        peer.start(Service.send, server.url, source.number, 0, nbytes)
        eventually(lambda: len(server.connections) == 2, "the peer has not come")
        os.kill(peer.pid, signal.SIGKILL)
        whole = pattern(99, nbytes).tobytes()
        try:
            if received.result(SHORT_S).nbytes == nbytes:
                assert room.tobytes() == whole
            received = server.recv(room)
        except zh.DeadlineExceeded:
            pass  # it goes on waiting
        except zh.PeerLost:
            received = server.recv(room)
        other.send(pattern(number, 1000)).result(PATIENCE_S)
        assert received.result(PATIENCE_S).nbytes == 1000
        assert room[:1000].tobytes() == pattern(number, 1000).tobytes()
        eventually(lambda: len(server.connections) == 1, "the peer that was killed has not gone")
