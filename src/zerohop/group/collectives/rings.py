"""Passes blocks around a ring of all ranks, in pieces, so that reduction and transfer overlap."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Final

from zerohop.group.collectives.operands import AT_ONCE
from zerohop.group.collectives.plan import pieces_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from zerohop.core.face import Memory, View
    from zerohop.group.collectives.call import Call, Transfer
    from zerohop.group.collectives.operands import Numbers

    # Returns the memory of a piece at a step.
    At = Callable[[int, int], Memory | View]

# Receives that are posted ahead.
_AHEAD: Final = 8


def bounds_of(count: int, parts: int) -> list[int]:
    """Return where each of some parts of nearly one length begins, and where the last one ends."""
    return [count * part // parts for part in range(parts + 1)]


async def _around(
    call: Call,
    steps: int,
    pieces: int,
    ahead: int,
    source: At,
    target: At,
    took: Callable[[int, int], Awaitable[None]],
    *,
    reused: bool = False,
) -> None:
    """Send to the next rank and receive from the one before, in steps, and send on what each step has received.

    Args:
        call: the collective.
        steps: number of blocks that each rank sends and receives.
        pieces: pieces of a block.
        ahead: number of receives that are posted ahead.
        source: where the piece is that is sent at a step.
        target: where the piece goes that is received at a step.
        took: called when a piece of a step has been received; it may be sent then, and its place be used again.
        reused: a receive takes the place of what was sent ``pieces`` sends before, and waits for that.
    """
    after, before = (call.rank + 1) % call.size, (call.rank - 1) % call.size
    total = steps * pieces
    receives = deque(call.receive(target(*divmod(i, pieces)), before) for i in range(min(ahead, total)))
    sends: deque[Transfer] = deque(call.send(source(0, piece), after) for piece in range(pieces))
    for i in range(total):
        await call.wait(receives.popleft())
        step, piece = divmod(i, pieces)
        await took(step, piece)
        while sends and (sends[0].operation.done() or (reused and len(sends) == pieces)):
            await call.wait(sends.popleft())
        if step + 1 < steps:
            sends.append(call.send(source(step + 1, piece), after))
        if i + ahead < total:
            receives.append(call.receive(target(*divmod(i + ahead, pieces)), before))
    await call.wait(*sends)


async def _nothing(_: int, __: int) -> None:
    """Do nothing with a piece."""


async def reduce_in_turns(call: Call, operator: str, out: Numbers, first: Numbers, second: Numbers) -> None:
    """Reduce elements, so that other work of the control thread gets its turn."""
    each = AT_ONCE // out.itemsize
    count = len(out)
    if count <= each:
        out.reduce(operator, first, second)
        return
    for start in range(0, count, each):
        stop = min(start + each, count)
        out.part(start, stop).reduce(operator, first.part(start, stop), second.part(start, stop))
        await call.give_turn()


class _Pieces:
    """Cuts an array into a block for each rank, and each block into as many pieces."""

    def __init__(self, count: int, itemsize: int, ranks: int) -> None:
        self._blocks = bounds_of(count, ranks)
        self._longest = max(stop - start for start, stop in itertools.pairwise(self._blocks))
        self.number = pieces_of(self._longest * itemsize, ranks - 1)
        # Elements of the longest piece.
        self.most = -(-self._longest // self.number)

    def range_of(self, block: int, piece: int) -> tuple[int, int]:
        """Return where a piece begins and ends, in elements of the array."""
        start, stop = self._blocks[block], self._blocks[block + 1]
        return min(stop, start + piece * self.most), min(stop, start + (piece + 1) * self.most)


async def allreduce(call: Call, operator: str, x: Numbers, out: Numbers) -> None:
    """Reduce one block at each rank, and pass the results around."""
    size, rank = call.size, call.rank
    pieces = _Pieces(len(x), x.itemsize, size)
    steps = size - 1
    ahead = min(_AHEAD, 2 * steps * pieces.number)
    room = x.room(ahead * pieces.most, call.scratch)

    def block_of(step: int) -> int:
        # The block that is received at a step, and sent at the next one.
        return (rank - step - 1) % size

    def slot(step: int, piece: int) -> Numbers:
        start, stop = pieces.range_of(block_of(step), piece)
        at = (step * pieces.number + piece) % ahead * pieces.most
        return room.part(at, at + stop - start)

    def source(step: int, piece: int) -> Memory | View:
        return (out if step else x).part(*pieces.range_of(block_of(step - 1), piece)).view

    def target(step: int, piece: int) -> Memory | View:
        if step < steps:
            return slot(step, piece).view
        return out.part(*pieces.range_of(block_of(step), piece)).view

    async def took(step: int, piece: int) -> None:
        if step < steps:
            where = pieces.range_of(block_of(step), piece)
            await reduce_in_turns(call, operator, out.part(*where), slot(step, piece), x.part(*where))

    await _around(call, 2 * steps, pieces.number, ahead, source, target, took)


async def reduce_scatter(call: Call, operator: str, x: Numbers, out: Numbers) -> None:
    """Pass each block around towards its rank, which adds last."""
    size, rank = call.size, call.rank
    pieces = _Pieces(len(x), x.itemsize, size)
    steps, number = size - 1, pieces.number
    # The elements that a step has received are reduced in place, and sent on while the next step receives.
    room = x.room(min(steps, 2) * number * pieces.most, call.scratch)

    def block_of(step: int) -> int:
        return (rank - step - 2) % size

    def slot(step: int, piece: int) -> Numbers:
        start, stop = pieces.range_of(block_of(step), piece)
        at = (step % 2 * number + piece) * pieces.most
        return room.part(at, at + stop - start)

    def source(step: int, piece: int) -> Memory | View:
        if step == 0:
            return x.part(*pieces.range_of(block_of(-1), piece)).view
        return slot(step - 1, piece).view

    def target(step: int, piece: int) -> Memory | View:
        return slot(step, piece).view

    async def took(step: int, piece: int) -> None:
        start, stop = pieces.range_of(block_of(step), piece)
        received, mine = slot(step, piece), x.part(start, stop)
        at = piece * pieces.most
        result = received if step + 1 < steps else out.part(at, at + stop - start)
        await reduce_in_turns(call, operator, result, received, mine)

    await _around(call, steps, number, number, source, target, took, reused=True)


async def allgather(call: Call, out: Memory | View, bounds: Sequence[int], first: int = 0) -> None:
    """Pass blocks of any length around, from where they lie in ``out``.

    Args:
        call: the collective.
        out: has the block of this rank already.
        bounds: where each block begins in ``out``, and where the last one ends.
        first: the rank whose block is the first one.
    """
    size = call.size
    place = (call.rank - first) % size
    pieces = pieces_of(max(stop - start for start, stop in itertools.pairwise(bounds)), size - 1)

    def view(block: int, piece: int) -> Memory | View:
        start, stop = bounds[block], bounds[block + 1]
        most = -(-(stop - start) // pieces)
        return out[min(stop, start + piece * most) : min(stop, start + (piece + 1) * most)]

    def source(step: int, piece: int) -> Memory | View:
        return view((place - step) % size, piece)

    def target(step: int, piece: int) -> Memory | View:
        return view((place - step - 1) % size, piece)

    await _around(call, size - 1, pieces, min(_AHEAD, (size - 1) * pieces), source, target, _nothing)
