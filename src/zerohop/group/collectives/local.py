"""Copies within this rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zerohop.group.collectives.operands import copy_bytes

if TYPE_CHECKING:
    from zerohop.core.face import Memory, View
    from zerohop.group.collectives.call import Call
    from zerohop.group.collectives.operands import Numbers

# Bytes that are copied at once, before other work of the control thread gets its turn.
_AT_ONCE: Final = 1 << 20


async def copy(call: Call, target: Memory | View, source: Memory | View) -> None:
    """Copy all bytes; memory of devices by a message to this rank itself, which holds up no thread."""
    nbytes = source.nbytes
    if nbytes == 0 or call.abandoned or (target.address, target.device) == (source.address, source.device):
        return
    if not target.device == source.device == "host":
        await call.wait(call.receive(target, call.rank), call.send(source, call.rank))
        return
    for start in range(0, nbytes, _AT_ONCE):
        copy_bytes(target[start : start + _AT_ONCE], source[start : start + _AT_ONCE])
        if start + _AT_ONCE < nbytes:
            await call.give_turn()


async def copy_numbers(call: Call, target: Numbers, source: Numbers) -> None:
    """Copy all elements."""
    if call.abandoned:
        return
    each = _AT_ONCE // source.itemsize
    for start in range(0, len(source), each):
        target.part(start, start + each).copy_from(source.part(start, start + each))
        if start + each < len(source):
            await call.give_turn()
