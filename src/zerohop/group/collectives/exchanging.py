"""Gives all ranks the bytes of all, which may differ in length, as a step of a collective."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from zerohop.errors import ProtocolError
from zerohop.group.collectives import pairs, rings
from zerohop.group.collectives.failed import StepsFailed
from zerohop.group.collectives.tags import Failure

if TYPE_CHECKING:
    from zerohop.group.collectives.call import Call

_INT_BYTES: Final = 8


async def exchange(call: Call, mine: bytes) -> list[bytes]:
    """Return the bytes of all ranks, in their order; ``mine``: those of this one."""
    if call.size == 1:
        return [mine]
    numbers, lengths_view = call.scratch.take(call.size * _INT_BYTES)
    lengths = numbers.view(np.int64)
    lengths[call.rank] = len(mine)
    await pairs.allgather(call, lengths_view[call.rank * _INT_BYTES :][:_INT_BYTES], lengths_view)
    if lengths.min() < 0:
        rank = int(lengths.argmin())
        raise StepsFailed(
            ProtocolError(f"rank {rank}: it has sent a negative length", ranks=(rank,)), Failure.DIFFERS, rank
        )
    bounds = [0, *itertools.accumulate(map(int, lengths))]
    if bounds[-1] == 0:
        return [b""] * call.size
    found, room = call.scratch.take(bounds[-1])
    found[bounds[call.rank] : bounds[call.rank + 1]] = np.frombuffer(mine, np.uint8)
    await rings.allgather(call, room, bounds)
    return [found[start:stop].tobytes() for start, stop in itertools.pairwise(bounds)]
