"""Files of a StoreFileSystem: copies at the root, folders in the place of files, folders that are not there yet."""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING, Any

import pytest

from support.stores import opened
from zerohop import StorageError, storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("fsspec.asyn").get_loop()  # its thread stays for good, and is no leak of a test


@pytest.fixture(params=["auto", "served"])
def system(request: pytest.FixtureRequest, no_leaks: None, tmp_path: Path) -> Iterator[Any]:
    from zerohop.integrations.fsspec import StoreFileSystem

    (tmp_path / "store" / "sub").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "store" / "b").write_bytes(b"b")
    (tmp_path / "store" / "sub" / "a").write_bytes(b"a")
    with opened(tmp_path / "store", request.param) as store:
        yield StoreFileSystem(store=store, skip_instance_cache=True)


def test_a_file_at_the_root_goes_into_a_folder(system: Any, tmp_path: Path) -> None:
    system.cp("b", "sub")
    system.cp("b", "sub/new/")
    system.cp("?", "sub/all")
    assert system.find("sub") == ["sub/a", "sub/all/b", "sub/b", "sub/new/b"]
    here = tmp_path / "here"
    system.get("b", here)
    system.get("/b", f"{here}/new/")
    system.get("sub", str(here), recursive=True)
    assert (here / "b").read_bytes() == (here / "new" / "b").read_bytes() == b"b"
    assert (here / "sub" / "a").read_bytes() == b"a"
    system.get("", str(here / "all"), recursive=True)
    assert (here / "all" / "sub" / "a").read_bytes() == b"a"
    system.put(str(here / "b"), "/")
    system.put(str(here / "b"), "sub/put/")
    system.get(["b"], [str(here / "named")])
    assert system.cat("sub/put/b") == (here / "named").read_bytes() == b"b"


def test_folders_in_the_place_of_files(system: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: system.open("sub"),
        lambda: system.open("sub", "wb"),
        lambda: system.open("sub", "ab"),
        lambda: system.cat("sub"),
        lambda: system.cat_ranges(["sub"], [0], [1], on_error="raise"),
        lambda: system.pipe("sub", b"x"),
        lambda: system.get_file("sub", io.BytesIO()),
        lambda: system.cp_file("b", "sub"),
        lambda: system.rm_file("sub"),
    ]
    for call in calls:
        with pytest.raises(IsADirectoryError, match=r"Is a directory.*: 'sub'$"):
            call()
    assert system.cat("sub/a") == b"a"


def test_folders_that_are_not_there_yet(system: Any, tmp_path: Path) -> None:
    source = tmp_path / "here" / "x"
    source.write_bytes(b"x")
    system.put_file(str(source), "1/2/x")
    system.pipe("3/4/x", b"x")
    system.touch("5/6/x")
    for mode in ("wb", "xb", "ab"):
        with system.open(f"7/{mode}/x", mode) as file:
            file.write(b"x")
    system.put(str(source.parent), "8/9", recursive=True)
    assert len(system.find("", maxdepth=None)) == 2 + 7
    system.mv("1/2/x", "10/11/")
    system.mv("10/11/x", "1/2")
    assert system.cat("1/2/x") == b"x"
    system.get_file("1/2/x", str(tmp_path / "here" / "n" / "x"))
    assert (tmp_path / "here" / "n" / "x").read_bytes() == b"x"
    for call, name in ((system.put_file, "/no/such"), (system.cp_file, "no")):
        with pytest.raises(FileNotFoundError):
            call(name, "n/x")
    assert not system.exists("n")


def test_folders_are_made_only_on_request(system: Any) -> None:
    from zerohop.integrations.fsspec import StoreFileSystem

    strict = StoreFileSystem(store=system.store, auto_mkdir=False, skip_instance_cache=True)
    for call in (lambda: strict.pipe("n/x", b"x"), lambda: strict.open("n/x", "wb"), lambda: strict.touch("n/x")):
        with pytest.raises(FileNotFoundError, match=r"check the path.*\): 'n/x'$"):
            call()
    with pytest.raises(FileNotFoundError):
        strict.mv("b", "n/b")
    assert not system.exists("n")
    wrong: Any = "no"
    with pytest.raises(TypeError, match="auto_mkdir must be True or False"):
        StoreFileSystem(store=system.store, auto_mkdir=wrong, skip_instance_cache=True)


def test_an_error_names_the_path_once(system: Any) -> None:
    for call in (system.cat, system.info, system.open, system.rmdir, system.rm_file):
        with pytest.raises(FileNotFoundError) as caught:
            call("nothing")
        assert str(caught.value).count("nothing") == 1
        assert caught.value.filename == "nothing"
        assert caught.value.errno == errno.ENOENT


def test_bytes_are_added_at_the_end(system: Any) -> None:
    with system.open("b", "ab") as file:
        assert file.tell() == 1
        file.write(b"cd")
        assert file.tell() == 3
    assert system.cat("b") == b"bcd"
    with system.open("new", "ab") as file:
        assert file.tell() == 0
    assert system.cat("new") == b""


def test_a_file_that_comes_meanwhile_is_not_emptied(system: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is opened to add to it, and was not there a moment ago."""
    opens = type(system.store).open_file

    def raced(store: Any, path: str, mode: Any, direct: Any) -> Any:
        if mode == "x":
            system.pipe("late", b"there")
        return opens(store, path, mode, direct)

    monkeypatch.setattr(type(system.store), "open_file", raced)
    with system.open("late", "ab") as file:
        file.write(b"!")
    assert system.cat("late") == b"there!"


def test_a_file_is_opened_when_it_is_asked_for(system: Any) -> None:
    with pytest.raises(FileExistsError):
        system.open("b", "xb")
    with system.open("b", "wb"):
        assert system.size("b") == 0
    for mode in ("r+b", "w+b", "q"):
        with pytest.raises(NotImplementedError, match='mode is "rb", "wb", "xb" or "ab"'):
            system.open("b", mode)
    with pytest.raises(ValueError, match='mode is "overwrite" or "create"'):
        system.pipe_file("b", b"x", mode="creat")


def test_touch(system: Any, tmp_path: Path) -> None:
    """A file or folder that is there gets its times set, as in fsspec's own file system of this machine."""
    from fsspec.implementations.local import LocalFileSystem

    of_this_machine: Any = LocalFileSystem
    here = of_this_machine()
    system.touch("new", truncate=False)
    system.touch("b", truncate=True)
    assert system.size("new") == system.size("b") == 0
    for name in ("sub/a", "sub"):
        path = tmp_path / "store" / name
        for files, its_name in ((system, name), (here, str(path))):
            os.utime(path, (1, 2))
            files.touch(its_name, truncate=False)
            assert min(path.stat().st_mtime, path.stat().st_atime) > 2
    assert system.cat("sub/a") == b"a"


def test_callbacks_are_told_of_bytes(system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.callbacks import Callback

    from zerohop.integrations import fsspec_copies

    monkeypatch.setattr(fsspec_copies, "_PIECE", 300)
    content = bytes(1000)
    system.pipe("large", content)
    steps: list[tuple[int, int]] = []
    there = str(tmp_path / "here" / "large")
    for call, source, target in ((system.get_file, "large", there), (system.put_file, there, "l")):
        steps.clear()
        call(source, target, callback=Callback(hooks={"step": lambda size, value, **_: steps.append((size, value))}))
        assert steps == [(1000, 0), (1000, 300), (1000, 600), (1000, 900), (1000, 1000)]
    files = Callback()
    system.get(["b", "large"], str(tmp_path / "here"), callback=files)
    assert (files.size, files.value) == (2, 2)
    assert (tmp_path / "here" / "b").read_bytes() == b"b"


def test_no_more_is_removed_than_was_asked_for(system: Any) -> None:
    system.pipe("sub/deep/c", b"c")
    with pytest.raises(OSError, match="not empty"):
        system.rm("sub", recursive=True, maxdepth=1)
    assert system.find("sub") == ["sub/a", "sub/deep/c"]
    system.rm("sub", recursive=True, maxdepth=2)
    assert not system.exists("sub")


def test_a_target_of_this_machine_that_is_a_file_object(system: Any) -> None:
    target = io.BytesIO()
    system.get_file("b", target)
    assert target.getvalue() == b"b"


def test_a_file_that_fails_is_closed(system: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise StorageError("no room is left: 'b'", errno=errno.ENOSPC, filename="b", fix="free space")

    file = system.open("b", "wb")
    monkeypatch.setattr(storage.File, "write_from", full)
    file.write(b"x")
    with pytest.raises(OSError, match=r"\[Errno 28\] no room is left \(free space\): 'b'"):
        file.close()
    assert file.closed
    file.close()
