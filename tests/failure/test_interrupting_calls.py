"""Calls that a signal's handler or a destructor makes in the middle of another call, on the same thread."""

from __future__ import annotations

import bisect
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.memory.free_ranges import FreeRanges

if TYPE_CHECKING:
    from support.fixtures import OpenContext


def test_close_in_the_middle_of_an_allocation(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a handler of SIGTERM does it: close() returns, and the call that it has interrupted ends."""
    context = open_context(Options())
    insort = bisect.insort

    def close_first(starts: list[int], start: int) -> None:
        context.close(1)
        insort(starts, start)

    with monkeypatch.context() as patched:
        patched.setattr("zerohop.core.memory.registration_cache.bisect.insort", close_first)
        try:
            memory = context.alloc(64)
        except zh.Closed:
            pass
        else:
            with pytest.raises(zh.Closed):
                memory.share()
    with pytest.raises(zh.Closed):
        context.alloc(64)


def test_an_allocation_in_the_middle_of_another(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a destructor does it that the garbage collector calls."""
    owner, context = open_context(Options()), open_context(Options())
    insort, inner, begun = bisect.insort, list[zh.Memory](), list[bool]()

    def allocate_first(starts: list[int], start: int) -> None:
        if not begun:
            begun.append(True)
            inner.append(context.alloc(64))
        insort(starts, start)

    with monkeypatch.context() as patched:
        patched.setattr("zerohop.core.memory.registration_cache.bisect.insort", allocate_first)
        outer = context.alloc(64)
    for memory in (outer, *inner):
        owner.write(bytes(range(64)), memory.share("w")).result(PATIENCE_S)
        assert memory.read_bytes() == bytes(range(64))
        # Both are found by their address.
        assert context.register(memory.numpy()).reused_registration


def test_a_pool_in_the_middle_of_an_allocation(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is refused, because the pool's tables are half changed, and nothing is handed out twice."""
    context = open_context(Options())
    pool = context.pool("host", chunk_bytes=1 << 16)
    take, refused = FreeRanges.take, list[zh.WouldBlock]()

    def allocate_too(ranges: FreeRanges, size: int) -> int | None:
        taken = take(ranges, size)
        for call in (lambda: pool.alloc(64), pool.trim, lambda: pool.free_bytes):
            with pytest.raises(zh.WouldBlock, match="in the middle of a call") as caught:
                call()
            refused.append(caught.value)
        return taken

    pool.alloc(64).close()
    with monkeypatch.context() as patched:
        patched.setattr(FreeRanges, "take", allocate_too)
        first = pool.alloc(64)
    assert refused
    second = pool.alloc(64)
    assert abs(first.address - second.address) >= 64


def test_a_pool_that_is_closed_in_the_middle_of_an_allocation(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = open_context(Options())
    pool = context.pool("host", chunk_bytes=1 << 16)
    take = FreeRanges.take

    def close_first(ranges: FreeRanges, size: int) -> int | None:
        pool.close()
        return take(ranges, size)

    pool.alloc(64).close()
    with monkeypatch.context() as patched:
        patched.setattr(FreeRanges, "take", close_first)
        memory = pool.alloc(64)
    memory.fill(1)  # it is whole, whatever becomes of the pool
    memory.close()
    assert pool.nbytes == 0
    with pytest.raises(zh.Closed):
        pool.alloc(64)


_AT_THE_END = """
import zerohop as zh

class Late:
    def __del__(self):
        try:
            zh.Context()
        except zh.Unsupported as error:
            print(error, flush=True)

late = Late()
late.itself = late
with zh.Context():
    pass
"""


def test_opening_a_context_while_the_interpreter_ends() -> None:
    """A thread that would open it never runs any more, so that the process would wait for it for ever."""
    ran = subprocess.run(
        [sys.executable, "-c", _AT_THE_END], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert "the interpreter is ending" in ran.stdout
