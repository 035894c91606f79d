"""Completion objects under several threads and tasks, with functions that fail, and at the end of their group."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import groups
from support.lanes import eventually
from support.patience import PATIENCE_S
from support.pattern import pattern
from zerohop.group import CompletionList, Counter, Ended, Handler, Synchronizer

if TYPE_CHECKING:
    from pathlib import Path

LONG = 100_000  # bytes of a message for which memory is asked


def wait_for(futures: list[Future[Any]]) -> None:
    """Raise what a thread has raised."""
    for each in futures:
        each.result(PATIENCE_S)


class TestSeveral:
    """One thread takes an end, and all that wait for it are told."""

    def test_threads_that_wait_for_different_numbers(self, two: list[zh.Group]) -> None:
        counter = Counter(two[1])
        number = two[1].register(counter)
        with ThreadPoolExecutor(3) as pool:
            waits = [pool.submit(counter.wait, value, PATIENCE_S) for value in (3, 1, 2)]
            for _ in range(3):
                two[0].am(b"", 1, number).result(PATIENCE_S)
            assert all(wait.result() >= 1 for wait in waits)

    def test_one_that_only_looks(self, two: list[zh.Group]) -> None:
        counter = Counter(two[1])
        number = two[1].register(counter)
        stop = threading.Event()

        def look() -> None:
            while not stop.is_set():
                assert counter.value >= 0

        with ThreadPoolExecutor(2) as pool:
            looking = pool.submit(look)
            for value in range(1, 50):
                waiting = pool.submit(counter.wait, value, PATIENCE_S)
                two[0].am(b"", 1, number).result(PATIENCE_S)
                assert waiting.result() >= value
            stop.set()
            looking.result()

    def test_a_task_while_other_code_of_the_loop_looks(self, two: list[zh.Group]) -> None:
        counter = Counter(two[1])
        number = two[1].register(counter)

        async def main() -> int:
            waiting = asyncio.create_task(counter.until(1, PATIENCE_S))
            await asyncio.sleep(0)
            await two[0].am(b"", 1, number)
            while not counter.value:
                pass
            return await waiting

        assert asyncio.run(main()) == 1

    def test_the_order_is_kept(self, two: list[zh.Group]) -> None:
        ended = CompletionList(two[1])
        number = two[1].register(ended)
        stop = threading.Event()

        def look() -> None:
            while not stop.is_set():
                ended.progress()

        with ThreadPoolExecutor(3) as pool:
            looking = [pool.submit(look) for _ in range(2)]
            sending = pool.submit(lambda: [two[0].am(b"", 1, number, tag=tag) for tag in range(3000)])
            assert [ended.pop(PATIENCE_S).tag for _ in range(3000)] == list(range(3000))
            stop.set()
            wait_for([*looking, sending])


class TestFunctionsThatFail:
    def test_allocate(self, two: list[zh.Group]) -> None:
        """The object is told; the message is gone, and the others are not."""
        ended = CompletionList(two[1])
        fails = two[1].register(ended, allocate=lambda _: 1 // 0)
        wrong: Any = two[1].register(ended, allocate=lambda _: "no memory")
        short: Any = two[1].register(ended, allocate=lambda _: bytearray(2))
        works = two[1].register(ended)
        for number in (fails, wrong, short):
            for tag in range(3):
                two[0].am(b"short", 1, works, tag=tag).result(PATIENCE_S)
            sent = two[0].am(pattern(1, LONG), 1, number, tag=7)
            told = [ended.pop(PATIENCE_S) for _ in range(4)]
            assert [each.tag for each in told if each.error is None] == [0, 1, 2]
            assert [each.tag for each in told if each.error is not None] == [7]
            with pytest.raises((zh.ProtocolError, zh.PeerLost)):
                sent.result(PATIENCE_S)

    def test_packet(self, two: list[zh.Group]) -> None:
        ended = CompletionList(two[1])
        working = True

        def packet() -> bytearray:
            if not working:
                raise MemoryError("none is left")
            return bytearray(100)

        number = two[1].register(ended, packet=packet, depth=2)
        working = False
        for tag in range(2):
            two[0].am(b"x", 1, number, tag=tag).result(PATIENCE_S)
        told = [ended.pop(PATIENCE_S) for _ in range(4)]
        assert sorted(each.tag for each in told if each.error is None) == [0, 1]
        assert all(isinstance(each.error, MemoryError) for each in told if each.error is not None)
        working = True
        assert ended.poll() is None
        for tag in range(10, 20):
            two[0].am(b"x", 1, number, tag=tag).result(PATIENCE_S)
            assert ended.pop(PATIENCE_S).tag == tag

    def test_packet_within_register(self, two: list[zh.Group]) -> None:
        ended = CompletionList(two[1])
        made: list[int] = []

        def packet() -> bytearray:
            made.append(1)
            if len(made) == 3:
                raise MemoryError("none is left")
            return bytearray(100)

        with pytest.raises(MemoryError):
            two[1].register(ended, packet=packet, depth=4)
        with pytest.raises(zh.PeerLost):
            two[0].am(pattern(1, LONG), 1, 0).result(PATIENCE_S)
        for wrong in (lambda: np.zeros(64, np.float32), lambda: np.zeros((10, 10), np.uint8), lambda: bytearray(), int):
            with pytest.raises((ValueError, TypeError), match="packet gives memory"):
                two[1].register(ended, packet=wrong)
        assert ended.poll() is None

    def test_a_handler_goes_on(self, two: list[zh.Group]) -> None:
        """A RuntimeError of the user's is no end of the executor, and an executor that has ended loses nothing."""
        told: list[Ended] = []
        with ThreadPoolExecutor(1) as pool:
            handler = Handler(two[1], told.append, executor=pool)

            def allocate(arrival: zh.group.Arrival) -> bytearray:
                if arrival.tag == 1:
                    raise RuntimeError("out of memory")
                return bytearray(arrival.nbytes)

            number = two[1].register(handler, allocate=allocate)
            for tag in (1, 2):
                two[0].am(b"x", 1, number, tag=tag).result(PATIENCE_S)
            eventually(lambda: len(told) == 2, "the handler has stopped")
            assert isinstance(told[0].error, RuntimeError)
            assert told[1].tag == 2

        def send_one() -> None:
            two[0].am(b"x", 1, number, tag=3).result(PATIENCE_S)
            eventually(lambda: not handler_runs(), "the thread goes on")

        with pytest.warns(UserWarning, match="calls its function no more"):
            send_one()
        assert handler.run(PATIENCE_S) == 1
        assert told[2].tag == 3
        handler.close()


def handler_runs() -> bool:
    """Tell whether a thread of a Handler is there."""
    return any(thread.name == "zerohop handler" for thread in threading.enumerate())


def take_losses(ended: CompletionList) -> None:
    """Take ends that tell of lost ranks, until there are no more."""
    while True:
        assert isinstance(ended.pop(PATIENCE_S).error, zh.PeerLost)


class TestEnds:
    def test_of_the_object(self, two: list[zh.Group]) -> None:
        ended = CompletionList(two[1])
        number = two[1].register(ended)
        with ThreadPoolExecutor(2) as pool:
            waits = [pool.submit(ended.pop) for _ in range(2)]
            two[0].connect(1).result(PATIENCE_S)
            ended.close()
            for wait in waits:
                with pytest.raises(zh.Closed):
                    wait.result(PATIENCE_S)
        for call in (
            ended.pop,
            ended.poll,
            lambda: two[1].register(ended),
            lambda: two[1].post_send(b"", 0, comp=ended),
        ):
            with pytest.raises(zh.Closed):
                call()
        with pytest.raises(zh.PeerLost):
            two[0].am(pattern(1, LONG), 1, number).result(PATIENCE_S)

    def test_of_the_context(self, tmp_path: Path) -> None:
        with groups(tmp_path, 2) as ranks:
            ended = CompletionList(ranks[1])
            number = ranks[1].register(ended)
            for tag in range(2):
                ranks[0].am(b"here", 1, number, tag=tag).result(PATIENCE_S)
            assert ended.pop(PATIENCE_S).tag == 0
            ranks[1].context.close()
            last = ended.pop(PATIENCE_S)
            assert (last.tag, last.data) == (1, bytearray(b"here"))
            with pytest.raises(zh.Closed):
                take_losses(ended)
            with pytest.raises(zh.Closed):
                ended.poll()
            ranks[1].close()

    def test_no_function_of_the_users_runs_when_a_group_is_closed(self, two: list[zh.Group]) -> None:
        ended = CompletionList(two[1])
        calls: list[int] = []
        number = two[1].register(ended, allocate=lambda arrival: calls.append(arrival.nbytes))
        two[0].am(b"x", 1, number).result(PATIENCE_S)
        two[1].close()
        assert calls == []

    def test_of_a_handler_that_is_dropped(self, two: list[zh.Group]) -> None:
        with ThreadPoolExecutor(1) as pool:
            handlers = [Handler(two[1], print, executor=pool)]
            assert handler_runs()
            handlers.clear()
            eventually(lambda: not handler_runs(), "the thread keeps the Handler")

    def test_a_group_in_another_thread(self, tmp_path: Path) -> None:
        """Registering while the group is closed either works or raises Closed, and leaves nothing."""
        with groups(tmp_path, 1) as (group,), ThreadPoolExecutor(1) as pool:
            ended = CompletionList(group)
            numbers = []

            def register() -> None:
                while True:
                    numbers.append(group.register(ended))

            registering = pool.submit(register)
            eventually(lambda: len(numbers) > 5, "nothing is registered")
            group.close()
            with pytest.raises(zh.Closed):
                registering.result(PATIENCE_S)


def test_what_cannot_be_told_is_not_posted(two: list[zh.Group], tmp_path: Path) -> None:
    into = bytearray(1)
    group: Any = two[1]
    with pytest.raises(TypeError, match="Counter"):
        group.post_recv(into, 0, comp=print)
    with groups(tmp_path / "alone", 1) as (alone,):
        strange = CompletionList(alone)
        with pytest.raises(ValueError, match="another Context"):
            group.post_recv(into, 0, comp=strange)
        with pytest.raises(ValueError, match="another Context"):
            group.register(strange)
    two[0].send(b"1", 1).result(PATIENCE_S)
    assert into == b"\0", "a receive was posted that nobody could be told of"


def test_memory_of_another_rank(tmp_path: Path) -> None:
    with groups(tmp_path, 3) as ranks:
        memory = ranks[1].context.alloc(8)
        handle = memory.share("rw")
        for connected in (False, True):
            with pytest.raises(ValueError, match="not of rank 2"):
                ranks[0].put(b"x", 2, handle).result(PATIENCE_S)
            with pytest.raises(ValueError, match="not of rank 2"):
                ranks[0].get(bytearray(1), 2, handle, target=0).result(PATIENCE_S)
            assert ranks[0].put(b"x", 1, handle).result(PATIENCE_S) == 1
            if connected:
                with pytest.raises(ValueError, match="not of rank 2"):
                    ranks[0].post_put(b"x", 2, handle)


def test_a_claim_that_fails_leaves_the_message(tmp_path: Path) -> None:
    with groups(tmp_path, 2) as ranks:
        ranks[0].send(b"hello", 1, tag=1).result(PATIENCE_S)
        arrival = ranks[1].probe().result(PATIENCE_S)
        ranks[0].context.close()
        on_device = ranks[1].context.alloc(8, "sim:0")
        with pytest.raises(zh.PeerLost):  # the lane is gone then
            ranks[1].recv(bytearray(1), 0).result(PATIENCE_S)
        with pytest.raises(zh.PeerLost):
            arrival.recv(on_device).result(PATIENCE_S)
        into = bytearray(5)
        assert arrival.recv(into).result(PATIENCE_S).nbytes == 5
        assert into == b"hello"


def test_timeouts_that_are_none(two: list[zh.Group]) -> None:
    ended, sync = CompletionList(two[0]), Synchronizer(two[0])
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            ended.pop(timeout)
        with pytest.raises(ValueError, match="timeout"):
            asyncio.run(sync.until(timeout))
