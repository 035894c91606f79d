"""Transfers that a server is asked for over the lane: it reaches the memory, and knows it and the file by numbers."""

from __future__ import annotations

import contextlib
import gc
from concurrent.futures import CancelledError
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.lane_numbers import known, numbers_of
from support.lanes import eventually
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.sizes import MIB
from zerohop import storage
from zerohop.core.lanes import routes
from zerohop.core.peers import import_client

if TYPE_CHECKING:
    from pathlib import Path

    from zerohop.storage import wire
    from zerohop.storage.remote.remote_store import RemoteStore

PAGE = 4096


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
        assert file.read_many(memory, offsets, np.full(count, 7), at).result(PATIENCE_S) == 7 * count
        assert (shown[: 7 * count].reshape(count, 7) == there[offsets[:, None] + np.arange(7)]).all()
        assert copy.write_from(memory[1 : 1 + 66 * MIB], 11).result(PATIENCE_S) == 66 * MIB
        assert (np.fromfile(tmp_path / "copy", np.uint8)[11:] == shown[1 : 1 + 66 * MIB]).all()
    assert not moved_by_messages


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


def test_memories_that_a_server_has_very_many_of(
    store: RemoteStore,
    tmp_path: Path,
    moved_by_messages: list[wire.Move],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbers of the oldest go on to be good, although the server has given up the routes to them."""
    monkeypatch.setattr(routes, "_MAX_ROUTES", 4)
    monkeypatch.setattr(import_client, "_MAX_ALLOCATIONS", 4)
    there = pattern(3, PAGE)
    (tmp_path / "data").write_bytes(there.tobytes())
    memories = [known(store, store.context.alloc(PAGE)) for _ in range(24)]
    moved_by_messages.clear()
    with store.open("data").result() as file:
        ring = store.ring(1)
        for index, memory in enumerate(memories):
            memory.write_bytes(0, bytes(PAGE))
            assert file.read_into(memory).result(PATIENCE_S) == PAGE
            assert memory.read_bytes() == there.tobytes()
            ring.prepare(memory, file, 0, 7)
            ring.submit()
            assert ring.wait(timeout=PATIENCE_S) == [storage.Completion(index, 7, PAGE, None)]
    assert not moved_by_messages
