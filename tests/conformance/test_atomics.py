"""fetch_add and compare_swap on 8 bytes: values, wrap-around, places, and many callers at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.buffers import KINDS, Kind
from support.patience import PATIENCE_S
from support.service import Service
from support.world import WORLDS

if TYPE_CHECKING:
    from support.world import Target, World

WORD = 1 << 64


def _word(target: Target, offset: int = 0) -> int:
    return int.from_bytes(target.get(offset, 8), "little")


@pytest.mark.parametrize("target_kind", KINDS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
class TestEveryMemory:
    def test_fetch_add(self, world: World, target_kind: Kind) -> None:
        target = world.target(target_kind, 8192)
        total = 0
        for offset in (0, 8, 4088, 4096, 8184):
            target.put(offset, (0).to_bytes(8, "little"))
            total = 0
            for value in (1, 0, 41, 1 << 32, WORD - 1, 1 << 63):
                old = world.here.fetch_add(target.handle, value, offset=offset).result(PATIENCE_S)
                assert old % WORD == total
                total = (total + value) % WORD
                assert _word(target, offset) == total
            target.poison(offset, 8)
        target.expect_poison()

    def test_compare_swap(self, world: World, target_kind: Kind) -> None:
        target = world.target(target_kind, 4096)
        target.put(16, (7).to_bytes(8, "little"))
        swap = world.here.compare_swap
        assert swap(target.handle, 8, 99, offset=16).result(PATIENCE_S) == 7
        assert _word(target, 16) == 7
        assert swap(target.handle, 7, WORD - 2, offset=16).result(PATIENCE_S) == 7
        assert _word(target, 16) == WORD - 2
        assert swap(target.handle[16:], WORD - 2, 0).result(PATIENCE_S) % WORD == WORD - 2
        assert _word(target, 16) == 0
        target.poison(16, 8)
        target.expect_poison()

    def test_adding_from_everywhere_loses_nothing(self, world: World, target_kind: Kind) -> None:
        """Four threads here and the Context that owns the memory: every old value is seen exactly once."""
        target = world.target(target_kind, 64)
        target.put(0, bytes(8))
        each = 250
        theirs = world.there.start(Service.add_many, bytes(target.handle), 1, each)
        seen: list[list[int]] = [[] for _ in range(4)]

        def add(mine: list[int]) -> None:
            for _ in range(each):
                mine.append(world.here.fetch_add(target.handle, 1).result(PATIENCE_S))

        threads = [threading.Thread(target=add, args=[mine]) for mine in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        everything = theirs.result() + [old for mine in seen for old in mine]
        assert sorted(everything) == list(range(5 * each))
        assert _word(target) == 5 * each

    def test_swapping_from_both_sides_loses_nothing(self, world: World, target_kind: Kind) -> None:
        target = world.target(target_kind, 64)
        target.put(0, bytes(8))
        theirs = world.there.start(Service.swap_until_won, bytes(target.handle), 200)
        seen = 0
        for _ in range(200):
            while (old := world.here.compare_swap(target.handle, seen, seen + 1).result(PATIENCE_S)) != seen:
                seen = old
            seen += 1
        assert theirs.result() >= 200
        assert _word(target) == 400


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_words_out_of_place(world: World) -> None:
    target = world.target("numpy", 4096)
    for offset in (1, 4, 7):
        with pytest.raises(ValueError, match=r"(?i)align|multiple|8"):
            world.here.fetch_add(target.handle, 1, offset=offset)
        with pytest.raises(ValueError, match=r"(?i)align|multiple|8"):
            world.here.compare_swap(target.handle, 0, 1, offset=offset)
    for offset in (-8, 4096, 1 << 40, (1 << 63) - 8):
        with pytest.raises((ValueError, zh.AccessDenied)):
            world.here.fetch_add(target.handle, 1, offset=offset).result(PATIENCE_S)
        with pytest.raises((ValueError, zh.AccessDenied)):
            world.here.compare_swap(target.handle, 0, 1, offset=offset).result(PATIENCE_S)
    with pytest.raises((ValueError, zh.AccessDenied)):
        world.here.fetch_add(target.handle[:7], 1).result(PATIENCE_S)
    target.expect_poison()


@pytest.mark.parametrize("value", [-1 << 64, 1 << 64, 1 << 80])
@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_values_beyond_64_bits(world: World, value: int) -> None:
    target = world.target("numpy", 64)
    with pytest.raises((ValueError, OverflowError)):
        world.here.fetch_add(target.handle, value)
    with pytest.raises((ValueError, OverflowError)):
        world.here.compare_swap(target.handle, 0, value)
    target.expect_poison()


@pytest.mark.parametrize("kind", ["numpy", "alloc"])
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_memory_that_does_not_begin_at_a_word(world: World, kind: Kind) -> None:
    """Only its owner knows that."""
    target = world.target(kind, 64)
    handle = zh.RemoteBuffer.from_bytes(world.there.call(Service.share_part, target.number, 1, 33))
    for call in (world.here.fetch_add(handle, 1), world.here.compare_swap(handle, 0, 1)):
        with pytest.raises(zh.Unsupported, match="misaligned"):
            call.result(PATIENCE_S)
    target.expect_poison()
