"""Transfers that a server is asked for over the lane when memory, files, Stores, the server or a client end."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lane_numbers import begun_reads, known, numbers_of
from support.lanes import eventually
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from support.stores import open_remote, served
from zerohop import storage
from zerohop.core.face import Face
from zerohop.storage import wire
from zerohop.storage.remote.moves import Moves

if TYPE_CHECKING:
    from pathlib import Path

    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer
    from zerohop._native import FileAsking
    from zerohop.core.face import Link
    from zerohop.storage.remote.remote_store import RemoteStore

PAGE = 4096


def test_memory_and_files_that_go_under_transfers(store: RemoteStore, tmp_path: Path, server: storage.Server) -> None:
    """They stay until the transfers have ended, and then nothing of them stays at the server."""
    there = pattern(4, 8 * MIB)
    (tmp_path / "data").write_bytes(there.tobytes())
    (tmp_path / "copy").write_bytes(bytes(8 * MIB))
    for _ in range(20):
        source = known(store, store.context.alloc(8 * MIB))
        source.write_bytes(0, there.tobytes())
        copy = store.open("copy", "r+").result(PATIENCE_S)
        ring = store.ring(8, for_read=False)
        at = np.arange(8) * MIB
        ring.prepare_many(source, copy, at, np.full(8, MIB), at)
        ring.submit()
        copy.close()
        del copy, source
        assert not any(each.error for each in ring.wait(min_results=8, timeout=PATIENCE_S))
        assert (np.fromfile(tmp_path / "copy", np.uint8) == there).all()
        (tmp_path / "copy").write_bytes(bytes(8 * MIB))
    gc.collect()
    eventually(lambda: server.statistics().files == 0, "a file stays open")


def test_memory_that_is_closed_before(store: RemoteStore, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(PAGE))
    memory = known(store, store.context.alloc(PAGE))
    with store.open("data").result() as file:
        ring = store.ring(1)
        ring.prepare(memory, file, 0, 5)
        memory.close()
        ring.submit()
        (result,) = ring.wait(timeout=PATIENCE_S)
    assert (result.userdata, result.result) == (5, 0)
    assert isinstance(result.error, zh.Closed)


def test_a_flush_waits_for_a_ring_that_was_closed(store: RemoteStore, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes([7]) * (64 * MIB))
    memory = known(store, store.context.alloc(64 * MIB))
    shown = memory.numpy()
    with store.open("data").result() as file:
        for _ in range(10):
            shown[:] = 1
            begun_reads(store, file, memory, 64).close()
            store.context.flush().result(PATIENCE_S)
            shown[:] = 2
            store.listdir().result(PATIENCE_S)
            assert (shown == 2).all()


def test_a_server_that_is_closed(store: RemoteStore, server: storage.Server, tmp_path: Path) -> None:
    """Transfers under way end as usual, or with PeerLost and a fix; later ones end with PeerLost."""
    (tmp_path / "data").write_bytes(bytes(64 * MIB))
    memory = known(store, store.context.alloc(64 * MIB))
    file = store.open("data").result(PATIENCE_S)
    ring = begun_reads(store, file, memory, 4096)
    ring.wait(timeout=PATIENCE_S)
    server.close()
    lost = []
    while ring._native.taken_up:
        lost += [each.error for each in ring.wait(timeout=PATIENCE_S) if each.error is not None]
    assert lost
    assert all(isinstance(error, zh.PeerLost) for error in lost)
    ring.prepare(memory, file, 0)
    ring.submit()
    (result,) = ring.wait(timeout=PATIENCE_S)
    assert isinstance(result.error, zh.PeerLost)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_server_that_dies(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, end: str) -> None:
    """Each transfer ends with PeerLost; one that stands still goes on later, and no byte of it is lost."""
    there = pattern(5, 64 * MIB)
    (tmp_path / "data").write_bytes(there.tobytes())
    peer, url = served(start_peer, tmp_path)
    with open_remote(url, open_context(Options())) as store:
        memory = known(store, store.context.alloc(64 * MIB))
        file = store.open("data").result(PATIENCE_S)
        ring = begun_reads(store, file, memory, 640)
        ring.wait(timeout=PATIENCE_S)
        if end == "kill":
            peer.kill()
        else:
            peer.stop()
            with pytest.raises(zh.DeadlineExceeded):
                ring.wait(min_results=640, timeout=0.2)
            peer.resume()
        errors = []
        while ring._native.taken_up:
            errors += [each.error for each in ring.wait(timeout=PATIENCE_S)]
        if end == "kill":
            assert all(error is None or isinstance(error, zh.PeerLost) for error in errors)
            assert any(errors)
        else:
            assert not any(errors)
            assert (memory.numpy() == there).all()
        file.close()


def test_clients_that_die(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    """The server gives up what it had for them, and the other client goes on."""
    there = pattern(5, 8 * MIB)
    (tmp_path / "data").write_bytes(there.tobytes())
    with storage.Server(tmp_path, ctx=open_context(Options())) as server:
        with open_remote(server.url, open_context(Options())) as store:
            memory = known(store, store.context.alloc(8 * MIB))
            for _ in range(3):
                peer = start_peer(Options())
                peer.call(Service.use_store, server.url)
                peer.call(Service.open_file, "data")
                peer.start(Service.read_by_ring, 8 * MIB, 1 << 30)
                before = server.statistics().bytes_read
                eventually(lambda before=before: server.statistics().bytes_read > before, "the peer reads nothing")  # type: ignore[misc]  # mypy takes no default here
                peer.kill()
                eventually(lambda: server.statistics().files == 0, "the client's file stays open")
                assert server.statistics().bytes_read > before
                memory.write_bytes(0, bytes(8 * MIB))
                with store.open("data").result() as file:
                    ring = begun_reads(store, file, memory, 8)
                    assert not any(each.error for each in ring.wait(min_results=8, timeout=PATIENCE_S))
                assert (memory.numpy() == there).all()
        eventually(lambda: server.statistics().clients == 0, "a client stays")


def test_a_server_that_talks_nonsense(store: RemoteStore, server: storage.Server, tmp_path: Path) -> None:
    """It is lost, and each transfer has its result."""
    (tmp_path / "data").write_bytes(bytes(64 * MIB))
    memory = known(store, store.context.alloc(64 * MIB))
    asking = store._moves.asking
    assert asking is not None
    end = server.context._core.connected[store.context.id].endpoint
    with store.open("data").result() as file:
        ring = begun_reads(store, file, memory, 640)
        server.context._core.engine.post_notify(end, asking.queue << 32, 0, message=b"nonsense")
        done = ring.wait(min_results=640, timeout=PATIENCE_S)
        assert sorted(each.userdata for each in done) == [*range(640)]
        assert all(isinstance(each.error, zh.PeerLost | zh.ProtocolError | None) for each in done)
        assert any(each.error for each in done)
        with pytest.raises(zh.PeerLost):
            store.listdir().result(PATIENCE_S)


@pytest.mark.parametrize("closes", ["server", "store"])
def test_closed_under_operations(store: RemoteStore, server: storage.Server, tmp_path: Path, closes: str) -> None:
    """They end as usual, or say what was closed."""
    (tmp_path / "data").write_bytes(bytes(64 * MIB))
    memory = known(store, store.context.alloc(64 * MIB))
    file = store.open("data").result(PATIENCE_S)
    operations = [file.read_into(memory) for _ in range(40)]
    operations[0].result(PATIENCE_S)
    (server if closes == "server" else store).close()
    errors = []
    for operation in operations:
        try:
            operation.result(PATIENCE_S)
        except zh.ZerohopError as error:
            errors.append(error)
    assert errors
    if closes == "server":
        assert {type(each) for each in errors} == {zh.PeerLost}
        assert all("open_store" in each.fix for each in errors)
    else:
        assert all(str(each).startswith("read_into: the Store was closed") for each in errors)


def test_a_number_of_a_store_that_was_opened_again(
    server: storage.Server, open_context: OpenContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server said to the Store before means nothing to the one that follows."""
    (tmp_path / "data").write_bytes(bytes([7]) * PAGE)
    context, ask = open_context(Options()), Moves.ask_now
    answered, opened = threading.Event(), asyncio.Event()

    async def late(self: Moves, request: wire.Request, *args: Any) -> Any:
        answer = await ask(self, request, *args)
        if isinstance(request, wire.Reach) and not answered.is_set():
            answered.set()
            await opened.wait()
        return answer

    monkeypatch.setattr(Moves, "ask_now", late)
    first = open_remote(server.url, context)
    block = context.alloc(PAGE)
    iov = first.wrap(block)
    assert answered.wait(PATIENCE_S)
    first.close()
    again = open_remote(server.url, context)
    again._on_control_thread(opened.set)
    memory = known(again, context.alloc(PAGE))
    assert not numbers_of(first, block)
    iov.close()
    block.close()
    del block, iov, first
    gc.collect()
    other = known(again, context.alloc(PAGE))
    with again.open("data").result(PATIENCE_S) as file:
        assert file.read_into(memory).result(PATIENCE_S) == PAGE
    assert memory.numpy().all()
    assert not other.numpy().any()
    again.close()


def test_a_server_that_was_lost_leaves_nothing(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path
) -> None:
    """A Context that goes on holds no lane to it, nor what was to ask over that."""
    (tmp_path / "data").write_bytes(bytes(PAGE))
    context = open_context(Options())

    servers = [served(start_peer, tmp_path) for _ in range(2)]

    def use(peer: Peer, url: str) -> None:
        with open_remote(url, context) as store:
            known(store, context.alloc(PAGE)).close()
            peer.kill()
            with pytest.raises(zh.PeerLost):
                store.listdir().result(PATIENCE_S)

    use(*servers[0])
    before = holdings()
    use(*servers[1])
    expect_given_back(before, holdings, "the client")


def test_contexts_that_serve_nothing(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt gives up what was to ask over the lane."""
    there, here = open_context(Options()), open_context(Options())
    made: list[FileAsking] = []
    make = Face._file_asking

    def noted(self: Face, link: Link) -> FileAsking | None:
        asking = make(self, link)
        assert asking is not None
        made.append(asking)
        return asking

    monkeypatch.setattr(Face, "_file_asking", noted)
    for _ in range(3):
        with pytest.raises(zh.Unsupported, match="serves no files"):
            open_remote(there.url, here)
    assert len(made) == 3
    eventually(lambda: not any(each.usable for each in made), "one stays")


def test_a_store_of_the_server_before(open_context: OpenContext, tmp_path: Path) -> None:
    """Closing it takes nothing from a Store of the server that has followed in the same Context."""
    (tmp_path / "data").write_bytes(pattern(1, PAGE).tobytes())
    there, here = open_context(Options()), open_context(Options())
    with storage.Server(tmp_path, ctx=there) as before:
        old = open_remote(before.url, here)
    with storage.Server(tmp_path, ctx=there) as server, open_remote(server.url, here) as store:
        file = store.open("data").result(PATIENCE_S)
        old.close()
        target = np.zeros(PAGE, np.uint8)
        assert store.listdir().result(PATIENCE_S) == ["data"]
        assert file.read_into(target).result(PATIENCE_S) == PAGE
        assert (target == pattern(1, PAGE)).all()
        file.close()
