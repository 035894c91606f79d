"""FreeRanges against a list of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zerohop.core.memory.free_ranges import FreeRanges

NBYTES = 64


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_like_a_list_of_bytes(steps: list[tuple[bool, int]]) -> None:
    ranges, taken = FreeRanges(NBYTES), [False] * NBYTES
    held: list[tuple[int, int]] = []
    for take, number in steps:
        free = "".join(" x"[used] for used in taken).split("x")
        longest = max(len(run) for run in free)
        if take:
            start = ranges.take(number)
            # There is room exactly when one run is long enough, and the tightest is cut.
            assert (start is not None) == (longest >= number)
            if start is not None:
                assert not any(taken[start : start + number])
                before = start
                while before and not taken[before - 1]:
                    before -= 1
                after = start + number
                while after < NBYTES and not taken[after]:
                    after += 1
                assert after - before == min(len(run) for run in free if len(run) >= number)
                taken[start : start + number] = [True] * number
                held.append((start, number))
        elif held:
            start, length = held.pop(number % len(held))
            ranges.give(start, length)
            taken[start : start + length] = [False] * length
        assert ranges.free == taken.count(False)
        runs = "".join(" x"[used] for used in taken).split("x")
        assert ranges.largest == max(len(run) for run in runs)
