"""A Group over NICs: messages, active messages, puts, gets and a sum between two processes, every byte checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.options import Options
from support.patience import patience
from support.ranks import Rank, RankProcess, ranks
from support.sizes import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.ranks import Side

pytestmark = pytest.mark.timeout(patience(60))
# Around the size of what is copied into a frame, of what waits at the receiver, and of a piece.
SIZES = (0, 1, 256, 257, 8192, 8193, 262_145, MIB + 1)
OPTIONS = Options(providers=("verbs",), nics="rxe0", timeout=patience(15.0))


@pytest.fixture(scope="module")
def other(runtime_directory: None) -> Iterator[RankProcess]:
    """Starts the other process, which takes ten seconds here, for all tests."""
    process = RankProcess()
    yield process
    process.finish()


@pytest.fixture
def both(tmp_path: Path, other: RankProcess) -> Iterator[list[Side]]:
    """Opens two ranks, whose messages go over verbs."""
    with ranks(tmp_path, [other], OPTIONS) as sides:
        assert [sides[0].call(Rank.provider, 1), sides[1].call(Rank.provider, 0)] == ["verbs", "verbs"]
        yield sides


@pytest.mark.parametrize("first", ["send", "recv", "probe"])
def test_messages(both: list[Side], first: str) -> None:
    """Each way, at every size, from and into memory of the host and of a device by turns."""
    for seed, nbytes in enumerate(SIZES):
        place = ("host", "sim:0")[seed % 2]
        for source, target in ((0, 1), (1, 0)):
            sender, receiver = both[source], both[target]
            asked = ((source, seed), (source, None), (None, seed), (None, None))[(seed + target) % 4]
            if first == "send":
                sent = sender.call(Rank.send, "host", nbytes, seed, target, seed)
                receiving = receiver.call(Rank.recv, place, nbytes, *asked)
            elif first == "recv":
                receiving = receiver.call(Rank.recv, "host", nbytes, *asked)
                sent = sender.call(Rank.send, place, nbytes, seed, target, seed)
            else:
                probe = receiver.call(Rank.probe, *asked)
                sent = sender.call(Rank.send, place, nbytes, seed, target, seed)
                receiving, found = receiver.call(Rank.claim, probe, place)
                assert found == (source, seed, nbytes)
            assert receiver.call(Rank.received, receiving, seed) == (source, seed, nbytes)
            assert sender.call(Rank.finish, sent) == nbytes


def test_completion_objects(both: list[Side]) -> None:
    """The other process is told of active messages, and of puts and gets when the bytes are there."""
    here, there = both
    for place in ("host", "sim:0"):
        number = there.call(Rank.register, place)
        memory, handle = there.call(Rank.share, place, SIZES[-1] + 200)
        for seed, nbytes in enumerate(SIZES):
            sent = here.call(Rank.am, "host", nbytes, seed, 1, number, seed)
            assert there.call(Rank.told, number, seed) == ("am", 0, seed, nbytes)
            assert here.call(Rank.finish, sent) == nbytes
            put = here.call(Rank.put, "host", nbytes, seed, 1, handle, 100, number, seed + 50)
            assert there.call(Rank.told, number) == ("put", 0, seed + 50, nbytes)
            there.call(Rank.expect, memory, 100, nbytes, seed)
            assert here.call(Rank.finish, put) == nbytes
            there.call(Rank.fill, memory, 100, nbytes, seed)
            assert here.call(Rank.get, "host", nbytes, seed, 1, handle, 100, number, seed) == nbytes
            assert there.call(Rank.told, number) == ("get", 0, seed, nbytes)
            there.call(Rank.fill, memory, 0, 0, seed)
            there.call(Rank.expect, memory, 100, nbytes, seed)
        there.call(Rank.told_no_more, number)
    counter, handle = there.call(Rank.share, "host", 16)
    assert here.call(Rank.fetch_add, handle, 5, 8) == 0
    assert here.call(Rank.compare_swap, handle, 5, 9, 8) == 5
    assert there.call(Rank.read, counter, 8, 8) == (9).to_bytes(8, "little")


def test_collectives(both: list[Side], other: RankProcess) -> None:
    for nbytes in (8, 8192, 8200, 400_000):
        other.begin(Rank.sum_of_ranks, nbytes)
        assert both[0].call(Rank.sum_of_ranks, nbytes)
        assert other.end()
