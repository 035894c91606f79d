"""Bytes into a tcp lane that is up: frames right and wrong. Memory outside of the share is never touched, and another
lane of the same engine goes on. The native code is not instrumented; the seeds lead the way into it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.fuzzing import fuzz
from support.lanes import (
    KIND_COMPARE_SWAP,
    KIND_FETCH_ADD,
    KIND_NOTIFY,
    KIND_READ,
    KIND_READ_PAGES,
    KIND_SEND,
    KIND_WRITE,
    KIND_WRITE_PAGES,
    KIND_WRITE_RANGES,
    LAST,
    NOTIFY,
    Frame,
    Owner,
    RawLane,
)

OWNER = Owner()
# Of a Transport, say; whose peer none of the lanes below is until it is told so.
QUEUE = OWNER.engine.open_queue()
CHECK_EVERY = 200
_turn = 0


def _expect_service() -> None:
    lane = RawLane(OWNER.engine)
    lane.send(Frame(KIND_READ, LAST, ticket=1, arg=8).of_share(OWNER.share))
    answered = lane.answer()
    if answered is None or answered[0].ticket != 1 or len(answered[1]) != 8:
        raise AssertionError("an honest read got no answer")
    lane.close()


def one_input(data: bytes) -> None:
    global _turn
    lane = RawLane(OWNER.engine)
    OWNER.engine.take_from(QUEUE, lane.peer)
    try:
        lane.socket.sendall(data)
        lane.end()
        while lane.socket.recv(1 << 16):
            pass
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        lane.close()
    for queue in (0, QUEUE):
        while OWNER.engine.pop_notification(-1, 0, queue) is not None:
            pass
    OWNER.expect_margins_untouched()
    _turn += 1
    if _turn % CHECK_EVERY == 0:
        _expect_service()


def _frame(frame: Frame, table: tuple[int, ...] = (), payload: bytes = b"") -> bytes:
    head = frame._replace(table=len(table), payload=len(payload)).of_share(OWNER.share)
    return head.pack() + b"".join(word.to_bytes(8, "little") for word in table) + payload


if __name__ == "__main__":
    seeds = [
        _frame(Frame(KIND_WRITE, LAST | NOTIFY, ticket=1, notify=5), payload=b"x" * 64),
        _frame(Frame(KIND_WRITE, ticket=1), payload=b"x" * 8)
        + _frame(Frame(KIND_WRITE, LAST, ticket=1, offset=8), payload=b"y"),
        _frame(Frame(KIND_WRITE_PAGES, LAST, ticket=2, page_bytes=16), (0, 3), b"z" * 32),
        _frame(Frame(KIND_WRITE_RANGES, LAST, ticket=9, arg=24), (0, 4096, 60_000, 8, 15, 1), b"r" * 24),
        _frame(Frame(KIND_WRITE_RANGES, ticket=9, arg=9), (5, 6, 4, 4), b"overlaps")
        + _frame(Frame(KIND_WRITE_RANGES, LAST, ticket=9, arg=9).of_queue(QUEUE), (65_535, 1), b"!"),
        _frame(Frame(KIND_WRITE, LAST, ticket=10, notify=6, arg=4).of_queue(QUEUE), payload=b"told"),
        _frame(Frame(KIND_NOTIFY, LAST, ticket=11, notify=7).of_queue(QUEUE))
        + _frame(Frame(KIND_NOTIFY, LAST, ticket=12, notify=8).of_queue(0xFFFF)),
        _frame(Frame(KIND_READ, LAST, ticket=3, arg=100)),
        _frame(Frame(KIND_READ_PAGES, LAST, ticket=4, arg=16, page_bytes=16), (1, 2)),
        _frame(Frame(KIND_FETCH_ADD, LAST, ticket=5), (1,)),
        _frame(Frame(KIND_COMPARE_SWAP, LAST, ticket=6), (1, 2)),
        _frame(Frame(KIND_NOTIFY, LAST | NOTIFY, ticket=7, notify=9)),
        _frame(Frame(KIND_SEND, LAST, ticket=8, arg=4), payload=b"mail"),
    ]
    fuzz(one_input, seeds)
