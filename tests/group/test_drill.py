"""The drill: each operation × before, in the middle, at the end × killed, stopped, cut × what each survivor sees."""

from __future__ import annotations

import functools
import itertools
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import zerohop as zh
from support.drill import NEVER_S, OPERATIONS, SIZE, VICTIM, Detour, Plan, Victim, memory_of
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S, patience

if TYPE_CHECKING:
    from pathlib import Path

    from support.drill import Memory

PHASES = ("before", "middle", "end")
FAILURES = ("killed, shm", "killed, tcp", "stopped, shm", "stopped, tcp", "cut, tcp")
DEADLINE_S = patience(0.3)
ONE_SIDED = ("put", "get", "fetch_add")
# In the middle of these the victim has sent its first messages. These survivors need what it would have sent later.
NEED_ITS_LATER_STEPS = {"barrier": (1,), "allreduce": (0, 1), "reduce_scatter": (0, 1), "allgather": (0,)}
# The victim has seen that both survivors have got everything.
ENDS_WELL = (("recv", "end"), ("recv from any", "end"))
# The default suite has every third cell, in which each operation and phase is tried.
CELLS = [
    pytest.param(what, phase, failure, marks=() if sum(place) % 3 == 0 else pytest.mark.slow)
    for place, (what, phase, failure) in zip(
        itertools.product(range(len(OPERATIONS)), range(len(PHASES)), range(len(FAILURES))),
        itertools.product(OPERATIONS, PHASES, FAILURES),
        strict=True,
    )
]


class Survivor(NamedTuple):
    group: zh.Group
    memory: Memory


class Drill:
    """Two survivors in this process, and the victim."""

    def __init__(self, opened: ExitStack, folder: Path, what: str, phase: str, failure: str) -> None:
        self.what, self.phase = what, phase
        self.failure, self.provider = failure.split(", ")
        self.store = Detour(folder) if self.failure == "cut" else folder
        self.victim = Victim()
        opened.callback(self.victim.reap)
        if isinstance(self.store, Detour):
            opened.callback(self.store.cut)
        self.victim.begin(Plan(folder, self.provider, what, phase))
        self.survivors = []
        for rank in range(VICTIM):
            context = opened.enter_context(Options(providers=(self.provider,), timeout=NEVER_S).open())
            group = opened.enter_context(zh.Group(rank, SIZE, self.store, ctx=context))
            self.survivors.append(Survivor(group, memory_of(what, rank)))
        zh.wait_all([each.group.connect(rank) for each in self.survivors for rank in range(SIZE)], PATIENCE_S)
        handles = zh.wait_all([each.group.exchange(b"") for each in self.survivors], PATIENCE_S)
        self.handle = zh.RemoteBuffer.from_bytes(handles[0][VICTIM])

    def begin(self) -> list[zh.Operation[Any]]:
        timeout = DEADLINE_S if self.failure == "stopped" else NEVER_S
        begin = OPERATIONS[self.what].begin
        return [begin(each.group, each.memory, self.handle, timeout) for each in self.survivors]

    def fail(self) -> None:
        if self.failure == "killed":
            self.victim.kill()
        elif self.failure == "stopped":
            if not self.victim.stopped:
                self.victim.stop()
        else:
            assert isinstance(self.store, Detour)
            self.store.cut()

    def run(self) -> list[zh.Operation[Any]]:
        """Let the victim fail at the point; return what the survivors have begun."""
        if self.phase == "before":
            self.victim.come_to_its_point()
            self.fail()
            if self.failure != "stopped":
                links = [each.group.connect(VICTIM) for each in self.survivors]
                for each in links:
                    eventually(functools.partial(_is_gone, each), "a survivor does not notice it")
            return self.begin()
        if self.phase == "middle" and not OPERATIONS[self.what].collective:
            self.victim.come_to_its_point()
            if self.what in ONE_SIDED:
                self.victim.stop()  # or it could be over before it is killed
            operations = self.begin()
        else:
            operations = self.begin()
            self.victim.come_to_its_point()
        self.fail()
        return operations


def _is_gone(connecting: zh.Operation[zh.Connection]) -> bool:
    return connecting.exception(PATIENCE_S) is not None or not connecting.result(0).alive


def must_fail(drill: Drill, rank: int) -> bool:
    """Tell whether a survivor cannot have all that it needs. Elsewhere it may have it, or not."""
    if drill.phase == "before":
        # The handle of memory has an address, where the victim can still be reached.
        return (drill.what, drill.failure) != ("fetch_add", "cut")
    if (drill.what, drill.phase, drill.provider) == ("barrier", "middle", "shm"):
        return False  # the victim has come, which is all that a meeting in shared memory needs of it
    if drill.phase == "middle":
        return not OPERATIONS[drill.what].collective or rank in NEED_ITS_LATER_STEPS.get(drill.what, ())
    return False


def expect_what_it_sees(drill: Drill, survivor: Survivor, operation: zh.Operation[Any], began: float) -> None:
    """Check how a survivor's operation has ended, that this took no longer than it may, and what it has received."""
    error = operation.exception(PATIENCE_S)
    seconds = time.monotonic() - began
    rank, expected = survivor.group.rank, OPERATIONS[drill.what].result
    if error is None:
        assert not must_fail(drill, rank)
        if expected is not None:
            assert (survivor.memory.out == expected(rank)).all(), "wrong bytes"
        return
    assert (drill.what, drill.phase) not in ENDS_WELL
    if drill.failure == "stopped":
        assert isinstance(error, zh.DeadlineExceeded)
        # A receive from any rank waits for none of them.
        assert error.ranks == (() if drill.what == "recv from any" else (VICTIM,))
        assert seconds < DEADLINE_S + patience(1.0)
    else:
        assert isinstance(error, zh.PeerLost)
        assert error.ranks == (VICTIM,)
        assert f"rank {VICTIM}" in error.reason
        assert seconds < PATIENCE_S / 2


def expect_to_go_on(drill: Drill) -> None:
    """Check that what does not need the victim works: messages in the group, and a sum of the survivors."""
    first, second = (each.group for each in drill.survivors)
    into = bytearray(5)
    received = second.recv(into, 0, tag=9)
    first.send(b"hello", 1, tag=9).result(PATIENCE_S)
    assert received.result(PATIENCE_S).source == 0
    assert bytes(into) == b"hello"
    if drill.what == "recv from any" and drill.phase != "end":  # which is told of the loss once
        received = second.recv(into)
        first.send(b"again", 1).result(PATIENCE_S)
        assert received.result(PATIENCE_S).source == 0
    sums = [np.full(1000, each.rank + 1) for each in (first, second)]
    both = [each.subgroup(range(VICTIM)) for each in (first, second)]
    for operation in [each.allreduce(x) for each, x in zip(both, sums, strict=True)]:
        assert (operation.result(PATIENCE_S) == VICTIM + 1).all()


@pytest.mark.parametrize(("what", "phase", "failure"), CELLS)
def test_the_drill(tmp_path: Path, what: str, phase: str, failure: str) -> None:
    with ExitStack() as opened:
        drill = Drill(opened, tmp_path, what, phase, failure)
        operations = drill.run()
        began = time.monotonic()
        for survivor, operation in zip(drill.survivors, operations, strict=True):
            expect_what_it_sees(drill, survivor, operation, began)
        expect_to_go_on(drill)
        # Nobody waits for a process that is stopped while all is closed.
        drill.victim.reap()
