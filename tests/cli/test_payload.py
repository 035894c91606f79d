"""Payloads, digests, and finding the bytes that differ."""

from __future__ import annotations

import numpy as np
import pytest

from zerohop.cli.payload import BLOCK_BYTES, block_digests, digest, locate_difference, mixed_ranges, random_bytes


@pytest.mark.parametrize("nbytes", [0, 1, 7, 8, 9, 1 << 20])
def test_payload_is_random_and_the_same_for_the_same_seed(nbytes: int) -> None:
    data = random_bytes(5, nbytes)
    assert data.size == nbytes
    assert data.flags.writeable
    assert np.array_equal(data, random_bytes(5, nbytes))
    if nbytes > 100:
        assert not np.array_equal(data, random_bytes(6, nbytes))
        assert np.bincount(data, minlength=256).min() > 0.9 * nbytes / 256


def test_mixed_ranges_fill_both_sides() -> None:
    ranges = mixed_ranges(20_000, 7680)
    assert ranges.lengths.sum() == 20_000 * 7680
    assert 16 <= ranges.lengths.min() < 64 < 60_000 < ranges.lengths.max() < 70_000
    for offsets in (ranges.here, ranges.there):
        order = np.argsort(offsets)
        assert np.array_equal(offsets[order], np.cumsum(ranges.lengths[order]) - ranges.lengths[order])
    source = random_bytes(1, 20_000 * 7680)
    placed = ranges.placed(source)
    assert np.array_equal(np.bincount(placed), np.bincount(source))
    for count, mean in ((5000, 8), (5000, 1), (3, 48), (64, 1024), (1, 16), (5000, 65536), (500, 1000)):
        assert mixed_ranges(count, mean).lengths.sum() == count * mean


def locate(mine: bytes, other: bytes, *, mine_is_expected: bool) -> str:
    fetch = lambda offset, nbytes: other[offset : offset + nbytes]  # noqa: E731
    return str(locate_difference(mine, block_digests(other), fetch, mine_is_expected=mine_is_expected))


@pytest.mark.parametrize("at", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 4])
def test_one_flipped_byte_is_found(at: int) -> None:
    expected = random_bytes(1, 3 * BLOCK_BYTES + 5).tobytes()
    found = bytearray(expected)
    found[at] ^= 0x10
    text = f"byte {at} differs: expected 0x{expected[at]:02x} at {at}, found 0x{found[at]:02x}"
    assert locate(expected, bytes(found), mine_is_expected=True) == text
    assert locate(bytes(found), expected, mine_is_expected=False) == text
    assert digest(expected) != digest(bytes(found))


def test_many_flipped_bytes_are_counted_and_not_all_fetched() -> None:
    expected = bytes(20 * BLOCK_BYTES)
    text = locate(expected, b"\1" * len(expected), mine_is_expected=True)
    assert text.startswith(f"{8 * BLOCK_BYTES} bytes differ between 0 and {8 * BLOCK_BYTES - 1}")
    assert text.endswith("12 more blocks of 65536 bytes differ")


def test_equal_buffers_have_no_difference() -> None:
    assert locate(b"abc", b"abc", mine_is_expected=True) == "None"
    assert locate(b"", b"", mine_is_expected=True) == "None"
