"""Active messages, and puts and gets that tell completion objects: who is told what, and when."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import PLACES, groups
from support.lanes import eventually
from support.patience import PATIENCE_S
from support.pattern import pattern
from zerohop.core.runtime.deferred_operation import Deferred
from zerohop.group import CompletionList, Counter, Ended, Handler, Synchronizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TURN_S = 0.3  # longer than a thread that may go on takes
SIZES = (0, 1, 257, 8192, 8193, 300_001)
PROVIDERS = ("shm", "tcp")


def content(ended: Ended) -> bytes:
    """Return the bytes of an active message, wherever they lie."""
    data: Any = ended.data
    return data.read_bytes(0, ended.nbytes) if hasattr(data, "read_bytes") else bytes(data)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("form", ["default", "chosen", "left to us", "packets"])
@pytest.mark.parametrize("place", PLACES)
def test_messages_of_every_size_and_their_memory(tmp_path: Path, provider: str, form: str, place: str) -> None:
    """From two ranks, the receiver not the first: source, tag and bytes, and where the bytes are."""
    with groups(tmp_path, 3, provider) as ranks:
        target = ranks[1]
        asked = []

        def allocate(arrival: zh.group.Arrival) -> Any:
            asked.append((arrival.source, arrival.tag, arrival.nbytes))
            if form == "left to us":
                return None
            return target.context.alloc(max(1, arrival.nbytes), place)

        ended = CompletionList(target)
        more: dict[str, Any] = {}
        if form == "packets":
            more = {"packet": lambda: target.context.alloc(400_000, place)}
        elif form != "default":
            more = {"allocate": allocate}
        number = target.register(ended, depth=3, **more)
        for nbytes in SIZES:
            for source in (0, 2):
                data = pattern(source, nbytes)
                sent = ranks[source].am(data, 1, number, tag=nbytes + source)
                found = ended.pop(PATIENCE_S)
                assert (found.kind, found.rank, found.tag, found.nbytes) == ("am", source, nbytes + source, nbytes)
                assert found.error is None
                assert content(found) == data.tobytes()
                assert sent.result(PATIENCE_S) == nbytes
                if form in ("chosen", "packets"):
                    assert found.data.device == place
        assert len(asked) == (len(SIZES) * 2 if "allocate" in more else 0)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("place", PLACES)
def test_puts_and_gets_tell_the_owner(tmp_path: Path, provider: str, place: str) -> None:
    with groups(tmp_path, 3, provider) as ranks:
        owner = ranks[0]
        memory = owner.context.alloc(400_000, place)
        handle = zh.RemoteBuffer.from_bytes(bytes(memory.share("rw")))
        ended = CompletionList(owner)
        number = owner.register(ended)
        into = np.zeros(0, np.uint8)
        for nbytes in SIZES[1:]:
            for source in (1, 2):
                data = pattern(source, nbytes)
                put = ranks[source].put(data, 0, handle, offset=100, target=number, tag=source)
                assert ended.pop(PATIENCE_S)[:4] == ("put", source, source, nbytes)
                assert memory.read_bytes(100, nbytes) == data.tobytes(), "told before the bytes were there"
                assert put.result(PATIENCE_S) == nbytes
                into = np.zeros(nbytes, np.uint8)
                get = ranks[source].get(into, 0, handle, offset=100, target=number, tag=9)
                assert ended.pop(PATIENCE_S)[:4] == ("get", source, 9, nbytes)
                assert get.result(PATIENCE_S) == nbytes
                assert (into == data).all()
        assert ranks[1].put(b"quiet", 0, handle).result(PATIENCE_S) == 5
        assert ranks[1].get(into, 0, handle, offset=5).result(PATIENCE_S) == into.nbytes
        assert ended.poll() is None


class _Endless:
    """Stands for a write that does not end."""

    memory_in_use = True

    def done(self) -> bool:
        return False

    def __await__(self) -> Iterator[Any]:
        return asyncio.get_running_loop().create_future().__await__()


def test_a_put_that_is_cancelled_while_it_is_posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that its memory is in use, as soon as it can be seen to be cancelled."""
    with groups(tmp_path, 2) as two:
        number = two[1].register(CompletionList(two[1]))
        handle = two[1].context.alloc(8).share("rw")
        two[0].connect(1).result(PATIENCE_S)
        seen: list[tuple[bool, bool]] = []
        note = Deferred.made_of

        def noting(self: Deferred[Any], operations: list[Any]) -> None:
            if operations and isinstance(operations[0], _Endless):
                thread = threading.Thread(target=lambda: seen.append((self.cancel(), self.memory_in_use)))
                thread.start()
                thread.join(TURN_S)  # it has its turn later
            note(self, operations)

        monkeypatch.setattr(Deferred, "made_of", noting)
        monkeypatch.setattr(two[0].context, "write", lambda *_, **__: _Endless())
        two[0].put(bytes(8), 1, handle, target=number)
        eventually(lambda: bool(seen), "it is not cancelled")
        assert seen == [(True, True)]


def test_atomics(two: list[zh.Group]) -> None:
    memory = two[1].context.alloc(16)
    handle = memory.share("rw")
    assert two[0].fetch_add(handle, 5, offset=8).result(PATIENCE_S) == 0
    assert two[0].compare_swap(handle, 5, 9, offset=8).result(PATIENCE_S) == 5
    assert memory.read_bytes(8, 8) == (9).to_bytes(8, "little")


class TestObjects:
    def test_no_barrier_is_needed(self, two: list[zh.Group]) -> None:
        """A message may come before its object is registered; two objects, and two groups, are not mixed up."""
        other = [each.subgroup([0, 1]) for each in two]
        for tag in range(20):
            two[0].am(b"early", 1, 1, tag=tag).result(PATIENCE_S)
        other[0].am(b"other", 1, 1, tag=50).result(PATIENCE_S)
        first, second, third = (CompletionList(two[1]) for _ in range(3))
        assert [two[1].register(first), two[1].register(second)] == [0, 1]
        assert [other[1].register(first), other[1].register(third)] == [0, 1]
        assert [second.pop(PATIENCE_S).tag for _ in range(20)] == list(range(20))
        assert third.pop(PATIENCE_S).tag == 50
        assert first.poll() is None
        assert second.poll() is None

    def test_more_messages_than_receives(self, two: list[zh.Group]) -> None:
        counter = Counter(two[1])
        number = two[1].register(counter, depth=1)
        sender = threading.Thread(target=lambda: [two[0].am(bytes([i % 256]), 1, number) for i in range(1000)])
        sender.start()
        assert counter.wait(1000, PATIENCE_S) == 1000
        sender.join()
        assert counter.value == 1000
        assert counter.failures == ()

    def test_one_that_is_deregistered(self, two: list[zh.Group]) -> None:
        ended = CompletionList(two[1])
        number = two[1].register(ended)
        two[0].am(b"1", 1, number).result(PATIENCE_S)
        assert ended.pop(PATIENCE_S).tag == 0
        two[1].deregister(number)
        with pytest.raises(zh.PeerLost):
            two[0].am(pattern(1, 100_000), 1, number).result(PATIENCE_S)
        with pytest.raises(ValueError, match="no completion object"):
            two[1].deregister(number)
        assert ended.poll() is None

    def test_a_lost_rank_is_told_once_and_the_others_go_on(self, tmp_path: Path) -> None:
        with groups(tmp_path, 3) as ranks:
            ended = CompletionList(ranks[2])
            number = ranks[2].register(ended)
            for source in (0, 1):
                ranks[source].am(b"x", 2, number).result(PATIENCE_S)
                assert ended.pop(PATIENCE_S).rank == source
            ranks[0].context.close()
            lost = ended.pop(PATIENCE_S)
            assert lost.rank == 0
            assert isinstance(lost.error, zh.PeerLost)
            for tag in range(20):
                ranks[1].am(b"y", 2, number, tag=tag).result(PATIENCE_S)
                assert ended.pop(PATIENCE_S)[:3] == ("am", 1, tag)
            assert ended.poll() is None

    def test_a_message_that_its_sender_gives_up(self, two: list[zh.Group]) -> None:
        ended = CompletionList(two[1])
        number = two[1].register(ended)
        two[0].connect(1).result(PATIENCE_S)
        sent = two[0].am(pattern(1, 100_000), 1, number, tag=1)
        assert sent.cancel()
        two[0].am(b"next", 1, number, tag=2).result(PATIENCE_S)
        told = [ended.pop(PATIENCE_S)]
        while told[-1].tag != 2:
            told.append(ended.pop(PATIENCE_S))
        assert all(each.error is not None for each in told[:-1])

    def test_a_group_that_is_closed(self, tmp_path: Path) -> None:
        with groups(tmp_path, 2) as ranks:
            ended = CompletionList(ranks[1])
            number = ranks[1].register(ended)
            for _ in range(20):  # more than receives
                ranks[0].am(b"x", 1, number).result(PATIENCE_S)
            assert ended.pop(PATIENCE_S).nbytes == 1
            ranks[1].close()
            while (last := ended.poll()) is not None:
                assert last.nbytes == 1
            with pytest.raises(zh.DeadlineExceeded):
                ended.pop(0.05)
            for call in (lambda: ranks[1].register(ended), lambda: ranks[1].am(b"", 0, 0)):
                with pytest.raises(zh.Closed):
                    call()

    def test_what_is_refused(self, two: list[zh.Group]) -> None:
        ended = CompletionList(two[0])
        memory = two[0].context.alloc(8)
        handle = memory.share("rw")
        group: Any = two[0]
        for call, error, text in (
            (lambda: group.register(print), TypeError, "a Counter"),
            (lambda: group.register(ended, allocate=print, packet=print), ValueError, "one of them"),
            (lambda: group.register(ended, depth=0), ValueError, "depth"),
            (lambda: group.am(b"", 2, 0), ValueError, "rank"),
            (lambda: group.am(b"", 1, -1), ValueError, "target"),
            (lambda: group.am(b"", 1, 0, tag=1 << 32), ValueError, "tag"),
            (lambda: group.put(b"12345678", 0, handle, offset=1), ValueError, "do not fit"),
            (lambda: group.put(b"1", 0, memory), TypeError, "RemoteBuffer"),
            (lambda: group.get(bytearray(9), 0, handle), ValueError, "do not fit"),
            (lambda: Synchronizer(group, 0), ValueError, "threshold"),
            (lambda: Handler(group, print, executor=group, loop=group), ValueError, "one of them"),
        ):
            with pytest.raises(error, match=text):
                call()


class TestWaiting:
    def test_synchronizer(self, two: list[zh.Group]) -> None:
        sync = Synchronizer(two[1], 3)
        number = two[1].register(sync)
        two[0].am(b"", 1, number, tag=0).result(PATIENCE_S)
        with pytest.raises(zh.DeadlineExceeded):
            sync.wait(0.05)
        assert not sync.test()
        for tag in range(1, 7):
            two[0].am(b"", 1, number, tag=tag).result(PATIENCE_S)
        assert [each.tag for each in sync.wait(PATIENCE_S)] == [0, 1, 2]
        assert [each.tag for each in sync.wait(PATIENCE_S)] == [3, 4, 5]
        assert not sync.test()

    def test_several_threads_wait_for_one_object(self, two: list[zh.Group]) -> None:
        ended = CompletionList(two[1])
        number = two[1].register(ended)
        with ThreadPoolExecutor(4) as pool:
            waits = [pool.submit(ended.pop, PATIENCE_S) for _ in range(40)]
            for tag in range(40):
                two[0].am(b"", 1, number, tag=tag).result(PATIENCE_S)
            assert sorted(wait.result().tag for wait in waits) == list(range(40))

    def test_on_an_event_loop(self, two: list[zh.Group]) -> None:
        ended, counter = CompletionList(two[1]), Counter(two[1])
        numbers = [two[1].register(each) for each in (ended, counter)]

        async def main() -> list[int]:
            waits = [asyncio.create_task(ended.next(PATIENCE_S)) for _ in range(5)]
            counted = asyncio.create_task(counter.until(5, PATIENCE_S))
            await asyncio.sleep(0)
            for tag in range(5):
                for number in numbers:
                    await two[0].am(b"", 1, number, tag=tag)
            tags = [(await wait).tag for wait in waits]
            assert await counted == 5
            with pytest.raises(zh.DeadlineExceeded):
                await ended.next(0.05)
            await two[0].am(b"", 1, numbers[0], tag=77)
            async for each in ended:
                return [*tags, each.tag]
            return []

        assert sorted(asyncio.run(main())) == [0, 1, 2, 3, 4, 77]

    def test_handlers_run_where_the_user_chose(self, two: list[zh.Group]) -> None:
        told: list[tuple[int, str]] = []

        def note(ended: Ended) -> None:
            told.append((ended.tag, threading.current_thread().name))

        polled = Handler(two[1], note)
        number = two[1].register(polled)
        two[0].am(b"", 1, number, tag=1).result(PATIENCE_S)
        assert polled.run(PATIENCE_S) == 1
        assert polled.run(0) == 0
        assert told == [(1, threading.current_thread().name)]
        with ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
            handler = Handler(two[1], note, executor=pool)
            number = two[1].register(handler)
            two[0].am(b"", 1, number, tag=2).result(PATIENCE_S)
            eventually(lambda: len(told) == 2, "the executor has not called")
            handler.close()
        assert told[1][1].startswith("mine")

        async def main() -> None:
            called = asyncio.Event()

            def note_here(ended: Ended) -> None:
                note(ended)
                called.set()

            handler = Handler(two[1], note_here, loop=asyncio.get_running_loop())
            number = two[1].register(handler)
            await two[0].am(b"", 1, number, tag=3)
            await called.wait()
            await asyncio.to_thread(handler.close)

        asyncio.run(main())
        assert told[2] == (3, threading.current_thread().name)


def test_a_put_goes_where_the_group_has_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to the address in the handle, if the link is lost between connecting and writing."""
    written: list[object] = []
    with groups(tmp_path, 2) as two:
        zh.wait_all([each.barrier() for each in two], PATIENCE_S)
        handle, number = two[1].context.alloc(8).share("rw"), two[1].register(CompletionList(two[1]))
        connect = two[0].connect
        stale = [connect(1)]
        connection = stale[0].result(PATIENCE_S)
        two[1].context.close()
        eventually(lambda: not connection.alive, "the loss is not noticed")
        monkeypatch.setattr(two[0], "connect", lambda rank, **given: stale.pop() if stale else connect(rank, **given))
        monkeypatch.setattr(two[0].context, "write", lambda *given, **_: written.append(given))
        with pytest.raises(zh.PeerLost, match=r"put.* rank 1: "):
            two[0].put(bytes(8), 1, handle, target=number).result(PATIENCE_S)
    assert not stale
    assert not written
