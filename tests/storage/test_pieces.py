"""How a server cuts ranges into pieces, and joins those that follow each other before it sends them."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zerohop.storage.serving.pieces import Results, cut, joined


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


def test_the_rest_of_a_range_that_has_ended() -> None:
    """However long it is, nothing more is begun of it, and what comes after it is."""
    lengths = np.array([1 << 62, 5, 1 << 40, 7], np.int64)
    zeros = np.zeros(4, np.int64)
    results = Results(lengths)
    taken = []
    for pieces in cut(zeros, zeros, lengths, 1000, results.has_ended):
        taken.append((int(pieces.ranges[0]), int(pieces.starts[0]), int(pieces.lengths[0])))
        if pieces.lengths[0] == 1000 and pieces.starts[0] == 2000:
            results.fail_all(pieces, 3)
    assert taken == [
        *((0, start, 1000) for start in (0, 1000, 2000)),
        (1, 0, 5),
        *((2, start, 1000) for start in (0, 1000, 2000)),
        (3, 0, 7),
    ]
    assert results.done.tolist() == [2000, 5, 2000, 7]


def test_the_rest_of_all_ranges() -> None:
    lengths = np.array([10, 1 << 62, 5], np.int64)
    zeros = np.zeros(3, np.int64)
    results = Results(lengths)
    every = cut(zeros, zeros, lengths, 1000, results.has_ended)
    _first, _second, pieces = (next(every) for _ in range(3))
    results.fail_rest(pieces, 3)
    assert results.done.tolist() == [10, 1000, 0]
    assert results.outcomes.tolist() == [[0, 0], [3, 0], [3, 0]]
    # Pieces that were under way fail afterwards: the first of them counts, the second comes too late.
    results.fail_all(pieces._replace(starts=np.array([500]), lengths=np.array([1000])), 4)
    assert results.done.tolist() == [10, 500, 0]
    results.fail_all(pieces._replace(starts=np.array([5000]), lengths=np.array([1000])), 5)
    assert results.outcomes.tolist() == [[0, 0], [4, 0], [3, 0]]
