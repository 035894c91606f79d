"""Groups of some of the ranks, and ranks that leave a group while their Context stays open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.groups import groups
from support.lanes import eventually
from support.patience import PATIENCE_S
from support.pattern import poison

if TYPE_CHECKING:
    from pathlib import Path

PROVIDERS = ("shm", "tcp")


class TestSubgroups:
    def test_ranks_have_numbers_of_their_own_and_messages_do_not_mix(self, tmp_path: Path) -> None:
        with groups(tmp_path, 4) as ranks:
            odd = [ranks[rank].subgroup([3, 1]) for rank in (3, 1)]
            again = [ranks[rank].subgroup([3, 1]) for rank in (3, 1)]
            assert [(each.rank, each.size, each.ranks) for each in odd] == [(0, 2, (3, 1)), (1, 2, (3, 1))]
            into = np.zeros(3, np.int64)
            receives = [group[1].recv(into[at : at + 1]) for at, group in enumerate((odd, again))]
            receives.append(ranks[1].recv(into[2:]))
            ranks[3].send(np.array([30]), 1).result(PATIENCE_S)
            again[0].send(np.array([20]), 1).result(PATIENCE_S)
            odd[0].send(np.array([10]), 1).result(PATIENCE_S)
            assert [each.result(PATIENCE_S).source for each in receives] == [0, 0, 3]
            assert into.tolist() == [10, 20, 30]
            inner = [each.subgroup([1, 0]) for each in odd]
            assert inner[0].ranks == (1, 3)
            inner[1].send(np.array([5]), 1).result(PATIENCE_S)
            assert inner[0].recv(into[:1]).result(PATIENCE_S).source == 0
            assert "rank 1 of 2, by store, ranks 1, 3 of the program" in repr(inner[0])

    def test_errors_name_the_rank_by_its_number_in_the_group(self, tmp_path: Path) -> None:
        with groups(tmp_path, 3) as ranks:
            both = [ranks[rank].subgroup([2, 0]) for rank in (2, 0)]
            waiting = [both[0].recv(poison(8), 1), both[0].recv(poison(8)), ranks[2].recv(poison(8), 0)]
            both[1].send(np.array([1]), 0).result(PATIENCE_S)
            assert waiting.pop(0).result(PATIENCE_S).source == 1
            ranks[0].context.close()
            texts = []
            for each in waiting:
                with pytest.raises(zh.PeerLost) as failed:
                    each.result(PATIENCE_S)
                texts.append(failed.value.reason[:7])
            assert texts == ["rank 1:", "rank 0:"]
            # Known from the beginning to a group that is made afterwards.
            later = ranks[2].subgroup([0, 1, 2])
            with pytest.raises(zh.PeerLost, match="rank 0:"):
                later.recv(poison(8)).result(PATIENCE_S)
            survivors = [ranks[rank].subgroup([1, 2]) for rank in (1, 2)]
            survivors[0].send(np.array([4]), 1).result(PATIENCE_S)
            assert survivors[1].recv(poison(8)).result(PATIENCE_S).source == 0

    def test_what_is_no_list_of_ranks(self, two: list[zh.Group]) -> None:
        for ranks, text in (([1], "must have rank 0"), ([0, 0], "twice"), ([0, 2], "rank"), ([], "must have rank 0")):
            with pytest.raises(ValueError, match=text):
                two[0].subgroup(ranks)
        with pytest.raises(TypeError):
            two[0].subgroup(["0"])  # type: ignore[list-item]  # what the error is about
        two[0].close()
        with pytest.raises(zh.Closed):
            two[0].subgroup([0, 1])

    def test_a_closed_one_leaves_the_others(self, two: list[zh.Group]) -> None:
        both = [each.subgroup([0, 1]) for each in two]
        receive = both[0].recv(poison(8))
        both[0].close()
        with pytest.raises(zh.Closed):
            receive.result(PATIENCE_S)
        two[0].send(np.array([1]), 1).result(PATIENCE_S)
        assert two[1].recv(poison(8)).result(PATIENCE_S).source == 0


class TestLeaving:
    """A rank closes its Group, and its Context stays open."""

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_receives_end_behind_the_last_message(self, tmp_path: Path, provider: str) -> None:
        with groups(tmp_path, 3, provider) as ranks:
            waiting = [ranks[1].recv(bytearray(1), 0, tag=9), ranks[2].recv(bytearray(1), 0)]
            ranks[0].recv(poison(1), 1, tag=7, timeout=0.2).exception(PATIENCE_S)  # it is greeted, too
            for number in range(100):
                ranks[0].send(np.array([number]), 1, tag=1).result(PATIENCE_S)
            ranks[0].close()
            into = np.zeros(1, np.int64)
            for number in range(100):
                assert ranks[1].recv(into, 0, tag=1).result(PATIENCE_S).nbytes == 8
                assert into[0] == number
            for each in waiting:
                with pytest.raises(zh.PeerLost, match="rank 0: it has left the group"):
                    each.result(PATIENCE_S)
            with pytest.raises(zh.PeerLost, match="rank 0: it has left the group"):
                ranks[1].recv(into, 0).result(PATIENCE_S)
            with pytest.raises(zh.PeerLost, match="rank 0"):
                ranks[1].recv(into).result(PATIENCE_S)
            ranks[2].send(np.array([5]), 1).result(PATIENCE_S)
            assert ranks[1].recv(into).result(PATIENCE_S).source == 2

    def test_one_that_only_receives_tells_those_that_wait_for_it(self, two: list[zh.Group]) -> None:
        waiting = two[1].recv(bytearray(1), 0)
        eventually(lambda: 1 in two[0]._members.reached(), "the greeting does not come")
        two[0].close()
        with pytest.raises(zh.PeerLost, match="rank 0: it has left the group"):
            waiting.result(PATIENCE_S)

    def test_a_subgroup_and_its_collectives(self, tmp_path: Path) -> None:
        with groups(tmp_path, 3) as ranks:
            subs = [ranks[rank].subgroup([2, 0, 1]) for rank in (2, 0, 1)]
            for barrier in [each.barrier() for each in subs]:
                barrier.result(PATIENCE_S)
            barriers = [each.barrier() for each in subs[1:]]
            subs[0].close()
            for barrier in barriers:
                with pytest.raises(zh.PeerLost, match="rank 0"):
                    barrier.result(PATIENCE_S)
            for barrier in [each.barrier() for each in ranks]:  # the whole group goes on
                barrier.result(PATIENCE_S)
