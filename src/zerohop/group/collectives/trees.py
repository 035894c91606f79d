"""Passes blocks up and down a tree whose root is any rank, and straight between the root and the others.

A receiver answers with an empty message. Two ranks whose calls differ, such as in the root, could otherwise both send
to each other and receive nothing; neither would learn of it. The answer to a short message is sent before that message
is received, so that it costs no time. The answer to a long one is sent after it, so that the sender also learns if the
receiver gives up.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from zerohop.group.collectives import rings
from zerohop.group.collectives.operands import copy_bytes
from zerohop.group.collectives.plan import pieces_of
from zerohop.group.messages import SHORT

if TYPE_CHECKING:
    from zerohop.core.face import Memory, View
    from zerohop.group.collectives.call import Call, Transfer
    from zerohop.group.collectives.operands import Numbers


# Pieces of a child that are received ahead.
_AHEAD: Final = 4


class _Tree:
    """Says where a rank is in a binomial tree. Places count from the root's, which is 0.

    Attributes:
        place: that of this rank.
        parent: the rank above; None at the root.
        children: place and rank of each below, the nearest first.
    """

    def __init__(self, call: Call, root: int) -> None:
        self.place = (call.rank - root) % call.size
        self.parent = None
        self.children: list[tuple[int, int]] = []
        distance = 1
        while distance < call.size:
            if self.place & distance:
                self.parent = (self.place - distance + root) % call.size
                break
            if self.place + distance < call.size:
                self.children.append((self.place + distance, (self.place + distance + root) % call.size))
            distance *= 2
        # Places from this one on that are below it, its own among them.
        self.below = min(distance, call.size - self.place)
        call.partners.update(rank for _, rank in self.children)
        if self.parent is not None:
            call.partners.add(self.parent)


async def _receive(call: Call, view: Memory | View, rank: int) -> Transfer:
    """Receive from a rank, and return the answer to it, which has been sent."""
    received = call.receive(view, rank)
    if view.nbytes <= SHORT:
        answer = call.signal(rank)
        await call.wait(received)
        return answer
    await call.wait(received)
    return call.signal(rank)


async def broadcast(call: Call, x: Memory | View, root: int) -> None:
    """Pass all bytes down the tree."""
    tree = _Tree(call, root)
    answers = [call.signal_of(rank) for _, rank in tree.children]
    sends = []
    if tree.parent is not None:
        sends.append(await _receive(call, x, tree.parent))
    sends += [call.send(x, rank) for _, rank in reversed(tree.children)]
    await call.wait(*answers, *sends)


async def broadcast_in_parts(call: Call, x: Memory | View, root: int) -> None:
    """Give each rank a part, and pass the parts around a ring."""
    bounds = rings.bounds_of(x.nbytes, call.size)
    if call.rank != root:
        place = (call.rank - root) % call.size
        call.partners.update(((call.rank - 1) % call.size, (call.rank + 1) % call.size))
        await call.wait(await _receive(call, x[bounds[place] : bounds[place + 1]], root))
    else:
        ranks = [(place, (place + root) % call.size) for place in range(1, call.size)]
        answers = [call.signal_of(rank) for _, rank in ranks]
        sends = [call.send(x[bounds[place] : bounds[place + 1]], rank) for place, rank in ranks]
        await call.wait(*answers, *sends)
    await rings.allgather(call, x, bounds, root)


async def reduce(call: Call, operator: str, x: Numbers, out: Numbers | None, root: int) -> None:
    """Reduce what comes from below with this rank's own, piece after piece, and pass it up the tree."""
    tree = _Tree(call, root)
    count = len(x)
    pieces = pieces_of(count * x.itemsize)
    most = -(-count // pieces)
    answers = [] if tree.parent is None else [call.signal_of(tree.parent)]
    long = x.view.nbytes > SHORT
    sends = [] if long else [call.signal(rank) for _, rank in tree.children]
    ahead = min(_AHEAD, pieces)
    room = x.room(ahead * most * len(tree.children), call.scratch)
    if out is None:  # x must stay as it is
        out = x.room(count, call.scratch) if tree.children else x

    def range_of(piece: int) -> tuple[int, int]:
        return min(count, piece * most), min(count, (piece + 1) * most)

    def slot(child: int, piece: int) -> Numbers:
        start, stop = range_of(piece)
        at = (child * ahead + piece % ahead) * most
        return room.part(at, at + stop - start)

    def post(piece: int) -> list[Transfer]:
        return [call.receive(slot(child, piece).view, rank) for child, (_, rank) in enumerate(tree.children)]

    posted = deque(post(piece) for piece in range(ahead))
    for piece in range(pieces):
        where = range_of(piece)
        mine = x.part(*where)
        result = out.part(*where)
        for child, received in enumerate(posted.popleft()):
            await call.wait(received)
            await rings.reduce_in_turns(call, operator, result, mine, slot(child, piece))
            mine = result
        if piece + ahead < pieces:
            posted.append(post(piece + ahead))
        if tree.parent is not None:
            sends.append(call.send(mine.view, tree.parent))
    if long:
        sends += [call.signal(rank) for _, rank in tree.children]
    await call.wait(*answers, *sends)


async def gather(call: Call, x: Memory | View, out: Memory | View | None, root: int) -> None:
    """Pass the blocks of more and more ranks up the tree."""
    tree = _Tree(call, root)
    each = x.nbytes
    answers = [] if tree.parent is None else [call.signal_of(tree.parent)]
    sends = [call.signal(rank) for _, rank in tree.children]
    _, view = call.scratch.take(tree.below * each)  # from this place on
    copy_bytes(view[:each], x)
    receives = [_from_child(call, tree, view, each, child, rank) for child, rank in tree.children]
    await call.wait(*receives)
    if tree.parent is not None:
        sends.append(call.send(view, tree.parent))
    await call.wait(*answers, *sends)
    if out is not None:
        _turn(out, view, root * each)


def _from_child(call: Call, tree: _Tree, view: Memory | View, each: int, child: int, rank: int) -> Transfer:
    return call.receive(_part_of(tree, view, each, child), rank)


def _part_of(tree: _Tree, view: Memory | View, each: int, child: int) -> View:
    """Return the blocks of a child, and of all below it."""
    start = child - tree.place
    return view[start * each : min(2 * start, tree.below) * each]


def _turn(target: Memory | View, source: Memory | View, by: int) -> None:
    """Copy all bytes, each ``by`` further on, and from the end to the beginning."""
    rest = source.nbytes - by
    copy_bytes(target[by:], source[:rest])
    copy_bytes(target[:by], source[rest:])


async def scatter(call: Call, x: Memory | View | None, out: Memory | View, root: int) -> None:
    """Pass the blocks of fewer and fewer ranks down the tree."""
    tree = _Tree(call, root)
    each = out.nbytes
    answers = [call.signal_of(rank) for _, rank in tree.children]
    sends = []
    _, view = call.scratch.take(tree.below * each)
    if x is not None:
        _turn(view, x, x.nbytes - root * each)
    if tree.parent is not None:
        sends.append(await _receive(call, view, tree.parent))
    sends += [call.send(_part_of(tree, view, each, child), rank) for child, rank in reversed(tree.children)]
    await call.wait(*answers, *sends)
    copy_bytes(out, view[:each])


async def gather_directly(call: Call, x: Memory | View, out: Memory | View | None, root: int) -> None:
    """Have all ranks send to the root."""
    if out is None:
        call.partners.add(root)
        answer = call.signal_of(root)
        await call.wait(answer, call.send(x, root))
        return
    each = x.nbytes
    others = [rank for rank in range(call.size) if rank != root]
    receives = [call.receive(out[rank * each : (rank + 1) * each], rank) for rank in others]
    signals = [] if each > SHORT else [call.signal(rank) for rank in others]
    await call.wait(*receives)
    await call.wait(*(signals or [call.signal(rank) for rank in others]))


async def scatter_directly(call: Call, x: Memory | View | None, out: Memory | View, root: int) -> None:
    """Have the root send to all ranks."""
    if x is None:
        call.partners.add(root)
        await call.wait(await _receive(call, out, root))
        return
    each = out.nbytes
    others = [rank for rank in range(call.size) if rank != root]
    answers = [call.signal_of(rank) for rank in others]
    await call.wait(*answers, *[call.send(x[rank * each : (rank + 1) * each], rank) for rank in others])
