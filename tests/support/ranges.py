"""Ranges of many lengths, in random places of a memory here and of one there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from support.pattern import pattern, poison
from support.sizes import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    import zerohop as zh
    from support.buffers import Buffer
    from support.pattern import Bytes
    from support.world import Target

Pairs = list[tuple[Any, "zh.RemoteBuffer"]]
# Lengths of the writes of one call: alike or all different, none at all, and on both sides of every switch.
MIXES: dict[str, list[int]] = {
    "one": [100],
    "alike": [64] * 300,
    "different": [1 + (k * 7919) % 257 for k in range(300)],
    "empty": [0, 0, 0],
    "some empty": [0, 5, 0, 7, 0],
    "bytes": [1] * 2000,
    "small and large": [8, 300_001, 9, 70_000, 1, 4 * KIB, 256 * KIB + 1],
    "large": [MIB + 1, MIB, 3],
}
# More than one request carries where lengths differ.
VERY_MANY = [1 + k % 13 for k in range(9000)]
GAP = 3


class Plan:
    """Ranges of those lengths, in random places of both memories, none of which overlap at the target."""

    def __init__(self, lengths: Sequence[int], seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.lengths = lengths
        self.nbytes = sum(lengths)
        self.room = self.nbytes + GAP * (len(lengths) + 1)
        self.here, self.there = self._places(generator), self._places(generator)

    def _places(self, generator: np.random.Generator) -> list[int]:
        """Where each begins, in a random order, with a gap before each."""
        places = [0] * len(self.lengths)
        at = GAP
        for number in generator.permutation(len(self.lengths)):
            places[number] = at
            at += self.lengths[number] + GAP
        return places

    def pairs(self, source: Buffer, target: zh.RemoteBuffer) -> Pairs:
        return [
            (source.memory[here : here + nbytes], target[there : there + nbytes])
            for here, there, nbytes in zip(self.here, self.there, self.lengths, strict=True)
        ]

    def expected(self, stream: Bytes, total: int) -> Bytes:
        """The target afterwards."""
        result = poison(total)
        for here, there, nbytes in zip(self.here, self.there, self.lengths, strict=True):
            result[there : there + nbytes] = stream[here : here + nbytes]
        return result

    def settle(self, target: Target, seed: int) -> None:
        got = np.frombuffer(target.get(0, target.nbytes), np.uint8)
        assert np.array_equal(got, self.expected(pattern(seed, self.room), target.nbytes))
        target.poison()
