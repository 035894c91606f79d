"""Writes that find no room: what the error says, what is in the file, and that everything else goes on."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from support.small_disk import free_bytes, small_disk, small_ext4
from support.stores import LOCAL, SERVED, open_remote, opened, served
from zerohop import storage
from zerohop.integrations.safetensors import load, save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.fixtures import OpenContext, StartPeer
    from zerohop.storage import Store

ROOM = 4 * MIB
PAGE = 4096


@pytest.fixture
def disk(no_leaks: None) -> Iterator[Path]:
    """A file system of 4 MiB."""
    with small_disk(ROOM) as disk:
        yield disk


@pytest.fixture(params=[*LOCAL, *SERVED])
def store(request: pytest.FixtureRequest, disk: Path) -> Iterator[Store]:
    """A Store of it, in each way."""
    with opened(disk, request.param) as store:
        yield store


def leave_room(disk: Path, nbytes: int) -> Path:
    """Fill the file system but for so many bytes; returns the file that takes the room."""
    filler = disk / "filler"
    filler.write_bytes(bytes(free_bytes(disk) - nbytes))
    assert free_bytes(disk) == nbytes
    return filler


def expect_no_room(error: BaseException | None, path: str = "data") -> zh.StorageError:
    assert isinstance(error, zh.StorageError), error
    assert error.errno == errno.ENOSPC
    assert error.filename == path
    assert "free space" in error.fix
    return error


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_a_write_stops_half_way(store: Store, disk: Path, device: str) -> None:
    """The error tells how many bytes are in the file, to the byte, and the same write works once there is room."""
    filler, source = leave_room(disk, 75 * PAGE), pattern(3, MIB)
    with store.iov(MIB, device) as iov, store.open("data", "w").result(PATIENCE_S) as file:
        store.context.write(source, iov.memory.share("w")).result(PATIENCE_S)
        error = expect_no_room(file.write_from(iov).exception(PATIENCE_S))
        assert error.bytes_done == 75 * PAGE
        assert "(307200 bytes were done)" in str(error)
        assert (disk / "data").read_bytes() == source[: 75 * PAGE].tobytes()
        file.fsync().result(PATIENCE_S)
        filler.unlink()
        assert file.write_from(iov).result(PATIENCE_S) == MIB
    assert (disk / "data").read_bytes() == source.tobytes()


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_a_long_write_tells_what_is_there_from_the_start(store: Store, disk: Path, device: str) -> None:
    """Its pieces are written at once, and what counts ends where the first of them stopped."""
    source = pattern(5, 3 * ROOM)
    with store.iov(source.nbytes, device) as iov, store.open("data", "w").result(PATIENCE_S) as file:
        store.context.write(source, iov.memory.share("w")).result(PATIENCE_S)
        for _ in range(3):
            error = expect_no_room(file.write_from(iov).exception(PATIENCE_S))
            done = error.bytes_done
            assert 0 <= done <= ROOM
            assert np.array_equal(np.fromfile(disk / "data", np.uint8)[:done], source[:done])
            file.truncate(0).result(PATIENCE_S)


@pytest.mark.slow
@pytest.mark.parametrize("direct", [True, None, False], ids=["direct", "either", "cached"])
@pytest.mark.parametrize("how", [*LOCAL, *SERVED])
def test_a_disk_that_is_written_past_the_page_cache(no_leaks: None, how: str, direct: bool | None) -> None:
    """The bytes that the error tells of are there, and a write again puts all of them there once there is room."""
    source = pattern(6, 24 * MIB)
    with (
        small_ext4(24 * MIB) as disk,
        opened(disk, how) as store,
        store.iov(source.nbytes) as iov,
        store.open("data", "w", direct=direct).result(PATIENCE_S) as file,
    ):
        iov.memory.write_bytes(0, source.tobytes())
        for _ in range(3):
            done = expect_no_room(file.write_from(iov).exception(PATIENCE_S)).bytes_done
            assert np.array_equal(np.fromfile(disk / "data", np.uint8)[:done], source[:done])
            file.truncate(0).result(PATIENCE_S)
        part = iov[: 16 * MIB]
        assert file.write_from(part).result(PATIENCE_S) == part.nbytes
        file.fsync().result(PATIENCE_S)
        assert np.array_equal(np.fromfile(disk / "data", np.uint8), source[: 16 * MIB])


def test_a_full_disk_takes_what_has_its_room(store: Store, disk: Path) -> None:
    """Bytes that are there are replaced, and a hole beside them is not filled; the size stays as it is."""
    with store.open("data", "w").result(PATIENCE_S) as file:
        file.truncate(ROOM).result(PATIENCE_S)
        old, new = pattern(1, 64 * PAGE), pattern(2, 64 * PAGE)
        file.write_from(old, 64 * PAGE).result(PATIENCE_S)
        leave_room(disk, 0)
        assert file.write_from(new, 64 * PAGE).result(PATIENCE_S) == new.nbytes
        assert expect_no_room(file.write_from(old).exception(PATIENCE_S)).bytes_done == 0
        expect_no_room(file.write_many(old, [0, 64 * PAGE], [PAGE, PAGE], [0, 0]).exception(PATIENCE_S))
        assert file.size == ROOM
        found = np.fromfile(disk / "data", np.uint8)
        assert not found[: 64 * PAGE].any()
        assert np.array_equal(found[65 * PAGE : 128 * PAGE], new[PAGE:])
        # Of the list, the range that had its room may have been written before the other one failed.
        assert found[64 * PAGE : 65 * PAGE].tobytes() in (new[:PAGE].tobytes(), old[:PAGE].tobytes())
        file.punch_hole(64 * PAGE, 32 * PAGE).result(PATIENCE_S)
        assert file.write_from(old[: 32 * PAGE]).result(PATIENCE_S) == 32 * PAGE


def test_each_result_of_a_ring_is_its_own(store: Store, disk: Path) -> None:
    """Those that found room are there whole; each other one says how much of it is; and reads go on beside them."""
    there, source = pattern(7, MIB // 2), pattern(8, 8 * MIB)
    (disk / "there").write_bytes(there.tobytes())
    back = np.zeros_like(there)
    with store.open("data", "w").result(PATIENCE_S) as file, store.open("there").result(PATIENCE_S) as other:
        file.truncate(8 * MIB).result(PATIENCE_S)
        writes, reads = store.ring(32, for_read=False), store.ring(1)
        places = np.arange(32) * MIB // 4
        writes.prepare_many(source, file, places, np.full(32, MIB // 4), places)
        reads.prepare(back, other, 0)
        assert writes.submit() == 32
        assert reads.submit() == 1
        results = writes.wait(min_results=32, timeout=PATIENCE_S)
        assert sorted(each.userdata for each in results) == [*range(32)]
        assert [(each.result, each.error) for each in reads.wait(timeout=PATIENCE_S)] == [(there.nbytes, None)]
        found = np.fromfile(disk / "data", np.uint8)
        failed = 0
        for each in results:
            place, done = places[each.userdata], MIB // 4
            if each.error is not None:
                assert isinstance(each.error, zh.StorageError), each.error
                assert each.error.errno == errno.ENOSPC
                done, failed = each.error.bytes_done, failed + 1
                assert done < MIB // 4
            else:
                assert each.result == MIB // 4
            assert np.array_equal(found[place : place + done], source[place : place + done]), each
        assert failed >= 32 - 14  # no more can be whole than there was room for
        # The same ring is of use when there is room.
        file.punch_hole(0, 8 * MIB).result(PATIENCE_S)
        writes.prepare(source[:MIB], file, 0, 5)
        writes.submit()
        assert writes.wait(timeout=PATIENCE_S) == [storage.Completion(32, 5, MIB, None)]
    assert (back == there).all()


@pytest.mark.parametrize("large", [False, True], ids=["small tensors", "large tensors"])
def test_a_save_leaves_nothing(store: Store, disk: Path, large: bool) -> None:
    """What was there before stays whole, and nothing is there that was not, whichever write finds no room."""
    before = {"x": np.arange(1000)}
    save(before, "model", store)
    tensors = {"x": pattern(1, 2 * ROOM)} if large else {f"{each}": pattern(each, MIB // 2) for each in range(16)}
    for path, within in (("model", store), (disk / "model", None), ("new", store), (disk / "new", None)):
        with pytest.raises(zh.StorageError) as caught:
            save(tensors, path, within, budget=MIB)
        assert caught.value.errno == errno.ENOSPC
        assert [each.name for each in disk.iterdir()] == ["model"]
        assert (load(disk / "model", framework="numpy")["x"] == before["x"]).all()
    # The tensors of before and those of now have to have room at once.
    save({"x": pattern(9, 3 * MIB)}, "model", store)
    assert (load("model", store=store, framework="numpy")["x"] == pattern(9, 3 * MIB)).all()


@pytest.mark.parametrize("how", [*LOCAL, *SERVED])
def test_no_name_is_left(no_leaks: None, how: str) -> None:
    """A file system that has room for bytes and for no more files says the same of a name."""
    with small_disk(ROOM, inodes=2) as disk, opened(disk, how) as store:
        (disk / "one").write_bytes(b"there")
        for path, make in (("two", lambda: store.open("two", "x")), ("folder", lambda: store.mkdir("folder"))):
            expect_no_room(make().exception(PATIENCE_S), path)
        assert store.listdir().result(PATIENCE_S) == ["one"]
        store.unlink("one").result(PATIENCE_S)
        store.open("two", "x").result(PATIENCE_S).close()


@pytest.mark.parametrize("providers", [None, ("tcp",)], ids=["mapped", "tcp"])
def test_the_other_clients_of_a_server(
    open_context: OpenContext, start_peer: StartPeer, disk: Path, providers: tuple[str, ...] | None
) -> None:
    """One finds no room, again and again, while another one reads; the server keeps neither memory nor files."""
    there = pattern(4, 2 * MIB)
    (disk / "there").write_bytes(there.tobytes())
    peer, url = served(start_peer, disk, providers)
    reader, writer = (open_remote(url, open_context(Options(providers=providers))) for _ in range(2))
    source, target = pattern(5, 16 * MIB), np.zeros_like(there)
    with reader, writer:
        with reader.open("there").result(PATIENCE_S) as read, writer.open("data", "w").result(PATIENCE_S) as written:
            for _ in range(5):
                operations = [written.write_from(source) for _ in range(4)]
                target[:] = 0
                assert read.read_into(target).result(PATIENCE_S) == there.nbytes
                assert (target == there).all()
                for operation in operations:
                    error = expect_no_room(operation.exception(PATIENCE_S))
                    assert "server" in str(error)
        eventually(lambda: peer.call(Service.served).files == 0, "a file stays open")
        assert peer.call(Service.served).memory_in_use == 0
