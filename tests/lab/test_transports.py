"""Transports over NICs: what goes into a queue of its own takes a mark beside the data, however the data was split."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from support.transports import Link
from support.world import Target

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer

NBYTES = 8 * MIB + 4097
# One NIC, or two that the rule takes for equals (docs/nics.md).
NICS = ["rxe0", "rxe0,rxe1"]
LIMIT_S = 60.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("nics", NICS)
def test_each_hears_of_its_own_writes(open_context: OpenContext, start_peer: StartPeer, nics: str) -> None:
    """And the Context of those that are nobody else's: by turns, at every size, with the bytes there."""
    options = Options(providers=("verbs",), nics=nics, timeout=100.0)
    context, peer = open_context(options), start_peer(options)
    first, second = Link(context, peer), Link(context, peer)
    target = Target(peer, "numpy", NBYTES)
    for seed, nbytes in enumerate((1, 64, 300, 4097, 70_000, NBYTES), 1):
        data = pattern(seed, nbytes)
        # Of one queue pair or several, and the one that takes immediate data for what is the Context's own.
        assert second.here.write(data, target.handle, notify=seed).result(LIMIT_S) == nbytes
        assert context.write(data, target.handle[:nbytes], notify=1000 + seed).result(LIMIT_S) == nbytes
        assert first.here.write(data, target.handle, notify=2000 + seed).result(LIMIT_S) == nbytes
        first.expect_arrival(2000 + seed, nbytes)
        second.expect_arrival(seed, nbytes)
        note = peer.call(Service.notification)
        assert (note.value, note.nbytes) == (1000 + seed, nbytes)
        target.expect(0, nbytes, seed)
    for link in (first, second):
        link.expect_none()
    for link in (first, second):
        link.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("nics", NICS)
def test_the_bytes_come_first(open_context: OpenContext, start_peer: StartPeer, nics: str) -> None:
    """Whoever hears of a write, or of many as one, sees all of it, although nobody waits for it here."""
    options = Options(providers=("verbs",), nics=nics, timeout=100.0)
    context, peer = open_context(options), start_peer(options)
    link = Link(context, peer)
    target = Target(peer, "numpy", NBYTES)
    source = link.here.register(pattern(9, NBYTES))
    link.here.write(source[:8], target.handle).result(LIMIT_S)
    for seed in range(10, 14):
        source.write_bytes(0, pattern(seed, NBYTES).tobytes())
        write = link.here.write(source, target.handle, notify=seed)
        link.expect_arrival(seed, NBYTES)
        target.expect(0, NBYTES, seed)
        assert write.result(LIMIT_S) == NBYTES
        target.poison()
        # Of every other length, some of them more than a NIC takes in one request of this build's.
        edges = np.cumsum([0, 1, 8, 4097, MIB, 3, 2 * MIB, 64, NBYTES]).clip(max=NBYTES)
        pairs = [
            (source[int(begin) : int(end)], target.handle[int(begin) : int(end)])
            for begin, end in itertools.pairwise(edges)
        ]
        many = link.here.write_many(pairs[::-1], notify=100 + seed)
        link.expect_arrival(100 + seed, NBYTES)
        target.expect(0, NBYTES, seed)
        assert many.result(LIMIT_S) == NBYTES
    link.close()


@pytest.mark.timeout(300)
def test_more_than_a_queue_holds(open_context: OpenContext, start_peer: StartPeer) -> None:
    """Many small writes at once: back-pressure, and each is heard of once, by its own Transport."""
    options = Options(providers=("verbs",), nics="rxe0", timeout=100.0)
    context, peer = open_context(options), start_peer(options)
    links = [Link(context, peer) for _ in range(3)]
    target = Target(peer, "numpy", 64)
    source = context.register(pattern(1, 64))
    count = 200
    writes = [link.here.write(source, target.handle, notify=number) for number in range(count) for link in links]
    for write in writes:
        assert write.result(LIMIT_S) == 64
    for link in links:
        link.expect_arrivals(range(count), 64)
        link.expect_none()


@pytest.mark.timeout(300)
def test_one_that_ends_takes_nothing_of_the_others(open_context: OpenContext, start_peer: StartPeer) -> None:
    """Its writes in flight end with it; those of another over the same queue pairs arrive."""
    options = Options(providers=("verbs",), nics="rxe0", timeout=100.0)
    context, peer = open_context(options), start_peer(options)
    gone, stays = Link(context, peer), Link(context, peer)
    target = Target(peer, "numpy", NBYTES)
    source = context.register(pattern(2, NBYTES))
    stays.here.write(source[:8], target.handle).result(LIMIT_S)
    mine = [gone.here.write(source, target.handle, notify=number) for number in range(4)]
    theirs = [stays.here.write(source, target.handle, notify=number) for number in range(4)]
    gone.here.abort()
    for write in mine:
        error = write.exception(LIMIT_S)
        assert error is None or isinstance(error, zh.Closed)
    for write in theirs:
        assert write.result(LIMIT_S) == NBYTES
    stays.expect_arrivals(range(4), NBYTES)
    target.expect(0, NBYTES, 2)
    assert stays.here.connected()
