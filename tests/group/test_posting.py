"""Calls that post: done, posted and retry, and what completion objects are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import PLACES, groups
from support.patience import PATIENCE_S
from support.pattern import pattern, poison
from zerohop.group import CompletionList, Counter, Posted, State

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WINDOW = 256  # messages between two Contexts that may wait to be received


@pytest.mark.parametrize("nbytes", [8, 100_000])
@pytest.mark.parametrize("source", PLACES)
def test_both_sides_are_told(tmp_path: Path, nbytes: int, source: str) -> None:
    with groups(tmp_path, 2) as ranks:
        told = [CompletionList(each) for each in ranks]
        outgoing = ranks[0].context.alloc(nbytes, source)
        outgoing.write_bytes(0, pattern(1, nbytes).tobytes())
        into = poison(nbytes)
        assert ranks[1].post_recv(into, tag=3, comp=told[1], context="mine").is_posted()
        posted = ranks[0].post_send(outgoing, 1, tag=3, comp=told[0], context="yours", allow_done=False)
        assert posted.is_posted()
        assert told[0].pop(PATIENCE_S) == ("send", 1, 3, nbytes, outgoing, "yours", None, b"")
        received = told[1].pop(PATIENCE_S)
        assert received[:4] == ("recv", 0, 3, nbytes)
        assert received.data is into
        assert received.context == "mine"
        assert into.tobytes() == pattern(1, nbytes).tobytes()


def test_done_is_not_told(two: list[zh.Group]) -> None:
    two[0].connect(1).result(PATIENCE_S)
    told = Counter(two[0])
    posted = two[0].post_send(b"12345678", 1, tag=4, comp=told)
    assert posted.is_done()
    assert posted.ended is not None
    assert posted.ended[:4] == ("send", 1, 4, 8)
    assert told.value == 0
    assert two[0].post_send(pattern(1, 100_000), 1, comp=told).is_posted()
    into = poison(100_000)
    for nbytes in (8, 100_000):
        done = two[1].post_recv(into, 0, allow_posted=False)
        assert done.is_done()
        assert done.ended is not None
        assert done.ended[:4] == ("recv", 0, 4 if nbytes == 8 else 0, nbytes)
    assert told.wait(1, PATIENCE_S) == 1


def test_retry_where_there_is_no_room(two: list[zh.Group]) -> None:
    two[0].connect(1).result(PATIENCE_S)
    told = Counter(two[0])
    posted: list[Posted] = []
    while not posted or not posted[-1].is_retry():
        posted.append(two[0].post_send(b"1", 1))
        assert len(posted) <= WINDOW + 1
    assert [each.state for each in posted[:-1]] == [State.DONE] * WINDOW
    assert posted[-1].reason
    assert posted[-1].operation is None
    queued = two[0].post_send(b"2", 1, comp=told, allow_retry=False, allow_done=False)
    assert queued.is_posted()
    into = bytearray(1)
    for _ in range(WINDOW):
        two[1].recv(into, 0).result(PATIENCE_S)
        assert into == b"1"
    two[1].recv(into, 0).result(PATIENCE_S)
    assert into == b"2"
    assert told.wait(1, PATIENCE_S) == 1
    while two[0].post_send(b"3", 1).is_retry():
        pass
    two[1].recv(into, 0).result(PATIENCE_S)
    assert into == b"3"


def test_transfers_and_active_messages(two: list[zh.Group]) -> None:
    two[0].connect(1).result(PATIENCE_S)
    here, there = CompletionList(two[0]), CompletionList(two[1])
    number = two[1].register(there)
    memory = two[1].context.alloc(1000)
    handle = memory.share("rw")
    into = poison(100)
    # The first transfer to a memory asks its owner: it would have to be retried.
    always: dict[str, Any] = {"comp": here, "allow_done": False, "allow_retry": False}
    assert two[0].post_am(b"hello", 1, number, tag=1, **always).is_posted()
    assert two[0].post_put(pattern(2, 100), 1, handle, offset=10, tag=2, **always).is_posted()
    ends = sorted(here.pop(PATIENCE_S)[:4] for _ in range(2))
    assert ends == [("am", 1, 1, 5), ("put", 1, 2, 100)]
    assert two[0].post_get(into, 1, handle, offset=10, tag=3, **always).is_posted()
    assert here.pop(PATIENCE_S)[:4] == ("get", 1, 3, 100)
    assert (into == pattern(2, 100)).all()
    assert two[0].post_put(into, 1, handle, target=number, tag=4, **always).is_posted()
    assert two[0].post_get(into, 1, handle, target=number, tag=5, allow_posted=False).is_done()
    assert here.pop(PATIENCE_S)[:4] == ("put", 1, 4, 100)
    told = sorted(there.pop(PATIENCE_S)[:4] for _ in range(3))
    assert told == [("am", 0, 1, 5), ("get", 0, 5, 100), ("put", 0, 4, 100)]


def test_errors_are_told(tmp_path: Path) -> None:
    with groups(tmp_path, 3) as ranks:
        told = CompletionList(ranks[0])
        small = np.zeros(1, np.uint8)
        assert ranks[0].post_recv(small, 1, comp=told).is_posted()
        assert ranks[0].post_recv(small, 2, comp=told, context=7).is_posted()
        ranks[1].send(b"too long", 0)
        failed = told.pop(PATIENCE_S)
        assert failed.rank == 1
        assert isinstance(failed.error, zh.ProtocolError)
        ranks[2].context.close()
        failed = told.pop(PATIENCE_S)
        assert (failed.rank, failed.context) == (2, 7)
        assert isinstance(failed.error, zh.PeerLost)


def test_what_is_refused(two: list[zh.Group]) -> None:
    group: Any = two[0]
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: group.post_send(b"", 1, allow_later=True), TypeError, "allow_later"),
        (lambda: group.post_send(b"", 1, allow_done=False), ValueError, "comp="),
        (lambda: group.post_send(b"", 1, allow_done=False, allow_posted=False), ValueError, "both"),
        (lambda: group.post_send(b"", 2), ValueError, "rank"),
        (lambda: group.post_put(b"", 1, b""), TypeError, "RemoteBuffer"),
    ]
    for call, error, text in refused:
        with pytest.raises(error, match=text):
            call()
