"""What ends collectives: ranks that are lost, late or call something else, and wrong arguments."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import ANSWER_S, PATIENCE_S, patience
from support.pattern import pattern, poison
from zerohop.group.collectives import tags
from zerohop.group.collectives.plan import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PROVIDERS = ("shm", "tcp")
LONG = 3_000_000
AFTER = "a collective of this group has failed: .*subgroup"


@contextmanager
def groups(folder: Path, size: int, provider: str = "shm", timeout: float = PATIENCE_S) -> Iterator[list[zh.Group]]:
    with ExitStack() as opened:
        options = Options(providers=(provider,), sim_devices=1)
        contexts = [opened.enter_context(options.open()) for _ in range(size)]
        yield [
            opened.enter_context(zh.Group(rank, size, folder, ctx=ctx, timeout=timeout))
            for rank, ctx in enumerate(contexts)
        ]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[zh.Group]]:
    with groups(tmp_path, 2) as both:
        yield both


def floats(count: int, dtype: Any = np.float32) -> Any:
    return np.ones(count, dtype)


DIFFERENT: dict[str, tuple[Any, Any, str]] = {
    "kind": (lambda g: g.barrier(), lambda g: g.allreduce(floats(5)), "calls barrier|calls allreduce|longer"),
    "dtype": (
        lambda g: g.allreduce(floats(5)),
        lambda g: g.allreduce(floats(5, np.int32)),
        "its dtype is (int32|float32), that of this rank (int32|float32)",
    ),
    "dtype of long ones": (
        lambda g: g.allreduce(floats(LONG)),
        lambda g: g.allreduce(floats(LONG, np.int32)),
        "its dtype is",
    ),
    "op": (lambda g: g.allreduce(floats(5)), lambda g: g.allreduce(floats(5), "max"), 'its op is "(sum|max)"'),
    "root of broadcast": (
        lambda g: g.broadcast(floats(5), 0),
        lambda g: g.broadcast(floats(5), 1),
        "its root or its number of bytes|longer",
    ),
    "roots of long broadcasts": (
        lambda g: g.broadcast(floats(LONG), 0),
        lambda g: g.broadcast(floats(LONG), 1),
        "its root or its number of bytes|longer",
    ),
    "root of reduce": (lambda g: g.reduce(floats(5), 0), lambda g: g.reduce(floats(5), 1), "its root or|longer"),
    "root of gather": (
        lambda g: g.gather(floats(5), floats(10), 0),
        lambda g: g.gather(floats(5), floats(10), 1),
        "its root or|longer",
    ),
    "root of scatter": (
        lambda g: g.scatter(floats(10), floats(5), 0),
        lambda g: g.scatter(floats(10), floats(5), 1),
        "its root or|longer",
    ),
    "size": (lambda g: g.allreduce(floats(5)), lambda g: g.allreduce(floats(6)), "number of bytes|longer"),
    "long and short": (lambda g: g.allreduce(floats(5)), lambda g: g.allreduce(floats(LONG)), "bytes|longer"),
    "size of broadcast": (lambda g: g.broadcast(floats(6)), lambda g: g.broadcast(floats(5)), "bytes|longer"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_calls_that_differ(two: list[zh.Group], what: str) -> None:
    """Both ranks are told, long before their time is up, and the group is over for collectives."""
    first, second, text = DIFFERENT[what]
    for operation in [group.barrier() for group in two]:
        operation.result(PATIENCE_S)
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


def test_tags_tell_kinds_operators_types_and_roots_apart() -> None:
    types = ("bool", "int32", "float32", "bfloat16", "complex64", "uint8", "float16", "timedelta64[ns]")
    cases = itertools.product(KINDS, tags.OPERATORS, types, range(8))
    made = {int(tags.tag_of(kind, op, dtype, root, 1000)) for kind, op, dtype, root in cases}
    assert len(made) == len(KINDS) * len(tags.OPERATORS) * len(types) * 8
    for bits in list(made)[:50]:
        assert int(tags.parsed(bits)) == bits
    for reason in tags.Failure:
        found = tags.parsed(tags.failure_tag(300, reason, 77))
        assert (found.number, found.failure) == (300 % 256, (reason, 77))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("kind", ["barrier", "allreduce", "long allreduce", "broadcast", "allgather", "alltoall"])
def test_a_rank_that_closes_its_context(tmp_path: Path, provider: str, kind: str) -> None:
    """All others are told soon that it is this rank which is gone. They go on without it."""

    def call(group: zh.Group, collective: str) -> zh.Operation[Any]:
        if collective == "barrier":
            return group.barrier()
        if collective == "broadcast":
            return group.broadcast(floats(LONG), 2)
        if collective == "allgather":
            return group.allgather(floats(10_000), floats(10_000 * group.size))
        if collective == "alltoall":
            return group.alltoall(floats(4000 * group.size), floats(4000 * group.size))
        return group.allreduce(floats(LONG if collective == "long allreduce" else 100))

    with groups(tmp_path, 4, provider) as ranks:
        for operation in [call(group, "alltoall") for group in ranks]:
            operation.result(PATIENCE_S)
        waiting = [call(group, kind) for group in ranks if group.rank != 2]
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
            with pytest.raises(zh.DeadlineExceeded, match=r"rank \d: "):
                operation.result(PATIENCE_S)
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


def test_one_that_is_cancelled_leaves_earlier_ones_alone(two: list[zh.Group]) -> None:
    first, second, third = two[0].exchange(b"1"), two[0].exchange(b"2"), two[0].exchange(b"3")
    assert third.cancel()
    for found, each in ((first, b"a"), (second, b"b")):
        other = two[1].exchange(each)
        assert found.result(PATIENCE_S) == other.result(PATIENCE_S)
    with pytest.raises(zh.ZerohopError, match="it was cancelled"):
        two[0].barrier().result(PATIENCE_S)
    with pytest.raises(zh.DeadlineExceeded, match="rank 0: "):
        two[1].exchange(b"c", timeout=0.1).result(PATIENCE_S)


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


ANY: Any = "text"
READ_ONLY = np.zeros(4)
READ_ONLY.flags.writeable = False
ACROSS = np.zeros((4, 4))[:, 0]
WRONG: list[tuple[Callable[[zh.Group], Any], type[Exception], str]] = [
    (lambda g: g.broadcast(floats(4), 2), ValueError, "root must be from 0 to 1, not 2"),
    (lambda g: g.broadcast(READ_ONLY, 1), ValueError, "x is read-only"),
    (lambda g: g.broadcast("text"), TypeError, "str"),
    (lambda g: g.broadcast(ACROSS), ValueError, r"numpy.ascontiguousarray\(x\)"),
    (lambda g: g.allreduce(ACROSS), ValueError, r"numpy.ascontiguousarray\(x\)"),
    (lambda g: g.allreduce(READ_ONLY), ValueError, "read-only"),
    (lambda g: g.allreduce(floats(4), "mean"), ValueError, "op is"),
    (lambda g: g.allreduce([1, 2]), TypeError, "list"),
    (lambda g: g.allreduce(np.zeros(4, "O")), TypeError, "object"),
    (lambda g: g.allreduce(np.zeros(4, ">f4")), TypeError, "byte order"),
    (lambda g: g.allreduce(np.zeros(4, "M8[s]")), TypeError, "datetime64"),
    (lambda g: g.allreduce(floats(4), out=floats(5)), ValueError, "x has 4 elements, and needs the 5 of out"),
    (lambda g: g.allreduce(floats(4), out=floats(4, np.int32)), ValueError, "float32 .*int32"),
    (lambda g: g.allreduce(floats(4), out=READ_ONLY.astype(np.float32)[::2]), ValueError, r"ascontiguousarray\(out\)"),
    (lambda g: g.reduce(floats(4), -1), ValueError, "root"),
    (lambda g: g.reduce_scatter(floats(4), floats(4)), ValueError, "needs 2 times the 4 of out"),
    (lambda g: g.allgather(floats(4), floats(4)), ValueError, "out has 16 bytes, and needs 2 times the 16 of x"),
    (lambda g: g.gather(floats(4)), ValueError, "root has to pass out"),
    (lambda g: g.scatter(None, floats(4)), ValueError, "root has to pass x"),
    (lambda g: g.scatter(floats(4), floats(4)), ValueError, "x has 16 bytes"),
    (lambda g: g.alltoall(np.zeros(3, np.uint8), np.zeros(3, np.uint8)), ValueError, "no 2 parts of one length"),
    (lambda g: g.exchange(ANY), TypeError, "str"),
    (lambda g: g.split(1 << 70), ValueError, "color"),
    (lambda g: g.split(ANY), TypeError, "color"),
    (lambda g: g.barrier(timeout=-1), ValueError, "timeout"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments(two: list[zh.Group], number: int) -> None:
    """They are refused at once, and count as no call."""
    call, error, text = WRONG[number]
    with pytest.raises(error, match=text):
        call(two[0])
    for operation in [group.barrier() for group in two]:
        operation.result(PATIENCE_S)
