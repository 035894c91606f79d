"""Files of descriptors that are open already, and the holes in files."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zerohop._native import HeldDescriptor
    from zerohop.storage import Store

MIB = 1 << 20


@pytest.fixture(params=[False, True], ids=["opened anew", "duplicated"])
def duplicated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the descriptor's file can only be had by a duplicate, as where its mode allows less by now."""
    if request.param:

        def refusing(path: str, _flags: int) -> HeldDescriptor:
            raise PermissionError(errno.EACCES, "Permission denied", path)

        monkeypatch.setattr("zerohop.storage.opening.open_path", refusing)
    return bool(request.param)


@pytest.mark.parametrize("direct", [None, True, False])
def test_read_and_written(
    local_store: Store, random_file: Callable[..., np.ndarray], tmp_path: Path, duplicated: bool, direct: bool | None
) -> None:
    """The caller's descriptor may be closed, and its position stays where it was."""
    there = random_file("data", MIB)
    fd = os.open(tmp_path / "data", os.O_RDWR)
    os.lseek(fd, 77, os.SEEK_SET)
    target = np.zeros(MIB, np.uint8)
    with local_store.file_of(fd, direct=direct).result() as file:
        assert (file.mode, file.path, file.size) == ("r+", str(tmp_path / "data"), MIB)
        file.read_into(target).result(PATIENCE_S)
        assert (target == there).all()
        assert file.hole_in(0, MIB).result() is None
        assert os.lseek(fd, 0, os.SEEK_CUR) == 77
        os.close(fd)
        file.write_from(target[::-1].copy()).result(PATIENCE_S)
    assert (np.fromfile(tmp_path / "data", np.uint8) == there[::-1]).all()


def test_as_far_as_the_descriptor_allows(
    local_store: Store, random_file: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    random_file("data", MIB)
    target = np.ones(MIB, np.uint8)
    reads, writes = (os.open(tmp_path / "data", flags) for flags in (os.O_RDONLY, os.O_WRONLY))
    with local_store.file_of(reads).result() as file, pytest.raises(zh.StorageError, match='mode "r"'):
        file.write_from(target)
    with local_store.file_of(writes).result() as file:
        with pytest.raises(zh.StorageError, match="open for writing only") as caught:
            file.read_into(target)
        assert caught.value.errno == errno.EBADF
        file.write_from(target).result(PATIENCE_S)
    assert (np.fromfile(tmp_path / "data", np.uint8) == 1).all()
    os.close(reads)
    os.close(writes)


def test_a_file_without_a_name(local_store: Store, tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b"nameless")
    target = np.zeros(8, np.uint8)
    with local_store.file_of(fd).result() as file:
        file.read_into(target).result(PATIENCE_S)
    os.close(fd)
    assert target.tobytes() == b"nameless"


def test_appending(
    local_store: Store, random_file: Callable[..., np.ndarray], tmp_path: Path, duplicated: bool
) -> None:
    """O_APPEND would ignore offsets: opened anew the file has none, and a duplicate is refused."""
    random_file("data", 100)
    fd = os.open(tmp_path / "data", os.O_RDWR | os.O_APPEND)
    if duplicated:
        with pytest.raises(zh.StorageError, match="with O_APPEND, offsets mean nothing"):
            local_store.file_of(fd).result()
    else:
        with local_store.file_of(fd).result() as file:
            file.write_from(np.zeros(10, np.uint8)).result(PATIENCE_S)
            assert file.size == 100
    os.close(fd)


def test_refused(local_store: Store, random_file: Callable[..., np.ndarray], tmp_path: Path) -> None:
    random_file("data", 100)
    pipe = os.pipe()
    folder, nothing = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "data", os.O_PATH)
    cases = [
        (pipe[0], errno.EINVAL, "not a regular file: 'pipe:"),
        (folder, errno.EISDIR, "Is a directory"),
        (nothing, errno.EBADF, "opened with O_PATH"),
        (9999, errno.EBADF, "not open in this process"),
        (2**40, errno.EBADF, "no descriptor has such a number"),
    ]
    for fd, number, said in cases:
        with pytest.raises(zh.StorageError, match=said) as caught:
            local_store.file_of(fd).result()
        assert caught.value.errno == number
    for fd in (*pipe, folder, nothing):
        os.close(fd)
    with pytest.raises(ValueError, match="at least 0"):
        local_store.file_of(-1)
    with pytest.raises(TypeError, match="fd must be an int"):
        local_store.file_of("data")  # type: ignore[arg-type]  # what the test is about
    with pytest.raises(TypeError, match="direct"):
        local_store.file_of(0, direct=1)  # type: ignore[arg-type]  # as above


def test_holes(local_store: Store, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.write(b"x" * MIB)
        file.seek(2 * MIB)
        file.write(b"y" * MIB)
    with local_store.open("sparse").result() as sparse:
        assert sparse.hole_in(0, MIB).result() is None
        assert sparse.hole_in(0, MIB + 1).result() == MIB
        assert sparse.hole_in(MIB + 5, 10).result() == MIB + 5
        assert sparse.hole_in(2 * MIB, 5 * MIB).result() is None, "the end of the file is no hole"
        assert sparse.hole_in(9 * MIB, MIB).result() is None
