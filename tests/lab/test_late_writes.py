"""A deadline that fires while the NIC moves bytes: the memory stays until it is done, and nothing lands after that."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.options import Options
from support.pattern import POISON
from support.sizes import MIB
from support.wire import FAR, NEAR, trouble
from support.world import Target

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer

OPERATIONS, NBYTES = 8, 16 * MIB


@pytest.mark.parametrize("kind", ["numpy", "sim"])
def test_reads_whose_deadline_fires_land_nowhere_later(
    open_context: OpenContext, start_peer: StartPeer, kind: str
) -> None:
    # Over a slow wire: what a NIC of this machine copies to itself keeps the processors from everybody else.
    patient = zh.VerbsOptions(timeout=19)
    context = open_context(Options(providers=("verbs",), nics=NEAR, verbs=patient, timeout=30.0))
    peer = start_peer(Options(providers=("verbs",), nics=FAR, verbs=patient, timeout=30.0))
    source = Target(peer, "numpy", NBYTES)
    source.fill(0, NBYTES, 3)
    device = "sim:0" if kind == "sim" else "host"
    memories = [context.alloc(NBYTES, device) for _ in range(OPERATIONS)]
    for memory in memories:  # so that nothing but the data is left to do
        context.read(source.handle[:8], memory[:8]).result(30)
    with trouble("rate 300mbit limit 20000"):
        reads = [context.read(source.handle, memory, timeout=0.005) for memory in memories]
        late = [isinstance(read.exception(10), zh.DeadlineExceeded) for read in reads]
        assert sum(late) > OPERATIONS // 2, "128 MiB in 5 ms"
        assert context.statistics().pinned == 0
        for memory in memories:
            memory.close(timeout=0)
        held = context.statistics().pinned
        assert held > 0, "memory was given back while the NIC still writes to it"
    # As soon as some is free again it is used by somebody else.
    seen = 0
    deadline = time.monotonic() + 60
    fresh: list[zh.Memory] = []
    while context.statistics().pinned and time.monotonic() < deadline:
        if context.statistics().pinned < held - seen:
            seen += 1
            fresh.append(context.alloc(NBYTES, device))
            fresh[-1].write_bytes(0, bytes([POISON]) * NBYTES)
        time.sleep(0.01)
    assert context.statistics().pinned == 0, "the NIC does not let go"
    fresh.append(context.alloc(NBYTES, device))
    fresh[-1].write_bytes(0, bytes([POISON]) * NBYTES)
    context.read(source.handle[:8], context.alloc(8, device)).result(30)
    for memory in fresh:
        assert memory.read_bytes() == bytes([POISON]) * NBYTES, "a late write landed"
        memory.close()
    del memories, memory, reads, fresh
    gc.collect()
