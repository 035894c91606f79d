"""Two engines of one process, joined by a verbs lane, whose routes may claim what they like. For the lab."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from support.lanes import CAPABILITY, HOST, READ, SPIN_NS, WRITE, deadline, eventually, met
from support.pattern import pattern, poison
from zerohop._native import Engine, RemoteKeys

if TYPE_CHECKING:
    from zerohop._native import Domain, Endpoint, Op, Reason, Status

DEVICE = os.environ.get("ZEROHOP_LAB_DEVICE", "rxe0")
# Of the RoCE v2 entry of a Soft-RoCE device on an interface with one IPv4 address.
GID_INDEX = 1
LANE_DOWN = 1 << 62


class Side:
    """An engine, its memory, and its domain."""

    def __init__(self, device: str, nbytes: int, options: dict[str, int]) -> None:
        self.engine = Engine(SPIN_NS, 0, 0)
        self.memory = poison(nbytes)
        self.region = self.engine.register(self.memory.ctypes.data, nbytes, HOST)
        self.domain: Domain = self.engine.open_domain("verbs", device, 1, {"gid_index": GID_INDEX, **options})
        self.local_key, _ = self.engine.register_local(self.region, self.domain)


class VerbsPair:
    """`here` writes to and reads from `there`, all of whose memory is shared."""

    def __init__(self, nbytes: int = 1 << 20, devices: tuple[str, str] = (DEVICE, DEVICE), **options: int) -> None:
        self.nbytes = nbytes
        self.here, self.there = (Side(device, nbytes, options) for device in devices)
        self.here.memory[:] = pattern(1, nbytes)
        self.share = self.there.engine.share(self.there.region, 0, nbytes, READ | WRITE, CAPABILITY)
        self.address, self.key, _ = self.there.engine.reach(self.share, self.there.domain, False)
        self.lane, self.other_end = self.link()
        self.route = self.route_with(self.key)

    def link(self) -> tuple[Endpoint, Endpoint]:
        """A new lane."""
        one, other = self.here.engine, self.there.engine
        mine = one.endpoint("verbs", met(one, other), [self.here.domain])
        theirs = other.endpoint("verbs", met(other, one), [self.there.domain])
        ours, addresses = mine.address(), theirs.address()
        mine.connect(*addresses)
        theirs.connect(*ours)
        return mine, theirs

    def relink(self) -> None:
        """After the lane was lost: another one, with a route over it."""
        eventually(lambda: self.lane.gone, "the lane's queue pairs are not destroyed")
        self.other_end.close()
        eventually(lambda: self.other_end.gone, "the other end's queue pairs are not destroyed")
        self.lane, self.other_end = self.link()
        self.route = self.route_with(self.key)

    def route_with(self, key: int, nbytes: int | None = None) -> int:
        """A route to the other side's memory by that key, which claims so many bytes."""
        length = self.nbytes if nbytes is None else nbytes
        keys = RemoteKeys(self.address, length, READ | WRITE, [key], True)
        return self.here.engine.route(
            self.lane, self.here.region, self.share, CAPABILITY, length, READ | WRITE, None, keys, [self.here.local_key]
        )

    def write(self, route: int, nbytes: int, offset: int = 0, notify: int = -1) -> Op:
        posted = self.here.engine.post(route, 0, 0, offset, nbytes, notify, deadline(30))
        assert not isinstance(posted, int)
        return posted

    def good_write_works(self) -> None:
        """And every byte is right."""
        self.there.memory[:] = 0
        assert ended(self.write(self.route, self.nbytes))[0] == 0
        assert np.array_equal(self.there.memory, self.here.memory)

    def close(self) -> None:
        """Close and let go of what is native."""
        for side in (self.here, self.there):
            side.domain.close()
            assert side.engine.close(deadline(10)), "the engine did not close in time"
            side.region.close()
            del side.engine, side.region, side.domain
        del self.lane, self.other_end


def ended(operation: Op) -> tuple[Status, Reason]:
    """How it ended, which it must within half a minute."""
    operation.wait(deadline(30), SPIN_NS)
    assert operation.done(), "the operation pends"
    return operation.status, operation.reason
