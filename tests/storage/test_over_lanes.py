"""Transfers that a server of this host is asked for over the lane: it reaches the memory, and knows it and the file by
numbers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from concurrent.futures import CancelledError
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
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
    from collections.abc import Iterator
    from pathlib import Path

    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer
    from zerohop._native import FileAsking
    from zerohop.core.face import Link
    from zerohop.storage.remote.remote_store import RemoteStore

PAGE = 4096


@pytest.fixture
def moved_by_messages(monkeypatch: pytest.MonkeyPatch) -> list[wire.Move]:
    """The Moves that were asked for."""
    asked: list[wire.Move] = []
    ask = Moves.ask_now

    async def noted(self: Moves, request: wire.Request, *args: Any) -> Any:
        if isinstance(request, wire.Move):
            asked.append(request)
        return await ask(self, request, *args)

    monkeypatch.setattr(Moves, "ask_now", noted)
    return asked


@pytest.fixture
def server(open_context: OpenContext, no_leaks: None, tmp_path: Path) -> Iterator[storage.Server]:
    with storage.Server(tmp_path, ctx=open_context(Options(sim_devices=1)), memory=8 * MIB) as server:
        yield server


@pytest.fixture
def store(server: storage.Server, open_context: OpenContext) -> Iterator[RemoteStore]:
    with open_remote(server.url, open_context(Options(sim_devices=1))) as store:
        yield store


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


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_every_byte(store: RemoteStore, tmp_path: Path, moved_by_messages: list[wire.Move], device: str) -> None:
    """Random ranges both ways, in memory that begins and ends anywhere in its registration."""
    random = np.random.default_rng(7)
    there = pattern(3, 4 * MIB + 77)
    for name in ("data", "copy"):
        (tmp_path / name).write_bytes(there.tobytes())
    memory = known(store, store.context.alloc(8 * MIB, device))
    moved_by_messages.clear()
    part = memory[4097:]
    with store.open("data").result() as file, store.open("copy", "r+").result() as copy:
        reads, writes = store.ring(5000), store.ring(5000, for_read=False)
        for round_ in range(4):
            memory.write_bytes(0, bytes([round_]) * memory.nbytes)
            count = 5000 if round_ % 2 else 60
            lengths = random.integers(0, part.nbytes // count, count)
            at = np.cumsum(lengths) - lengths
            offsets = random.integers(0, there.size - lengths.max(), count)
            order = random.permutation(count)
            reads.prepare_many(part, file, offsets[order], lengths[order], at[order], order)
            assert reads.submit() == count
            done = reads.wait_array(min_results=count, timeout=PATIENCE_S)
            assert not done["status"].any()
            assert (done["result"] == lengths[done["userdata"]]).all()
            expected = np.full(part.nbytes, round_, np.uint8)
            for offset, length, place in zip(offsets, lengths, at, strict=True):
                expected[place : place + length] = there[offset : offset + length]
            assert (np.frombuffer(part.read_bytes(), np.uint8) == expected).all()
            writes.prepare_many(part, copy, at, lengths, at, order)
            writes.submit()
            done = writes.wait_array(min_results=count, timeout=PATIENCE_S)
            assert not done["status"].any()
            total = int(lengths.sum())
            assert (np.fromfile(tmp_path / "copy", np.uint8)[:total] == expected[:total]).all()
    assert not moved_by_messages


def test_memories_that_share_a_registration(
    store: RemoteStore, tmp_path: Path, moved_by_messages: list[wire.Move]
) -> None:
    (tmp_path / "data").write_bytes(pattern(1, 4 * PAGE).tobytes())
    block = SharedMemory(create=True, size=4 * PAGE)  # which the server maps
    assert block.buf is not None
    whole = np.frombuffer(block.buf, np.uint8)
    first, second = store.context.register([whole[:PAGE], whole[PAGE : 3 * PAGE]])
    known(store, second)
    moved_by_messages.clear()
    with store.open("data").result() as file:
        ring = store.ring(1)
        ring.prepare(second, file, PAGE)
        ring.submit()
        assert ring.wait(timeout=PATIENCE_S)[0].result == 2 * PAGE
    assert (whole[PAGE : 3 * PAGE] == pattern(1, 4 * PAGE)[PAGE : 3 * PAGE]).all()
    assert not whole[:PAGE].any()
    assert not whole[3 * PAGE :].any()
    assert not moved_by_messages
    first.close()
    second.close()
    del whole, first, second
    block.unlink()

    def is_closed() -> bool:
        gc.collect()
        with contextlib.suppress(BufferError):  # the registration goes when the server has given it back
            block.close()
            return True
        return False

    eventually(is_closed, "the memory stays registered")


def test_the_end_of_a_file_and_other_results(store: RemoteStore, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(pattern(1, PAGE).tobytes())
    memory = known(store, store.context.alloc(MIB))
    with store.open("data").result() as file:
        ring = store.ring(4)
        ring.prepare(memory[: 2 * PAGE], file, 100, 1)
        ring.prepare(memory[:PAGE], file, MIB, 2)
        ring.prepare(memory[:0], file, 0, 3)
        ring.submit()
        found = {each.userdata: each for each in ring.wait(min_results=3, timeout=PATIENCE_S)}
    assert {number: each.result for number, each in found.items()} == {1: PAGE - 100, 2: 0, 3: 0}
    assert all(each.error is None for each in found.values())
    folder = known(store, store.context.alloc(PAGE))
    with store.open("data", "r+").result() as file:
        (tmp_path / "data").chmod(0o444)
        ring = store.ring(1, for_read=False)
        ring.prepare(folder, file, (1 << 63) - 1 - PAGE)
        ring.submit()
        (result,) = ring.wait(timeout=PATIENCE_S)
    assert isinstance(result.error, zh.StorageError)
    assert result.error.errno


def test_transfers_that_are_too_long_for_the_lane(
    store: RemoteStore, tmp_path: Path, moved_by_messages: list[wire.Move]
) -> None:
    there = pattern(2, 65 * MIB)
    (tmp_path / "data").write_bytes(there.tobytes())
    memory = known(store, store.context.alloc(65 * MIB))
    with store.open("data").result() as file:
        ring = store.ring(2)
        ring.prepare(memory, file, 0)
        ring.submit()
        assert ring.wait(timeout=PATIENCE_S)[0].result == 65 * MIB
    assert (memory.numpy() == there).all()
    assert moved_by_messages


def test_more_than_may_be_under_way(store: RemoteStore, tmp_path: Path) -> None:
    """What there is no room for waits, and each transfer has its result once; a cancelled one, too."""
    (tmp_path / "data").write_bytes(pattern(1, MIB).tobytes())
    memory, count = known(store, store.context.alloc(MIB)), 20_000
    with store.open("data").result() as file:
        ring, at = store.ring(count), np.arange(count) % (MIB // 8) * 8
        ring.prepare_many(memory, file, at, np.full(count, 8), at)
        ring.submit()
        cancelled = ring.cancel()
        done = ring.wait(min_results=count, timeout=PATIENCE_S)
        assert sorted(each.userdata for each in done) == [*range(count)]
        errors = [each.error for each in done if each.error is not None]
        assert all(isinstance(error, CancelledError) for error in errors)
        assert len(errors) <= cancelled


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


def test_statistics(store: RemoteStore, server: storage.Server, tmp_path: Path) -> None:
    """They count what was asked for over a lane, also of clients that have left."""
    (tmp_path / "data").write_bytes(bytes(MIB))
    memory = known(store, store.context.alloc(MIB))
    for writes in (False, True):
        ring = store.ring(1, for_read=not writes)
        with store.open("data", "r+").result() as file:
            ring.prepare(memory[: PAGE + writes], file, 0)
            ring.submit()
            ring.wait(timeout=PATIENCE_S)
    assert (server.statistics().bytes_read, server.statistics().bytes_written) == (PAGE, PAGE + 1)
    store.close()
    eventually(lambda: server.statistics().clients == 0, "the client stays")
    assert (server.statistics().bytes_read, server.statistics().bytes_written) == (PAGE, PAGE + 1)


def test_a_flush_waits_for_a_ring_that_was_closed(store: RemoteStore, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes([7]) * (64 * MIB))
    memory = known(store, store.context.alloc(64 * MIB))
    shown, at = memory.numpy(), np.arange(64) * MIB
    with store.open("data").result() as file:
        for _ in range(10):
            shown[:] = 1
            ring = store.ring(64)
            ring.prepare_many(memory, file, at, np.full(64, MIB), at)
            ring.submit()
            ring.close()
            store.context.flush().result(PATIENCE_S)
            shown[:] = 2
            store.listdir().result(PATIENCE_S)
            assert (shown == 2).all()


def test_a_server_that_is_closed(store: RemoteStore, server: storage.Server, tmp_path: Path) -> None:
    """What is under way ends as usual or with PeerLost and what to do; what comes later, with PeerLost."""
    (tmp_path / "data").write_bytes(bytes(64 * MIB))
    memory = known(store, store.context.alloc(64 * MIB))
    file = store.open("data").result(PATIENCE_S)
    ring, at = store.ring(4096), np.arange(4096) % 64 * MIB
    ring.prepare_many(memory, file, at, np.full(4096, MIB), at)
    ring.submit()
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
        ring, at = store.ring(640), np.arange(640) % 64 * MIB
        ring.prepare_many(memory, file, at, np.full(640, MIB), at)
        ring.submit()
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
                ring, at = store.ring(8), np.arange(8) * MIB
                memory.write_bytes(0, bytes(8 * MIB))
                with store.open("data").result() as file:
                    ring.prepare_many(memory, file, at, np.full(8, MIB), at)
                    ring.submit()
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
        ring, at = store.ring(640), np.arange(640) % 64 * MIB
        ring.prepare_many(memory, file, at, np.full(640, MIB), at)
        ring.submit()
        server.context._core.engine.post_notify(end, asking.queue << 32, 0, message=b"nonsense")
        done = ring.wait(min_results=640, timeout=PATIENCE_S)
        assert sorted(each.userdata for each in done) == [*range(640)]
        assert all(isinstance(each.error, zh.PeerLost | zh.ProtocolError | None) for each in done)
        assert any(each.error for each in done)
        with pytest.raises(zh.PeerLost):
            store.listdir().result(PATIENCE_S)


def test_operations(store: RemoteStore, tmp_path: Path, moved_by_messages: list[wire.Move]) -> None:
    """One range that is cut, many, what is short and what is too long; both ways."""
    there = pattern(6, 70 * MIB + 5)
    (tmp_path / "data").write_bytes(there.tobytes())
    memory = known(store, store.context.alloc(80 * MIB))
    shown = memory.numpy()
    moved_by_messages.clear()
    with store.open("data").result() as file, store.open("copy", "w").result() as copy:
        reading = file.read_into(memory[3 : 3 + there.size])
        assert reading.result(PATIENCE_S) == there.size
        assert (shown[3 : 3 + there.size] == there).all()
        assert str(reading.explain()).startswith("server (mapped) file→host direct, 70.0 MiB in ")
        assert file.read_into(memory, 70 * MIB, short=True).result(PATIENCE_S) == 5
        with pytest.raises(zh.EndOfFile) as ended:
            file.read_into(memory, 70 * MIB).result(PATIENCE_S)
        assert ended.value.bytes_done == 5
        assert file.read_into(memory[:0]).result(PATIENCE_S) == 0
        count = 10_000
        at, offsets = np.arange(count) * 7, np.random.default_rng(1).integers(0, there.size - 7, count)
        assert file.read_many(memory, offsets, at, np.full(count, 7)).result(PATIENCE_S) == 7 * count
        assert (shown[: 7 * count].reshape(count, 7) == there[offsets[:, None] + np.arange(7)]).all()
        assert copy.write_from(memory[1 : 1 + 66 * MIB], 11).result(PATIENCE_S) == 66 * MIB
        assert (np.fromfile(tmp_path / "copy", np.uint8)[11:] == shown[1 : 1 + 66 * MIB]).all()
    assert not moved_by_messages


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


def test_deadlines_and_cancelled_operations(store: RemoteStore, tmp_path: Path) -> None:
    """The memory is in use until a flush."""
    (tmp_path / "data").write_bytes(bytes([7]) * (64 * MIB))
    memory = known(store, store.context.alloc(64 * MIB))
    shown, early = memory.numpy(), 0
    with store.open("data").result() as file:
        for round_ in range(20):
            shown[:] = 1
            operations = [file.read_into(memory, timeout=0.0005 * round_ + 1e-6) for _ in range(4)]
            operations[0].cancel()
            for operation in operations:
                try:
                    operation.result(PATIENCE_S)
                except (zh.DeadlineExceeded, CancelledError):
                    early += 1
            store.context.flush().result(PATIENCE_S)
            assert not any(operation.memory_in_use for operation in operations)
            shown[:] = 2
            store.listdir().result(PATIENCE_S)
            assert (shown == 2).all()
    assert early


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


def test_memory_with_other_handles(store: RemoteStore, tmp_path: Path, moved_by_messages: list[wire.Move]) -> None:
    """A handle with other rights, and one that follows a revoked one, have numbers of their own."""
    there = pattern(1, PAGE)
    (tmp_path / "data").write_bytes(there.tobytes())
    memory = store.context.alloc(PAGE)
    with store.open("data").result() as file, store.open("copy", "w").result() as copy:

        def both_ways() -> None:
            memory.write_bytes(0, bytes(PAGE))
            assert file.read_into(memory).result(PATIENCE_S) == PAGE
            assert (memory.numpy() == there).all()
            assert copy.write_from(memory.view(0, PAGE, readonly=True)).result(PATIENCE_S) == PAGE
            assert (tmp_path / "copy").read_bytes() == there.tobytes()

        both_ways()
        eventually(lambda: len(numbers_of(store, memory)) == 2, "the server gives too few numbers")
        moved_by_messages.clear()
        both_ways()
        assert not moved_by_messages
        memory.revoke()
        both_ways()
        eventually(lambda: len(numbers_of(store, memory)) == 4, "the server gives too few numbers")
        moved_by_messages.clear()
        both_ways()
        assert not moved_by_messages


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
