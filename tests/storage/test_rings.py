"""Rings: many transfers in a call, each with a result of its own."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.patience import PATIENCE_S
from support.stores import is_served
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zerohop.storage import Store

MIB = 1 << 20
PAGE = 4096


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_each_result_once(store: Store, random_file: Callable[..., np.ndarray], device: str) -> None:
    there = random_file("data", MIB)
    ring = store.ring(256)
    iov = store.iov(MIB, device)
    pages = np.arange(256)
    with store.open("data").result() as file:
        ring.prepare_many(iov, file, pages[::-1] * PAGE, np.full(256, PAGE), pages * PAGE, pages + 1000)
        with pytest.raises(zh.WouldBlock, match="256 entries"):
            ring.prepare(iov[:PAGE], file, 0)
        assert ring.submit() == 256
        assert ring.submit() == 0
        done: list[int] = []
        while len(done) < 256:
            done += [
                each.userdata for each in ring.wait(100, 10, PATIENCE_S) if each.error is None and each.result == PAGE
            ]
        assert sorted(done) == list(pages + 1000)
        assert ring.wait(timeout=PATIENCE_S) == []
    found = np.zeros(MIB, np.uint8)
    store.context.read(iov.memory.share("r"), found).result(PATIENCE_S)
    assert (found.reshape(256, PAGE) == there.reshape(256, PAGE)[::-1]).all()
    iov.close()


def test_results_tell_what_happened(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    random_file("data", MIB)
    target = np.zeros(2 * PAGE, np.uint8)
    with store.open("data").result() as file:
        ring = store.ring(8)
        ring.prepare(target, file, MIB - PAGE, 1)
        ring.prepare(target, file, 5 * MIB, 2)
        ring.prepare(target[:0], file, 0, 3)
        ring.submit()
        found = {each.userdata: each for each in ring.wait(min_results=3, timeout=PATIENCE_S)}
        assert (found[1].result, found[2].result, found[3].result) == (PAGE, 0, 0)
        assert all(each.error is None for each in found.values())
        with pytest.raises(zh.StorageError, match='opened with mode "r"'):
            store.ring(8, for_read=False).prepare(target, file, 0)
        with pytest.raises(ValueError, match="does not lie within the 8192 bytes"):
            ring.prepare_many(target, file, [0], [PAGE], [PAGE + 1])
        with pytest.raises(ValueError, match="1 offsets, 2 lengths"):
            ring.prepare_many(target, file, [0], [1, 2], [0])
        with pytest.raises(ValueError, match="userdata of 2"):
            ring.prepare_many(target, file, [0], [1], [0], [1, 2])
        with pytest.raises(ValueError, match="negative, or too large"):
            ring.prepare_many(target, file, [-1], [1], [0])
        assert ring.submit() == 0


def test_each_transfer_has_an_index(store: Store, random_file: Callable[..., np.ndarray], tmp_path: Path) -> None:
    """The index that prepare returned comes with the result, also of transfers that fail, are refused or cancelled."""
    random_file("data", 4 * PAGE)
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", PAGE)
    target = np.zeros(4 * PAGE, np.uint8)
    ring = store.ring(32, flags=storage.RingFlags.FORBID_HOLES)
    with store.open("data").result() as file, store.open("hole").result() as hole:
        assert ring.prepare(target[:PAGE], file, 0, userdata=70) == 0
        assert ring.prepare_many(target, file, [0, PAGE], [PAGE, PAGE], [0, PAGE], [71, 72]) == 1
        assert ring.prepare(target[:PAGE], hole, 0, userdata=73) == 3
        assert ring.prepare_many(target, file, [], [], []) == 4
        assert ring.submit() == 3
        found = ring.wait(min_results=4, timeout=PATIENCE_S)
        assert sorted((each.index, each.userdata) for each in found) == [(0, 70), (1, 71), (2, 72), (3, 73)]
        assert ring.prepare(target, file, 0, userdata=74) == 4
        assert ring.cancel(74) == 1
        [cancelled] = ring.wait(timeout=PATIENCE_S)
        assert (cancelled.index, cancelled.userdata) == (4, 74)
        memory = store.context.alloc(PAGE)
        assert ring.prepare(memory, file, 0, userdata=75) == 5
        memory.close()
        ring.submit()
        [failed] = ring.wait_array(timeout=PATIENCE_S)
        assert failed["status"]
        assert (failed["index"], failed["userdata"]) == (5, 75)


def test_what_was_added_is_as_it_was_then(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """Arrays may change before it begins; without userdata each transfer has its position."""
    there = random_file("data", MIB)
    target = np.zeros(4 * PAGE, np.uint8)
    ring = store.ring(8)
    with store.open("data").result() as file:
        for first in (0, 2):
            offsets, lengths, at = np.array([first, first + 1]) * PAGE, np.full(2, PAGE), np.array([3, 2]) * PAGE
            ring.prepare_many(target, file, offsets, lengths, at - first * PAGE)
            offsets[:], lengths[:], at[:] = 5, 6, 7
        assert ring.wait(timeout=PATIENCE_S) == []  # nothing has begun
        assert ring.submit() == 4
        found = ring.wait(min_results=4, timeout=PATIENCE_S)
    assert sorted(each.userdata for each in found) == [0, 0, 1, 1]
    assert (target.reshape(4, PAGE) == there[: 4 * PAGE].reshape(4, PAGE)[::-1]).all()


def test_added_transfers_of_a_ring_that_goes(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    random_file("data", MIB)
    target = np.zeros(PAGE, np.uint8)
    with store.open("data").result() as file:
        for close in (True, False):
            ring = store.ring(4)
            ring.prepare(target, file, 0)
            if close:
                ring.close()
            del ring
    assert (target == 0).all()


def test_writing(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    source = np.random.default_rng(3).integers(0, 256, MIB, dtype=np.uint8)
    ring = store.ring(16, for_read=False)
    with store.open("new", "w").result() as file:
        for i in range(16):
            ring.prepare(source[i * 65536 : (i + 1) * 65536], file, (15 - i) * 65536, i)
        ring.submit()
        results = ring.wait(min_results=16, timeout=PATIENCE_S)
        assert sorted(each.userdata for each in results) == list(range(16))
        assert {each.result for each in results} == {65536}
        back = np.zeros(MIB, np.uint8)
        file.read_into(back).result(PATIENCE_S)
    assert (back.reshape(16, -1) == source.reshape(16, -1)[::-1]).all()


def test_a_failure_is_its_own(store: Store) -> None:
    """An error of one transfer is its result, and the others go on."""
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ring = store.ring(4, for_read=False)
    source = np.ones(PAGE, np.uint8)
    with store.open("new", "w").result() as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, before[1]))
        try:
            ring.prepare(source, file, 0, 1)
            ring.prepare(source, file, PAGE, 2)
            ring.submit()
            found = {each.userdata: each for each in ring.wait(min_results=2, timeout=PATIENCE_S)}
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
    assert found[1].error is None
    error = found[2].error
    assert isinstance(error, zh.StorageError)
    assert error.errno == errno.EFBIG


def test_awaited(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    there = random_file("data", MIB)
    target = np.zeros(MIB, np.uint8)

    async def work() -> None:
        ring = store.ring(64)
        with await store.open("data") as file:
            for i in range(64):
                ring.prepare(target[i * 16384 : (i + 1) * 16384], file, i * 16384, i)
            ring.submit()
            results = await ring.results(min_results=64, timeout=PATIENCE_S)
            assert sorted(each.userdata for each in results) == list(range(64))
            assert await ring.results() == []

    asyncio.run(work())
    assert (target == there).all()


def test_many_threads(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    there = random_file("data", MIB)
    errors: list[BaseException] = []
    with store.open("data").result() as file:

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            ring, target = store.ring(32), np.zeros(32 * 1000, np.uint8)
            try:
                for _ in range(20):
                    offsets = rng.integers(0, MIB - 1000, 32)
                    ring.prepare_many(target, file, offsets, np.full(32, 1000), np.arange(32) * 1000)
                    ring.submit()
                    assert len(ring.wait(min_results=32, timeout=PATIENCE_S)) == 32
                    for i, offset in enumerate(offsets):
                        assert (target[i * 1000 : (i + 1) * 1000] == there[offset : offset + 1000]).all()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert not errors


def test_cancelled_before_they_were_submitted(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """Others, which were submitted and wait for their batch to be full, stay submitted."""
    random_file("data", 1 << 16)
    with store.open("data").result(PATIENCE_S) as file:
        ring, target = store.ring(64, io_depth=8), store.context.alloc(1 << 16)
        for number in (1, 2, 3):
            ring.prepare(target[:64], file, 0, number)
        assert ring.submit() == 3
        for number in (11, 12):
            ring.prepare(target[:64], file, 0, number)
        assert ring.cancel(11) == ring.cancel(12) == 1
        done = ring.wait(min_results=5, timeout=PATIENCE_S)
        assert sorted(each.userdata for each in done) == [1, 2, 3, 11, 12]
        for number in range(4):
            ring.prepare(target[:64], file, 0, number)
        assert ring.submit() == 4
        assert ring.cancel(2) == 1
        done = ring.wait(min_results=4, timeout=PATIENCE_S)
        assert sorted(each.userdata for each in done) == [0, 1, 2, 3]


def test_a_wait_has_a_limit(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """Results that cannot come are not waited for, and the end of the ring and of the store ends everything."""
    random_file("data", MIB)
    ring = store.ring(4)
    began = time.monotonic()
    assert ring.wait(min_results=4, timeout=PATIENCE_S) == []
    assert time.monotonic() - began < PATIENCE_S
    target = np.zeros(PAGE, np.uint8)
    with store.open("data").result() as file:
        ring.prepare(target, file, 0)
        ring.close()
        ring.close()
        for refused in (ring.submit, lambda: ring.prepare(target, file, 0)):
            with pytest.raises(zh.Closed, match="the Ring is closed"):
                refused()
        other = store.ring(4)
        store.close()
        with pytest.raises(zh.Closed, match="the Store is closed"):
            other.wait()


class TestBatches:
    @pytest.mark.parametrize(("io_depth", "batch_wait"), [(8, 0.0), (-8, 60.0)])
    def test_a_wait_begins_what_is_not_full(
        self, store: Store, random_file: Callable[..., np.ndarray], io_depth: int, batch_wait: float
    ) -> None:
        there, target = random_file("data", MIB), np.zeros(11 * PAGE, np.uint8)
        ring = store.ring(16, io_depth=io_depth, batch_wait=batch_wait)
        with store.open("data").result() as file:
            at = np.arange(11) * PAGE
            ring.prepare_many(target, file, at, np.full(11, PAGE), at)
            assert ring.submit() == 11
            eventually(lambda: ring._native.ready == 8, "the full batch did not end")
            assert ring._native.prepared == 3
            assert len(ring.wait(min_results=11, timeout=PATIENCE_S)) == 11
        assert (target == there[: 11 * PAGE]).all()
        ring.close()

    @pytest.mark.parametrize("io_depth", [8, -8])
    def test_time_begins_what_is_not_full(
        self, store: Store, random_file: Callable[..., np.ndarray], io_depth: int
    ) -> None:
        there, target = random_file("data", MIB), np.zeros(PAGE, np.uint8)
        ring = store.ring(16, io_depth=io_depth, batch_wait=0.01)
        with store.open("data").result() as file:
            for turn in range(3):
                target[:] = 0
                ring.prepare(target, file, PAGE)
                ring.submit()
                eventually(lambda: ring._native.ready == 1, "the transfer did not begin by itself")
                assert ring.wait() == [storage.Completion(turn, 0, PAGE, None)]
                assert (target == there[PAGE : 2 * PAGE]).all()

    def test_awaited_results_begin_what_is_not_full(self, store: Store, random_file: Callable[..., np.ndarray]) -> None:
        random_file("data", MIB)
        ring = store.ring(16, io_depth=8)

        async def work() -> None:
            with await store.open("data") as file:
                ring.prepare(np.zeros(PAGE, np.uint8), file, 0, 7)
                ring.submit()
                assert await ring.results(timeout=PATIENCE_S) == [storage.Completion(0, 7, PAGE, None)]

        asyncio.run(work())


class TestCancel:
    def test_what_has_not_begun(self, store: Store, random_file: Callable[..., np.ndarray]) -> None:
        """Of what was added, only what is meant ends, and each has one result."""
        random_file("data", MIB)
        target, ring = np.zeros(PAGE, np.uint8), store.ring(8, io_depth=8)
        with store.open("data").result() as file:
            for number in (1, 2, -3):
                ring.prepare(target, file, 0, number)
            ring.submit()
            assert ring.cancel(-3) == 1
            assert ring.cancel(5) == 0
            done = {each.userdata: each for each in ring.wait(min_results=3, timeout=PATIENCE_S)}
        assert sorted(done) == [-3, 1, 2]
        assert isinstance(done[-3].error, CancelledError)
        assert done[1] == storage.Completion(0, 1, PAGE, None)
        assert ring.wait(timeout=0) == []

    @pytest.mark.parametrize("priority", ["high", "normal", "low"])
    def test_what_is_under_way(
        self, store: Store, random_file: Callable[..., np.ndarray], priority: Literal["high", "normal", "low"]
    ) -> None:
        """Every transfer has a result, cancelled or whole, after which its memory is nobody's."""
        there, count = random_file("data", 4 * MIB), 4000
        target, ring = np.zeros(4 * MIB, np.uint8), store.ring(count, priority=priority)
        with store.open("data").result() as file:
            at = np.arange(count) * PAGE % (4 * MIB)
            ring.prepare_many(target, file, at, np.full(count, PAGE), at)
            ring.submit()
            ended = ring.cancel()
            done = ring.wait(min_results=count, timeout=PATIENCE_S)
            target[:] = 0
            assert ring.wait(timeout=0) == []
        assert sorted(each.userdata for each in done) == [*range(count)]
        cancelled = sum(isinstance(each.error, CancelledError) for each in done)
        # A server may have ended some that this side does not know of yet, or have begun what ends well.
        assert cancelled <= ended if is_served(store) else cancelled == ended
        assert {each.result for each in done if each.error is None} <= {PAGE}
        assert (target == 0).all()
        assert there.any()


class TestSeveralWaiters:
    """Each gets as many results as it has asked for, as long as more can come."""

    def test_threads(self, store: Store, random_file: Callable[..., np.ndarray]) -> None:
        random_file("data", MIB)
        target, ring, found = np.zeros(PAGE, np.uint8), store.ring(256), []
        with store.open("data").result() as file:
            for number in range(256):
                ring.prepare(target, file, 0, number)
            ring.submit()

            def work() -> None:
                for _ in range(8):
                    found.append(ring.wait(8, 8, PATIENCE_S))

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
        assert [len(each) for each in found] == [8] * 32
        assert sorted(each.userdata for results in found for each in results) == [*range(256)]

    def test_tasks(self, store: Store, random_file: Callable[..., np.ndarray]) -> None:
        random_file("data", MIB)
        target, ring = np.zeros(PAGE, np.uint8), store.ring(64)

        async def work() -> None:
            with await store.open("data") as file:
                for _ in range(10):
                    for number in range(64):
                        ring.prepare(target, file, 0, number)
                    ring.submit()
                    found = await asyncio.gather(*(ring.results(8, 8, PATIENCE_S) for _ in range(8)))
                    assert [len(each) for each in found] == [8] * 8

        asyncio.run(work())

    def test_the_last_gets_what_is_left(self, store: Store, random_file: Callable[..., np.ndarray]) -> None:
        random_file("data", MIB)
        ring = store.ring(8)

        async def work() -> None:
            with await store.open("data") as file:
                for number in range(8):
                    ring.prepare(np.zeros(PAGE, np.uint8), file, 0, number)
                ring.submit()
                found = await asyncio.gather(*(ring.results(5, 5, PATIENCE_S) for _ in range(3)))
                assert sorted(len(each) for each in found) == [0, 3, 5]

        asyncio.run(work())


def test_holes_are_forbidden(store: Store, tmp_path: Path) -> None:
    """A read of a hole fails, and nothing of it is read; the others of the call are."""
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(MIB)
        file.seek(MIB // 2)
        file.write(b"\1" * PAGE)
    target = np.full(2 * PAGE, 0xEE, np.uint8)
    ring = store.ring(2, flags=storage.RingFlags.FORBID_HOLES)
    with store.open("sparse").result() as sparse:
        ring.prepare_many(target, sparse, [0, MIB // 2], [PAGE, PAGE], [0, PAGE], [-1, 4])
        with pytest.raises(zh.WouldBlock):
            ring.prepare_many(target, sparse, [0], [PAGE], [0])
        assert ring.submit() == 1
        done = {each.userdata: each for each in ring.wait(min_results=2, timeout=PATIENCE_S)}
    assert isinstance(done[-1].error, zh.StorageError)
    assert done[-1].error.errno == errno.ENODATA
    assert done[4] == storage.Completion(0, 4, PAGE, None)
    assert (target[:PAGE] == 0xEE).all()
    assert (target[PAGE:] == 1).all()


def test_arguments_of_a_ring(store: Store) -> None:
    for wrong, said in (
        ({"priority": "urgent"}, '"high", "normal" or "low", not'),
        ({"io_depth": 1 << 40}, "io_depth must be from"),
        ({"batch_wait": -1}, "batch_wait must be from 0"),
        ({"flags": 1}, "flags are RingFlags, not 1"),
        ({"flags": storage.RingFlags.FORBID_HOLES, "for_read": False}, "a ring that writes takes no flags"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            store.ring(8, **wrong)


def test_numbers_of_a_ring(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """Integers of numpy are taken; what is none is refused by name, and what 64 bits do not hold."""
    random_file("data", MIB)
    target, ring = np.zeros(PAGE, np.uint8), store.ring(np.int32(8), io_depth=np.int64(-4))
    with store.open("data").result() as file:
        for wrong in (1.5, "1", True, np.float64(1), np.bool_(True)):
            with pytest.raises(TypeError, match="userdata must be an int, not"):
                ring.prepare(target, file, 0, wrong)  # type: ignore[arg-type]  # as above
            with pytest.raises(TypeError, match="userdata must be an int, not"):
                ring.cancel(wrong)  # type: ignore[arg-type]  # as above
        for large in (1 << 63, (1 << 64) + 5, -(1 << 63) - 1):
            with pytest.raises(ValueError, match="userdata must be from"):
                ring.prepare(target, file, 0, large)
            with pytest.raises(ValueError, match="userdata must be from"):
                ring.cancel(large)
        ring.prepare(target, file, 0, np.uint8(5))
        assert ring.cancel(np.int16(5)) == 1
        (done,) = ring.wait(np.int64(4), np.int8(1), PAGE)
        assert done.userdata == 5
