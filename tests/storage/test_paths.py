"""Paths: they lead to files beneath the folder of the store, and nowhere else."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.patience import PATIENCE_S
from zerohop import storage

if TYPE_CHECKING:
    from pathlib import Path

    from zerohop.storage import Store


def test_within(store: Store, tmp_path: Path) -> None:
    store.mkdir("a").result()
    store.mkdir("/a/b").result()
    with store.open("a/b/file", "x").result() as file:
        assert file.size == 0
        file.truncate(10).result()
        assert file.size == 10
    (tmp_path / "link").symlink_to("a/b/file")
    for path in ("a/b/file", "/a/b/file", "a/../a/b/file", "link", "./link"):
        assert store.stat(path).result().st_size == 10
    assert sorted(store.listdir().result()) == ["a", "link"]
    assert store.listdir("a").result() == ["b"]
    store.rename("a/b/file", "a/other").result()
    assert store.listdir("a/b").result() == []
    store.unlink("a/other").result()
    store.rmdir("a/b").result()
    assert store.listdir("a").result() == []


def test_out_of_it(store: Store, tmp_path: Path) -> None:
    secret = tmp_path.parent / "secret"
    secret.write_text("secret")
    (tmp_path / "out").symlink_to(secret)
    (tmp_path / "up").symlink_to("..")
    (tmp_path / "magic").symlink_to("/proc/self/root")
    paths = ["../secret", "out", "up/secret", "a/../../secret", "magic/etc/passwd", "..", "up"]
    for path in paths:
        for what in (store.open(path), store.stat(path), store.listdir(path)):
            with pytest.raises(zh.StorageError) as caught:
                what.result()
            assert caught.value.errno in (errno.EXDEV, errno.ENOENT)
    for path in ("../secret", "up/secret"):
        for change in (store.unlink(path), store.rename(path, "here"), store.mkdir(path + "2"), store.rmdir(path)):
            with pytest.raises(zh.StorageError, match="leads out of the store"):
                change.result()
    with pytest.raises(zh.StorageError, match="leads out of the store"):
        store.open("../new", "w").result()
    assert secret.read_text() == "secret"
    assert not (tmp_path.parent / "new").exists()
    store.unlink("out").result()  # the link, not what it leads to
    assert secret.exists()


@pytest.mark.parametrize("path", ["", ".", "..", "a/..", "/"])
def test_no_name(store: Store, path: str) -> None:
    for what in (store.unlink(path), store.mkdir(path), store.rename(path, "x")):
        with pytest.raises(zh.StorageError, match=r"Invalid argument|leads out of the store"):
            what.result()


def test_what_is_no_file(store: Store, tmp_path: Path) -> None:
    import os

    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(zh.StorageError, match="not a regular file"):
        store.open("pipe").result()
    with pytest.raises(zh.StorageError, match="No such file") as caught:
        store.open("nothing").result()
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == "nothing"
    with pytest.raises(zh.StorageError, match="File exists"):
        store.open("folder", "x").result()


def test_no_such_folder(tmp_path: Path) -> None:
    for where in (tmp_path / "nothing", tmp_path / "file"):
        (tmp_path / "file").write_text("")
        with pytest.raises(zh.StorageError) as caught:
            storage.open_store(where)
        assert caught.value.errno in (errno.ENOENT, errno.ENOTDIR)
    with pytest.raises(TypeError, match="the path of a folder"):
        storage.open_store(b"/tmp")  # type: ignore[arg-type]  # what the test is about
    with pytest.raises(ValueError, match='engine is "auto" or "threads"'):
        storage.open_store(tmp_path, engine="fast")  # type: ignore[arg-type]  # what the test is about


def test_no_descriptor_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last one was taken by the folder."""

    def refused(root: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files", str(root))

    monkeypatch.setattr("zerohop.storage.local_store.check_openat2", refused)
    for opening in (storage.open_store, storage.Server):
        with pytest.raises(zh.LimitReached, match="ulimit -n"):
            opening(tmp_path)


def test_a_hole_is_punched(store: Store, tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "data").write_bytes(b"x" * 16384)
    with store.open("data", "r+").result() as file:
        file.punch_hole(4096, 8192).result()
        file.fsync().result()
        assert file.size == 16384
        found = np.zeros(16384, np.uint8)
        file.read_into(found).result()
        assert not found[4096:12288].any()
        assert (found[:4096] == ord("x")).all()
        with pytest.raises(zh.StorageError, match="Invalid argument"):
            file.punch_hole(0, 0).result()


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_a_folder_that_no_path_can_name(path: str) -> None:
    """Python's own words do not say which argument has such a character."""
    for opening in (storage.open_store, storage.Server):
        with pytest.raises(ValueError, match=r"^where, the path of a folder, has no .*'a?\\(x00b|ud800)'"):
            opening(path)


def test_a_path_that_is_too_long_is_cut_in_the_error(store: Store) -> None:
    """It is something else that was taken for a path, and nobody reads it; ``filename`` has it in full."""
    long = "x" * 100_000
    for call in (storage.open_store, store.open, store.stat, store.unlink):
        with pytest.raises(zh.StorageError, match=r"File name too long: 'x+\.\.\.x+'") as caught:
            _result(call(long))
        assert caught.value.errno == errno.ENAMETOOLONG
        assert caught.value.filename == long
        assert len(str(caught.value)) < 400


def _result(operation: Any) -> object:
    return operation.result(PATIENCE_S)


def test_a_path_of_a_usual_length_is_whole_in_the_error(store: Store) -> None:
    path = "/".join(["folder" * 10] * 8)
    with pytest.raises(zh.StorageError, match=f"'{path}'"):
        store.open(path).result(PATIENCE_S)
