"""Several Contexts: two in one process, one with itself, many towards one, connecting to each other at once."""

from __future__ import annotations

import errno
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.options import Options, fewest_devices
from support.patience import ANSWER_S, PATIENCE_S, times
from support.pattern import expect_equal, pattern
from support.service import Service
from support.world import PROVIDERS, WORLDS
from zerohop.core import lifecycle

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer
    from support.world import World


@pytest.mark.parametrize("provider", PROVIDERS)
def test_two_contexts_know_nothing_of_each_other_until_they_connect(open_context: OpenContext, provider: str) -> None:
    options = Options(providers=(provider,))
    first, second = open_context(options), open_context(options)
    assert first.id != second.id
    assert first.url != second.url
    assert not list(first.connections)
    connection = first.connect(second.url).result(PATIENCE_S)
    assert connection.peer == second.id
    assert connection.alive
    assert [c.peer for c in first.connections] == [second.id]
    back = second.connect(first.url).result(PATIENCE_S)
    assert back.peer == first.id
    assert [c.peer for c in second.connections] == [first.id]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_both_connect_at_once(open_context: OpenContext, provider: str) -> None:
    """Two connections that cross become one, on which messages meet."""
    options = Options(providers=(provider,))
    for _ in range(times(10)):
        first, second = open_context(options), open_context(options)
        there, back = first.connect(second.url), second.connect(first.url)
        one, other = there.result(PATIENCE_S), back.result(PATIENCE_S)
        assert (len(list(first.connections)), len(list(second.connections))) == (1, 1)
        data = pattern(1, 1000)
        room = np.zeros(1000, np.uint8)
        received = other.recv(room)
        sent = one.send(data)
        assert received.result(PATIENCE_S) == sent.result(PATIENCE_S) == 1000
        expect_equal(room, data, "the message")
        first.close()
        second.close()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_connecting_again_gives_the_same_connection(open_context: OpenContext, provider: str) -> None:
    options = Options(providers=(provider,))
    first, second = open_context(options), open_context(options)
    pending = [first.connect(second.url) for _ in range(5)]
    connections = {id(operation.result(PATIENCE_S)) for operation in pending}
    assert len(connections) == 1
    assert len(list(first.connections)) == 1


@pytest.mark.parametrize("timeout", ["1", -1.0, float("nan"), object()])
def test_a_time_limit_is_checked_also_where_none_is_needed(open_context: OpenContext, timeout: Any) -> None:
    first, second = open_context(Options()), open_context(Options())
    memory, handle = first.alloc(8), second.alloc(8).share("rw")
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match="timeout"):
            first.connect(second.url, timeout=timeout)
        with pytest.raises((TypeError, ValueError), match="timeout"):
            first.explain(memory, handle, timeout=timeout)
        first.write(memory, handle).result(PATIENCE_S)  # connects, and finds the path


@pytest.mark.parametrize("provider", PROVIDERS)
def test_connecting_after_a_close(open_context: OpenContext, provider: str) -> None:
    """A closed Connection stays closed; a new one takes its place, for both sides."""
    options = Options(providers=(provider,))
    first, second = open_context(options), open_context(options)
    target = np.zeros(1000, np.uint8)
    memory = second.register(target)
    handle = memory.share("rw")
    for turn in range(3):
        connection = first.connect(second.url).result(PATIENCE_S)
        first.write(pattern(turn, 1000), handle).result(PATIENCE_S)
        expect_equal(target, pattern(turn, 1000), f"turn {turn}")
        pending = connection.recv(np.zeros(8, np.uint8))
        connection.close()
        connection.close()
        assert not connection.alive
        # Not PeerLost, although the peer closed its end too.
        with pytest.raises(zh.Closed):
            pending.result(PATIENCE_S)
        with pytest.raises(zh.Closed):
            connection.notify(1).result(PATIENCE_S)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("kind", ["host", "sim:0"])
def test_a_context_with_itself(open_context: OpenContext, provider: str, kind: str) -> None:
    context = open_context(Options(providers=(provider,)))
    nbytes = 300_001
    with context.alloc(nbytes, device=kind) as source, context.alloc(nbytes, device=kind) as target:
        data = pattern(1, nbytes)
        source.write_bytes(0, data.tobytes())
        handle = target.share("rw")
        assert context.write(source, handle, notify=3).result(PATIENCE_S) == nbytes
        note = context.notification(PATIENCE_S).result()
        assert (note.value, note.nbytes, note.peer.peer) == (3, nbytes, context.id)
        assert target.read_bytes(0, nbytes) == data.tobytes()
        source.write_bytes(0, bytes(nbytes))
        assert context.read(handle, source).result(PATIENCE_S) == nbytes
        assert source.read_bytes(0, nbytes) == data.tobytes()
        target.write_bytes(0, (5).to_bytes(8, "little"))
        assert context.fetch_add(handle, 2).result(PATIENCE_S) == 5


@pytest.mark.parametrize("provider", PROVIDERS)
def test_64_peers_to_one_context(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """16 Contexts (in the lab, 3) in each of 4 processes write at once into one memory, each into its own slot."""
    processes, each, slot = 4, times(16), 70_001
    options = Options(providers=(provider,), sim_devices=fewest_devices(provider), timeout=ANSWER_S)
    context = open_context(options)
    everybody = processes * each
    target = np.zeros(everybody * slot, np.uint8)
    memory = context.register(target)
    handle = bytes(memory.share("rw"))
    peers = [start_peer(options) for _ in range(processes)]
    swarms = [
        peer.start(Service.swarm, handle, options, process * each, each, slot) for process, peer in enumerate(peers)
    ]
    senders: dict[int, str] = {}
    for _ in range(everybody):
        note = context.notification(ANSWER_S).result()
        assert note.nbytes == slot
        place = slice(note.value * slot, (note.value + 1) * slot)
        expect_equal(target[place], pattern(note.value, slot), f"slot {note.value}")
        senders[note.value] = note.peer.peer
    ids = [name for swarm in swarms for name in swarm.result()]
    assert len(set(ids)) == everybody
    assert senders == dict(enumerate(ids))


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_a_context_that_closes_disturbs_nobody_else(world: World, open_context: OpenContext) -> None:
    target = world.target("numpy", 1000)
    guest = open_context(Options(providers=(world.provider,)))
    guest.write(pattern(1, 1000), target.handle).result(PATIENCE_S)
    target.expect(0, 1000, 1)
    guest.close()
    world.here.write(pattern(2, 1000), target.handle).result(PATIENCE_S)
    target.expect(0, 1000, 2)
    with pytest.raises(zh.Closed):
        guest.write(pattern(3, 1000), target.handle).result(PATIENCE_S)
    target.expect(0, 1000, 2)


@pytest.mark.parametrize("timeout", [None, -1, math.nan, -math.inf, "soon"])
def test_closing_within_a_time_that_makes_no_sense(open_context: OpenContext, timeout: Any) -> None:
    """An error, before anything is closed: all goes on, and can be closed."""
    first, second = open_context(Options()), open_context(Options())
    connection = first.connect(second.url).result(PATIENCE_S)
    with pytest.raises((ValueError, TypeError), match="timeout"):
        connection.close(timeout)
    with pytest.raises((ValueError, TypeError), match="timeout"):
        first.close(timeout)
    assert connection.alive
    connection.notify(1).result(PATIENCE_S)
    assert second.notification(PATIENCE_S).result().value == 1
    connection.close()
    first.close()
    # There is nothing left to do, whatever the time.
    first.close(timeout)


@pytest.mark.parametrize("timeout", [math.inf, 1e12, pytest.param(10**400, id="10**400")])
def test_closing_with_all_the_time_there_is(open_context: OpenContext, timeout: float) -> None:
    first, second = open_context(Options()), open_context(Options())
    connection = first.connect(second.url).result(PATIENCE_S)
    connection.close(timeout)
    assert not connection.alive
    assert first.connect(second.url).result(PATIENCE_S).alive
    first.close(timeout)
    with pytest.raises(zh.Closed):
        first.alloc(8)


@pytest.mark.parametrize(
    ("number", "error", "said"),
    [
        (errno.EAGAIN, zh.LimitReached, "no more threads can be started"),
        (errno.EPERM, zh.Unsupported, "clone"),
    ],
)
def test_no_native_thread(
    no_leaks: None, monkeypatch: pytest.MonkeyPatch, number: int, error: type[zh.ZerohopError], said: str
) -> None:
    """The error has a name and a fix."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lifecycle, "Engine", refuse)
    with pytest.raises(error, match=said) as caught:
        zh.Context()
    assert caught.value.fix
