"""A look at the beginning of a table that changes in the middle of the look."""

from __future__ import annotations

import gc
import itertools

import pytest

from zerohop.core.base.tables import oldest


def test_the_first_keys() -> None:
    assert oldest({3: "a", 1: "b", 2: "c"}, 2) == [3, 1]
    assert oldest({3: "a"}, 2) == [3]
    assert oldest({}, 2) == []


def _look_on(table: dict[int, None]) -> None:
    for _ in range(1000):
        list(itertools.islice(table, 2))


def test_a_table_that_changes_meanwhile() -> None:
    """The collection of garbage begins in the middle of any call, and lets other threads and destructors run."""
    table = dict.fromkeys(range(10))
    numbers = itertools.count(10)

    def change(_phase: str, _details: object) -> None:
        table[next(numbers)] = None

    before = gc.get_threshold()
    gc.callbacks.append(change)
    gc.set_threshold(1)
    try:
        with pytest.raises(RuntimeError, match="changed size"):
            _look_on(table)
        assert all(oldest(table, 2) in ([], [0, 1]) for _ in range(1000))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(change)
