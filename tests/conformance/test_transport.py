"""zerohop.Transport over every provider: two of them that write into each other's memory and hear of it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import KINDS, Kind
from support.loops import LOOPS, run
from support.matrix import every_target
from support.options import Options
from support.patience import PATIENCE_S, times
from support.pattern import expect_equal, pattern
from support.service import Service
from support.sizes import MIB
from support.transports import Arrival, Link, every_call
from support.world import WORLDS, WORLDS_AND_KINDS

if TYPE_CHECKING:
    from support.world import World

# What torchcomms tests with, and the edges of every switch that is ours.
SIZES = (1, 64, 512, 1024, 4096, 4097, 4098, 8192, 65_536, 65_537, 262_145, MIB)
THREADS = 16


class TestWrite:
    @pytest.mark.parametrize(("world", "target_kind"), every_target(KINDS), indirect=["world"])
    def test_every_size(self, world: World, link: Link, target_kind: Kind) -> None:
        """Bytes equal, nothing beside them touched, and each write is heard of once, with its size."""
        source = world.buffer("numpy", MIB + 16)
        target = world.target(target_kind, MIB + 8192)
        for seed, nbytes in enumerate(SIZES, 1):
            source.fill(seed, nbytes, seed)
            write = link.here.write(source.memory.view(seed, nbytes), target.handle[4096 + seed :], notify=seed)
            assert write.result(PATIENCE_S) == nbytes
            link.expect_arrival(seed, nbytes)
            target.settle(4096 + seed, nbytes, seed)
        link.expect_none()

    @pytest.mark.parametrize(("world", "source_kind"), WORLDS_AND_KINDS, indirect=["world"])
    def test_back(self, world: World, link: Link, source_kind: Kind) -> None:
        """The other way, of a Transport that was connected to and has not connected."""
        into = world.buffer(source_kind, MIB)
        source = world.target(source_kind, MIB)
        handle = bytes(into.memory.share("rw"))
        for seed, nbytes in enumerate(SIZES, 1):
            source.fill(0, nbytes, seed)
            waiting = link.here.wait_for_write(PATIENCE_S)
            world.there.call(Service.transport_write, link.there, handle, source.number, 0, nbytes, seed)
            note = waiting.result()
            assert (note.value, note.nbytes, note.peer.peer) == (seed, nbytes, world.there.identity.id)
            into.settle(0, nbytes, seed)

    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_without_notification(self, world: World, link: Link) -> None:
        target = world.target("numpy", 4096)
        for seed in range(1, 50):
            assert link.here.write(pattern(seed, 4000), target.handle).result(PATIENCE_S) == 4000
        link.here.flush().result(PATIENCE_S)
        target.settle(0, 4000, 49)
        link.expect_none()

    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_of_nothing(self, world: World, link: Link) -> None:
        """Empty views at the begin and at the end of both memories are legal, and are heard of."""
        source = world.buffer("numpy", 64)
        target = world.target("numpy", 64)
        for number, (here, there) in enumerate([(0, 0), (64, 0), (0, 64), (64, 64)]):
            view = source.memory.view(here, 0)
            assert link.here.write(view, target.handle[there:], notify=number).result(PATIENCE_S) == 0
            link.expect_arrival(number, 0)
            assert link.here.write(view, target.handle[there:]).result(PATIENCE_S) == 0
            assert link.here.read(view, target.handle[there:]).result(PATIENCE_S) == 0
        target.expect_poison()
        link.expect_none()

    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_longer_than_the_remote_range(self, world: World, link: Link) -> None:
        """Refused by the call, with nothing posted and nobody told."""
        source = world.buffer("numpy", 4096)
        target = world.target("numpy", 4096)
        for nbytes, room in ((1, 0), (65, 64), (4096, 4095)):
            view, remote = source.memory.view(0, nbytes), target.handle[:room]
            with pytest.raises(ValueError, match=f"{nbytes} bytes here and {room} there"):
                link.here.write(view, remote, notify=1)
            with pytest.raises(ValueError, match=f"{nbytes} bytes here and {room} there"):
                link.here.write(view, remote)
            with pytest.raises(ValueError, match=f"{nbytes} bytes here and {room} there"):
                link.here.read(view, remote)
        link.here.flush().result(PATIENCE_S)
        target.expect_poison()
        link.expect_none()

    @pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
    def test_with_what_is_of_somebody_else(self, world: World, link: Link) -> None:
        """A handle of a third Context, or of this one: refused, with nothing posted."""
        mine = world.buffer("alloc", 4096)
        with Options(providers=(world.provider,)).open() as third:
            theirs = third.alloc(4096)
            for memory in (mine.memory, theirs):
                before = memory.read_bytes()
                with pytest.raises(ValueError, match="not of the peer"):
                    link.here.write(pattern(1, 4096), memory.share("rw"), notify=1)
                with pytest.raises(ValueError, match="not of the peer"):
                    link.here.read(np.zeros(4096, np.uint8), memory.share("rw"))
                assert memory.read_bytes() == before
        link.expect_none()

    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_values_of_32_bits(self, world: World, link: Link) -> None:
        target = world.target("numpy", 64)
        for value in (0, 1, 0x8000_0000, 0xFFFF_FFFF):
            link.here.write(pattern(1, 64), target.handle, notify=value).result(PATIENCE_S)
            link.expect_arrival(value, 64)
        for value in (-1, 1 << 32, 1 << 64):
            with pytest.raises((ValueError, OverflowError)):
                link.here.write(pattern(1, 64), target.handle, notify=value)
        link.expect_none()


class TestRead:
    @pytest.mark.parametrize(("world", "target_kind"), every_target(KINDS), indirect=["world"])
    def test_every_size(self, world: World, link: Link, target_kind: Kind) -> None:
        source = world.target(target_kind, MIB)
        into = world.buffer("numpy", MIB + 8192)
        for seed, nbytes in enumerate(SIZES, 1):
            source.fill(0, nbytes, seed)
            assert link.here.read(into.memory.view(4096 + seed, nbytes), source.handle).result(PATIENCE_S) == nbytes
            into.settle(4096 + seed, nbytes, seed)
        link.expect_none()

    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_into_what_is_read_only(self, world: World, link: Link) -> None:
        source = world.target("numpy", 64)
        into = world.buffer("numpy", 64)
        with pytest.raises(ValueError, match="read-only"):
            link.here.read(into.memory.view(readonly=True), source.handle)
        into.expect_poison()


class TestWaiting:
    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_before_while_and_after(self, world: World, link: Link) -> None:
        """The wait begins before the write is posted, while it flies, and after it has come."""
        into = world.buffer("numpy", MIB)
        handle = bytes(into.memory.share("rw"))
        source = world.target("numpy", MIB)
        source.fill(0, MIB, 1)
        before = link.here.wait_for_write(PATIENCE_S)
        assert not before.done()
        flying = world.there.start(Service.transport_write, link.there, handle, source.number, 0, MIB, 1)
        assert before.result()[:2] == (1, MIB)
        assert flying.result() == MIB
        flying = world.there.start(Service.transport_write, link.there, handle, source.number, 0, MIB, 2)
        assert link.here.wait_for_write(PATIENCE_S).result()[:2] == (2, MIB)
        assert flying.result() == MIB
        world.there.call(Service.transport_write, link.there, handle, source.number, 0, MIB, 3)
        after = link.here.wait_for_write(PATIENCE_S)
        assert after.result()[:2] == (3, MIB)
        into.settle(0, MIB, 1)
        with pytest.raises(zh.DeadlineExceeded):
            link.here.wait_for_write(0).result()

    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_each_write_ends_one_wait(self, world: World, link: Link) -> None:
        """Sixteen threads wait, as many writes come: every thread has one, and none has another's."""
        into = world.buffer("numpy", 64)
        handle = bytes(into.memory.share("rw"))
        source = world.target("numpy", 64)
        heard: list[int] = []
        threads = [
            threading.Thread(target=lambda: heard.append(link.here.wait_for_write(PATIENCE_S).result().value))
            for _ in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for number in range(THREADS):
            world.there.call(Service.transport_write, link.there, handle, source.number, 0, 64, number)
        for thread in threads:
            thread.join()
        assert sorted(heard) == list(range(THREADS))

    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_is_no_notification_of_the_context(self, world: World, link: Link) -> None:
        """What goes to the Context and what goes to each of its Transports are three things."""
        target = world.target("numpy", 64)
        second = Link(world.here, world.there)
        world.here.write(pattern(1, 64), target.handle, notify=1).result(PATIENCE_S)
        link.here.write(pattern(1, 64), target.handle, notify=2).result(PATIENCE_S)
        second.here.write(pattern(1, 64), target.handle, notify=3).result(PATIENCE_S)
        second.expect_arrival(3, 64)
        world.expect_notification(1, 64)
        link.expect_arrival(2, 64)
        world.expect_no_notification()
        link.expect_none()
        second.expect_none()
        second.here.close()


class TestTwoToOnePeer:
    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_at_once(self, world: World, link: Link) -> None:
        """Each hears of its own, while both write."""
        second = Link(world.here, world.there)
        target = world.target("numpy", 1 << 16)
        total = times(400)
        posted = []
        for number in range(total):
            for which in (link, second):
                data = pattern(number, 100)
                posted.append(
                    which.here.write(data, target.handle[number * 100 :], notify=number * 2 + (which is link))
                )
        link.expect_arrivals(range(1, 2 * total, 2), 100)
        second.expect_arrivals(range(0, 2 * total, 2), 100)
        assert zh.wait_all(posted, PATIENCE_S) == [100] * len(posted)
        for number in range(total):
            target.expect(number * 100, 100, number)
        second.here.close()

    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_the_end_of_one_is_not_that_of_the_other(self, world: World, link: Link) -> None:
        second = Link(world.here, world.there)
        target = world.target("numpy", 64)
        second.here.abort()
        assert not second.here.connected()
        outcome = world.there.call(Service.try_wait_for_write, second.there)
        assert outcome.kind == "PeerLost"
        assert outcome.says("closed its transport")
        link.here.write(pattern(1, 64), target.handle, notify=7).result(PATIENCE_S)
        link.expect_arrival(7, 64)


class TestThreads:
    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_sixteen_on_one_transport(self, world: World, link: Link) -> None:
        """Each writes into a part of its own and reads it back; every byte is looked at, and every write heard of."""
        slot = 300_000
        lengths = (8, 4097, 65_537, 64, 262_145, 1)
        rounds = times(24)
        target = world.target("numpy", slot * THREADS)
        failures: list[BaseException] = []

        def work(number: int) -> None:
            back = np.zeros(slot, np.uint8)
            try:
                for turn in range(rounds):
                    nbytes = lengths[(turn + number) % len(lengths)]
                    data = pattern(number << 16 | turn, nbytes)
                    remote = target.handle[number * slot : (number + 1) * slot]
                    link.here.write(data, remote, notify=number << 16 | turn).result(PATIENCE_S)
                    link.here.read(back[:nbytes], remote).result(PATIENCE_S)
                    expect_equal(back[:nbytes], data, f"thread {number}, turn {turn}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=[number]) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        heard = [world.there.call(Service.wait_for_write, link.there) for _ in range(rounds * THREADS)]
        for thread in threads:
            thread.join()
        assert not failures
        expected = [
            Arrival(number << 16 | turn, lengths[(turn + number) % len(lengths)])
            for number in range(THREADS)
            for turn in range(rounds)
        ]
        assert sorted(heard) == sorted(expected)


class TestLoops:
    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_several_transports_on_one(self, world: World, loop: str) -> None:
        """Eight of them, each with a writer and a waiter; the other side answers each of them."""
        links = [Link(world.here, world.there) for _ in range(8)]
        source, target = world.target("numpy", 64), world.target("numpy", 64 * 8)
        into = world.buffer("numpy", 64)
        handle = bytes(into.memory.share("rw"))

        async def one(number: int, link: Link) -> tuple[int, int]:
            waiting = asyncio.ensure_future(_awaited(link.here.wait_for_write(PATIENCE_S)))
            for value in range(10):
                assert await link.here.write(pattern(value, 64), target.handle[64 * number :], notify=value) == 64
            await link.here.flush()
            assert await link.here.read(np.zeros(64, np.uint8), target.handle[64 * number :]) == 64
            await asyncio.to_thread(_answer, world, link, handle, source.number, number)
            note = await waiting
            return note.value, note.nbytes

        async def main() -> list[tuple[int, int]]:
            return await asyncio.gather(*(one(number, link) for number, link in enumerate(links)))

        assert run(loop, main()) == [(number, 64) for number in range(8)]
        for number, link in enumerate(links):
            target.expect(64 * number, 64, 9)
            link.expect_arrivals(range(10), 64)
            link.here.close()


class TestTheEnd:
    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_closing_loses_nothing(self, world: World, link: Link) -> None:
        """What had ended before `close` is there and was announced; then the peer learns that this end is gone."""
        total = times(200)
        target = world.target("numpy", 100 * total)
        for number in range(total):
            link.here.write(pattern(number, 100), target.handle[100 * number :], notify=number).result(PATIENCE_S)
        link.here.close()
        link.expect_arrivals(range(total), 100)
        for number in range(total):
            target.expect(100 * number, 100, number)
        outcome = world.there.call(Service.try_wait_for_write, link.there)
        assert outcome.kind == "PeerLost"
        assert outcome.says("closed its transport")

    @pytest.mark.parametrize("world", WORLDS, indirect=True)
    def test_a_closed_one_says_so_on_every_call(self, world: World, link: Link) -> None:
        target = world.target("numpy", 64)
        link.here.close()
        link.here.close()
        link.here.abort()
        for call in every_call(link.here, link.url, target.handle):
            with pytest.raises(zh.Closed, match="this Transport is closed"):
                call()
        assert not link.here.connected()
        assert "closed" in repr(link.here)
        target.expect_poison()


def _answer(world: World, link: Link, handle: bytes, source: int, value: int) -> None:
    with _ONE_AT_A_TIME:
        world.there.call(Service.transport_write, link.there, handle, source, 0, 64, value)


# The other side takes one call at a time.
_ONE_AT_A_TIME = threading.Lock()


async def _awaited(operation: zh.Operation[zh.Notification]) -> zh.Notification:
    return await operation
