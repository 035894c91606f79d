"""Times of files, and where links lead: set and read by a Store, within its folder."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh

if TYPE_CHECKING:
    from pathlib import Path

    from zerohop.storage import Store


def times_of(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_atime_ns, found.st_mtime_ns


def test_times(store: Store, tmp_path: Path) -> None:
    """The same as those of os.utime, of files and folders, and of what a link leads to."""
    (tmp_path / "data").write_bytes(b"x")
    (tmp_path / "data").chmod(0o200)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("data")
    link = os.lstat(tmp_path / "link").st_mtime_ns
    for path, to in (("data", "data"), ("/folder", "folder"), ("link", "data"), ("", ".")):
        for times in ((1.5, 2.000000001), (np.float64(-3.25), np.int64(7)), (1e9 + 0.123456789, 0)):
            store.utime(path, times).result()
            found = times_of(tmp_path / to)
            os.utime(tmp_path / to, (float(times[0]), float(times[1])))
            assert found == times_of(tmp_path / to)
        store.utime(path, ns=(1_600_000_000_123_456_789, 5)).result()
        assert times_of(tmp_path / to) == (1_600_000_000_123_456_789, 5)
        before = time.time_ns() - 10**9  # the system's clock for files has steps
        assert store.utime(path).result() is None
        assert all(each >= before for each in times_of(tmp_path / to))
    assert os.lstat(tmp_path / "link").st_mtime_ns == link


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"times": (1, 2), "ns": (1, 2)}, ValueError, "not both"),
        ({"times": 1}, TypeError, "a tuple of two numbers"),
        ({"times": (1,)}, TypeError, "a tuple of two numbers"),
        ({"times": (1, "2")}, TypeError, "times must have numbers, not str"),
        ({"times": (True, 2)}, TypeError, "times must have numbers, not bool"),
        ({"times": (float("nan"), 2)}, ValueError, "finite"),
        ({"times": (1, float("inf"))}, ValueError, "finite"),
        ({"times": (1e10, 1)}, ValueError, "within 292 years"),
        ({"ns": (1.0, 2)}, TypeError, "ns must have ints, not float"),
        ({"ns": (1 << 63, 2)}, ValueError, "within 292 years"),
    ],
)
def test_times_that_make_no_sense(store: Store, wrong: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        store.utime("", **wrong)


def test_where_links_lead(store: Store, tmp_path: Path) -> None:
    """The text of a link, whether anything is there or not."""
    (tmp_path / "folder").mkdir()
    odd = os.fsdecode(b"odd\xff")
    for name, to in (("a", "folder/x"), ("folder/b", "../a"), ("out", "/etc/passwd"), ("c", odd), ("loop", "loop")):
        (tmp_path / name).symlink_to(to)
        assert store.readlink(name).result() == to
    (tmp_path / "way").symlink_to("folder")
    assert store.readlink("way/b").result() == "../a"


def test_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x")
    (tmp_path / "up").symlink_to("..")
    (tmp_path.parent / "other").touch()
    before = times_of(tmp_path.parent / "other")
    for call in (store.utime, store.readlink):
        for path, number in (("nothing", errno.ENOENT), ("up/other", errno.EXDEV), ("../other", errno.EXDEV)):
            with pytest.raises(zh.StorageError) as caught:
                call(path).result()
            assert (caught.value.errno, caught.value.filename) == (number, path)
            assert caught.value.fix
        with pytest.raises(TypeError, match="a path is a string"):
            call(b"data")  # type: ignore[arg-type]  # what the test is about
        with pytest.raises(ValueError, match="null character"):
            call("a\0b")
    for path in ("data", "", "."):
        with pytest.raises(zh.StorageError, match=r"name a symbolic link; stat\(\)") as caught:
            store.readlink(path).result()
        assert caught.value.errno == errno.EINVAL
    assert times_of(tmp_path.parent / "other") == before


@pytest.mark.parametrize("mode", ["r", "r+", "w"])
def test_a_folder_is_no_file(store: Store, tmp_path: Path, mode: Any) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(zh.StorageError, match=r"Is a directory: 'folder'.*name a file, not a folder") as caught:
        store.open("folder", mode).result()
    assert caught.value.errno == errno.EISDIR
    with pytest.raises(zh.StorageError, match=r"Is a directory: 'folder'.*rmdir\(\)"):
        store.unlink("folder").result()


def test_a_rename_names_the_path_that_it_is_about(store: Store, tmp_path: Path) -> None:
    for name in ("folder", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "data").touch()
    long = "x" * 300
    for old, new, about, number in (
        ("data", long, long, errno.ENAMETOOLONG),
        (long, "data", long, errno.ENAMETOOLONG),
        ("data", "data/x", "data/x", errno.ENOTDIR),
        ("data", "folder", "folder", errno.EISDIR),
        ("folder", "data", "data", errno.ENOTDIR),
        ("folder", "full", "full", errno.ENOTEMPTY),
        ("data", "..", "..", errno.EINVAL),
        ("nothing", "new", "nothing", errno.ENOENT),
    ):
        with pytest.raises(zh.StorageError) as caught:
            store.rename(old, new).result()
        assert (caught.value.errno, caught.value.filename) == (number, about)
        assert caught.value.reason.endswith(f": {about!r}")
        assert caught.value.reason.count(": ") == 1


def test_a_path_that_no_bytes_stand_for(store: Store) -> None:
    for call in (store.open, store.stat, store.unlink):
        with pytest.raises(ValueError, match=r"no such character, which no bytes stand for: '\\ud800'"):
            call("\ud800")
