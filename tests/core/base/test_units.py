"""Sizes, durations and rates as people read them."""

from __future__ import annotations

import pytest

from zerohop.core.base.units import duration_text, size_text, transfer_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (8, "8 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (64 << 20, "64.0 MiB"), (3 << 40, "3072.0 GiB")],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 µs"),
        (931, "0.931 µs"),
        (684_000, "684 µs"),
        (3_400_000, "3.4 ms"),
        (2 * 10**9, "2 s"),
        (10**13, "10000 s"),
    ],
)
def test_durations(nanoseconds: int, text: str) -> None:
    assert duration_text(nanoseconds) == text


def test_transfers() -> None:
    assert transfer_text(64 << 20, 3_400_000) == "64.0 MiB in 3.4 ms, 19.7 GB/s"
    assert transfer_text(0, 1_000) == "0 B in 1 µs"
