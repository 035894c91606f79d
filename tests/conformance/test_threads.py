"""Eight threads that post to one peer at once, every byte verified."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.buffers import KINDS, Kind
from support.matrix import each_way, every_target
from support.patience import PATIENCE_S
from support.pattern import expect_equal, pattern
from support.service import Service
from support.sizes import MIB
from support.world import WORLDS

if TYPE_CHECKING:
    from support.world import Target, World

THREADS = 8
SLOT = MIB + 4096
# On both sides of every switch, most of them small, as in real traffic.
LENGTHS = (8, 64, 65, 1000, 4097, 8, 65_537, 7, 262_145, 1, MIB + 1, 63)


def _hammer(world: World, target: Target, number: int, until: float, failures: list[BaseException]) -> None:
    """Write, read back and compare, in this thread's own slot, in turn as one range and as pages; each length once,
    and on until the time is up."""
    here = world.here
    base = number * SLOT
    back = np.zeros(SLOT, np.uint8)
    generator = np.random.default_rng(number)
    turn = 0
    try:
        while turn < len(LENGTHS) or time.monotonic() < until:
            nbytes = LENGTHS[turn % len(LENGTHS)]
            start = int(generator.integers(0, SLOT - nbytes))
            data = pattern(number << 32 | turn, nbytes)
            remote = target.handle[base + start : base + start + nbytes]
            into = back[start : start + nbytes]
            if turn % 3 == 2 and nbytes >= 64:
                page = nbytes // 16
                order = generator.permutation(16)
                here.write_pages(data, remote, np.arange(16), order, page_bytes=page).result(PATIENCE_S)
                here.read_pages(remote, into, order, np.arange(16), page_bytes=page).result(PATIENCE_S)
                nbytes = page * 16
            else:
                write = here.write(data, remote)
                write.result(PATIENCE_S)
                here.read(remote, into).result(PATIENCE_S)
            expect_equal(into[:nbytes], data[:nbytes], f"thread {number}, turn {turn}")
            turn += 1
    except BaseException as error:
        failures.append(error)


def _run(world: World, target_kind: Kind, seconds: float) -> None:
    target = world.target(target_kind, THREADS * SLOT + 4096)
    failures: list[BaseException] = []
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_hammer, args=[world, target, number, until, failures]) for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class TestEightThreads:
    @pytest.mark.parametrize(("world", "target_kind"), every_target(KINDS), indirect=["world"])
    def test_for_a_moment(self, world: World, target_kind: Kind) -> None:
        _run(world, target_kind, 0.5)

    @pytest.mark.slow
    @pytest.mark.timeout(60)
    @pytest.mark.parametrize(("world", "target_kind"), each_way(), indirect=["world"])
    def test_for_ten_seconds(self, world: World, target_kind: Kind) -> None:
        _run(world, target_kind, 10)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_waiting_threads_each_get_their_own(world: World) -> None:
    """Eight threads wait for messages on as many receives while one thread's writes go on: the poller changes hands,
    and nobody's completion is lost."""
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    target = world.target("numpy", 4096)
    target.fill(0, 4096, 1)
    rooms = [np.zeros(64, np.uint8) for _ in range(THREADS)]
    receives = [connection.recv(room) for room in rooms]
    received: list[int] = []
    threads = [
        threading.Thread(target=lambda receive=receive: received.append(receive.result(PATIENCE_S)))
        for receive in receives
    ]
    for thread in threads:
        thread.start()
    data = pattern(2, 64)
    for number in range(THREADS):
        for _ in range(100):
            world.here.write(data, target.handle[:64]).result(PATIENCE_S)
        target.fill(0, 64, 100 + number)
        world.there.call(Service.send, world.here.url, target.number, 0, 64)
    for thread in threads:
        thread.join()
    assert received == [64] * THREADS
    for number, room in enumerate(rooms):
        expect_equal(room, pattern(100 + number, 64), f"message {number}")
