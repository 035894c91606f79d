"""Clients that speak to the storage service of a server themselves."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.sizes import MIB
from support.stores import open_remote, served
from zerohop import storage
from zerohop._native import Status
from zerohop.core.face import call, send
from zerohop.storage import wire
from zerohop.storage.serving.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from support.fixtures import OpenContext, StartPeer
    from zerohop.storage.remote.remote_store import RemoteStore

PAGE = 4096


def ask(store: RemoteStore, body: bytes) -> wire.Answer:
    async def work() -> wire.Answer:
        return wire.answer_of(await call(store._moves.link, wire.SERVICE, body))

    return store._defer("hostile", store.deadline_of(PATIENCE_S), work).result(PATIENCE_S)


def told(store: RemoteStore, request: wire.Request) -> str:
    answer = ask(store, wire.encode(request))
    assert isinstance(answer, wire.Failed), answer
    return answer.said


def test_what_no_client_asks(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    _, url = served(start_peer, tmp_path)
    (tmp_path / "data").write_bytes(bytes(MIB))
    here, other = open_context(Options()), open_context(Options())
    with open_remote(url, here) as store:
        file = store.open("data").result(PATIENCE_S)
        number = file.native().number
        memory, foreign = here.alloc(PAGE), other.alloc(PAGE)
        handle = bytes(memory.share("rw"))

        def move(**changed: Any) -> wire.Move:
            numbers = {
                name: np.array([changed.pop(name, usual)], "<i8").tobytes()
                for name, usual in (("offsets", 0), ("at", 0), ("lengths", PAGE))
            }
            usual = {"number": 1, "file": number, "writes": False, "priority": 1, "handle": handle, "seconds": 0.0}
            return wire.Move(**{**usual, **numbers, **changed})

        for asked, said in (
            (move(file=number + 1), "no such open file"),
            (move(at=1), "does not lie within the 4096 bytes"),
            (move(at=-1), "does not lie within the 4096 bytes"),
            (move(lengths=-1), "does not lie within the 4096 bytes"),
            (move(lengths=1 << 62), "does not lie within the 4096 bytes"),
            (move(offsets=-1), "negative, or too large"),
            (move(offsets=(1 << 63) - 1), "negative, or too large"),
            (move(handle=bytes(foreign.share("rw"))), "belongs to another Context"),
            (move(handle=b"zerohop"), "malformed RemoteBuffer"),
            (move(writes=True), 'opened with mode "r"'),
            (wire.Move(1, number, False, 1, handle, bytes(16), bytes(8), bytes(8), 0.0), "different lengths"),
            (wire.Move(1, number, False, 1, handle, bytes(7), bytes(7), bytes(7), 0.0), "multiple of element size"),
            (wire.FileCall("close", number, []), "no such call"),
            (wire.FileCall("truncate", number, []), "no such call"),
            (wire.FileCall("truncate", number, [-1]), "must be from 0"),
            (wire.FolderCall("rename", [b"data"]), "no such call"),
            (wire.FolderCall("system", [b"data"]), "no such call"),
            (wire.FolderCall("utime", [b"data"], numbers=[1]), "no such call"),
            (wire.FolderCall("unlink", [b"data"], numbers=[1, 2]), "no such call"),
            (wire.Open(b"data", "a", None), "mode is"),
            (wire.Open(b"a\0b", "r", None), "null character"),
        ):
            assert said in told(store, asked), asked
        revoked = memory.share("rw")
        memory.revoke(revoked)
        assert "revoked" in told(store, move(handle=bytes(revoked)))
        reading = here.alloc(PAGE).share("r")
        answer = ask(store, wire.encode(move(handle=bytes(reading))))
        assert isinstance(answer, (wire.Failed, wire.Moved))
        assert isinstance(answer, wire.Failed) or answer.outcomes
        for body in (b"", b"\xc1", b"zerohop" * 100, wire.encode(wire.Value(1))):
            with pytest.raises(zh.Unsupported, match="malformed"):
                ask(store, body)
        # After all that the same client is served as before.
        assert file.read_into(memory).result(PATIENCE_S) == PAGE
        file.close()


def test_a_deadline_at_the_server(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    """Ranges that it ends are told apart from those that the client has cancelled."""
    _, url = served(start_peer, tmp_path)
    (tmp_path / "data").write_bytes(bytes(64 * MIB))
    here = open_context(Options())
    statuses: set[int] = set()
    with open_remote(url, here) as store:
        file = store.open("data").result(PATIENCE_S)
        number = file.native().number
        handle, at = bytes(here.alloc(64 * MIB).share("rw")), (np.arange(64) * MIB).astype("<i8").tobytes()
        for tenths in range(1, 60):
            lengths = np.full(64, MIB, "<i8").tobytes()
            answer = ask(store, wire.encode(wire.Move(1, number, False, 1, handle, at, at, lengths, tenths / 1e4)))
            assert isinstance(answer, wire.Moved)
            statuses |= {*answer.outcomes[::2]}
    assert Status.DEADLINE.value in statuses
    assert statuses <= {Status.OK.value, Status.DEADLINE.value}


def test_floods(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    """Calls beyond the limit are refused, and others are served."""
    _, url = served(start_peer, tmp_path)
    (tmp_path / "data").write_bytes(bytes(MIB))
    with open_remote(url, open_context(Options())) as store, open_remote(url, open_context(Options())) as other:
        body = wire.encode(wire.Open(b"data", "r", None))
        link = store._moves.link

        async def flood() -> list[str]:
            asked: list[Coroutine[Any, Any, bytes]] = [call(link, wire.SERVICE, body) for _ in range(2000)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            for _ in range(2000):
                send(link, wire.SERVICE, wire.encode(wire.Close(1)))
            return [type(each).__name__ for each in answers]

        kinds = store._defer("flood", store.deadline_of(PATIENCE_S), flood)
        for _ in range(20):
            with other.open("data").result(PATIENCE_S) as file:
                assert file.read_into(np.zeros(PAGE, np.uint8)).result(PATIENCE_S) == PAGE
        assert set(kinds.result(PATIENCE_S)) <= {"bytes", "AccessDenied"}


def test_too_many_files(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("zerohop.storage.wire.MOST_FILES", 8)
    (tmp_path / "data").write_bytes(bytes(MIB))
    server = storage.Server(tmp_path, ctx=open_context(Options()))
    with server, open_remote(server.url, open_context(Options())) as store:
        files = [store.open("data").result(PATIENCE_S) for _ in range(8)]
        with pytest.raises(zh.StorageError, match="a client may have") as caught:
            store.open("data").result(PATIENCE_S)
        assert caught.value.errno == errno.EMFILE
        files.pop().close()
        eventually(lambda: server.statistics().files == 7, "it is not closed")
        files.append(store.open("data").result(PATIENCE_S))
        for file in files:
            file.close()


def test_ranges_to_cancel_that_there_are_not() -> None:
    """They are forgotten at once, so that a client cannot have the server keep them for it."""
    nothing: Any = None
    delivery = Delivery(nothing, nothing, nothing, writes=False, priority=1, deadline_ns=0)
    for first in (-5, 5, 1 << 40):
        delivery.cancel(np.arange(first, first + wire.MOST_RANGES, dtype=np.int64))
    assert delivery._cancelled == {*range(wire.MOST_RANGES)}
