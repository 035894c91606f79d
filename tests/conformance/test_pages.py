"""write_pages and read_pages: random pages of odd and even lengths, every byte and its neighbours checked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.buffers import KINDS, ON_GPUS, Kind
from support.matrix import every_pair
from support.options import Options
from support.patience import PATIENCE_S, times
from support.service import Service
from support.sizes import PAGE_LISTS, PAGE_ROOM, Pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from support.fixtures import OpenContext
    from support.world import World

SOURCES: tuple[Kind, ...] = ("numpy", "alloc", "sim", *ON_GPUS)
# Page lists start where no page of the machine does.
LOCAL_BASE, REMOTE_BASE = 4097, 3


def _draw(listed: Pages, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pages to take from, some twice, and pages to place them at, none twice."""
    generator = np.random.default_rng(seed)
    origins = generator.integers(0, listed.pool, listed.pages)
    return origins, generator.permutation(listed.pool)[: listed.pages].astype(np.int64)


def _placed(origins: NDArray[np.int64], places: NDArray[np.int64]) -> list[tuple[int, int]]:
    return list(zip(origins.tolist(), places.tolist(), strict=True))


@pytest.mark.parametrize(("world", "source_kind", "target_kind"), every_pair(SOURCES, KINDS), indirect=["world"])
class TestEveryPair:
    def test_write_pages(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        source = world.buffer(source_kind, PAGE_ROOM)
        target = world.target(target_kind, PAGE_ROOM)
        for seed, listed in enumerate(PAGE_LISTS, 1):
            origins, places = _draw(listed, seed)
            span = listed.page_bytes * listed.pool
            source.fill(LOCAL_BASE, span, seed)
            local = source.memory[LOCAL_BASE : LOCAL_BASE + span]
            remote = target.handle[REMOTE_BASE : REMOTE_BASE + span]
            value = seed if seed % 2 else None
            total = listed.page_bytes * listed.pages
            written = world.here.write_pages(local, remote, origins, places, page_bytes=listed.page_bytes, notify=value)
            assert written.result(PATIENCE_S) == total
            if value is not None:
                world.expect_notification(value, total)
            world.there.call(
                Service.settle_pages,
                target.number,
                REMOTE_BASE,
                span,
                listed.page_bytes,
                _placed(origins, places),
                seed,
            )
            source.settle(LOCAL_BASE, span, seed)
        world.expect_no_notification()
        target.expect_poison()

    def test_read_pages(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        into = world.buffer(source_kind, PAGE_ROOM)
        target = world.target(target_kind, PAGE_ROOM)
        for seed, listed in enumerate(PAGE_LISTS, 1):
            origins, places = _draw(listed, seed)
            span = listed.page_bytes * listed.pool
            target.fill(REMOTE_BASE, span, seed)
            local = into.memory[LOCAL_BASE : LOCAL_BASE + span]
            remote = target.handle[REMOTE_BASE : REMOTE_BASE + span]
            read = world.here.read_pages(remote, local, origins, places, page_bytes=listed.page_bytes)
            assert read.result(PATIENCE_S) == listed.page_bytes * listed.pages
            into.settle_pages(LOCAL_BASE, span, listed.page_bytes, _placed(origins, places), seed)
            target.settle(REMOTE_BASE, span, seed)
        into.expect_poison()


def _unaligned(values: list[int]) -> NDArray[np.int64]:
    raw = b"x" + np.array(values, np.int64).tobytes()
    return np.frombuffer(raw, np.int64, len(values), 1)


def _of_a_packed_field(values: list[int]) -> NDArray[np.int64]:
    array = np.zeros(len(values), np.dtype([("odd", "u1"), ("number", "<i8")]))
    array["number"] = values
    field: NDArray[np.int64] = array["number"]
    return field


def _read_only(values: list[int]) -> NDArray[np.int64]:
    array = np.array(values, np.int64)
    array.flags.writeable = False
    return array


def _strided(values: list[int]) -> NDArray[np.int64]:
    return np.repeat(np.array(values, np.int64), 2)[::2]


INDEX_FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "int32": lambda values: np.array(values, np.int32),
    "uint16": lambda values: np.array(values, np.uint16),
    "uint64": lambda values: np.array(values, np.uint64),
    "big-endian": lambda values: np.array(values, ">i8"),
    "strided": _strided,
    "not aligned": _unaligned,
    "of a packed field": _of_a_packed_field,
    "read-only": _read_only,
}


@pytest.mark.parametrize("form", INDEX_FORMS)
@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_index_arrays_of_other_forms(world: World, form: str) -> None:
    page, pool = 512, 16
    source = world.buffer("numpy", page * pool)
    target = world.target("alloc", page * pool)
    origins, places = [3, 3, 0, 15], [1, 15, 7, 0]
    source.fill(0, page * pool, 1)
    index = INDEX_FORMS[form]
    for _ in range(2):  # on a first use, and on a known path
        world.here.write_pages(source.memory, target.handle, index(origins), index(places), page_bytes=page).result(
            PATIENCE_S
        )
    placed = list(zip(origins, places, strict=True))
    world.there.call(Service.settle_pages, target.number, 0, page * pool, page, placed, 1)


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_index_arrays_may_change_once_the_call_returned(world: World) -> None:
    """The arrays are read by the call, not by the operation that it leaves behind."""
    page, pool = 64 * 1024 + 1, 64
    source = world.buffer("numpy", page * pool)
    target = world.target("numpy", page * pool)
    source.fill(0, page * pool, 1)
    origins = np.arange(pool, dtype=np.int64)
    places = origins[::-1].copy()
    placed = _placed(origins, places)
    written = world.here.write_pages(source.memory, target.handle, origins, places, page_bytes=page)
    origins[:] = 0
    places[:] = 1 << 40
    assert written.result(PATIENCE_S) == page * pool
    world.there.call(Service.settle_pages, target.number, 0, page * pool, page, placed, 1)


@pytest.mark.parametrize("direction", ["write", "read"])
@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_index_arrays_may_change_while_the_lane_is_full(
    open_context: OpenContext, provider: str, direction: str
) -> None:
    """On an event loop the control thread posts later, and must not see what they are by then."""
    options = Options(providers=(provider,), timeout=PATIENCE_S)
    here, there = open_context(options), open_context(options)
    page, pool = 64 * 1024, times(600)
    mine, theirs = np.zeros((pool, page), np.uint8), np.zeros((pool, page), np.uint8)
    source, target = (mine, theirs) if direction == "write" else (theirs, mine)
    source[:] = np.random.default_rng(1).integers(1, 255, page, np.uint8)
    source[:, :8] = np.arange(pool, dtype=np.uint64)[:, None].view(np.uint8)
    handle = there.register(theirs).share("rw")
    here.write(mine[:1], handle[:page]).result(PATIENCE_S)
    theirs[0] = source[0] if direction == "read" else 0

    async def reuse() -> None:
        index = np.zeros(1, np.int64)
        operations = []
        for number in range(pool):
            index[0] = number
            if direction == "write":
                operations.append(here.write_pages(mine, handle, index, index, page_bytes=page))
            else:
                operations.append(here.read_pages(handle, mine, index, index, page_bytes=page))
        index[0] = 0
        await zh.gather(operations)

    asyncio.run(reuse())
    assert not [number for number in range(pool) if not np.array_equal(source[number], target[number])]


BAD_LISTS: dict[str, tuple[Any, Any, int]] = {
    "unequal lengths": ([0, 1], [0], 64),
    "two dimensions": ([[0, 1]], [[0, 1]], 64),
    "no integers": ([0.5], [0.5], 64),
    "masked": (np.ma.array([0, 1], mask=[False, True]), np.ma.array([0, 1], mask=[False, True]), 64),
    "masked, though nothing is": (np.ma.array([0, 1]), [0, 1], 64),
    "no page length": ([0], [0], 0),
    "negative page length": ([0], [0], -64),
    "page length of 63 bits": ([1, 0], [0, 1], (1 << 63) - 1),
}


@pytest.mark.parametrize("wrong", BAD_LISTS)
@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_page_lists_that_make_no_sense(world: World, wrong: str) -> None:
    origins, places, page = BAD_LISTS[wrong]
    source = world.buffer("numpy", 1024)
    target = world.target("numpy", 1024)
    with pytest.raises((ValueError, TypeError)):
        world.here.write_pages(source.memory, target.handle, origins, places, page_bytes=page)
    with pytest.raises((ValueError, TypeError)):
        world.here.read_pages(target.handle, source.memory, origins, places, page_bytes=page)
    target.expect_poison()
    source.expect_poison()


@pytest.mark.parametrize("listed", [[], [0], [1, 0]])
@pytest.mark.parametrize("page", [1 << 63, (1 << 64) - 1, 1 << 64, 1 << 70])
@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_page_lengths_beyond_63_bits(world: World, connected: bool, page: int, listed: list[int]) -> None:
    source = world.buffer("numpy", 1024)
    target = world.target("numpy", 1024)
    if connected:
        # First use has checks of its own.
        world.here.explain(source.memory, target.handle)
    # Of a part too, whose bounds are checked here.
    for handle in (target.handle, target.handle[:512]):
        with pytest.raises(ValueError, match="page_bytes"):
            world.here.write_pages(source.memory, handle, listed, listed, page_bytes=page)
        with pytest.raises(ValueError, match="page_bytes"):
            world.here.read_pages(handle, source.memory, listed, listed, page_bytes=page)
    target.expect_poison()
    source.expect_poison()


# The last page that fits is 15.
OUTSIDE = (16, -1, 1 << 40, -(1 << 58), (1 << 63) - 1)


@pytest.mark.parametrize("page", OUTSIDE)
@pytest.mark.parametrize("target_kind", KINDS)
@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_pages_outside_the_memory(world: World, target_kind: Kind, page: int) -> None:
    """None of the pages is touched when one of them lies outside: here a bad argument, there the owner's refusal."""
    source = world.buffer("numpy", 1024)
    target = world.target(target_kind, 1024)
    inside, outside = [0, 1], [0, page]
    write, read = world.here.write_pages, world.here.read_pages
    with pytest.raises(ValueError, match="page number"):
        write(source.memory, target.handle, outside, inside, page_bytes=64)
    with pytest.raises(ValueError, match="page number"):
        read(target.handle, source.memory, inside, outside, page_bytes=64)
    # Of the whole memory, and of a part of it.
    for handle in (target.handle, target.handle[:1024], target.handle[64:]):
        for refused in (
            write(source.memory, handle, inside, outside, page_bytes=64),
            read(handle, source.memory, outside, inside, page_bytes=64),
        ):
            with pytest.raises(zh.AccessDenied, match="bounds") as caught:
                refused.result(PATIENCE_S)
            assert caught.value.peer == world.there.identity.id
    target.expect_poison()
    source.expect_poison()


@pytest.mark.slow
@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_more_pages_than_one_read_takes(world: World) -> None:
    """It can never be posted, so waiting for room would be the wrong advice."""
    pages = np.zeros((1 << 23) + 1, np.int64)
    target = world.target("numpy", 8)
    into = world.buffer("numpy", 8)
    with pytest.raises(zh.Unsupported, match="too many pages"):
        world.here.read_pages(target.handle, into.memory, pages, pages, page_bytes=1).result(30)
    assert world.here.read_pages(target.handle, into.memory, pages[1:], pages[1:], page_bytes=1).result(60) == 1 << 23


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
@pytest.mark.parametrize("page_bytes", [1, 4096, 1 << 33, 1 << 62])
def test_no_pages_of_any_size(world: World, page_bytes: int) -> None:
    """No lane minds, whatever size it could not carry."""
    target, mine = world.target("numpy", 64), world.buffer("numpy", 64)
    none = np.zeros(0, np.int64)
    for _ in range(2):
        read = world.here.read_pages(target.handle, mine.memory, none, none, page_bytes=page_bytes)
        assert read.result(PATIENCE_S) == 0
        write = world.here.write_pages(mine.memory, target.handle, none, none, page_bytes=page_bytes)
        assert write.result(PATIENCE_S) == 0
    world.here.write(mine.memory, target.handle).result(PATIENCE_S)


def test_a_way_that_is_refused_is_the_operations_error(open_context: OpenContext) -> None:
    """As that of a write is: the call itself returns an Operation."""
    options = Options(providers=("tcp",), require="direct")
    here, there = open_context(options), open_context(options)
    source, target = here.alloc(8192, "sim:0"), there.alloc(8192, "sim:0").share("rw")
    for _ in range(2):
        operation = here.write_pages(source, target, [0], [1], page_bytes=4096)
        assert isinstance(operation.exception(PATIENCE_S), zh.Unsupported)


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
@pytest.mark.parametrize("kind", ["write_pages", "read_pages"])
def test_pages_of_more_bytes_than_there_are_addresses(world: World, kind: str) -> None:
    """The sum of their bytes has 64 bits, and does not wrap."""
    there, pages = world.target("numpy", 4096), np.zeros(1 << 20, np.int64)
    memory = world.here.alloc(4096)
    ends = (memory, there.handle) if kind == "write_pages" else (there.handle, memory)
    with pytest.raises(ValueError, match="2\\*\\*63 bytes or more"):
        getattr(world.here, kind)(*ends, pages, pages, page_bytes=1 << 44)
    memory.close()
