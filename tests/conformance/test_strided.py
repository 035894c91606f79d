"""Strided blocks: rows at both ends, every byte of them and every byte between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

import zerohop as zh
from support.buffers import KINDS, ON_GPUS, Kind
from support.matrix import every_pair
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.transfers.strided import as_pages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from support.fixtures import OpenContext
    from support.world import World

SOURCES: tuple[Kind, ...] = ("numpy", "alloc", "sim", *ON_GPUS)
ROOM = 40_000
LIMIT_S = PATIENCE_S


class Block(NamedTuple):
    rows: int
    row_bytes: int
    src_stride: int | None
    dst_stride: int | None


# Of strides that are alike, and not; that a row divides, and not; where only single bytes are in common; and no rows.
BLOCKS = (
    Block(20, 512, 1536, 512),
    Block(20, 512, None, 1024),
    Block(12, 1000, 1024, 2000),
    Block(9, 777, 1001, 780),
    Block(1, 333, 400, 5000),
    Block(7, 64, None, None),
    Block(0, 16, 16, 16),
)


def placed(block: Block, source: NDArray[np.uint8], target: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The target's bytes afterwards."""
    result: NDArray[np.uint8] = target.copy()
    for row in range(block.rows):
        origin = row * (block.src_stride or block.row_bytes)
        place = row * (block.dst_stride or block.row_bytes)
        result[place : place + block.row_bytes] = source[origin : origin + block.row_bytes]
    return result


def random_array() -> NDArray[np.uint8]:
    return np.random.default_rng().integers(0, 256, ROOM, dtype=np.uint8)


@pytest.mark.parametrize(("world", "source_kind", "target_kind"), every_pair(SOURCES, KINDS), indirect=["world"])
class TestEveryPair:
    def test_write_and_read(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        here, there = world.buffer(source_kind, ROOM), world.target(target_kind, ROOM)
        for number, block in enumerate(BLOCKS):
            mine, theirs = random_array(), random_array()
            here.put(0, mine)
            there.put(0, theirs.tobytes())
            written = world.here.write_strided(here.memory, there.handle, notify=number, **block._asdict())
            assert written.result(LIMIT_S) == block.rows * block.row_bytes
            world.expect_notification(number, block.rows * block.row_bytes)
            assert there.get(0, ROOM) == placed(block, mine, theirs).tobytes()
            there.put(0, theirs.tobytes())
            read = world.here.read_strided(there.handle, here.memory, **block._asdict())
            assert read.result(LIMIT_S) == block.rows * block.row_bytes
            assert here.get(0, ROOM).tobytes() == placed(block, theirs, mine).tobytes()
        here.poison(0, ROOM)
        there.poison()


class TestArguments:
    def test_the_pages_are_as_long_as_can_be(self) -> None:
        here, there, page_bytes = as_pages(3, 512, 1536, 512)
        assert (here.tolist(), there.tolist(), page_bytes) == ([0, 3, 6], [0, 1, 2], 512)
        here, there, page_bytes = as_pages(2, 1000, 1024, 2000)
        assert (here.size, there.size, page_bytes) == (250, 250, 8)
        assert as_pages(1, 777, 1001, 5000)[2] == 777

    def test_what_makes_no_block(self) -> None:
        for wrong in ((-1, 8, None, None), (2, 0, None, None), (2, 8, 7, None), (2, 8, None, -8)):
            with pytest.raises(ValueError, match="must be at least"):
                as_pages(*wrong)
        with pytest.raises(TypeError, match="src_stride must be an int, not float"):
            as_pages(2, 8, 8.5, None)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no longer page in common than 1 bytes"):
            as_pages(1 << 14, 1021, 1024, 1022)

    def test_outside_of_the_memory(self, open_context: OpenContext) -> None:
        owner, context = open_context(Options()), open_context(Options())
        handle = owner.alloc(4096).share("rw")
        with pytest.raises(ValueError, match="not within the 4096 bytes here"):
            context.write_strided(bytearray(4096), handle, rows=5, row_bytes=100, src_stride=1000)
        with pytest.raises(zh.AccessDenied):
            context.write_strided(bytearray(4096), handle, rows=5, row_bytes=100, dst_stride=1000).result(LIMIT_S)

    def test_without_waiting(self, open_context: OpenContext) -> None:
        owner, context = open_context(Options()), open_context(Options())
        target = owner.alloc(4096)
        handle, source = target.share("rw"), context.alloc(4096)
        source.fill(4)
        context.write(source, handle).result(LIMIT_S)
        source.fill(5)
        context.write_strided_nowait(source, handle, rows=4, row_bytes=8, dst_stride=1024).result(LIMIT_S)
        assert target.read_bytes(0, 12) == b"\x05" * 8 + b"\x04" * 4
        assert target.read_bytes(3072, 9) == b"\x05" * 8 + b"\x04"
        context.read_strided_nowait(handle, source, rows=4, row_bytes=8, src_stride=1024).result(LIMIT_S)
        assert source.read_bytes(0, 33) == b"\x05" * 33
