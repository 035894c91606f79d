"""Collectives in memory that all ranks of a host share."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import groups
from support.lanes import eventually
from support.leaks import holdings
from support.patience import PATIENCE_S, patience
from support.pattern import pattern
from zerohop._native import BOARD_RANKS, BOARD_SLOT_BYTES, Board
from zerohop.group.collectives import reducing, shared
from zerohop.group.collectives.meetings import Meetings
from zerohop.group.collectives.operands import Numbers
from zerohop.group.collectives.shared import Shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHARED = "shared memory"


def in_all(ranks: list[zh.Group], call: Callable[[zh.Group], zh.Operation[Any]]) -> list[Any]:
    return [operation.result(PATIENCE_S) for operation in [call(group) for group in ranks]]


def algorithms(ranks: list[zh.Group], kind: str = "barrier", x: Any = None) -> set[str]:
    return {group.explain(kind, x).algorithm for group in ranks}


def test_ranks_find_out_with_their_first_collective(tmp_path: Path) -> None:
    with groups(tmp_path, 3) as ranks:
        assert algorithms(ranks) == {"dissemination"}
        first = np.arange(10.0)
        in_all(ranks, lambda group: group.broadcast(first.copy(), 1))
        assert algorithms(ranks) == {SHARED}
        assert algorithms(ranks, "allreduce", np.ones(BOARD_SLOT_BYTES, np.uint8)) == {SHARED}
        assert algorithms(ranks, "allreduce", np.ones(BOARD_SLOT_BYTES + 1, np.uint8)) == {"ring"}
        some = [group.subgroup([2, 0]) for group in (ranks[0], ranks[2])]
        in_all(some, lambda group: group.barrier())
        assert algorithms(some) == {SHARED}


@pytest.mark.parametrize("fails", ["_offered", "_mapped"])
def test_one_that_has_no_memory(tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks then use messages."""
    attempt: Any = getattr(Shared, fails)

    def refuse(itself: Any, *arguments: Any) -> Any:
        async def nothing() -> None:
            return None

        if fails == "_offered":
            return None
        return nothing() if itself._rank == 2 else attempt(itself, *arguments)

    monkeypatch.setattr(Shared, fails, refuse)
    with groups(tmp_path, 4) as ranks:
        for _ in range(3):
            assert all(value[0] == 4 for value in in_all(ranks, lambda group: group.allreduce(np.ones(5))))
        assert algorithms(ranks) == {"dissemination"}


def test_one_whose_memory_is_taken_back_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks then use messages."""

    class Lost(Board):
        def __init__(self, memory: Any, ranks: int, rank: int) -> None:
            if rank == 1:
                raise ValueError("a board needs memory of the host")
            super().__init__(memory, ranks, rank)

    monkeypatch.setattr(shared, "Board", Lost)
    with groups(tmp_path, 3) as ranks:
        assert all(value[0] == 3 for value in in_all(ranks, lambda group: group.allreduce(np.ones(5))))
        assert algorithms(ranks) == {"dissemination"}


def test_too_many_ranks_use_messages(tmp_path: Path) -> None:
    with groups(tmp_path, BOARD_RANKS + 1) as ranks:
        in_all(ranks, lambda group: group.barrier())
        assert algorithms(ranks) == {"dissemination"}


def test_ranks_that_come_at_any_moment(tmp_path: Path) -> None:
    """Some wait in the call, some on an event loop; each sum is of its own round."""
    size, rounds = 3, 300
    with groups(tmp_path, size) as ranks:
        wrong: list[tuple[int, int]] = []

        def values(rank: int, number: int) -> Any:
            return pattern(number * size + rank, 1 + number % 50 * 300).astype(np.int64)

        def check(rank: int, number: int, out: Any) -> None:
            if (out != sum(values(other, number) for other in range(size))).any():
                wrong.append((rank, number))

        async def awaited(rank: int, group: zh.Group) -> None:
            chance = random.Random(rank)
            for number in range(rounds):
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 1e-3)  # the moments are random on purpose: no event is meant
                check(rank, number, await group.allreduce(values(rank, number)))

        def called(rank: int, group: zh.Group) -> None:
            chance = random.Random(rank)
            for number in range(rounds):
                if chance.random() < 0.3:
                    time.sleep(chance.random() * 1e-3)  # no event is waited for: a rank comes late by chance
                check(rank, number, group.allreduce(values(rank, number)).result(PATIENCE_S))

        threads = [threading.Thread(target=called, args=(rank, ranks[rank])) for rank in range(size - 1)]
        for thread in threads:
            thread.start()
        asyncio.run(awaited(size - 1, ranks[size - 1]))
        for thread in threads:
            thread.join()
        assert not wrong
        assert algorithms(ranks) == {SHARED}


def test_the_last_result_is_read_also_if_rank_0_leaves(two: list[zh.Group], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the memory, and closes its Context as soon as it has its own result."""
    in_all(two, lambda group: group.barrier())
    taking: Any = Meetings._take
    closing = threading.Thread(target=two[0].context.close)

    def late(meetings: Any, meeting: Any) -> None:
        if meetings._rank == 1:
            first.result(PATIENCE_S)
            closing.start()
            time.sleep(patience(0.2))  # no event tells that the memory is asked for, in vain, by the rank that closes
        taking(meetings, meeting)

    monkeypatch.setattr(Meetings, "_take", late)
    first = two[0].allreduce(np.ones(1000))
    second = two[1].allreduce(np.ones(1000))
    assert (second.result(PATIENCE_S) == 2).all()
    closing.join()
    with pytest.raises(zh.PeerLost) as caught:
        two[1].barrier().result(PATIENCE_S)
    assert caught.value.ranks == (0,)


def test_lengths_of_one_checksum(two: list[zh.Group]) -> None:
    """A tag has 12 bits of the length, and the two would take half of what the other has for all of it."""
    in_all(two, lambda group: group.barrier())
    sums: dict[int, int] = {}
    nbytes = other = 0
    for nbytes in range(8, 60_000, 8):
        other = sums.setdefault(zlib.crc32(nbytes.to_bytes(8, "little")) & 0xFFF, nbytes)
        if other != nbytes:
            break
    operations = [group.allreduce(np.ones(length // 8)) for group, length in zip(two, (nbytes, other), strict=True)]
    for rank, operation in enumerate(operations):
        with pytest.raises(zh.ZerohopError, match=f"rank {1 - rank}: .*(its number of bytes is another|call differs)"):
            operation.result(PATIENCE_S)


def test_a_barrier_that_waits_is_told_of_a_loss(tmp_path: Path) -> None:
    with groups(tmp_path, 3) as ranks:
        in_all(ranks, lambda group: group.barrier())
        waiting = [group.barrier() for group in ranks[:2]]
        ranks[2].context.close()
        for operation in waiting:
            with pytest.raises(zh.PeerLost) as caught:
                operation.result(PATIENCE_S)
            assert caught.value.ranks == (2,)
        survivors = [group.subgroup([0, 1]) for group in ranks[:2]]
        assert all(value[0] == 2 for value in in_all(survivors, lambda group: group.allreduce(np.ones(3))))
        assert algorithms(survivors) == {SHARED}


def test_a_closed_group_gives_the_memory_back(two: list[zh.Group]) -> None:
    """The Contexts stay open, and somebody keeps the Groups."""
    in_all(two, lambda group: group.barrier())
    before, closed = holdings().mappings, list[zh.Group]()
    for _ in range(3):
        made = [group.subgroup([0, 1]) for group in two]
        in_all(made, lambda group: group.barrier())
        assert algorithms(made) == {SHARED}
        for group in made:
            group.close()
        closed += made
    eventually(lambda: holdings().mappings == before, "they are still mapped")


def test_a_barrier_that_is_called_as_the_ranks_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do so between the two looks of its thread."""
    with groups(tmp_path, 3) as ranks:
        first: list[zh.Operation[Any]] = []
        held: dict[int, bool] = {}

        def read(itself: Any) -> bool:
            if first and threading.current_thread() is threading.main_thread():
                for operation in first:
                    operation.result(PATIENCE_S)
            return held[id(itself)]

        monkeypatch.setattr(
            Shared, "agreed", property(read, lambda itself, value: held.__setitem__(id(itself), value)), raising=False
        )
        some = [group.subgroup([0, 1, 2]) for group in ranks]
        begun = [group.barrier() for group in some]
        first.extend(begun)
        in_all(some, lambda group: group.barrier())
        in_all(some, lambda group: group.barrier())


@pytest.mark.parametrize("fails", ["put", "take"])
def test_a_slot_that_cannot_be_filled_or_read(two: list[zh.Group], fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Operation says so, and the other rank is told at once."""
    in_all(two, lambda group: group.barrier())

    owner, name = (reducing, "put_bytes") if fails == "put" else (Numbers, "reduce_bytes")
    attempt: Any = getattr(owner, name)

    def fail(operand: Any, *arguments: Any) -> None:
        if (operand.numpy().view(float) if fails == "put" else operand.flat)[0] == 7:
            raise zh.DeviceFailed("the device has fallen off the bus")
        attempt(operand, *arguments)

    monkeypatch.setattr(owner, name, fail)
    other: zh.Operation[Any]
    failing, other = two[0].allreduce(np.full(5, 7.0)), two[1].allreduce(np.ones(5))
    with pytest.raises(zh.DeviceFailed):
        failing.result(PATIENCE_S)
    if fails == "take":  # the other rank has all that it needs
        assert (other.result(PATIENCE_S) == 8).all()
        other = two[1].barrier()
    with pytest.raises(zh.PeerLost, match="rank 0: it has given up"):
        other.result(PATIENCE_S / 2)


@pytest.mark.parametrize("late", [2, 3])
def test_a_loss_is_told_while_another_rank_is_late(tmp_path: Path, late: int) -> None:
    with groups(tmp_path, 4) as ranks:
        in_all(ranks, lambda group: group.barrier())
        waiting = [group.barrier() for group in ranks[:2]]
        ranks[5 - late].context.close()
        for operation in waiting:
            with pytest.raises(zh.PeerLost) as caught:
                operation.result(PATIENCE_S / 2)
            assert caught.value.ranks == (5 - late,)


DIFFERENT: dict[str, tuple[Callable[[zh.Group], Any], Callable[[zh.Group], Any]]] = {
    "broadcast": (lambda group: group.barrier(), lambda group: group.broadcast(np.ones(1 << 17))),
    "gather": (lambda group: group.barrier(), lambda group: group.gather(np.ones(1 << 17), np.ones(1 << 19))),
    "longer": (
        lambda group: group.allreduce(np.ones(BOARD_SLOT_BYTES // 8)),
        lambda group: group.allreduce(np.ones(BOARD_SLOT_BYTES // 8 + 1)),
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_one_that_uses_messages_meanwhile(tmp_path: Path, what: str) -> None:
    """All ranks are told, also those whose part it does not need."""
    most, last = DIFFERENT[what]
    with groups(tmp_path, 4) as ranks:
        in_all(ranks, lambda group: group.barrier())
        for operation in [*map(most, ranks[:3]), last(ranks[3])]:
            assert isinstance(operation.exception(PATIENCE_S / 2), (zh.ProtocolError, zh.PeerLost))


@pytest.mark.parametrize("kind", ["broadcast", "allreduce", "allgather"])
def test_an_array_whose_file_is_cut_off(two: list[zh.Group], tmp_path: Path, kind: str) -> None:
    """Its pages are gone: an access is a bus error, which ends a process."""
    in_all(two, lambda group: group.barrier())
    file = tmp_path / "array"
    file.write_bytes(bytes(40_000))
    array = np.memmap(file, np.float32, "r+")
    calls: dict[str, Callable[[zh.Group, Any], zh.Operation[Any]]] = {
        "broadcast": lambda group, x: group.broadcast(x),
        "allreduce": lambda group, x: group.allreduce(x, out=np.empty(10_000, np.float32)),
        "allgather": lambda group, x: group.allgather(x, np.empty(20_000, np.float32)),
    }
    os.truncate(file, 0)
    failing, other = calls[kind](two[0], array), calls[kind](two[1], np.ones(10_000, np.float32))
    with pytest.raises(zh.AccessDenied, match="truncated"):
        failing.result(PATIENCE_S)
    with pytest.raises(zh.PeerLost, match="rank 0: it has given up"):
        other.result(PATIENCE_S)


def test_a_tensor_that_was_moved_while_it_waited(two: list[zh.Group]) -> None:
    torch = pytest.importorskip("torch")
    in_all(two, lambda group: group.barrier())
    tensor = torch.zeros(1000)
    waiting = two[1].broadcast(tensor)
    tensor.untyped_storage().resize_(80_000_000)
    two[0].broadcast(torch.ones(1000)).result(PATIENCE_S)
    with pytest.raises(zh.Closed, match="moved"):
        waiting.result(PATIENCE_S)
