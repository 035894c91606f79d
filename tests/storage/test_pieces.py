"""How a server joins ranges that follow each other before it sends them."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zerohop.storage.serving.pieces import joined


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 5)), max_size=12))
def test_joined(steps: list[tuple[int, int, int]]) -> None:
    """The same bytes go to the same places, in as few ranges as there can be."""
    here, there, lengths = [], [], []
    at = start = 0
    for gap_here, gap_there, length in steps:
        at, start = at + gap_here, start + gap_there
        here.append(at)
        there.append(start)
        lengths.append(length)
        at, start = at + length, start + length
    arrays = (np.array(each, np.int64) for each in (here, there, lengths))
    found = list(zip(*(each.tolist() for each in joined(*arrays)), strict=True))

    def moved(ranges: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        return [(from_ + i, to + i) for from_, to, length in ranges for i in range(length)]

    assert moved(found) == moved(list(zip(here, there, lengths, strict=True)))
    assert all(length for *_, length in found)
    for (a, b, length), (next_a, next_b, _) in itertools.pairwise(found):
        assert (a + length, b + length) != (next_a, next_b)
