"""The BlockWatch: a range lies in a block only where the block is now."""

from __future__ import annotations

import ctypes

import pytest

from zerohop._native import BlockWatch

START, LENGTH = 0x10000, 0x1000


@pytest.mark.parametrize(
    ("address", "nbytes", "held"),
    [
        (START, LENGTH, True),
        (START + LENGTH, 0, True),
        (START + 16, LENGTH - 16, True),
        (START + 16, LENGTH - 15, False),
        (START - 1, 1, False),
        (START + LENGTH + 1, 0, False),
        (START + 1, (1 << 64) - 1, False),
        (0, START + 1, False),
    ],
)
def test_a_range(address: int, nbytes: int, held: bool) -> None:
    words = (ctypes.c_uint64 * 2)(START, LENGTH)
    place = ctypes.addressof(words)
    watch = BlockWatch(place, START, place + 8, LENGTH)
    assert watch.holds(address, nbytes) is held


def test_a_block_that_has_moved() -> None:
    words = (ctypes.c_uint64 * 2)(START, LENGTH)
    place = ctypes.addressof(words)
    watch = BlockWatch(place, START, place + 8, LENGTH)
    words[0] = START + 16
    assert (watch.moved, watch.holds(START + 16, 1)) == (True, False)
    words[0], words[1] = START, LENGTH - 1
    assert (watch.moved, watch.holds(START, 1)) == (True, False)


def test_a_block_of_unknown_length() -> None:
    words = (ctypes.c_uint64 * 1)(START)
    watch = BlockWatch(ctypes.addressof(words), START)
    assert watch.holds(START, 1 << 40)
    assert not watch.holds(START - 1, 1)
