"""Requests that their own initiator never checked: the target refuses them, on tcp and on the shm ring alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.lanes import CAPABILITY, READ, WRITE, Liar, Owner, deadline, linked
from support.pattern import expect_equal, pattern
from zerohop._native import Op, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zerohop._native import Endpoint

pytestmark = [pytest.mark.unprivileged, pytest.mark.parametrize("provider", ["shm", "tcp"])]

FAR = 1 << 62
PUT, GET = 0, 1


class Lane:
    """A liar and an owner, joined."""

    def __init__(self, provider: str, rights: int) -> None:
        self.owner = Owner(rights)
        self.liar = Liar()
        self.here: Endpoint
        self.here, self.there = linked(provider, self.liar.engine, self.owner.engine)

    def route(self, *, share: int | None = None, capability: bytes = CAPABILITY, nbytes: int = FAR) -> int:
        """A route that claims every right, and by default more bytes than there are."""
        named = self.owner.share if share is None else share
        return self.liar.engine.route(self.here, self.liar.region, named, capability, nbytes, READ | WRITE, None)

    def outcome(self, posted: object) -> Status:
        """How the operation ended."""
        if not isinstance(posted, Op):
            return Status.OK
        assert posted.wait(deadline(), 0), "the operation has not ended"
        return posted.status

    def write(self, route: int, offset: int, nbytes: int, notify: int = -1) -> Status:
        return self.outcome(self.liar.engine.post(route, PUT, 0, offset, nbytes, notify, deadline()))

    def read(self, route: int, offset: int, nbytes: int) -> Status:
        return self.outcome(self.liar.engine.post(route, GET, 0, offset, nbytes, -1, deadline()))

    def pages(self, route: int, kind: int, page: int, page_bytes: int = 1024) -> Status:
        mine, theirs = np.array([0, 1], np.int64), np.array([0, page], np.int64)
        return self.outcome(
            self.liar.engine.post_pages(route, kind, mine, theirs, page_bytes, -1, deadline(), False, 0, 0, Liar.NBYTES)
        )

    def add(self, route: int, offset: int) -> Status:
        return self.outcome(self.liar.engine.post_atomic(route, 0, offset, 1, 0, deadline()))

    def close(self) -> None:
        self.liar.close()
        self.owner.close()
        del self.here, self.there


@pytest.fixture
def lane(provider: str) -> Iterator[Lane]:
    lane = Lane(provider, READ | WRITE)
    yield lane
    # Whatever was tried: honest traffic still passes, and nothing came too close.
    honest = lane.route(nbytes=Owner.SHARED)
    lane.liar.memory[:1000] = pattern(1, 1000)
    assert lane.write(honest, 0, 1000) is Status.OK
    expect_equal(lane.owner.shared[:1000], pattern(1, 1000), "honest bytes")
    lane.owner.expect_margins_untouched()
    lane.close()


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [
        (Owner.SHARED - 7, 8),
        (Owner.SHARED, 1),
        (0, Owner.SHARED + 1),
        (Owner.SHARED + 1, 0),
        (Owner.SHARED + Owner.MARGIN, 4096),
        (1 << 40, 64),
        (FAR - 4096, 4096),
    ],
)
def test_bounds(lane: Lane, offset: int, nbytes: int) -> None:
    """Beyond the share, though within the registered memory at first."""
    route = lane.route()
    lane.liar.memory[:] = 0
    assert lane.write(route, offset, nbytes, notify=1) is Status.ACCESS_DENIED
    assert lane.read(route, offset, nbytes) is Status.ACCESS_DENIED
    lane.owner.expect_untouched()
    assert not lane.liar.memory.any()
    assert lane.owner.engine.pop_notification(-1, 0) is None


@pytest.mark.parametrize("page", [64, 65, 72, 1 << 30, (1 << 52) - 1])
def test_pages(lane: Lane, page: int) -> None:
    """One page of two lies outside. The other one must not be placed either, or it must be what was sent."""
    route = lane.route()
    lane.liar.memory[:] = 0xA5
    assert lane.pages(route, PUT, page) is Status.ACCESS_DENIED
    assert lane.pages(route, GET, page) is Status.ACCESS_DENIED
    lane.owner.expect_untouched()


def test_words(lane: Lane) -> None:
    route = lane.route()
    for offset in (Owner.SHARED, Owner.SHARED - 4, Owner.SHARED - 1, 1 << 40, FAR - 8):
        assert lane.add(route, offset) in (Status.ACCESS_DENIED, Status.PROTOCOL)
    lane.owner.expect_untouched()


@pytest.mark.parametrize("bit", [0, 64, 127])
def test_capability(lane: Lane, bit: int) -> None:
    wrong = bytearray(CAPABILITY)
    wrong[bit // 8] ^= 1 << bit % 8
    route = lane.route(capability=bytes(wrong))
    assert lane.write(route, 0, 64, notify=1) is Status.ACCESS_DENIED
    assert lane.read(route, 0, 64) is Status.ACCESS_DENIED
    assert lane.pages(route, PUT, 1) is Status.ACCESS_DENIED
    assert lane.add(route, 0) is Status.ACCESS_DENIED
    lane.owner.expect_untouched()


@pytest.mark.parametrize("change", [1, 1 << 32, 0xFFFF_FFFF, 0xFFFF_FFFF << 32, (1 << 64) - 1])
def test_share(lane: Lane, change: int) -> None:
    """Another generation, another index, and those at the ends of their ranges."""
    route = lane.route(share=lane.owner.share ^ change)
    assert lane.write(route, 0, 64) is Status.ACCESS_DENIED
    assert lane.read(route, 0, 64) is Status.ACCESS_DENIED
    lane.owner.expect_untouched()


@pytest.mark.parametrize("rights", [READ, WRITE])
def test_rights(provider: str, rights: int) -> None:
    lane = Lane(provider, rights)
    route = lane.route()
    expected = Status.OK if rights == WRITE else Status.ACCESS_DENIED
    if rights == READ:
        assert lane.write(route, 0, 64, notify=1) is Status.ACCESS_DENIED
        assert lane.pages(route, PUT, 1) is Status.ACCESS_DENIED
        assert lane.add(route, 0) is Status.ACCESS_DENIED
        assert lane.read(route, 0, 64) is Status.OK
        lane.owner.expect_untouched()
    else:
        lane.liar.memory[:] = 0
        assert lane.read(route, 0, 64) is Status.ACCESS_DENIED
        assert lane.pages(route, GET, 1) is Status.ACCESS_DENIED
        assert not lane.liar.memory.any()
        assert lane.write(route, 0, 64) is expected
    lane.owner.expect_margins_untouched()
    lane.close()


def test_revoked_and_shared_again(lane: Lane) -> None:
    """The share's place is taken by the next one; the name of the old one stays refused."""
    old = lane.owner.share
    assert lane.owner.engine.revoke(old, deadline())
    lane.owner.share = lane.owner.share_middle(READ | WRITE, bytes(16))
    # Its successor has another capability; the liar knows even that.
    for capability in (CAPABILITY, bytes(16)):
        route = lane.route(share=old, capability=capability)
        assert lane.write(route, 0, 64) is Status.ACCESS_DENIED
        assert lane.read(route, 0, 64) is Status.ACCESS_DENIED
    lane.owner.expect_untouched()
    assert lane.owner.engine.revoke(lane.owner.share, deadline())
    lane.owner.share = lane.owner.share_middle(READ | WRITE)


def test_large_lies_between_honest_operations(lane: Lane) -> None:
    """Many in flight at once, every second of them a lie of several slices: exactly those are refused."""
    lying, honest = lane.route(), lane.route(nbytes=Owner.SHARED)
    lane.liar.memory[:] = 0x11
    posted = []
    for k in range(200):
        if k % 2:
            posted.append(lane.liar.engine.post(lying, PUT, 0, k, Liar.NBYTES, k, deadline()))
        else:
            posted.append(lane.liar.engine.post(honest, PUT, 0, 0, 5000, k, deadline()))
    ended = [lane.outcome(operation) for operation in posted]
    assert ended == [Status.OK, Status.ACCESS_DENIED] * 100
    lane.owner.expect_margins_untouched()
    notes = [lane.owner.engine.pop_notification(deadline(), 0) for _ in range(100)]
    assert sorted(note[1] for note in notes if note is not None) == list(range(0, 200, 2))
    assert lane.owner.engine.pop_notification(-1, 0) is None
