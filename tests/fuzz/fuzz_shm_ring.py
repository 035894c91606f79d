"""A peer that overwrites the shm ring under its reader: memory outside of the share is never touched, nothing crashes.

An input is a list of (place, eight bytes); between them one honest frame goes through the ring."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.fuzzing import fuzz
from support.lanes import CAPABILITY, READ, WRITE, Liar, Owner, deadline, linked
from zerohop._native import NativeError

PLACE_BYTES, VALUE_BYTES = 3, 8
STEP = PLACE_BYTES + VALUE_BYTES


def one_input(data: bytes) -> None:
    owner, liar = Owner(), Liar()
    here, there = linked("shm", liar.engine, owner.engine)
    fd = there.address()[1][0]
    size = os.fstat(fd).st_size
    ring = mmap.mmap(fd, size)
    route = liar.engine.route(here, liar.region, owner.share, CAPABILITY, 1 << 62, READ | WRITE, None)
    for start in range(0, len(data) - STEP + 1, STEP):
        place = int.from_bytes(data[start : start + PLACE_BYTES], "little") % (size - VALUE_BYTES)
        ring[place : place + VALUE_BYTES] = data[start + PLACE_BYTES : start + STEP]
        try:
            liar.engine.post(route, data[start] & 1, 0, data[start + 1], 64, -1, deadline(), True)
        except NativeError:
            continue
    ring.close()
    liar.close()
    owner.expect_margins_untouched()
    owner.close()


if __name__ == "__main__":
    head = [place.to_bytes(PLACE_BYTES, "little") + (1 << 40).to_bytes(8, "little") for place in range(0, 512, 8)]
    body = [place.to_bytes(PLACE_BYTES, "little") + bytes(8) for place in (4096, 4104, 8192)]
    fuzz(one_input, [b"", *head, *body, b"".join(head[:8]), b"".join(body)])
