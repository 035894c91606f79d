"""Errors of a group carry the ranks that are lost or missing, as numbers of that group."""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import groups
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.pattern import pattern
from zerohop.group import CompletionList
from zerohop.group.collectives import attendance
from zerohop.group.collectives.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE_S = patience(0.3)
# Seconds after a deadline in which a rank must know who is missing.
KNOWS_S = patience(0.5)


def ranks_of(operation: zh.Operation[Any], kind: type[zh.ZerohopError] = zh.DeadlineExceeded) -> tuple[int, ...]:
    with pytest.raises(kind) as caught:
        operation.result(PATIENCE_S)
    return caught.value.ranks


def in_all(ranks: list[zh.Group]) -> None:
    zh.wait_all([group.barrier() for group in ranks], PATIENCE_S)


class TestACollectiveWhoseTimeIsUp:
    @pytest.mark.parametrize("provider", ["shm", "tcp"])
    def test_all_that_are_missing_are_named(self, tmp_path: Path, provider: str) -> None:
        """A rank of eight waits for three others in a barrier. Each names both that have not come."""
        with groups(tmp_path, 8, provider) as ranks:
            in_all(ranks)
            began = time.monotonic()
            waiting = [group.barrier(timeout=DEADLINE_S) for group in ranks if group.rank not in (3, 5)]
            for operation in waiting:
                with pytest.raises(zh.DeadlineExceeded, match="barrier: ranks 3, 5 have not called barrier") as caught:
                    operation.result(PATIENCE_S)
                assert caught.value.ranks == (3, 5)
                assert pickle.loads(pickle.dumps(caught.value)).ranks == (3, 5)
            assert time.monotonic() - began < DEADLINE_S + KNOWS_S
            # What is refused after that names them, too.
            assert ranks_of(ranks[0].barrier(), zh.ZerohopError) == (3, 5)

    def test_one_that_is_told_by_another_names_all(self, tmp_path: Path) -> None:
        """The third waits for the first in the second step, and has no deadline."""
        with groups(tmp_path, 5, "tcp") as ranks:
            in_all(ranks)
            waiting = [group.barrier(timeout=DEADLINE_S) for group in ranks[:2]]
            waiting.append(ranks[2].barrier(timeout=math.inf))
            assert [ranks_of(operation) for operation in waiting] == [(3, 4)] * 3

    def test_each_is_missing_for_a_reason(self, tmp_path: Path) -> None:
        """One has no Group, one has not called it, and the two that wait know both."""
        with groups(tmp_path, 4) as ranks:
            waiting = [group.allreduce(np.ones(5), timeout=DEADLINE_S) for group in ranks[:2]]
            for operation in waiting:
                with pytest.raises(zh.DeadlineExceeded, match="ranks 2, 3 have not called allreduce") as caught:
                    operation.result(PATIENCE_S)
                assert caught.value.ranks == (2, 3)
        with Options().open() as here, Options().open() as there:
            folder = tmp_path / "of three"
            first, second = (zh.Group(rank, 3, folder, ctx=ctx) for rank, ctx in enumerate((here, there)))
            with (
                first,
                second,
                pytest.raises(
                    zh.DeadlineExceeded, match="rank 2 has not arrived; rank 1 has not called barrier"
                ) as caught,
            ):
                first.barrier(timeout=DEADLINE_S).result(PATIENCE_S)
            assert caught.value.ranks == (1, 2)

    def test_one_whose_turn_does_not_come(self, tmp_path: Path) -> None:
        with groups(tmp_path, 3) as ranks:
            in_all(ranks)
            first, queued = [group.barrier() for group in ranks[:2]], ranks[0].barrier(timeout=DEADLINE_S)
            with pytest.raises(
                zh.DeadlineExceeded,
                match="an earlier collective of this group has not ended: ranks 1, 2 have not called barrier",
            ) as caught:
                queued.result(PATIENCE_S)
            assert caught.value.ranks == (1, 2)
            ranks[2].barrier().result(PATIENCE_S)
            zh.wait_all(first, PATIENCE_S)

    def test_a_group_too_large_to_ask_all(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It asks the ranks that were reached before, or are to be reached first, and calls nobody else missing."""
        monkeypatch.setattr(attendance, "_MOST_ASKED", 2)
        with groups(tmp_path, 8) as ranks:
            ranks[0].connect(7).result(PATIENCE_S)
            assert ranks_of(ranks[0].barrier(timeout=DEADLINE_S)) == (1, 2, 4, 7)

    def test_numbers_are_those_of_the_group(self, tmp_path: Path) -> None:
        with groups(tmp_path, 4) as ranks:
            in_all(ranks)
            some = [ranks[rank].subgroup([3, 1, 2]) for rank in (3, 1, 2)]
            waiting = [group.barrier(timeout=DEADLINE_S) for group in some[:2]]
            assert [ranks_of(operation) for operation in waiting] == [(2,)] * 2
            others = [ranks[rank].subgroup([2, 0]) for rank in (2, 0)]
            receiving, of_any = others[1].recv(bytearray(1), 0), others[1].recv(bytearray(1))
            ranks[2].context.close()
            assert ranks_of(receiving, zh.PeerLost) == (0,)
            assert ranks_of(of_any, zh.PeerLost) == (0,)
            assert ranks_of(ranks[0].recv(bytearray(1), 2), zh.PeerLost) == (2,)

    def test_which_collectives_were_called(self) -> None:
        """Also where the bits that are compared begin anew."""
        turns = Turns()
        assert not turns.has_taken(0, 7)
        for number in range(20):
            turns.take([])
            assert turns.has_taken(number & 7, 7)
            assert not turns.has_taken(number + 1 & 7, 7)


class TestMessages:
    def test_a_receive_whose_time_is_up(self, tmp_path: Path) -> None:
        with groups(tmp_path, 4) as ranks:
            receiving = ranks[0].recv(bytearray(1), 1)
            assert ranks_of(ranks[0].recv(bytearray(1), 3, timeout=0.01)) == (3,)
            with pytest.raises(zh.DeadlineExceeded, match="no rank has sent") as caught:
                ranks[0].recv(bytearray(1), timeout=0.01).result(PATIENCE_S)
            assert caught.value.ranks == ()
            with pytest.raises(zh.DeadlineExceeded) as caught:
                receiving.result(0.01)  # it goes on
            assert caught.value.ranks == (1,)
            for rank in (3, 1):
                ranks[rank].context.close()
                assert ranks_of(ranks[0].recv(bytearray(1), rank), zh.PeerLost) == (rank,)
                assert ranks_of(ranks[0].recv(bytearray(1)), zh.PeerLost) == (rank,)  # once
            with pytest.raises(zh.DeadlineExceeded, match="no rank has sent; rank 1 is gone; rank 3 is gone") as caught:
                ranks[0].recv(bytearray(1), timeout=0.01).result(PATIENCE_S)
            assert caught.value.ranks == (1, 3)
            with pytest.raises(zh.PeerLost):
                receiving.result(PATIENCE_S)

    @pytest.mark.parametrize("how", ["result", "exception", "await", "wait_all"])
    def test_sends(self, two: list[zh.Group], how: str) -> None:
        """Nobody receives them. A wait that is over, though they go on, names the rank as well."""
        two[0].connect(1).result(PATIENCE_S)
        number = two[1].register(CompletionList(two[1]))
        long = pattern(1, 300_000)
        posts: list[tuple[str, Callable[[], zh.Operation[Any] | None]]] = [
            ("send", lambda: two[0].send(long, 1, timeout=DEADLINE_S)),
            ("am", lambda: two[0].am(long, 1, number, timeout=DEADLINE_S)),
            ("send", lambda: two[0].post_send(long, 1, timeout=DEADLINE_S).operation),
        ]
        for name, post in posts:
            sending = post()
            assert sending is not None
            with pytest.raises(zh.DeadlineExceeded, match=r"rank 1: still in flight after 0\.01 s") as caught:
                sending.result(0.01)
            assert caught.value.ranks == (1,)
            assert not sending.done()
            assert "send" in repr(sending)
            error: BaseException | None
            try:
                if how == "await":
                    asyncio.run(_awaited(sending))
                elif how == "wait_all":
                    zh.wait_all([sending], PATIENCE_S)
                elif how == "result":
                    sending.result(PATIENCE_S)
                error = sending.exception(PATIENCE_S)
            except zh.DeadlineExceeded as caught_now:
                error = caught_now
            assert isinstance(error, zh.DeadlineExceeded)
            assert error.ranks == (1,)
            assert f"{name} over shm" in str(error)
            assert ": rank 1: " in str(error)
            assert str(error) in repr(error)
            assert "failed: " in str(sending.explain())

    def test_a_send_that_is_cancelled(self, two: list[zh.Group]) -> None:
        two[0].connect(1).result(PATIENCE_S)
        sending = two[0].send(pattern(1, 300_000), 1)
        assert sending.cancel()
        assert sending.done()
        eventually(lambda: not sending.memory_in_use, "the memory is still in use")

    def test_a_rank_that_has_not_arrived(self, tmp_path: Path) -> None:
        with Options().open() as ctx, zh.Group(0, 2, tmp_path, ctx=ctx) as group:
            assert ranks_of(group.connect(1, timeout=0.1)) == (1,)
            assert ranks_of(group.send(b"x", 1, timeout=0.1)) == (1,)

    def test_a_loss_that_a_completion_object_is_told_of(self, two: list[zh.Group]) -> None:
        told = CompletionList(two[0])
        two[0].register(told)
        two[0].connect(1).result(PATIENCE_S)
        two[1].context.close()
        ended = told.pop(PATIENCE_S)
        assert isinstance(ended.error, zh.PeerLost)
        assert (ended.rank, ended.error.ranks) == (1, (1,))

    def test_a_completion_object_that_is_closed_while_a_rank_is_lost(
        self, two: list[zh.Group], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """None of the receives that were posted for it is reported as unseen."""
        told = CompletionList(two[0])
        posted: list[zh.Operation[Any]] = []

        def watch(self: CompletionList, operation: zh.Operation[Any], of: Any) -> None:
            posted.append(operation)
            self._endings.add(operation, of)

        monkeypatch.setattr(CompletionList, "watch", watch)
        two[0].register(told)
        two[0].connect(1).result(PATIENCE_S)
        two[1].context.close()
        eventually(lambda: all(each.done() for each in posted), "not all receives have ended")
        posted.clear()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            two[0].close()
            del told
            gc.collect()
        assert not [str(each.message) for each in warned]


def test_a_greeting_of_a_rank_that_cannot_be_reached_holds_up_no_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the ranks that greet is stopped, say. That another one leaves is heard of all the same."""
    with groups(tmp_path, 3) as ranks:
        zh.wait_all([ranks[rank].connect(0) for rank in (1, 2)], PATIENCE_S)
        leaving = ranks[0].recv(bytearray(1), 1)  # greets rank 1
        members, heard = ranks[0]._members, asyncio.Event()

        async def never(_: int) -> None:
            heard.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(members, "watch", never)
            waiting = ranks[2].recv(bytearray(1), 0)  # greets rank 0
            eventually(heard.is_set, "rank 2 has not greeted")
        ranks[1].close()
        with pytest.raises(zh.PeerLost, match="rank 1: it has left the group") as caught:
            leaving.result(PATIENCE_S)
        assert caught.value.ranks == (1,)
        waiting.cancel()


async def _awaited(operation: zh.Operation[Any]) -> None:
    await operation


def test_a_loss_that_is_kept_keeps_no_operation(tmp_path: Path) -> None:
    """The error's traceback would keep the operation that has failed, and with it an engine that is closed."""
    with groups(tmp_path, 2) as two:
        two[1].context.close()
        with pytest.raises(zh.PeerLost, match="rank 1"):
            two[0].recv(bytearray(1), 1).result(PATIENCE_S)
        [kept] = two[0]._members._lost.values()
        assert kept.__traceback__ is None


def test_errors_name_what_was_called(tmp_path: Path) -> None:
    """And not how the core does it: an active message is a send there, and a first message a connect."""
    with groups(tmp_path, 2) as two:
        zh.wait_all([two[0].barrier(), two[1].barrier()], PATIENCE_S)
        handle = two[1].context.alloc(8).share("rw")
        two[1].context.close()
        calls = {
            "send": lambda: two[0].send(bytes(100_000), 1),
            "am": lambda: two[0].am(b"", 1, 0),
            "put": lambda: two[0].put(bytes(8), 1, handle, target=0),
            "fetch_add": lambda: two[0].fetch_add(handle, 1),
        }
        for name, call in calls.items():
            with pytest.raises(zh.PeerLost) as caught:
                eventually(lambda call=call: call().result(PATIENCE_S) is None, "it is not noticed")  # type: ignore[misc]
            assert (caught.value.operation, caught.value.ranks) == (name, (1,))
