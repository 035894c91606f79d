"""What ends collectives: ranks that are lost, late or call something else, and wrong arguments."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import CancelledError
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import groups
from support.lanes import eventually
from support.options import Options
from support.patience import ANSWER_S, PATIENCE_S, patience
from support.pattern import pattern, poison
from zerohop.group.collectives import meetings, ordered, steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROVIDERS = ("shm", "tcp")
LONG = 3_000_000
AFTER = "a collective of this group has failed: .*subgroup"


def floats(count: int, dtype: Any = np.float32) -> Any:
    return np.ones(count, dtype)


DIFFERENT: dict[str, tuple[Any, Any, str]] = {
    "kind": (lambda g: g.barrier(), lambda g: g.allreduce(floats(5)), "calls barrier|calls allreduce|longer"),
    "dtype": (
        lambda g: g.allreduce(floats(5)),
        lambda g: g.allreduce(floats(5, np.int32)),
        "its dtype is (int32|float32), that of this rank (int32|float32)",
    ),
    "dtype, long": (lambda g: g.allreduce(floats(LONG)), lambda g: g.allreduce(floats(LONG, np.int32)), "dtype is"),
    "op": (lambda g: g.allreduce(floats(5)), lambda g: g.allreduce(floats(5), "max"), 'its op is "(sum|max)"'),
    "size": (lambda g: g.allreduce(floats(5)), lambda g: g.allreduce(floats(6)), "number of bytes|longer"),
    "long and short": (lambda g: g.allreduce(floats(5)), lambda g: g.allreduce(floats(LONG)), "bytes|longer"),
    "size of broadcast": (lambda g: g.broadcast(floats(6)), lambda g: g.broadcast(floats(5)), "bytes|longer"),
}
ROOTED: dict[str, Callable[[int, zh.Group], Any]] = {
    "broadcast": lambda root, g: g.broadcast(floats(5), root),
    "long broadcast": lambda root, g: g.broadcast(floats(LONG), root),
    "reduce": lambda root, g: g.reduce(floats(5), root),
    "gather": lambda root, g: g.gather(floats(5), floats(10), root),
    "scatter": lambda root, g: g.scatter(floats(10), floats(5), root),
}
for each, of_root in ROOTED.items():
    DIFFERENT[f"root of {each}"] = functools.partial(of_root, 0), functools.partial(of_root, 1), "root|longer"


@pytest.mark.parametrize("what", DIFFERENT)
def test_calls_that_differ(two: list[zh.Group], what: str) -> None:
    """Both ranks are told, long before their time is up, and the group is over for collectives."""
    first, second, text = DIFFERENT[what]
    zh.wait_all([group.barrier() for group in two], PATIENCE_S)
    began = time.monotonic()
    operations = [first(two[0]), second(two[1])]
    for rank, operation in enumerate(operations):
        with pytest.raises(zh.ProtocolError, match=rf"rank {1 - rank}: .*({text})|rank \d: .*says rank {1 - rank}"):
            operation.result(PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S / 2
    for group in two:
        with pytest.raises(zh.ZerohopError, match=AFTER):
            group.barrier().result(PATIENCE_S)
    arrays = [floats(3), floats(3)]
    survivors = [group.subgroup([0, 1]) for group in two]
    for operation in [group.allreduce(array) for group, array in zip(survivors, arrays, strict=True)]:
        operation.result(PATIENCE_S)
    assert arrays[0].tolist() == arrays[1].tolist() == [2.0] * 3


N = 20_000
MINE: dict[str, Callable[[zh.Group, Any, Any], zh.Operation[Any]]] = {
    "barrier": lambda g, *_: g.barrier(),
    "broadcast": lambda g, x, _: g.broadcast(x, 2),
    "long broadcast": lambda g, _, all_: g.broadcast(all_, 2),
    "reduce": lambda g, x, _: g.reduce(x),
    "short allreduce": lambda g, x, _: g.allreduce(x[:100]),
    "allreduce": lambda g, x, _: g.allreduce(x),
    "long allreduce": lambda g, *_: g.allreduce(floats(LONG)),
    "reduce_scatter": lambda g, x, all_: g.reduce_scatter(all_, x),
    "allgather": lambda g, x, all_: g.allgather(x, all_),
    "gather": lambda g, x, all_: g.gather(x, all_),
    "scatter": lambda g, x, all_: g.scatter(all_, x),
    "short scatter": lambda g, x, all_: g.scatter(all_[:4], x[:1]),
    "alltoall": lambda g, _, all_: g.alltoall(all_, all_.copy()),
    "exchange": lambda g, *_: g.exchange(b"1"),
    "split": lambda g, *_: g.split(0),
}
LOST = ("barrier", "short allreduce", "long allreduce", "long broadcast", "allgather", "alltoall")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("kind", LOST)
def test_a_rank_that_closes_its_context(tmp_path: Path, provider: str, kind: str) -> None:
    """All others are told soon that it is this rank which is gone. They go on without it."""
    with groups(tmp_path, 4, provider) as ranks:
        memory = np.zeros(N), np.zeros(4 * N)
        zh.wait_all([MINE["alltoall"](group, *memory) for group in ranks], PATIENCE_S)
        waiting = [MINE[kind](group, np.zeros(N), np.zeros(4 * N)) for group in ranks if group.rank != 2]
        began = time.monotonic()
        ranks[2].context.close()
        for operation in waiting:
            with pytest.raises(zh.PeerLost, match="rank 2: "):
                operation.result(PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2
        arrays = {rank: floats(100_000) for rank in (0, 1, 3)}
        survivors = [ranks[rank].subgroup([0, 1, 3]) for rank in arrays]
        for operation in [group.allreduce(arrays[group.ranks[group.rank]]) for group in survivors]:
            assert (operation.result(PATIENCE_S) == 3).all()


VICTIM = """
import sys
import numpy as np
import zerohop as zh

with zh.Context(providers=(sys.argv[2],)) as ctx, zh.Group(1, 2, sys.argv[1], ctx=ctx) as group:
    group.barrier().result()
    while True:
        group.allreduce(np.ones(3_000_000)).result()
"""


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_rank_that_is_killed(tmp_path: Path, provider: str) -> None:
    """It dies in the middle of a long one. What the memory has is undefined, but it does not change any more."""
    with ExitStack() as opened:
        # A killed process leaves its socket behind, whose path has to be short.
        left = opened.enter_context(tempfile.TemporaryDirectory(prefix="zh-"))
        ctx = opened.enter_context(Options(providers=(provider,)).open())
        group = opened.enter_context(zh.Group(0, 2, tmp_path, ctx=ctx))
        array = np.ones(3_000_000)
        command = [sys.executable, "-c", VICTIM, str(tmp_path), provider]
        with subprocess.Popen(command, env={**os.environ, "XDG_RUNTIME_DIR": left}) as victim:
            try:
                group.barrier().result(PATIENCE_S)
                for _ in range(3):
                    group.allreduce(array).result(PATIENCE_S)
                last = group.allreduce(array)
            finally:
                victim.send_signal(signal.SIGKILL)
            try:
                for _ in range(100):
                    last.result(ANSWER_S)
                    last = group.allreduce(array)
                pytest.fail("no allreduce has failed")
            except zh.PeerLost as error:
                assert "rank 1: " in str(error)  # noqa: PT017 - any of them may be the one that fails
            assert not last.memory_in_use
            before = array.copy()
            time.sleep(0.05)
            assert (before == array).all()
        eventually(lambda: not ctx.connections, "the Connection is still there")


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_that_does_not_come(tmp_path: Path, size: int) -> None:
    with groups(tmp_path, size) as ranks:
        for operation in [group.barrier() for group in ranks]:
            operation.result(PATIENCE_S)
        waiting = [group.allreduce(floats(LONG), timeout=patience(0.3)) for group in ranks[1:]]
        for operation in waiting:
            with pytest.raises(zh.DeadlineExceeded, match="allreduce: rank 0 has not called allreduce") as caught:
                operation.result(PATIENCE_S)
            assert caught.value.ranks == (0,)
        for group in ranks[1:]:
            with pytest.raises(zh.ZerohopError, match=AFTER):
                group.barrier().result(PATIENCE_S)
        # It comes at last, and is told.
        with pytest.raises((zh.DeadlineExceeded, zh.PeerLost), match=r"rank \d: "):
            ranks[0].allreduce(floats(LONG)).result(PATIENCE_S)


def test_a_rank_that_never_makes_its_group(tmp_path: Path) -> None:
    with Options().open() as ctx, zh.Group(0, 2, tmp_path, ctx=ctx) as group:
        with pytest.raises(zh.DeadlineExceeded, match="rank 1"):
            group.barrier(timeout=0.2).result(PATIENCE_S)
        waiting = group.subgroup([0, 1]).barrier()
    with pytest.raises(zh.Closed):
        waiting.result(PATIENCE_S)


def test_cancelled_ones_leave_memory_alone(two: list[zh.Group]) -> None:
    """The one under way, and one whose turn had not come. The other rank is told."""
    arrays = [poison(LONG), poison(LONG)]
    assert [each.result(PATIENCE_S) for each in [group.barrier() for group in two]] == [None, None]
    first, second = [two[0].broadcast(array, 1) for array in arrays]
    assert second.cancel()
    assert first.cancel()
    for operation in (first, second):
        with pytest.raises(CancelledError):
            operation.result(PATIENCE_S)
    eventually(lambda: not first.memory_in_use, "the memory is still in use")
    with pytest.raises(zh.ZerohopError, match=r"rank 0: .*given up"):
        two[1].broadcast(pattern(1, LONG), 1).result(PATIENCE_S)
    assert (arrays[0] == 0xA5).all()
    assert (arrays[1] == 0xA5).all()
    with pytest.raises(zh.ZerohopError, match="it was cancelled"):
        two[0].barrier().result(PATIENCE_S)


@pytest.mark.parametrize("kind", MINE)
def test_one_that_is_cancelled_before_its_turn(tmp_path: Path, kind: str) -> None:
    """The other ranks are told at once when its turn has come, and its memory stays as it is."""
    with groups(tmp_path, 4) as ranks:
        memory = [(np.full(N, rank), np.full(4 * N, rank)) for rank in range(4)]
        first, second = ranks[0].barrier(), MINE[kind](ranks[0], *memory[0])
        assert second.cancel()
        for operation in [*[group.barrier() for group in ranks[1:]], first]:
            operation.result(PATIENCE_S)
        began, told = time.monotonic(), []
        for operation in [MINE[kind](group, *each) for group, each in zip(ranks[1:], memory[1:], strict=True)]:
            try:
                operation.result(PATIENCE_S)
            except zh.PeerLost as error:
                told.append(str(error))
        assert told
        assert all("rank 0: it has given up the collective" in text for text in told)
        assert time.monotonic() - began < PATIENCE_S / 2
        with pytest.raises(zh.ZerohopError, match="it was cancelled"):
            ranks[0].barrier().result(PATIENCE_S)
        assert not second.memory_in_use
        assert not any(each.any() for each in memory[0])


INTERRUPTED = (
    ("tcp", ordered, "Call"),
    ("tcp", ordered, "guarded"),
    ("tcp", ordered, "Rest"),
    ("tcp", ordered.Ordered, "_signal_at_once"),
    ("shm", meetings.Meetings, "_come"),
    ("shm", meetings.Meetings, "_finish"),
    ("tcp", steps, "_done_soon"),
    ("shm", steps, "_done_soon"),
)


@pytest.mark.parametrize("at", INTERRUPTED, ids=[f"{provider}, {name}" for provider, _, name in INTERRUPTED])
def test_an_interrupted_call_loses_no_turn(
    tmp_path: Path, at: tuple[str, Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    provider, owner, name = at
    with groups(tmp_path, 2, provider) as two:
        zh.wait_all([group.barrier() for group in two], PATIENCE_S)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                two[0].barrier()
        with pytest.raises(zh.ZerohopError, match="has failed: it was cancelled"):
            two[0].barrier().result(PATIENCE_S)


def test_a_rank_that_has_given_up_is_not_called_gone(tmp_path: Path) -> None:
    with groups(tmp_path, 4) as ranks:
        operations = [group.allreduce(floats(LONG)) for group in ranks[:3]]
        assert operations[0].cancel()
        for operation in [*operations[1:], ranks[3].allreduce(floats(LONG))]:
            with pytest.raises(zh.PeerLost, match="rank 0: it has given up the collective"):
                operation.result(PATIENCE_S)


def test_a_task_that_is_cancelled(two: list[zh.Group]) -> None:
    async def run() -> None:
        task = asyncio.ensure_future(two[0].exchange(b"1"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    with pytest.raises(zh.ZerohopError, match="rank 0: "):
        two[1].exchange(b"2").result(PATIENCE_S)


def test_close_ends_collectives(two: list[zh.Group]) -> None:
    waiting = [two[0].barrier(), two[0].allreduce(floats(5))]
    two[0].close()
    for operation in waiting:
        with pytest.raises(zh.Closed):
            operation.result(PATIENCE_S)
    with pytest.raises(zh.Closed):
        two[0].barrier()


def test_the_context_closes_under_them(tmp_path: Path) -> None:
    ctx = Options().open()
    with zh.Group(0, 2, tmp_path, ctx=ctx) as group:
        waiting = [group.barrier(), group.barrier()]
        ctx.close()
        for operation in waiting:
            with pytest.raises(zh.Closed):
                operation.result(PATIENCE_S)
