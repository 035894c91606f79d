"""What kills a queue pair: the culprit gets its own error, the innocent ones "lane reset", and a new lane works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.lanes import READ, WRITE, deadline, eventually
from support.verbs_pair import LANE_DOWN, VerbsPair, ended
from zerohop._native import NativeError, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

CULPRIT = (Status.ACCESS_DENIED, Reason.REMOTE_ACCESS)
INNOCENT = (Status.PEER_LOST, Reason.LANE_RESET)


@pytest.fixture
def pair() -> Iterator[VerbsPair]:
    # One queue pair, so that whatever is posted after the culprit is flushed with it.
    pair = VerbsPair(queue_pairs=1)
    yield pair
    pair.close()


def expect_culprit(pair: VerbsPair, route: int, nbytes: int = 64, offset: int = 0) -> None:
    """Of three writes the one in the middle is refused; the lane goes, and its successor works."""
    before = pair.write(pair.route, pair.nbytes)
    culprit = pair.write(route, nbytes, offset)
    try:
        after = ended(pair.write(pair.route, pair.nbytes))
    except NativeError as refused:  # the lane is known to be down already
        after = (Status(refused.args[0]), Reason(refused.args[1]))
    assert ended(culprit) == CULPRIT
    # What was on the wire before may have arrived.
    assert ended(before) in ((Status.OK, Reason.NONE), INNOCENT)
    assert after == INNOCENT
    eventually(lambda: not pair.lane.alive, "the lane is alive with a dead queue pair")
    eventually(lambda: any(event & LANE_DOWN for event in pair.here.engine.events.drain()), "nobody was told")
    pair.relink()
    pair.good_write_works()


def test_a_wrong_key(pair: VerbsPair) -> None:
    expect_culprit(pair, pair.route_with(pair.key ^ 0x5A))


def test_memory_that_was_deregistered(pair: VerbsPair) -> None:
    doomed = pair.there.engine.share(pair.there.region, 4096, 4096, WRITE, bytes(16))
    address, key, _ = pair.there.engine.reach(doomed, pair.there.domain, True)
    assert address == pair.address + 4096
    route = pair.route_with(key)
    assert ended(pair.write(route, 64, 4096)) == (Status.OK, Reason.NONE)
    assert pair.there.engine.revoke(doomed, deadline(5))
    expect_culprit(pair, route, 64, 4096)


def test_past_the_end_of_a_region(pair: VerbsPair) -> None:
    expect_culprit(pair, pair.route_with(pair.key, 2 * pair.nbytes), 64, pair.nbytes - 32)


def test_a_key_without_the_right(pair: VerbsPair) -> None:
    readable = pair.there.engine.share(pair.there.region, 0, pair.nbytes, READ, bytes(16))
    _, key, _ = pair.there.engine.reach(readable, pair.there.domain, False)
    expect_culprit(pair, pair.route_with(key))


def test_the_initiator_checks_what_it_knows(pair: VerbsPair) -> None:
    """Bounds that the handle names never reach the NIC, so no lane is lost for them."""
    with pytest.raises(NativeError) as caught:
        pair.write(pair.route, 64, pair.nbytes - 32)
    assert caught.value.args[:2] == (Status.ACCESS_DENIED.value, Reason.BOUNDS.value)
    assert pair.lane.alive
    pair.good_write_works()


def test_an_atomic_that_is_refused(pair: VerbsPair) -> None:
    posted = pair.here.engine.post_atomic(pair.route_with(pair.key ^ 0x5A), 0, 0, 1, 0, deadline())
    assert not isinstance(posted, tuple)
    assert ended(posted) == CULPRIT
    pair.relink()
    pair.good_write_works()


def test_pages_of_which_one_is_refused(pair: VerbsPair) -> None:
    """The whole list fails; what of it had arrived is undefined, and nothing outside of it is written."""
    import numpy as np

    route = pair.route_with(pair.key, 2 * pair.nbytes)
    pages = np.arange(100, dtype=np.int64)
    there = pages.copy()
    there[50] = pair.nbytes // 1024 + 3
    posted = pair.here.engine.post_pages(route, 0, pages, there, 1024, -1, deadline(), False, 0, 0, pair.nbytes)
    assert not isinstance(posted, int)
    assert ended(posted) == CULPRIT
    pair.relink()
    pair.good_write_works()
