"""Exchanges messages between pairs of ranks: barrier, short allreduce and allgather, alltoall."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from zerohop.group.collectives.operands import copy_bytes

if TYPE_CHECKING:
    from zerohop.core.face import Memory, View
    from zerohop.group.collectives.call import Begun, Call, Transfer
    from zerohop.group.collectives.operands import Numbers

# Pairs of messages of alltoall that are under way at once.
_UNDER_WAY: Final = 16


async def barrier(call: Call, distance: int = 1, begun: Begun = False) -> None:
    """Hear of twice as many ranks in each step: dissemination.

    Args:
        call: the call.
        distance: that of the first step to take, to the ranks of that step.
        begun: what was done of it.
    """
    size, rank = call.size, call.rank
    call.partners.update((rank + (1 << bit)) % size for bit in range((size - 1).bit_length()))
    while distance < size:
        await call.exchange_signals((rank + distance) % size, (rank - distance) % size, begun)
        distance, begun = 2 * distance, False


async def allreduce(call: Call, operator: str, x: Numbers, out: Numbers) -> None:
    """Have both ranks of a pair reduce all that the two know, in each step with another pair: recursive doubling.

    Where the number of ranks is no power of two, some ranks first hand theirs to a neighbour, and get the result of it.
    """
    size, rank = call.size, call.rank
    doubled = 1 << (size.bit_length() - 1)
    extra = size - doubled

    def rank_at(place: int) -> int:
        return 2 * place if place < extra else place + extra

    if rank < 2 * extra and rank % 2:
        # The result cannot come before all of x has been received, so that they may be the same memory.
        await call.exchange(x.view, rank - 1, out.view, rank - 1)
        return
    room = x.room(len(x), call.scratch)
    mine = x
    number = rank // 2 if rank < 2 * extra else rank - extra
    call.partners.update(rank_at(number ^ 1 << bit) for bit in range(doubled.bit_length() - 1))
    if rank < 2 * extra:
        call.partners.add(rank + 1)
        await call.wait(call.receive(room.view, rank + 1))
        out.reduce(operator, x, room)
        mine = out
    step = 1
    while step < doubled:
        place = number ^ step
        other = rank_at(place)
        await call.exchange(mine.view, other, room.view, other)
        # The lower rank's comes first at both, so that both get the same bits.
        out.reduce(operator, *((mine, room) if number < place else (room, mine)))
        mine = out
        step *= 2
    if rank < 2 * extra:
        await call.wait(call.send(out.view, rank + 1))


async def allgather(call: Call, x: Memory | View, out: Memory | View) -> None:
    """Pass all that a rank has to another one in each step, which then has twice as much: Bruck's algorithm."""
    size, rank, nbytes = call.size, call.rank, x.nbytes
    _, view = call.scratch.take(size * nbytes)  # from this rank's block on
    copy_bytes(view[:nbytes], x)
    have = 1
    call.partners.update((rank - (1 << bit)) % size for bit in range((size - 1).bit_length()))
    while have < size:
        more = min(have, size - have)
        received = view[have * nbytes : (have + more) * nbytes]
        await call.exchange(view[: more * nbytes], (rank - have) % size, received, (rank + have) % size)
        have += more
    before = (size - rank) * nbytes
    copy_bytes(out[rank * nbytes :], view[:before])
    copy_bytes(out[: rank * nbytes], view[before:])


async def alltoall(call: Call, x: Memory | View, out: Memory | View) -> None:
    """Send to the ranks after this one, and receive from those before it, by distance."""
    size, rank = call.size, call.rank
    each = x.nbytes // size
    call.partners.update(other for other in range(size) if other != rank)
    receives: deque[Transfer] = deque()
    sends: deque[Transfer] = deque()
    for distance in range(1, size):
        after, before = (rank + distance) % size, (rank - distance) % size
        receives.append(call.receive(out[before * each : (before + 1) * each], before))
        sends.append(call.send(x[after * each : (after + 1) * each], after))
        if len(receives) == _UNDER_WAY:
            await call.wait(receives.popleft())
            # They end at about the same time. Receives first: they tell if another rank has failed.
            while sends[0].operation.done() or len(sends) > 2 * _UNDER_WAY:
                await call.wait(sends.popleft())
                if not sends:
                    break
    await call.wait(*receives, *sends)
