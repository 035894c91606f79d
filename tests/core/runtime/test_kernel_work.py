"""A process carries out what kernels have asked for, in several queues at once."""

from __future__ import annotations

import time

import pytest

import zerohop as zh
from zerohop.core.face import HOST, carry_out


class Work:
    """Records how it is used; its requests never end, or have ended."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends
        self.looking = 0
        self.deadlines: list[int] = []

    def look(self) -> None:
        self.looking += 1

    def stop_looking(self) -> None:
        self.looking -= 1

    def settle(self, deadline_ns: int) -> bool:
        assert self.looking == 0
        self.deadlines.append(deadline_ns)
        return self.ends


def late() -> zh.ZerohopError:
    return zh.DeadlineExceeded("too late")


def test_all_queues_have_one_deadline() -> None:
    """A block with many queues ends as early as one with a single queue."""
    works = [Work(ends=True), Work(ends=True), Work(ends=False), Work(ends=False)]
    begun = time.monotonic_ns()
    with pytest.raises(zh.DeadlineExceeded, match="too late"), carry_out(works, HOST, 1000, late):
        assert [work.looking for work in works] == [1, 1, 1, 1]
    deadlines = {deadline for work in works for deadline in work.deadlines}
    assert len(deadlines) == 1
    assert deadlines.pop() > begun
    assert works[3].deadlines == []  # the first late one tells


def test_a_failure_within_the_block_is_told_at_once() -> None:
    works = [Work(ends=False), Work(ends=False)]
    with pytest.raises(ValueError, match="of the user"), carry_out(works, HOST, 10**12, late):
        raise ValueError("of the user")
    assert all(work.looking == 0 and not work.deadlines for work in works)


def test_a_queue_that_cannot_be_looked_at() -> None:
    """The queues before it are not looked at any more."""

    class Closed(Work):
        def look(self) -> None:
            raise zh.Closed("it is closed")

    works = [Work(ends=True), Closed(ends=True), Work(ends=True)]
    with pytest.raises(zh.Closed), carry_out(works, HOST, 1000, late):
        pytest.fail("the block began")
    assert [work.looking for work in works] == [0, 0, 0]
