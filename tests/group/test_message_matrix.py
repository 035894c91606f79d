"""Every operation of a group between processes: each provider, memory at both sides, and matching of messages.

The other rank is a process of its own. It says source, tag and length of what it has got, and checks each byte.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from support.groups import PLACES
from support.options import Options
from support.patience import patience
from support.ranks import Rank, RankProcess, ranks
from zerohop._native import DIRECT_BYTES
from zerohop.group.messages import MOST_TAG

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.ranks import Side

pytestmark = pytest.mark.timeout(patience(40))

PROVIDERS = ("shm", "tcp", "p2p")
# Around the size of what waits at the receiver, and that from which on a receiver reads a GPU's memory.
SIZES = (0, 1, 8192, 8193, DIRECT_BYTES - 1, DIRECT_BYTES)
# Whether a receive names the source, and whether the tag.
POLICIES = ((True, True), (True, False), (False, True), (False, False))
BOTH_WAYS = ((0, 1), (1, 0))
MOST_RANKS = 8


@pytest.fixture(scope="module")
def other(runtime_directory: None) -> Iterator[RankProcess]:
    """Starts the second rank's process, for all tests."""
    process = RankProcess()
    yield process
    process.finish()


@pytest.fixture(scope="module")
def others(other: RankProcess) -> Iterator[list[RankProcess]]:
    """Starts those of the third to the last rank, too."""
    more = [RankProcess() for _ in range(MOST_RANKS - 2)]
    yield [other, *more]
    for process in more:
        process.finish()


def options_of(provider: str) -> Options:
    return Options(providers=(provider,), sim_devices=1)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("target", PLACES)
class TestBetweenTwoProcesses:
    def test_messages(self, tmp_path: Path, other: RankProcess, provider: str, source: str, target: str) -> None:
        """Each way and by each policy, beside messages that the receive must not take, or not yet."""
        with ranks(tmp_path, [other], options_of(provider)) as sides:
            for here, there in BOTH_WAYS:
                assert sides[here].call(Rank.provider, there) == provider
            cases = itertools.product(("send", "recv", "probe"), BOTH_WAYS, POLICIES, SIZES)
            for tag, (first, way, policy, nbytes) in enumerate(cases, 1):
                exchange(sides, way, first, policy, (source, target), nbytes, tag)

    def test_completion_objects(
        self, tmp_path: Path, other: RankProcess, provider: str, source: str, target: str
    ) -> None:
        """Each way: active messages into memory of either kind, and puts and gets that tell the owner."""
        with ranks(tmp_path, [other], options_of(provider)) as sides:
            for here, there in BOTH_WAYS:
                sender, receiver = sides[here], sides[there]
                memory, handle = receiver.call(Rank.share, target, SIZES[-1] + 200)
                numbers = [receiver.call(Rank.register, place) for place in (None, target)]
                for number in numbers:
                    for tag, nbytes in enumerate(SIZES):
                        sent = sender.call(Rank.am, source, nbytes, tag, there, number, tag)
                        assert receiver.call(Rank.told, number, tag) == ("am", here, tag, nbytes)
                        assert sender.call(Rank.finish, sent) == nbytes
                number = numbers[0]
                for tag, nbytes in enumerate(SIZES, 10):
                    put = sender.call(Rank.put, source, nbytes, tag, there, handle, 100, number, tag)
                    assert receiver.call(Rank.told, number) == ("put", here, tag, nbytes)
                    receiver.call(Rank.expect, memory, 100, nbytes, tag)
                    assert sender.call(Rank.finish, put) == nbytes
                    receiver.call(Rank.fill, memory, 100, nbytes, tag)
                    assert sender.call(Rank.get, source, nbytes, tag, there, handle, 100, number, tag + 50) == nbytes
                    assert receiver.call(Rank.told, number) == ("get", here, tag + 50, nbytes)
                    receiver.call(Rank.expect, memory, 100, nbytes, tag)
                receiver.call(Rank.told_no_more, number)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("place", PLACES)
def test_atomics(tmp_path: Path, other: RankProcess, provider: str, place: str) -> None:
    with ranks(tmp_path, [other], options_of(provider)) as sides:
        for here, there in BOTH_WAYS:
            memory, handle = sides[there].call(Rank.share, place, 24)
            assert sides[here].call(Rank.fetch_add, handle, 5, 8) == 0
            assert sides[here].call(Rank.fetch_add, handle, -2, 8) == 5
            assert sides[here].call(Rank.compare_swap, handle, 4, 9, 8) == 3
            assert sides[here].call(Rank.compare_swap, handle, 3, 1 << 40, 8) == 3
            expected = bytes(8) + (1 << 40).to_bytes(8, "little") + bytes(8)
            assert sides[there].call(Rank.read, memory, 0, 24) == expected


@pytest.mark.parametrize(
    ("provider", "size"), [*itertools.product(("shm", "tcp"), range(3, MOST_RANKS + 1)), ("p2p", MOST_RANKS)]
)
def test_every_rank_with_every_other(tmp_path: Path, others: list[RankProcess], provider: str, size: int) -> None:
    """One process for each rank: messages, active messages, puts with a signal, and a sum."""
    with ranks(tmp_path, others[: size - 1], options_of(provider)) as sides:
        pairs = list(itertools.product(range(size), repeat=2))
        for nbytes in (1000, 10_000):
            receives = {}
            sends = []
            for source, target in pairs:
                if (source + target) % 2:
                    receives[source, target] = sides[target].call(Rank.recv, "host", nbytes, source, None)
            for source, target in pairs:
                sends.append(
                    (source, sides[source].call(Rank.send, "host", nbytes, seed_of(source, target), target, 3))
                )
            for source, target in pairs:
                if (source + target) % 2 == 0:
                    receives[source, target] = sides[target].call(Rank.recv, "host", nbytes, source, 3)
            for (source, target), number in receives.items():
                seed = seed_of(source, target)
                assert sides[target].call(Rank.received, number, seed) == (source, 3, nbytes)
            for source, number in sends:
                assert sides[source].call(Rank.finish, number) == nbytes
        told = [side.call(Rank.register, None) for side in sides]
        shared = [side.call(Rank.share, "host", size * 100) for side in sides]
        begun = []
        for source, target in pairs:
            number, (_, handle) = told[target], shared[target]
            seed, place = seed_of(source, target), source * 100
            begun += [
                (source, sides[source].call(Rank.am, "host", 100, 7, target, number, source)),
                (source, sides[source].call(Rank.put, "host", 100, seed, target, handle, place, number, source)),
            ]
        for target, side in enumerate(sides):
            found = [side.call(Rank.told, told[target]) for _ in range(2 * size)]
            assert sorted(found) == sorted((kind, rank, rank, 100) for kind in ("am", "put") for rank in range(size))
            memory, _ = shared[target]
            for source in range(size):
                side.call(Rank.expect_part, memory, source * 100, 100, seed_of(source, target))
        for source, number in begun:
            assert sides[source].call(Rank.finish, number) == 100
        for process in others[: size - 1]:
            process.begin(Rank.sum_of_ranks, 10_000)
        assert sides[0].call(Rank.sum_of_ranks, 10_000)
        assert all(process.end() for process in others[: size - 1])


def seed_of(source: int, target: int) -> int:
    return source * MOST_RANKS + target


def exchange(
    sides: list[Side],
    way: tuple[int, int],
    first: str,
    policy: tuple[bool, bool],
    places: tuple[str, str],
    nbytes: int,
    tag: int,
) -> None:
    """Send one message, and receive it by a policy; then receive those beside it.

    A receive that names a source finds an older message of another rank, the receiver itself. One that names a tag
    finds an older message of another tag, and one that names none a younger message.
    """
    source, target = way
    sender, receiver = sides[source], sides[target]
    names_source, names_tag = policy
    asked = source if names_source else None, tag if names_tag else None
    other_tag = MOST_TAG - tag
    sent: list[tuple[Side, int, int]] = []

    def send(side: Side, place: str, nbytes: int, seed: int, tag: int) -> None:
        sent.append((side, side.call(Rank.send, place, nbytes, seed, target, tag), nbytes))

    def send_all() -> None:
        if names_source:
            send(receiver, "host", 1, 2, tag)
        if names_tag:
            send(sender, "host", 1, 1, other_tag)
        send(sender, places[0], nbytes, tag, tag)
        if not names_tag:
            send(sender, "host", 1, 1, other_tag)

    if first == "send":
        send_all()
        receiving = receiver.call(Rank.recv, places[1], nbytes, *asked)
    elif first == "recv":
        receiving = receiver.call(Rank.recv, places[1], nbytes, *asked)
        send_all()
    else:
        probe = receiver.call(Rank.probe, *asked)
        send_all()
        receiving, found = receiver.call(Rank.claim, probe, places[1])
        assert found == (source, tag, nbytes)
    assert receiver.call(Rank.received, receiving, tag) == (source, tag, nbytes)
    beside = receiver.call(Rank.recv, "host", 1, source, None)
    assert receiver.call(Rank.received, beside, 1) == (source, other_tag, 1)
    if names_source:
        beside = receiver.call(Rank.recv, "host", 1, None, tag)
        assert receiver.call(Rank.received, beside, 2) == (target, tag, 1)
    for side, number, nbytes_sent in sent:
        assert side.call(Rank.finish, number) == nbytes_sent
