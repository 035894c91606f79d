"""A peer that speaks the framed protocol itself, and wrongly: refused or hung up on, and never believed."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from support.lanes import (
    KIND_ACK,
    KIND_CLEAR_TO_SEND,
    KIND_COMPARE_SWAP,
    KIND_CREDIT,
    KIND_FETCH_ADD,
    KIND_NOTIFY,
    KIND_READ,
    KIND_READ_DATA,
    KIND_READ_PAGES,
    KIND_SEND,
    KIND_SEND_DATA,
    KIND_WRITE,
    KIND_WRITE_PAGES,
    LAST,
    NOTIFY,
    Frame,
    Owner,
    RawLane,
)
from zerohop._native import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unprivileged

TOP = (1 << 64) - 1


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    # Another peer is served as if nothing had happened.
    lane = RawLane(owner.engine)
    owner.memory[:] = 0xA5
    lane.send(Frame(KIND_WRITE, LAST | NOTIFY, ticket=9, arg=4, notify=7).of_share(owner.share), payload=b"fine")
    answered = lane.answer()
    assert answered is not None
    assert (answered[0].kind, answered[0].ticket, answered[0].status) == (KIND_ACK, 9, Status.OK.value)
    assert owner.shared[:4].tobytes() == b"fine"
    note = owner.engine.pop_notification(-1, 0)
    assert note is not None
    assert note[1:] == (7, 4, b"")
    owner.expect_margins_untouched()
    lane.close()
    owner.close()


@pytest.fixture
def lane(owner: Owner) -> Iterator[RawLane]:
    lane = RawLane(owner.engine)
    yield lane
    lane.close()


def _expect_denied(lane: RawLane, ticket: int) -> None:
    """The last answer to the operation, after an early one where there are several pieces, is that."""
    flags = 0
    while not flags & LAST:
        answered = lane.answer()
        assert answered is not None, "hung up instead of an answer"
        frame, payload = answered
        assert frame.ticket == ticket
        assert frame.status == Status.ACCESS_DENIED.value
        assert not payload
        flags = frame.flags


@pytest.mark.parametrize(
    "offset",
    [Owner.SHARED - 3, Owner.SHARED, 1 << 40, TOP, TOP - 2, TOP - Owner.MARGIN, (1 << 63) - 1],
)
@pytest.mark.parametrize("kind", ["write", "read", "add", "swap"])
def test_bounds(owner: Owner, lane: RawLane, kind: str, offset: int) -> None:
    """Offsets beyond the share, and such that offset + length wraps round to a small number."""
    if kind == "write":
        frame = Frame(KIND_WRITE, LAST | NOTIFY, ticket=1, offset=offset, notify=1)
        lane.send(frame.of_share(owner.share), payload=b"lies")
    elif kind == "read":
        lane.send(Frame(KIND_READ, LAST, ticket=1, offset=offset, arg=4).of_share(owner.share))
    elif kind == "add":
        lane.send(Frame(KIND_FETCH_ADD, LAST, ticket=1, offset=offset & ~7).of_share(owner.share), (1,))
        if offset & ~7 == Owner.SHARED - 8:
            assert lane.answer() is not None
            return
    else:
        lane.send(Frame(KIND_COMPARE_SWAP, LAST, ticket=1, offset=offset & ~7).of_share(owner.share), (1, 2))
        if offset & ~7 == Owner.SHARED - 8:
            assert lane.answer() is not None
            return
    _expect_denied(lane, 1)
    owner.expect_untouched()
    assert owner.engine.pop_notification(-1, 0) is None


@pytest.mark.parametrize(
    ("nbytes", "words"), [(257, 33), (1, 0), (0, 1), (8, 2), (9, 1), (1 << 31, 1), ((1 << 32) - 1, 32)]
)
def test_messages_of_wrong_lengths(owner: Owner, lane: RawLane, nbytes: int, words: int) -> None:
    """Nothing of the table is taken for a message, and the lane ends."""
    lane.send(Frame(KIND_NOTIFY, LAST | NOTIFY, ticket=1, notify=3, page_bytes=nbytes), (0x61,) * words)
    assert lane.answer() is None
    assert owner.engine.pop_notification(-1, 0) is None


@pytest.mark.parametrize("nbytes", [1, 8, 255, 256])
def test_messages_of_right_lengths(owner: Owner, lane: RawLane, nbytes: int) -> None:
    words = (nbytes + 7) // 8
    lane.send(Frame(KIND_NOTIFY, LAST | NOTIFY, ticket=1, notify=3, page_bytes=nbytes), (0x6161616161616161,) * words)
    assert lane.answer() is not None
    note = owner.engine.pop_notification(-1, 0)
    assert note is not None
    assert note[1:] == (3, 0, b"a" * nbytes)


@pytest.mark.parametrize("nbytes", [Owner.SHARED + 1, 1 << 40, TOP, TOP - Owner.MARGIN + 1])
def test_lengths_of_reads(owner: Owner, lane: RawLane, nbytes: int) -> None:
    lane.send(Frame(KIND_READ, LAST, ticket=2, offset=1, arg=nbytes).of_share(owner.share))
    _expect_denied(lane, 2)


@pytest.mark.parametrize("page", [16, 1 << 52, TOP, TOP >> 12, 1 << 63])
@pytest.mark.parametrize("kind", [KIND_WRITE_PAGES, KIND_READ_PAGES])
def test_pages(owner: Owner, lane: RawLane, kind: int, page: int) -> None:
    """The share has 16 pages of 4 KiB; a product that wraps round lands inside it again."""
    payload = b"x" * 8192 if kind == KIND_WRITE_PAGES else b""
    frame = Frame(kind, LAST, ticket=3, arg=4096, page_bytes=4096).of_share(owner.share)
    lane.send(frame, (0, page), payload)
    _expect_denied(lane, 3)
    owner.expect_untouched()


@pytest.mark.parametrize(
    "lie",
    [
        {"capability": bytes(16)},
        {"share_generation": 0xFFFF_FFFF},
        {"share_index": 0xFFFF_FFFF},
        {"share_index": 12345},
        {"share_index": 0, "share_generation": 0},
    ],
    ids=str,
)
def test_names(owner: Owner, lane: RawLane, lie: dict[str, object]) -> None:
    for kind, table, payload in (
        (KIND_WRITE, (), b"lies"),
        (KIND_READ, (), b""),
        (KIND_FETCH_ADD, (1,), b""),
        (KIND_COMPARE_SWAP, (1, 2), b""),
    ):
        frame = Frame(kind, LAST, ticket=4, arg=4).of_share(owner.share)
        lane.send(frame._replace(**lie), table, payload)  # type: ignore[arg-type]
        _expect_denied(lane, 4)
    owner.expect_untouched()


def test_a_write_in_pieces_of_which_one_lies(owner: Owner, lane: RawLane) -> None:
    """The whole write fails and notifies nobody, whichever piece it was."""
    for liar in range(3):
        for piece in range(3):
            last = piece == 2
            offset = Owner.SHARED if piece == liar else piece * 4
            flags = LAST | NOTIFY if last else 0
            frame = Frame(KIND_WRITE, flags, ticket=10 + liar, offset=offset, notify=5)
            lane.send(frame.of_share(owner.share), payload=b"part")
        _expect_denied(lane, 10 + liar)
    owner.expect_margins_untouched()
    assert owner.engine.pop_notification(-1, 0) is None


MALFORMED: dict[str, Frame] = {
    "kind 0": Frame(0),
    "kind 17": Frame(17),
    "kind 255": Frame(255),
    "endless payload": Frame(KIND_WRITE, LAST, payload=0xFFFF_FFFF),
    "payload beyond a slice": Frame(KIND_WRITE, LAST, payload=256 * 1024 + 1),
    "endless table": Frame(KIND_WRITE_PAGES, LAST, table=0xFFFF_FFFF, page_bytes=1, payload=1),
    "table too long": Frame(KIND_READ_PAGES, LAST, table=8193, page_bytes=1, arg=1),
    "an addend missing": Frame(KIND_FETCH_ADD, LAST, table=0),
    "answer to nothing": Frame(KIND_ACK, LAST, ticket=77),
    "answer of no status": Frame(KIND_ACK, LAST, status=200, reason=200, ticket=77),
    "data nobody asked for": Frame(KIND_READ_DATA, LAST, ticket=77, payload=64),
    "data for no message": Frame(KIND_SEND_DATA, LAST, ticket=77, payload=64),
    "clear to send nothing": Frame(KIND_CLEAR_TO_SEND, LAST, ticket=77),
    "credits nobody spent": Frame(KIND_CREDIT, arg=TOP),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed(owner: Owner, lane: RawLane, what: str) -> None:
    """Answered or hung up on; nothing is touched. The fixture sees to the next peer being served."""
    frame = MALFORMED[what].of_share(owner.share)
    # The answer to the second, or the end of the lane, says that the first has been dealt with.
    lane.socket.sendall(frame.pack() + bytes(64) + Frame(KIND_READ, LAST, ticket=5, arg=1).of_share(owner.share).pack())
    lane.end()
    lane.expect_hung_up()
    owner.expect_untouched()


def test_more_pages_than_payload(owner: Owner, lane: RawLane) -> None:
    """Table and payload contradict each other."""
    frame = Frame(KIND_WRITE_PAGES, LAST, ticket=6, page_bytes=4096).of_share(owner.share)
    lane.send(frame, (0, 1, 2, 3), b"x" * 4096)
    lane.end()
    lane.expect_hung_up()
    owner.expect_margins_untouched()


def test_notifications_beyond_all_credit(owner: Owner, lane: RawLane) -> None:
    """A peer that never waits for credit fills no memory: it is hung up on."""
    frame = Frame(KIND_NOTIFY, LAST | NOTIFY, notify=1).pack() * 256
    assert lane.flood(frame, 4096) == "hung up"
    taken = 0
    while owner.engine.pop_notification(-1, 0) is not None:
        taken += 1
    assert taken <= 1 << 16


def test_messages_beyond_all_room(owner: Owner, lane: RawLane) -> None:
    """Eager messages that nobody receives: at some point the lane ends or takes no more, and memory stays bounded."""
    frame = Frame(KIND_SEND, LAST, arg=4096, payload=4096).pack() + bytes(4096)
    assert lane.flood(frame, 65_536) in ("hung up", "full")


def test_questions_whose_answers_are_not_read(owner: Owner, lane: RawLane) -> None:
    """Reads without end by a peer that takes no answers: bounded too."""
    many = Frame(KIND_READ, LAST, ticket=1, arg=Owner.SHARED).of_share(owner.share).pack() * 64
    assert lane.flood(many, 65_536) in ("hung up", "full")


def test_page_lists_whose_answers_are_not_read(owner: Owner, lane: RawLane) -> None:
    """Each brings 64 KiB of page numbers with it, which the owner has to keep until it can answer."""
    frame = Frame(KIND_READ_PAGES, LAST, ticket=1, table=8192, arg=4096).of_share(owner.share)
    assert lane.flood(frame.pack() + bytes(8192 * 8), 4096) in ("hung up", "full")


def test_a_frame_that_never_ends(owner: Owner, lane: RawLane) -> None:
    """Half a header, half a table, half a payload, then silence or the end: others are served meanwhile."""
    frame = Frame(KIND_WRITE, LAST, ticket=1, payload=4096).of_share(owner.share)
    lanes = [RawLane(owner.engine) for _ in range(3)]
    lanes[0].socket.sendall(frame.pack()[:33])
    lanes[1].socket.sendall(Frame(KIND_READ_PAGES, LAST, table=3, arg=64, page_bytes=64).pack() + struct.pack("<Q", 1))
    lanes[2].socket.sendall(frame.pack() + bytes(100))
    lane.send(Frame(KIND_READ, LAST, ticket=8, arg=4).of_share(owner.share))
    answered = lane.answer()
    assert answered is not None
    assert answered[0].ticket == 8
    for unfinished in lanes:
        unfinished.end()
        unfinished.expect_hung_up()
        unfinished.close()
    owner.expect_margins_untouched()
