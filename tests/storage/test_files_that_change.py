"""Files that are changed by others under transfers: they lose their mode, their name, or their end."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.plain_user import plain_user
from support.sizes import MIB
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.pattern import Bytes
    from zerohop.storage import File, Store

NBYTES = 2 * MIB
# Through the page cache, which has what was written just now, and past it.
DIRECT = pytest.mark.parametrize("direct", [None, True], ids=["cached", "direct"])


class Reads:
    """Reads of all of a file that are under way, as operations and through a Ring; the first of them has ended."""

    COUNT = 4

    def __init__(self, store: Store, file: File, *, short: bool = False) -> None:
        self._targets = [store.context.alloc(NBYTES) for _ in range(2 * self.COUNT)]
        for target in self._targets:
            target.numpy()[:] = 0xEE
        self._ring = store.ring(self.COUNT)
        self.operations = [file.read_into(target, short=short) for target in self._targets[: self.COUNT]]
        for number in range(self.COUNT):
            self._ring.prepare(self._targets[self.COUNT + number], file, 0, number)
        self._ring.submit()
        self.operations[0].exception(PATIENCE_S)

    def ended(self) -> list[tuple[int, BaseException | None, Bytes]]:
        """Wait for all; returns how many bytes each says that it has read, its error, and its memory."""
        found: list[tuple[int, BaseException | None, Bytes]] = []
        for operation, target in zip(self.operations, self._targets, strict=False):
            error = operation.exception(PATIENCE_S)
            done = error.bytes_done if isinstance(error, zh.ZerohopError) else operation.result()
            found.append((done, error, target.numpy()))
        for each in self._ring.wait(min_results=self.COUNT, timeout=PATIENCE_S):
            found.append((each.result, each.error, self._targets[self.COUNT + each.userdata].numpy()))
        assert len(found) == 2 * self.COUNT
        return found

    def expect(self, there: Bytes) -> None:
        """All have read all of it."""
        for done, error, target in self.ended():
            assert error is None
            assert done == there.nbytes
            assert np.array_equal(target, there)


@DIRECT
def test_permission_that_is_lost(store: Store, tmp_path: Path, direct: bool | None) -> None:
    """A file that is open goes on to be of use; opening it anew is refused, and the error says where to look."""
    there = pattern(1, NBYTES)
    path, folder = tmp_path / "data", tmp_path / "folder"
    path.write_bytes(there.tobytes())
    folder.mkdir()
    (folder / "inside").touch()
    tmp_path.chmod(0o755)
    with store.open("data", "r+", direct=direct).result(PATIENCE_S) as file:
        reads = Reads(store, file)
        path.chmod(0)
        folder.chmod(0)
        with plain_user():
            reads.expect(there)
            Reads(store, file).expect(there)
            assert file.write_from(there[:MIB]).result(PATIENCE_S) == MIB
            file.fsync().result(PATIENCE_S)
            refused: list[tuple[Callable[[], zh.Operation[Any]], str]] = [
                (lambda: store.open("data"), "data"),
                (lambda: store.open("data", "r+"), "data"),
                (lambda: store.open("data", "w"), "data"),
                (lambda: store.open("folder/inside"), "folder/inside"),
                (lambda: store.stat("folder/inside"), "folder/inside"),
                (lambda: store.unlink("folder/inside"), "folder/inside"),
                (lambda: store.listdir("folder"), "folder"),
            ]
            for call, name in refused:
                error = call().exception(PATIENCE_S)
                assert isinstance(error, zh.StorageError), error
                assert (error.errno, error.filename) == (errno.EACCES, name)
                assert "owner and mode" in error.fix
            assert store.stat("data").result(PATIENCE_S).st_size == NBYTES
        path.chmod(0o644)
        folder.chmod(0o755)
        with plain_user(), store.open("data").result(PATIENCE_S) as again:
            Reads(store, again).expect(there)
            assert store.listdir("folder").result(PATIENCE_S) == ["inside"]


@pytest.mark.parametrize(
    ("how", "direct"),
    [
        ("replaced", None),
        ("replaced", True),
        ("replaced by the store", None),
        ("removed", True),
        ("removed by the store", None),
    ],
)
def test_a_name_that_is_lost(store: Store, tmp_path: Path, how: str, direct: bool | None) -> None:
    """Reads are of the file that was opened, to the last byte, and so are writes; the new one is opened by its name."""
    old, new = pattern(1, NBYTES), pattern(2, NBYTES)
    (tmp_path / "data").write_bytes(old.tobytes())
    (tmp_path / "other").write_bytes(new.tobytes())
    with store.open("data", "r+", direct=direct).result(PATIENCE_S) as file:
        reads = Reads(store, file)
        if how == "replaced":
            (tmp_path / "other").replace(tmp_path / "data")
        elif how == "replaced by the store":
            store.rename("other", "data").result(PATIENCE_S)
        elif how == "removed":
            (tmp_path / "data").unlink()
        else:
            store.unlink("data").result(PATIENCE_S)
        reads.expect(old)
        Reads(store, file).expect(old)
        changed = pattern(3, MIB)
        assert file.write_from(changed, MIB).result(PATIENCE_S) == MIB
        file.fsync().result(PATIENCE_S)
        assert file.size == NBYTES
        Reads(store, file).expect(np.concatenate([old[:MIB], changed, old[2 * MIB :]]))
        if "replaced" in how:
            with store.open("data").result(PATIENCE_S) as another:
                Reads(store, another).expect(new)
            assert (tmp_path / "data").read_bytes() == new.tobytes()
        else:
            error = store.open("data").exception(PATIENCE_S)
            assert isinstance(error, zh.StorageError)
            assert error.errno == errno.ENOENT


def test_a_name_that_is_replaced_again_and_again(store: Store, tmp_path: Path) -> None:
    """Whichever of the files is opened, what is read is that one, and no mixture."""
    (tmp_path / "data").write_bytes(bytes(MIB))
    over = threading.Event()

    def replace() -> None:
        value = 0
        while not over.is_set():
            value = value % 255 + 1
            (tmp_path / "new").write_bytes(bytes([value]) * MIB)
            (tmp_path / "new").replace(tmp_path / "data")

    replacing = threading.Thread(target=replace)
    replacing.start()
    try:
        target = np.zeros(MIB, np.uint8)
        found: set[int] = set()
        # Until so many were met, however long that takes.
        while len(found) < 10:
            with store.open("data").result(PATIENCE_S) as file:
                assert file.read_into(target).result(PATIENCE_S) == MIB
            assert (target == target[0]).all()
            found.add(int(target[0]))
    finally:
        over.set()
        replacing.join(PATIENCE_S)


@DIRECT
@pytest.mark.parametrize("left", [pytest.param(0, marks=pytest.mark.slow), MIB, MIB + 4097])
def test_an_end_that_comes_nearer(store: Store, tmp_path: Path, left: int, direct: bool | None) -> None:
    """Each read has all its bytes, or tells where the file ended; none has bytes that were never there."""
    there = pattern(4, NBYTES)
    for short in (False, True):
        (tmp_path / "data").write_bytes(there.tobytes())
        with store.open("data", direct=direct).result(PATIENCE_S) as file:
            reads = Reads(store, file, short=short)
            os.truncate(tmp_path / "data", left)
            for done, error, target in reads.ended():
                assert error is None or (isinstance(error, zh.EndOfFile) and not short), error
                assert left <= done <= NBYTES
                assert (error is None) or done < NBYTES
                assert np.array_equal(target[:left], there[:left])
                # Linux clears the rest of the pages that it cuts, which a read may have at hand at that moment.
                beyond = target[left:done]
                assert ((beyond == there[left:done]) | (beyond == 0)).all()
            # A transfer that begins now ends there, and touches nothing beyond.
            later = np.full(NBYTES, 0xEE, np.uint8)
            operation = file.read_into(later, short=short)
            if short:
                assert operation.result(PATIENCE_S) == left
            else:
                with pytest.raises(zh.EndOfFile) as caught:
                    operation.result(PATIENCE_S)
                assert caught.value.bytes_done == left
            assert np.array_equal(later[:left], there[:left])
            assert (later[left:] == 0xEE).all()


def test_an_end_that_moves_all_the_time(store: Store, tmp_path: Path) -> None:
    """Lists of ranges around it: each byte is that of the file, or a zero of the hole that the end has left."""
    there = pattern(6, MIB)
    path = tmp_path / "data"
    path.write_bytes(there.tobytes())
    over = threading.Event()

    def move() -> None:
        with path.open("r+b") as file:
            while not over.is_set():
                file.truncate(MIB // 2 + 100)
                file.truncate(MIB)
                file.seek(MIB // 2)
                file.write(there[MIB // 2 :].tobytes())
                file.flush()

    moving = threading.Thread(target=move)
    moving.start()
    places = np.arange(256) * 4096
    target = np.full(MIB, 0xEE, np.uint8)
    try:
        with store.open("data").result(PATIENCE_S) as file:
            for _ in range(15):
                file.read_many(target, places, np.full(256, 4096), places, short=True).result(PATIENCE_S)
                assert np.array_equal(target[: MIB // 2], there[: MIB // 2])
                beyond = target[MIB // 2 :]
                assert ((beyond == there[MIB // 2 :]) | (beyond == 0) | (beyond == 0xEE)).all()
                target[:] = 0xEE
    finally:
        over.set()
        moving.join(PATIENCE_S)


def test_a_folder_that_is_lost(no_leaks: None, tmp_path: Path) -> None:
    """A Store of a folder that was removed says so, and reads what is open."""
    there = pattern(7, NBYTES)
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "data").write_bytes(there.tobytes())
    with storage.Server(folder) as server, storage.open_store(server.url) as remote, storage.open_store(folder) as here:
        for each in (remote, here):
            with each.open("data").result(PATIENCE_S) as file:
                reads = Reads(each, file)
                if each is remote:
                    folder.rename(tmp_path / "moved")
                reads.expect(there)
        (tmp_path / "moved" / "data").unlink()
        (tmp_path / "moved").rmdir()
        for each in (remote, here):
            for call in (each.open("data"), each.open("new", "w"), each.mkdir("folder")):
                error = call.exception(PATIENCE_S)
                assert isinstance(error, zh.StorageError)
                assert error.errno == errno.ENOENT
