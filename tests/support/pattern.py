"""Bytes that a seed determines, so that two processes agree on them without sending them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# What memory holds that no operation may have touched.
POISON = 0xA5


def pattern(seed: int, nbytes: int) -> Bytes:
    """The first `nbytes` bytes of the stream of `seed`. Streams of different seeds share nothing but chance."""
    words: NDArray[np.uint64] = np.random.SFC64(seed).random_raw(nbytes // 8 + 1)
    return words.view(np.uint8)[:nbytes]


def poison(nbytes: int) -> Bytes:
    return np.full(nbytes, POISON, np.uint8)


def expect_equal(actual: Bytes, expected: Bytes, what: str) -> None:
    """Raise AssertionError naming the first byte that differs, and how many do."""
    assert actual.nbytes == expected.nbytes, f"{what}: {actual.nbytes} bytes instead of {expected.nbytes}"
    if np.array_equal(actual, expected):
        return
    wrong = np.flatnonzero(actual != expected)
    first = int(wrong[0])
    raise AssertionError(
        f"{what}: {wrong.size} of {actual.nbytes} bytes are wrong, the first at {first} "
        f"({actual[first]:#04x} instead of {expected[first]:#04x}), the last at {int(wrong[-1])}"
    )


def expect_poison(actual: Bytes, what: str) -> None:
    """Raise AssertionError where a byte is not poison. Allocates nothing when all of them are."""
    if (actual == POISON).all():
        return
    expect_equal(actual, poison(actual.nbytes), what)
