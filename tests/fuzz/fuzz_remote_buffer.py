"""RemoteBuffer.from_bytes: a handle or a ProtocolError, and a handle is one that survives its own bytes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import zerohop as zh
from support.fuzzing import fuzz


def one_input(data: bytes) -> None:
    try:
        handle = zh.RemoteBuffer.from_bytes(data)
    except zh.ProtocolError:
        return
    again = zh.RemoteBuffer.from_bytes(bytes(handle))
    if again != handle or again.nbytes != handle.nbytes or again.rights != handle.rights:
        raise AssertionError("a handle that its own bytes do not give back")
    repr(handle)
    if handle[1:].nbytes > handle.nbytes:
        raise AssertionError("a slice that is longer than the whole")


if __name__ == "__main__":
    with zh.Context(sim_devices=1) as context, context.alloc(4096) as host, context.alloc(64, "sim:0") as device:
        seeds = [bytes(host.share("rw")), bytes(host.share("r")[5:50]), bytes(device.share("w"))]
    fuzz(one_input, [*seeds, b"ZHRB\1", b""])
