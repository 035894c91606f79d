"""Chooses the algorithm of each collective, by its length and the number of ranks."""

from __future__ import annotations

from typing import Final

from zerohop._native import BOARD_SLOT_BYTES

# A kind's place in this list is its number in tags. There is room for 15.
KINDS: Final = (
    "barrier",
    "broadcast",
    "reduce",
    "allreduce",
    "reduce_scatter",
    "allgather",
    "gather",
    "scatter",
    "alltoall",
    "exchange",
    "split",
)

# Kinds whose ranks have a part for each rank: the others read the whole of it.
OF_PARTS: Final = ("reduce_scatter", "scatter", "alltoall")
SHARED_MEMORY: Final = "shared memory"
_BY_MESSAGES: Final = ("exchange", "split")

# Longest broadcast that goes down a tree as a whole, and the fewest ranks that share the work of a longer one.
TREE_BROADCAST: Final = 256 << 10
FEWEST_TO_SHARE: Final = 4
# Longest array of allreduce that each rank reduces as a whole.
DOUBLING: Final = 64 << 10
# Longest result of allgather for which the number of steps counts more than the bytes.
BRUCK: Final = 4 << 10
# Longest part of a rank that goes up or down a tree together with those of others.
TREE_PART: Final = 1 << 10

# Least bytes of a piece, and the most pieces of a block between two ranks. Reduction of a piece overlaps with the
# transfer of the next one. Among more ranks a block makes more steps, which overlap as well, and fewer pieces suffice.
_PIECE: Final = 256 << 10
_MOST_PIECES: Final = 16
_FEWEST_AT_MOST: Final = 4


def algorithm_of(kind: str, nbytes: int, size: int, *, shared: bool = False) -> str:
    """Return the name of the algorithm that a collective takes.

    All ranks have to find the same one, so it depends on nothing else.

    Args:
        kind: the name of the method.
        nbytes: bytes of ``x`` for broadcast, reduce, allreduce, allgather and gather; of ``out`` for reduce_scatter and
            scatter; of one rank's part of ``x`` for alltoall; 0 for the others.
        size: the number of ranks.
        shared: whether they share memory.
    """
    if size == 1:
        return "copy"
    if shared and kind not in _BY_MESSAGES and nbytes * (size if kind in OF_PARTS else 1) <= BOARD_SLOT_BYTES:
        return SHARED_MEMORY
    few = size < FEWEST_TO_SHARE
    if kind == "broadcast":
        return "tree" if few or nbytes <= TREE_BROADCAST else "scatter, ring"
    if kind == "allreduce":
        return "doubling" if nbytes <= DOUBLING else "ring"
    if kind == "allgather":
        return "bruck" if size > 2 and nbytes * size <= BRUCK else "ring"
    if kind in ("gather", "scatter"):
        return "tree" if not few and nbytes <= TREE_PART else "direct"
    others = {"barrier": "dissemination", "reduce": "tree", "alltoall": "pairwise"}
    return others.get(kind, "ring")


def pieces_in(kind: str, nbytes: int, size: int, algorithm: str) -> int:
    """Return into how many pieces each block of a collective is cut, with the arguments of ``algorithm_of``."""
    if kind == "reduce" and algorithm == "tree":
        return pieces_of(nbytes)
    if kind in ("broadcast", "allreduce") and "ring" in algorithm:
        return pieces_of(-(-nbytes // size), size - 1)
    return pieces_of(nbytes, size - 1) if kind in ("reduce_scatter", "allgather") and algorithm == "ring" else 1


def pieces_of(nbytes: int, steps: int = 1) -> int:
    """Return into how many pieces a block of this length is cut, which makes so many steps; at least 1."""
    most = max(_FEWEST_AT_MOST, _MOST_PIECES // steps)
    return max(1, min(most, -(-nbytes // _PIECE)))
