"""Checks the arguments of a Queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerohop.config.checks import as_int
from zerohop.core.face import HOST, RemoteBuffer
from zerohop.device.descriptor import MAX_BYTES, MAX_LOCALS, MAX_PEERS
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerohop.core.face import Memory, View


def checked_list(name: str, given: object) -> Sequence[Any]:
    """Return a list of memories; raise TypeError for anything else, such as one array."""
    if not isinstance(given, (list, tuple)):
        raise TypeError(
            f"{name} is a list, not {type(given).__name__}. Fix: {name}=[...], with one element for each memory"
        )
    return given


def checked_slots(slots: int) -> int:
    """Return the number of slots of a FIFO; raise ValueError for one that it cannot have."""
    number = as_int("slots", slots)
    if not 16 <= number <= 1 << 20 or number & (number - 1):
        raise ValueError(f"slots is a power of two from 16 to 1048576, not {shown(slots)}")
    return number


def checked_handle(number: int, handle: object) -> RemoteBuffer:
    """Return a handle; raise TypeError for anything else. ``number``: its index in the list."""
    if not isinstance(handle, RemoteBuffer):
        raise TypeError(f"peers[{number}] is no RemoteBuffer, but {type(handle).__name__}; memory.share() makes one")
    return handle


def check_counts(peers: Sequence[RemoteBuffer], local: Sequence[Memory | View]) -> None:
    """Raise ValueError if there is more of something than an entry of the FIFO can name."""
    if not 1 <= len(peers) <= MAX_PEERS:
        raise ValueError(f"a Queue has 1 to {MAX_PEERS} peers, not {len(peers)}")
    if len(local) > MAX_LOCALS:
        raise ValueError(f"a Queue has at most {MAX_LOCALS} memories of its own, not {len(local)}")
    for number, each in enumerate([*peers, *local]):
        if each.nbytes > MAX_BYTES:
            which = f"peers[{number}]" if number < len(peers) else f"local[{number - len(peers)}]"
            raise ValueError(f"{which} has {each.nbytes} bytes; kernels reach {MAX_BYTES} of each at most")


def device_of(local: Sequence[Memory | View], device: str | None) -> str:
    """Return the device that the kernels run on."""
    found = list(dict.fromkeys(each.device for each in local if each.device != HOST))
    if device is None and len(found) > 1:
        raise ValueError(f"local has memory of {' and of '.join(found)}; make a Queue for each GPU")
    if device is not None and any(each != device for each in found):
        raise ValueError(f"local has memory of {found[0]}, which kernels on {shown(device)} are not given")
    if device is None:
        return found[0] if found else HOST
    return device
