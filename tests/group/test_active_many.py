"""Many active messages in one call, messages that are counted as they come, and headers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import PLACES, groups
from support.lanes import eventually
from support.patience import PATIENCE_S
from support.pattern import pattern
from zerohop.group import CompletionList, Counter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROVIDERS = ("shm", "tcp")
LENGTHS = (0, 1, 8, 8, 4000, 8190, 8191, 8192, 17, 8)
WINDOW = 256  # frames between two Contexts that may wait to be received


def as_array(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8).copy()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("made", [bytes, bytearray, as_array], ids=["bytes", "bytearray", "array"])
def test_each_of_many_is_told_by_itself(tmp_path: Path, provider: str, made: Callable[[bytes], Any]) -> None:
    """Connected before or not, with lengths on both sides of what fits into a frame; in the order of the list."""
    with groups(tmp_path, 2, provider) as two:
        ended = CompletionList(two[1])
        number = two[1].register(ended)
        for seed in range(4):
            sent = [pattern(seed * 100 + place, nbytes).tobytes() for place, nbytes in enumerate(LENGTHS)]
            assert two[0].am_many([made(each) for each in sent], 1, number, tag=seed).result(PATIENCE_S) == len(sent)
            for data in sent:
                found = ended.pop(PATIENCE_S)
                assert (found.rank, found.tag, bytes(found.data), found.error) == (0, seed, data, None)


def test_memory_here_and_views_of_it(tmp_path: Path) -> None:
    with groups(tmp_path, 2) as two:
        ended = CompletionList(two[1])
        number = two[1].register(ended)
        memory = two[0].context.register(pattern(5, 1000))
        two[0].am(b"", 1, number).result(PATIENCE_S)
        ended.pop(PATIENCE_S)
        sources = [memory[at : at + 10] for at in range(0, 1000, 10)]
        assert two[0].am_many(sources, 1, number).result(PATIENCE_S) == len(sources)
        assert b"".join(bytes(ended.pop(PATIENCE_S).data) for _ in sources) == pattern(5, 1000).tobytes()


def test_more_than_there_is_room_for(tmp_path: Path) -> None:
    """A thread waits for room in the call; an event loop goes on, and its Operation waits."""
    with groups(tmp_path, 2) as two:
        number = 0
        long = [pattern(each, 8000).tobytes() for each in range(2 * WINDOW)]

        async def on_loop() -> tuple[bool, int]:
            sending = two[0].am_many(long, 1, number)
            await asyncio.sleep(0)
            waits = not sending.done()
            ended = CompletionList(two[1])
            assert two[1].register(ended, depth=4) == number
            for data in long:
                assert bytes((await ended.next(PATIENCE_S)).data) == data
            return waits, await sending

        assert asyncio.run(on_loop()) == (True, len(long))
        counter = Counter(two[1])
        number = two[1].register(counter)
        assert two[0].am_many([b"short"] * 50_000, 1, number).result(PATIENCE_S) == 50_000
        assert counter.wait(50_000, PATIENCE_S) == 50_000


def test_memory_that_waits_for_room_is_in_use(tmp_path: Path) -> None:
    """Also once the call is cancelled, until the control thread has given it up."""
    with groups(tmp_path, 2) as two:
        number = two[1].register(CompletionList(two[1]), depth=1)
        memory = two[0].context.register(pattern(5, 1000))
        full = [two[0].am(bytes(9000), 1, number) for _ in range(WINDOW)]

        async def post() -> zh.Operation[int]:
            return two[0].am_many([memory[:10]] * 3, 1, number)

        waiting: Any = asyncio.run(post())
        eventually(
            lambda: getattr(waiting, "_carrier", None) is not None and waiting._carrier.held, "none of them is posted"
        )
        goes_on = threading.Event()
        two[0].context._core.control.call(goes_on.wait)
        try:
            assert waiting.cancel()
            assert waiting.memory_in_use
        finally:
            goes_on.set()
        eventually(lambda: not waiting.memory_in_use, "it stays in use")
        two[1].close()
        for operation in full:
            assert operation.exception(PATIENCE_S) is None or isinstance(operation.exception(), zh.PeerLost)


def test_nothing_is_sent_if_one_is_wrong(tmp_path: Path) -> None:
    with groups(tmp_path, 2) as two:
        ended = CompletionList(two[1])
        number = two[1].register(ended)
        two[0].am(b"first", 1, number).result(PATIENCE_S)
        for wrong in ([b"a", 7], [b"a", "text"], [b"a", None]):
            with pytest.raises(TypeError):
                two[0].am_many(wrong, 1, number)
        for one in (b"abc", bytearray(3), "abc", np.zeros(3)):
            with pytest.raises(TypeError, match="sources is a list of messages"):
                two[0].am_many(one, 1, number)  # type: ignore[arg-type]  # that is what is tested
        with pytest.raises(ValueError, match="rank must be from 0 to 1"):
            two[0].am_many([b"a"], 2, number)
        with pytest.raises(ValueError, match="tag"):
            two[0].am_many([b"a"], 1, number, tag=1 << 32)
        with pytest.raises(ValueError, match="timeout"):
            two[0].am_many([b"a"], 1, number, timeout=-1)
        assert two[0].am_many([], 1, number).result(PATIENCE_S) == 0
        two[0].am(b"last", 1, number).result(PATIENCE_S)
        assert [bytes(ended.pop(PATIENCE_S).data) for _ in range(2)] == [b"first", b"last"]


def test_many_after_the_group_is_closed(tmp_path: Path) -> None:
    with groups(tmp_path, 2) as two:
        number = two[1].register(Counter(two[1]))
        two[0].am_many([b"a"], 1, number).result(PATIENCE_S)
        two[0].close()
        with pytest.raises(zh.Closed):
            two[0].am_many([b"a"], 1, number)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_counter_counts_all_that_comes(tmp_path: Path, provider: str) -> None:
    """Short and long, one by one and many, with headers, of several ranks, and the ends of its own operations."""
    with groups(tmp_path, 3, provider) as ranks:
        counter = Counter(ranks[1])
        number = ranks[1].register(counter)
        for _ in range(3):
            for source in (0, 2):
                ranks[source].am(b"short", 1, number).result(PATIENCE_S)
                sending = ranks[source].am(pattern(1, 10_000), 1, number)
                ranks[source].am_many([b"a", b""] * 100, 1, number).result(PATIENCE_S)
                ranks[source].am(b"", 1, number, header=b"header").result(PATIENCE_S)
                wanted = counter.value + 1
                while not sending.done():
                    counter.wait(wanted, PATIENCE_S)
                sending.result(PATIENCE_S)
        assert counter.wait(3 * 2 * 203, PATIENCE_S) == 3 * 2 * 203
        for _ in range(5):
            ranks[1].post_send(b"x", 0, comp=counter, allow_done=False)
        assert counter.wait(3 * 2 * 203 + 5, PATIENCE_S) == 3 * 2 * 203 + 5
        with pytest.raises(zh.DeadlineExceeded):
            counter.wait(3 * 2 * 203 + 6, 0.01)
        assert counter.failures == ()


def test_who_waits_for_a_count_is_woken(tmp_path: Path) -> None:
    """In a thread and on an event loop, by messages of which nothing is told, and by a loss."""
    with groups(tmp_path, 2) as two:
        counter = Counter(two[1])
        number = two[1].register(counter)
        two[0].am(b"", 1, number).result(PATIENCE_S)

        async def wait() -> list[int]:
            waiting = [asyncio.create_task(counter.until(count, PATIENCE_S)) for count in (30, 20, 10)]
            for _ in range(30):
                two[0].am(b"x", 1, number)
                await asyncio.sleep(0)
            return await asyncio.gather(*waiting)

        assert min(asyncio.run(wait())) >= 10
        assert counter.wait(31, PATIENCE_S) == 31
        two[0].context.close()
        assert counter.wait(32, PATIENCE_S) == 32
        assert isinstance(counter.failures[0].error, zh.PeerLost)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("nbytes", [0, 8, 256, 8192, 8193, 100_000])
@pytest.mark.parametrize("header", [b"h", b"h" * 8, bytes(range(256))], ids=len)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_header_comes_before_the_bytes(tmp_path: Path, provider: str, header: bytes, nbytes: int, place: str) -> None:
    """Into packets, and into memory that is named when the header is known."""
    with groups(tmp_path, 2, provider) as two:
        told, chosen = CompletionList(two[1]), CompletionList(two[1])
        asked: list[tuple[bytes, int]] = []

        def allocate(arrival: zh.group.Arrival) -> Any:
            asked.append((arrival.header, arrival.nbytes))
            return two[1].context.alloc(max(1, nbytes), place)

        numbers = two[1].register(told), two[1].register(chosen, allocate=allocate)
        data = pattern(3, nbytes)
        for number, ended in zip(numbers, (told, chosen), strict=True):
            for sent in (header, b"", header):
                sending = two[0].am(data, 1, number, tag=9, header=sent)
                found = ended.pop(PATIENCE_S)
                assert (found.header, found.tag, found.nbytes, found.error) == (sent, 9, nbytes, None)
                got = found.data if ended is told else found.data.read_bytes(0, nbytes)
                assert bytes(got) == data.tobytes()
                assert sending.result(PATIENCE_S) == nbytes
        assert asked == [(header, nbytes), (b"", nbytes), (header, nbytes)]


def test_posting_with_a_header_and_headers_that_are_none(tmp_path: Path) -> None:
    with groups(tmp_path, 2) as two:
        ended = CompletionList(two[1])
        number = two[1].register(ended)
        assert two[0].post_am(b"data", 1, number, header=b"head").operation is not None
        found = ended.pop(PATIENCE_S)
        assert (found.header, bytes(found.data)) == (b"head", b"data")
        with pytest.raises(ValueError, match="256 bytes at most, not 257"):
            two[0].am(b"", 1, number, header=bytes(257))
        with pytest.raises(TypeError, match="header is bytes, not int"):
            two[0].am(b"", 1, number, header=5)  # type: ignore[arg-type]  # that is what is tested


def test_messages_stay_when_their_sender_is_gone(tmp_path: Path) -> None:
    """As many as one lane can hold, though each of them counts for little."""
    with groups(tmp_path, 2) as two:
        ended = CompletionList(two[1])
        number = two[1].register(ended)
        sent = [each.to_bytes(4, "little") for each in range(20_000)]
        two[0].am(b"", 1, number).result(PATIENCE_S)
        assert two[0].am_many(sent, 1, number).result(PATIENCE_S) == len(sent)
        two[0].context.close()
        ended.pop(PATIENCE_S)
        assert [bytes(ended.pop(PATIENCE_S).data) for _ in sent] == sent


def test_nothing_is_sent_once_the_group_is_closed(tmp_path: Path) -> None:
    """Though its Context is open, and the receiver was reached."""
    with groups(tmp_path, 2) as two:
        number = two[1].register(Counter(two[1]))
        for _ in range(3):
            two[0].am(b"before", 1, number).result(PATIENCE_S)
        two[0].close()
        with pytest.raises(zh.Closed):
            two[0].am(b"after", 1, number)


@pytest.mark.parametrize("other", ["looks", "waits"])
def test_a_count_wakes_tasks_though_another_thread_sees_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr("zerohop.group.completion.SLICE_S", 1e6)  # nobody looks again by himself
    with groups(tmp_path, 2) as two:
        counter = Counter(two[1])
        number = two[1].register(counter)
        two[0].am(b"", 1, number).result(PATIENCE_S)
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                if other == "looks":
                    assert counter.value >= 0
                else:
                    with contextlib.suppress(zh.DeadlineExceeded):
                        counter.wait(1 << 40, 0.05)

        thread = threading.Thread(target=look)
        thread.start()
        try:

            async def count() -> None:
                for value in range(2, 20):
                    two[0].am(b"", 1, number)
                    assert await counter.until(value, PATIENCE_S) >= value

            asyncio.run(count())
        finally:
            over.set()
            thread.join()
