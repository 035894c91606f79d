"""LCI's names: every call between two ranks, by objects and by addresses, with each kind of completion object."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import PLACES, groups
from support.patience import PATIENCE_S, patience
from support.pattern import pattern, poison
from zerohop.compat import lci
from zerohop.group import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLE = Path(__file__).parents[2] / "examples" / "lci_gpu_direct.py"


@contextmanager
def rank_of(group: zh.Group) -> Iterator[None]:
    """Speaks for a rank: all of them are in this process."""
    lci._runtimes.append(group)
    try:
        yield
    finally:
        lci._runtimes.pop()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[zh.Group]]:
    with groups(tmp_path, 2) as both:
        both[0].connect(1).result(PATIENCE_S)
        both[1].connect(0).result(PATIENCE_S)
        yield both
        lci._comps.clear()


def test_a_runtime_is_needed() -> None:
    for call in (lci.get_rank_me, lci.barrier, lci.alloc_cq):
        with pytest.raises(RuntimeError, match="g_runtime_init"):
            call()


def test_runtime(tmp_path: Path) -> None:
    with groups(tmp_path, 1) as (group,):
        lci.g_runtime_init(group)
        assert (lci.get_rank_me(), lci.get_rank_n()) == (0, 1)
        lci.barrier()
        assert lci.allgather(b"x") == [b"x"]
        lci.g_runtime_fina()
        with pytest.raises(zh.Closed):
            group.barrier()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("hint", ["region", "host or device", "unknown"])
@pytest.mark.parametrize("nbytes", [64, 200_000])
def test_sends_of_addresses(two: list[zh.Group], place: str, hint: str, nbytes: int) -> None:
    """A part of memory, at an offset, with each way to say what memory it is."""
    memories = [each.context.alloc(300_000, place) for each in two]
    memories[0].write_bytes(0, pattern(1, 300_000).tobytes())
    syncs = []
    for rank in (1, 0):
        with rank_of(two[rank]):
            mr: Any = lci.MR_UNKNOWN
            if hint == "region":
                mr = lci.register_memory(memories[rank])
            elif hint != "unknown":
                mr = lci.MR_HOST if place == "host" else lci.MR_DEVICE
            sync = lci.alloc_sync()
            syncs.append(sync)
            address = memories[rank].address + 1000
            if rank == 1:
                status = lci.post_recv(0, address, nbytes, 5, sync, mr=mr, user_context="mine", allow_done=False)
            else:
                status = lci.post_send(1, address, nbytes, 5, sync, mr=mr, allow_done=False)
            assert status.is_posted()
    received, sent = (lci.sync_wait(sync)[0] for sync in syncs)
    assert received[:3] == (State.DONE, 0, 5)
    assert (received.size, received.user_context) == (nbytes, "mine")
    assert received.buffer == memories[1].address + 1000, "the status has the buffer that was passed"
    assert sent[:3] == (State.DONE, 1, 5)
    assert memories[1].read_bytes(1000, nbytes) == pattern(1, 300_000)[1000:][:nbytes].tobytes()


def test_completion_objects(two: list[zh.Group]) -> None:
    told: list[lci.Status] = []
    with rank_of(two[1]):
        objects = lci.alloc_cq(), lci.alloc_counter(), lci.alloc_handler(told.append), lci.alloc_sync(2)
        numbers = [lci.register_rcomp(each) for each in objects]
        assert lci.cq_pop(objects[0]).is_retry()
    with rank_of(two[0]):
        for number in [*numbers, numbers[-1]]:
            assert lci.post_am(1, b"hello", 5, None, number, tag=3).is_done()
    with rank_of(two[1]):
        assert [each.rank for each in lci.sync_wait(objects[3])] == [0, 0]
        while not told:
            lci.progress()
        assert (told[0].rank, told[0].tag, told[0].size, bytes(told[0].buffer)) == (0, 3, 5, b"hello")
        while not lci.counter_get(objects[1]):
            pass
        status = lci.cq_pop(objects[0])
        assert (status.tag, bytes(status.buffer)) == (3, b"hello")
        lci.deregister_rcomp(numbers[0])
        lci.free_comp(objects[0])
        assert not lci.sync_test(objects[3])


def test_puts_gets_and_handles(two: list[zh.Group]) -> None:
    memory = two[1].context.alloc(1000)
    with rank_of(two[1]):
        mr = lci.register_memory(memory)
        rmr = lci.get_rmr(mr)
        arrived = lci.alloc_cq()
        number = lci.register_rcomp(arrived)
    with rank_of(two[0]):
        sync = lci.alloc_sync()
        status = lci.post_put(1, pattern(1, 100), 100, sync, 50, rmr, tag=4, remote_comp=number)
        moved = lci.sync_wait(sync)[0] if status.is_posted() else status
        assert moved.size == 100
        into = poison(100)
        while (status := lci.post_get(1, into, 100, sync, 50, rmr)).is_retry():
            pass
        assert status.is_done() or lci.sync_wait(sync)[0].size == 100
        assert (into == pattern(1, 100)).all()
    told = arrived.pop(PATIENCE_S)
    assert (told.kind, told.rank, told.tag, told.nbytes) == ("put", 0, 4, 100)
    with rank_of(two[1]):
        lci.deregister_memory(mr)
    with pytest.raises((zh.AccessDenied, zh.Closed)):
        two[0].put(b"x", 1, rmr).result(PATIENCE_S)


@pytest.mark.parametrize("place", PLACES)
def test_the_example(place: str) -> None:
    """Three ranks, as a user starts them."""
    command = [sys.executable, "-m", "zerohop.cli", "run", "-n", "3", str(EXAMPLE), "--device", place.partition(":")[0]]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = sorted(ran.stdout.splitlines())
    assert len(lines) == 15
    assert [line.split(": ")[0] for line in lines] == [f"rank {rank}" for rank in range(3) for _ in range(5)]
    assert all(line.endswith("bytes are right") for line in lines)


def test_allgather_of_handles(two: list[zh.Group]) -> None:
    """From two threads, each of which is a rank."""
    found: dict[int, list[bytes]] = {}

    def gather(rank: int) -> None:
        memory = two[rank].context.alloc(8)
        handles = two[rank].exchange(bytes(memory.share("rw"))).result(PATIENCE_S)
        found[rank] = handles
        memory.close()

    threads = [threading.Thread(target=gather, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert [zh.RemoteBuffer.from_bytes(each).nbytes for each in found[0]] == [8, 8]


def test_what_is_refused(two: list[zh.Group]) -> None:
    array = np.zeros(10, np.uint8)
    with rank_of(two[0]):
        mr = lci.register_memory(array)
        refused: list[tuple[Callable[[], object], type[Exception], str]] = [
            (lambda: lci.register_memory(1234), TypeError, "size"),
            (lambda: lci.register_memory(array, 11), ValueError, "10 bytes"),
            (lambda: lci.post_send(1, array, 11, 0, None), ValueError, "10 bytes"),
            (lambda: lci.post_send(1, array, -3, 0, None), ValueError, "size"),
            (lambda: lci.post_recv(1, array, -3, 0, None, mr=mr), ValueError, "size"),
            (lambda: lci.post_send(1, array[5:], 6, 0, None, mr=mr), ValueError, "not in the region"),
            (lambda: lci.post_send(1, np.zeros(3, np.uint8), 3, 0, None, mr=mr), ValueError, "not in the region"),
            (lambda: lci.post_send(1, array, 1, 0, None, allow_it=True), TypeError, "allow_it"),
        ]
        for call, error, text in refused:
            with pytest.raises(error, match=text):
                call()
        assert lci.post_send(1, array[5:], 5, 0, None, mr=mr).is_done()
