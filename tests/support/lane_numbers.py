"""Brings a server so far that it is asked over the lane: it knows memory by a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from support.lanes import eventually
from support.patience import PATIENCE_S
from support.sizes import MIB

if TYPE_CHECKING:
    import zerohop as zh
    from zerohop.storage import File, Ring
    from zerohop.storage.remote.remote_store import RemoteStore


def known(store: RemoteStore, memory: zh.Memory) -> zh.Memory:
    """The memory, once the server knows it by a number."""
    ring = store.ring(1)
    with store.open("data").result(PATIENCE_S) as file:
        ring.prepare(memory[:0], file, 0)  # asks for the number
        ring.submit()
        ring.wait(timeout=PATIENCE_S)
    eventually(lambda: bool(numbers_of(store, memory)), "the server gives the memory no number")
    return memory


def numbers_of(store: RemoteStore, memory: zh.Memory) -> list[Any]:
    """The numbers that the server has given to handles of the memory."""
    return [each for each in store._numbers._numbers.get(memory, {}).values() if each is not None]


def begun_reads(store: RemoteStore, file: File, memory: zh.Memory, count: int) -> Ring:
    """A ring with reads under way: MiB after MiB of a file of 64, again and again, each to the same place of memory."""
    ring, at = store.ring(max(count, 1)), np.arange(count) % 64 * MIB
    ring.prepare_many(memory, file, at, np.full(count, MIB), at)
    ring.submit()
    return ring
