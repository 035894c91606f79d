"""Notifications of reads: the owner is told once after the last byte was read, and never of a read that failed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import KINDS, Kind
from support.matrix import every_target
from support.patience import PATIENCE_S, times
from support.pattern import pattern
from support.service import Service
from support.world import WORLDS

if TYPE_CHECKING:
    from support.world import World

# On both sides of what goes inline, in one slice and in many; 0 reads nothing, and is announced all the same.
SIZES = (0, 1, 64, 4096, 65_537, 300_001)
# More than a lane grants for one queue, so that a credit that is lost is missed.
MANY = 5_000
PAGE = 512
LAST = 1 << 20


@pytest.mark.parametrize(("world", "kind"), every_target(KINDS), indirect=["world"])
def test_the_owner_is_told(world: World, kind: Kind) -> None:
    target = world.target(kind, max(SIZES))
    target.fill(0, max(SIZES), 3)
    for value, nbytes in enumerate(SIZES):
        into = world.buffer("numpy", nbytes)
        assert world.here.read(target.handle[:nbytes], into.memory, notify=value).result(PATIENCE_S) == nbytes
        assert np.array_equal(into.get(0, nbytes), pattern(3, max(SIZES))[:nbytes])
        world.expect_notification(value, nbytes)
    world.expect_no_notification()


@pytest.mark.parametrize(("world", "kind"), every_target(("numpy", "sim")), indirect=["world"])
def test_of_pages_and_rows(world: World, kind: Kind) -> None:
    pages = np.arange(40, dtype=np.int64)
    target = world.target(kind, 40 * PAGE)
    target.fill(0, 40 * PAGE, 4)
    into = world.buffer("numpy", 40 * PAGE)
    world.here.read_pages(target.handle, into.memory, pages, pages, page_bytes=PAGE, notify=5).result(PATIENCE_S)
    world.expect_notification(5, 40 * PAGE)
    world.here.read_strided(target.handle, into.memory, rows=40, row_bytes=PAGE, notify=6).result(PATIENCE_S)
    world.expect_notification(6, 40 * PAGE)
    world.here.read_pages_nowait(target.handle, into.memory, pages, pages, page_bytes=PAGE, notify=7).result(PATIENCE_S)
    world.expect_notification(7, 40 * PAGE)
    world.here.read_nowait(target.handle, into.memory, notify=8).result(PATIENCE_S)
    world.expect_notification(8, 40 * PAGE)
    none = np.empty(0, np.int64)
    world.here.read_pages(target.handle, into.memory, none, none, page_bytes=PAGE, notify=9).result(PATIENCE_S)
    world.expect_notification(9, 0)
    assert np.array_equal(into.get(0, 40 * PAGE), pattern(4, 40 * PAGE))
    world.expect_no_notification()


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_a_long_page_list(world: World) -> None:
    """It takes several requests, and the owner is told once."""
    count = 20_000
    target = world.target("numpy", count * 8)
    target.fill(0, count * 8, 5)
    into = world.buffer("numpy", count * 8)
    pages = np.random.default_rng(5).permutation(count).astype(np.int64)
    world.here.read_pages(target.handle, into.memory, pages, pages, page_bytes=8, notify=11).result(PATIENCE_S)
    world.expect_notification(11, count * 8)
    assert np.array_equal(into.get(0, count * 8), pattern(5, count * 8))
    world.expect_no_notification()


@pytest.mark.parametrize(("world", "kind"), every_target(("numpy", "alloc", "sim")), indirect=["world"])
def test_a_read_that_fails_is_not_announced(world: World, kind: Kind) -> None:
    """Its credit comes back, too: as many more can fail and succeed as a lane grants."""
    target = world.target(kind, 64, rights="w")
    into = world.buffer("numpy", 64)
    for _ in range(times(MANY)):
        assert isinstance(world.here.read(target.handle, into.memory, notify=1).exception(PATIENCE_S), zh.AccessDenied)
    world.expect_no_notification()
    readable = world.target(kind, 64)
    world.here.read(readable.handle, into.memory, notify=2).result(PATIENCE_S)
    world.expect_notification(2, 64)


@pytest.mark.parametrize(("world", "kind"), every_target(("numpy", "alloc", "sim")), indirect=["world"])
def test_more_than_a_lane_has_credits(world: World, kind: Kind) -> None:
    target = world.target(kind, 64)
    into = world.buffer("numpy", 64)
    taking = world.there.start(Service.take_notifications, times(MANY))
    reads = [world.here.read(target.handle, into.memory, notify=value) for value in range(times(MANY))]
    zh.wait_all(reads, PATIENCE_S)
    assert sorted(taking.result()) == list(range(times(MANY)))
    world.expect_no_notification()


@pytest.mark.parametrize(("world", "kind"), every_target(("numpy", "alloc", "sim")), indirect=["world"])
def test_a_read_that_is_cancelled_is_not_announced(world: World, kind: Kind) -> None:
    """From another thread, at any moment: an owner that is told may write there again."""
    nbytes = 1 << 20
    target, into = world.target(kind, nbytes), world.buffer("alloc", nbytes)
    world.here.read(target.handle, into.memory).result(PATIENCE_S)
    ended = []
    for value in range(times(200)):
        read = world.here.read(target.handle, into.memory, notify=value)
        canceller = threading.Thread(target=read.cancel)
        canceller.start()
        if value % 2:
            with contextlib.suppress(asyncio.CancelledError, concurrent.futures.CancelledError):
                read.exception(PATIENCE_S)
        canceller.join(PATIENCE_S)
        while not read.done():
            time.sleep(0)
        with contextlib.suppress(asyncio.CancelledError, concurrent.futures.CancelledError):
            read.result(0)
            ended.append(value)
    # Cancelled reads may still be on their way, and must not be announced later either.
    world.here.flush().result(PATIENCE_S)
    world.here.read(target.handle, into.memory, notify=LAST).result(PATIENCE_S)
    assert world.there.call(Service.take_notifications_until, LAST) == ended
