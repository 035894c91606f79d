"""What a hostile peer does to a lane, in a process of its own, so that a crash is a failed test and not a lost session.

`python -m support.hostile ring|frames SEED ROUNDS` ends with 0 when the victim has survived.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
from typing import TYPE_CHECKING

from support.lanes import (
    HEADER_BYTES,
    KIND_FETCH_ADD,
    KIND_NOTIFY,
    KIND_PING,
    KIND_READ,
    KIND_READ_PAGES,
    KIND_SEND,
    KIND_WRITE,
    KIND_WRITE_PAGES,
    KIND_WRITE_RANGES,
    LAST,
    NOTIFY,
    READ,
    WRITE,
    Frame,
    Liar,
    Owner,
    RawLane,
    deadline,
    linked,
)
from support.patience import PATIENCE_S
from zerohop._native import NativeError

if TYPE_CHECKING:
    from collections.abc import Callable

# Numbers at which arithmetic goes wrong.
EDGES = (0, 1, 7, 8, 63, 64, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def _serves_others(owner: Owner) -> None:
    """A lane of an honest peer still works."""
    honest = Liar()
    here, _ = linked("shm", honest.engine, owner.engine)
    honest.memory[:4096] = 0x42
    route = honest.engine.route(here, honest.region, owner.share, bytes(range(16)), Owner.SHARED, READ | WRITE, None)
    operation = honest.engine.post(route, 0, 0, 0, 4096, -1, deadline())
    if not isinstance(operation, int):
        assert operation.wait(deadline(), 0), "an honest operation does not end"
        assert operation.status.name == "OK", operation.status
    assert (owner.shared[:4096] == 0x42).all()
    honest.close()


def scribble(seed: int, rounds: int) -> None:
    """Overwrite the victim's inbound ring, at its head above all, while traffic goes through it."""
    chance = random.Random(seed)
    for _ in range(rounds):
        owner, liar = Owner(), Liar()
        here, there = linked("shm", liar.engine, owner.engine)
        fds = there.address()[1]
        size = os.fstat(fds[0]).st_size
        ring = mmap.mmap(fds[0], size)
        route = liar.engine.route(here, liar.region, owner.share, bytes(range(16)), 1 << 62, READ | WRITE, None)
        for _ in range(200):
            place = chance.randrange(size if chance.random() < 0.3 else min(size, 8192))
            width = min(chance.choice((1, 4, 8, 8, 64)), size - place)
            if width == 8:
                ring[place : place + 8] = chance.choice(EDGES).to_bytes(8, "little")
            else:
                ring[place : place + width] = chance.randbytes(width)
            try:
                liar.engine.post(route, chance.randrange(2), 0, chance.randrange(9000), 64, -1, deadline(), True)
            except NativeError:
                continue
        ring.close()
        _serves_others(owner)
        owner.expect_margins_untouched()
        liar.close()
        owner.close()


def _random_frame(chance: random.Random, owner: Owner) -> bytes:
    """Mostly right, wrong in one or two places."""
    writes = KIND_WRITE, KIND_WRITE_PAGES, KIND_WRITE_RANGES
    kinds = (*writes, KIND_READ, KIND_READ_PAGES, KIND_FETCH_ADD, KIND_NOTIFY, KIND_SEND)
    kind = chance.choice(kinds) if chance.random() < 0.8 else chance.randrange(256)
    payload = chance.randbytes(chance.choice((0, 1, 64, 4096)))
    table = [chance.choice((0, 1, 2, chance.choice(EDGES))) for _ in range(chance.choice((0, 1, 2, 40)))]
    frame = Frame(
        kind,
        flags=chance.choice((0, LAST, LAST | NOTIFY, chance.randrange(256))),
        status=chance.choice((0, chance.randrange(256))),
        reason=chance.choice((0, chance.randrange(256))),
        ticket=chance.choice((1, chance.randrange(1 << 32))),
        offset=chance.choice((0, 64, chance.choice(EDGES))),
        arg=chance.choice((64, len(payload), chance.choice(EDGES))),
        payload=len(payload) if chance.random() < 0.95 else chance.choice(EDGES) & 0xFFFF_FFFF,
        table=len(table) if chance.random() < 0.95 else chance.choice(EDGES) & 0xFFFF_FFFF,
        notify=chance.randrange(1 << 32),
        page_bytes=chance.choice((1, 64, 4096, chance.choice(EDGES) & 0xFFFF_FFFF)),
    ).of_share(owner.share)
    return frame.pack() + b"".join(word.to_bytes(8, "little") for word in table) + payload


def send_frames(seed: int, rounds: int) -> None:
    """Frames that are almost right, until the victim hangs up; then the next lane."""
    chance = random.Random(seed)
    owner = Owner()
    for _ in range(rounds):
        lane = RawLane(owner.engine)
        lane.socket.settimeout(PATIENCE_S)
        try:
            for _ in range(chance.choice((1, 5, 50))):
                lane.socket.sendall(_random_frame(chance, owner))
            lane.socket.sendall(Frame(KIND_PING).pack() * (8192 // HEADER_BYTES))
            lane.end()
            while lane.socket.recv(1 << 16):
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass
        lane.close()
        while owner.engine.pop_notification(-1, 0) is not None:
            pass
    owner.expect_margins_untouched()
    _serves_others(owner)
    owner.close()


WORKS: dict[str, Callable[[int, int], None]] = {"ring": scribble, "frames": send_frames}

if __name__ == "__main__":
    WORKS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
