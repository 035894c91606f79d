"""Tests the tables of a pool after a change that was broken off, and the limits that a pool meets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.options import Options

if TYPE_CHECKING:
    from support.fixtures import OpenContext

NBYTES = 1 << 16


def test_a_limit_of_the_process(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its name and its fix, and the pool goes on once there is room."""
    context = open_context(Options())
    with context.pool("host") as pool:

        def refuse(*_: object, **__: object) -> None:
            raise zh.LimitReached("out of file descriptors", limit="RLIMIT_NOFILE", value=7, fix="ulimit -n 65536")

        with monkeypatch.context() as patch:
            patch.setattr(context._core.registration_cache, "allocate", refuse)
            with pytest.raises(zh.LimitReached, match="no room for 64 bytes") as caught:
                pool.alloc(64, timeout=0)
        assert (caught.value.limit, caught.value.value, caught.value.fix) == ("RLIMIT_NOFILE", 7, "ulimit -n 65536")
        pool.alloc(64).close()


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_stock_is_taken_while_a_memory_is_dropped(open_context: OpenContext, device: str) -> None:
    """Its range counts once, although it is returned in the middle of the count."""
    context = open_context(Options(sim_devices=1))
    with context.pool(device, chunk_bytes=NBYTES, max_bytes=NBYTES) as pool:
        living = [pool.alloc(NBYTES // 4) for _ in range(4)]
        [chunk] = pool._chunks

        class DropsOne(dict[int, tuple[int, int]]):
            """The blocks of the chunk, of which one goes just before they are looked at."""

            def copy(self) -> dict[int, tuple[int, int]]:
                living.pop(1)
                return dict(self)

        chunk.blocks = DropsOne(chunk.blocks)
        pool._changing = True  # as a signal's handler leaves it
        living.append(pool.alloc(NBYTES // 4))
        ranges = {(memory.address, memory.nbytes) for memory in living}
        assert len(ranges) == 4, "two Memories have the same bytes"
        assert pool.free_bytes == 0
        with pytest.raises(zh.RegistrationFailed):
            pool.alloc(512, timeout=0)


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_stock_is_taken_with_a_block_that_nobody_has(open_context: OpenContext, device: str) -> None:
    """A destructor that was interrupted has returned its range and left its block; another Memory has the range now."""
    context = open_context(Options(sim_devices=1))
    with context.pool(device, chunk_bytes=NBYTES, max_bytes=NBYTES) as pool:
        first = pool.alloc(NBYTES // 2)
        [chunk] = pool._chunks
        ((start, nbytes),) = chunk.blocks.values()
        chunk.blocks[-1] = start + 512, 512
        pool._changing = True  # as after an exception in the middle of a change
        second = pool.alloc(NBYTES // 4)
        assert second.address >= first.address + nbytes or second.address + second.nbytes <= first.address
        first.close()
        second.close()
