"""Makes random payloads that both processes know, and says what must arrive of them, and where two buffers differ."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Octets: TypeAlias = NDArray[np.uint8]
PageNumbers: TypeAlias = NDArray[np.int64]

BLOCK_BYTES = 64 * 1024


def random_bytes(seed: int, nbytes: int) -> Octets:
    """Return `nbytes` random bytes, writable; in every process, a seed gives the same bytes."""
    words = np.random.Generator(np.random.SFC64(seed)).integers(0, 1 << 64, (nbytes + 7) // 8, dtype=np.uint64)
    return words.view(np.uint8)[:nbytes]


def digest(data: bytes | memoryview | Octets) -> str:
    """Return the BLAKE2b digest (128 bits, hexadecimal) of contiguous bytes."""
    return hashlib.blake2b(data.data if isinstance(data, np.ndarray) else data, digest_size=16).hexdigest()


def block_digests(data: bytes | memoryview) -> list[str]:
    """Return the digest of each block of BLOCK_BYTES; the last block may be shorter."""
    view = memoryview(data)
    return [digest(view[start : start + BLOCK_BYTES]) for start in range(0, len(view), BLOCK_BYTES)]


class PageLists(NamedTuple):
    """Names pages to move, in lists of `batch` pages: page `here[i]` of the source becomes `there[i]` of the target."""

    here: PageNumbers
    there: PageNumbers
    page_bytes: int
    batch: int

    def placed(self, source: Octets) -> Octets:
        """Return the content of a zeroed buffer after all pages of `source` were written to it, in order."""
        target = np.zeros_like(source)
        pages = target[: source.size // self.page_bytes * self.page_bytes].reshape(-1, self.page_bytes)
        origin = source[: source.size // self.page_bytes * self.page_bytes].reshape(-1, self.page_bytes)
        pages[self.there] = origin[self.here]  # numpy keeps the last of several values for one index
        return target


class RangeLists(NamedTuple):
    """Names ranges to move: `lengths[i]` bytes from `here[i]` of the source on become those from `there[i]` on."""

    here: PageNumbers
    there: PageNumbers
    lengths: PageNumbers

    def placed(self, source: Octets) -> Octets:
        """Return the content of a zeroed buffer after all ranges of `source` were written to it, in order."""
        target = np.zeros_like(source)
        for begin, to, nbytes in zip(*(numbers.tolist() for numbers in self), strict=True):
            target[to : to + nbytes] = source[begin : begin + nbytes]
        return target


def mixed_ranges(count: int, mean: int) -> RangeLists:
    """Return `count` ranges, `mean` times as many bytes in all, that fill both sides in two random orders.

    As many have 16 to 64 bytes as have 1 to 4 KiB, or any other four times as much. If `mean` is a multiple of 16, all
    lengths are.
    """
    rng = np.random.default_rng(mean)
    unit = 1 if mean % 16 else 16
    # Lengths from `unit` to `most` units, of which the logarithms are spread evenly, have this mean.
    most = 8.0 * mean
    for _ in range(50):
        most = 1 + mean / unit * math.log(most)
    raw = most ** rng.random(count)
    lengths = unit * np.maximum(1, np.rint(raw * (mean / unit * count / raw.sum()))).astype(np.int64)
    # The longest takes up what the rounding left.
    lengths[lengths.argmax()] += mean * count - int(lengths.sum())
    if lengths.min() <= 0:
        raise ValueError(f"{count} ranges cannot have a mean of {mean} bytes; ask for longer ones")
    here, there = (np.zeros(count, np.int64) for _ in range(2))
    for offsets in (here, there):
        order = rng.permutation(count)
        offsets[order[1:]] = np.cumsum(lengths[order])[:-1]
    return RangeLists(here, there, lengths)


@dataclass(frozen=True, slots=True)
class Difference:
    """Describes where received bytes differ from the expected ones.

    Attributes:
        first: offset of the first wrong byte.
        last: offset of the last wrong byte in the examined blocks.
        count: number of wrong bytes in the examined blocks.
        expected: the byte that should be at `first`.
        found: the byte that is there.
        more_blocks: number of differing blocks that were not examined.
    """

    first: int
    last: int
    count: int
    expected: int
    found: int
    more_blocks: int

    def __str__(self) -> str:
        where = (
            f"byte {self.first} differs"
            if self.count == 1
            else f"{self.count} bytes differ between {self.first} and {self.last}"
        )
        more = f"; {self.more_blocks} more blocks of {BLOCK_BYTES} bytes differ" if self.more_blocks else ""
        return f"{where}: expected 0x{self.expected:02x} at {self.first}, found 0x{self.found:02x}{more}"


def locate_difference(
    mine: bytes | memoryview,
    other_blocks: Sequence[str],
    fetch: Callable[[int, int], bytes],
    *,
    mine_is_expected: bool,
    look_into: int = 8,
) -> Difference | None:
    """Find the bytes of another process's buffer that differ, without moving all of it.

    Args:
        mine: the bytes of this process.
        other_blocks: `block_digests` of the other buffer, which has the same length.
        fetch: returns the bytes of the other buffer at (offset, length).
        mine_is_expected: whether this process has the right bytes; else the other one has.
        look_into: number of differing blocks to fetch and examine.
    """
    view = memoryview(mine)
    bad = [i for i, (here, there) in enumerate(zip(block_digests(view), other_blocks, strict=True)) if here != there]
    wrong: list[int] = []
    first_pair = (0, 0)
    for block in bad[:look_into]:
        start = block * BLOCK_BYTES
        here = np.frombuffer(view[start : start + BLOCK_BYTES], np.uint8)
        there = np.frombuffer(fetch(start, here.size), np.uint8)
        at = np.flatnonzero(here != there)
        if at.size and not wrong:
            first_pair = (int(here[at[0]]), int(there[at[0]]))
        wrong.extend(int(offset) + start for offset in at)
    if not wrong:
        return None
    expected, found = first_pair if mine_is_expected else first_pair[::-1]
    return Difference(wrong[0], wrong[-1], len(wrong), expected, found, more_blocks=max(0, len(bad) - look_into))
