"""Stores are a file system of fsspec, of a folder and of a server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from support.stores import opened
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("fsspec.asyn").get_loop()  # its thread stays for good, and is no leak of a test
CONTENT = bytes(range(256)) * 64


@pytest.fixture(params=["auto", "threads", "served"])
def system(request: pytest.FixtureRequest, no_leaks: None, tmp_path: Path) -> Iterator[Any]:
    from zerohop.integrations.fsspec import StoreFileSystem

    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(CONTENT)
    (tmp_path / "b").write_bytes(b"b")
    with opened(tmp_path, request.param) as store:
        yield StoreFileSystem(store=store, skip_instance_cache=True)


def test_reads(system: Any) -> None:
    assert system.cat_file("sub/a") == CONTENT
    assert system.cat_file("/sub/a", 10, 20) == CONTENT[10:20]
    assert system.cat_file("sub/a", -5, None) == CONTENT[-5:]
    assert system.cat_file("sub/a", 16_000, 99_999) == CONTENT[16_000:]
    assert system.cat_file("sub/a", 20, 10) == b""
    with system.open("sub/a") as file:
        file.seek(100)
        assert file.read(50) == CONTENT[100:150]
    assert system.cat("sub/*") == {"sub/a": CONTENT}


def test_ranges_of_several_files(system: Any) -> None:
    found = system.cat_ranges(["sub/a", "b", "sub/a", "nothing"], [0, 0, 300, 0], [3, None, 310, 1])
    assert found[:3] == [CONTENT[:3], b"b", CONTENT[300:310]]
    assert isinstance(found[3], FileNotFoundError)
    with pytest.raises(FileNotFoundError, match="No such file"):
        system.cat_ranges(["nothing"], 0, 1, on_error="raise")
    with pytest.raises(ValueError, match="give as many"):
        system.cat_ranges(["b"], [0, 1], [1, 2])


def test_names(system: Any, tmp_path: Path) -> None:
    assert system.ls("", detail=False) == ["b", "sub"]
    assert [(each["name"], each["size"], each["type"]) for each in system.ls("sub")] == [("sub/a", 16384, "file")]
    assert system.info("sub")["type"] == "directory"
    assert system.exists("b")
    assert not system.exists("c")
    assert system.find("") == ["b", "sub/a"]
    system.makedirs("x/y/z")
    system.makedirs("x/y/z", exist_ok=True)
    with pytest.raises(FileExistsError):
        system.makedirs("x/y/z")
    system.mv("b", "x/c")
    assert (tmp_path / "x" / "c").read_bytes() == b"b"
    system.rm("x", recursive=True)
    assert not (tmp_path / "x").exists()


def test_writes(system: Any, tmp_path: Path) -> None:
    system.pipe_file("new", CONTENT)
    assert (tmp_path / "new").read_bytes() == CONTENT
    system.pipe_file("new", b"")
    assert (tmp_path / "new").read_bytes() == b""
    with system.open("new", "wb", block_size=1 << 12) as file:
        for _ in range(3):
            file.write(CONTENT)
    assert (tmp_path / "new").read_bytes() == 3 * CONTENT
    with system.open("new", "ab") as file:
        file.write(b"more")
    assert (tmp_path / "new").read_bytes() == 3 * CONTENT + b"more"
    system.cp_file("new", "other")
    system.get_file("other", str(tmp_path / "here"))
    system.put_file(str(tmp_path / "here"), "there")
    assert (tmp_path / "there").read_bytes() == 3 * CONTENT + b"more"


def test_coroutines(no_leaks: None, tmp_path: Path) -> None:
    from zerohop.integrations.fsspec import StoreFileSystem

    (tmp_path / "a").write_bytes(CONTENT)

    async def work() -> list[bytes]:
        system = StoreFileSystem(tmp_path, asynchronous=True, skip_instance_cache=True)
        with contextlib.closing(system):
            found: list[bytes] = await system._cat_ranges(["a", "a"], [0, 256], [5, 260])
            return found

    assert asyncio.run(work()) == [CONTENT[:5], CONTENT[:4]]


def test_url_of_a_server(tmp_path: Path) -> None:
    from zerohop.integrations.fsspec import StoreFileSystem, register

    register()
    (tmp_path / "a").write_bytes(CONTENT)
    with storage.Server(tmp_path) as server:
        place = urlsplit(server.url).netloc
        with fsspec.open(f"zerohop://{place}/a") as file:
            assert file.read() == CONTENT
        system, path = fsspec.core.url_to_fs(f"zerohop://{place}/a")
        assert path == "a"
        system.close()
        StoreFileSystem.clear_instance_cache()


def test_no_place_named() -> None:
    from zerohop.integrations.fsspec import StoreFileSystem

    with pytest.raises(ValueError, match="name the folder or the server"):
        StoreFileSystem()


def test_a_link_that_leads_nowhere_hides_nothing(system: Any, tmp_path: Path) -> None:
    (tmp_path / "sub" / "dangling").symlink_to("nothing")
    (tmp_path / "sub" / "out").symlink_to("/etc/passwd")
    assert [(each["name"], each["type"]) for each in system.ls("sub")] == [
        ("sub/a", "file"),
        ("sub/dangling", "other"),
        ("sub/out", "other"),
    ]
    assert "sub/a" in system.find("")
    with pytest.raises(OSError, match="leads out of the store"):
        system.cat_file("sub/out")


def test_folders_are_copied_with_what_is_in_them(system: Any, tmp_path: Path) -> None:
    (tmp_path / "sub" / "deep").mkdir()
    (tmp_path / "sub" / "deep" / "c").write_bytes(b"c")
    system.copy("sub", "other", recursive=True)
    assert sorted(system.find("other")) == ["other/a", "other/deep/c"]
    system.get("sub", str(tmp_path / "got"), recursive=True)
    assert (tmp_path / "got" / "a").read_bytes() == CONTENT
    assert (tmp_path / "got" / "deep" / "c").read_bytes() == b"c"
    system.rm("other", recursive=True)
    assert not system.exists("other")


def test_a_file_is_not_copied_onto_itself(system: Any, tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to("b")
    for same in ("b", "again"):
        with pytest.raises(OSError, match="same file"):
            system.cp_file("b", same)
    assert (tmp_path / "b").read_bytes() == b"b"


def test_times_and_empty_folders(system: Any, tmp_path: Path) -> None:
    assert system.modified("b").timestamp() == pytest.approx((tmp_path / "b").stat().st_mtime)
    system.mkdir("empty")
    system.rmdir("empty")
    assert not system.exists("empty")
    with pytest.raises(FileNotFoundError):
        system.rmdir("empty")
    with pytest.raises(FileExistsError), system.open("b", "xb") as file:
        file.write(b"x" * 10)


def test_links_are_removed_and_not_followed(system: Any, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for name, to in (("link", "../sub"), ("loop", "."), ("dangling", "nowhere"), ("out", "/etc")):
        (tmp_path / "x" / name).symlink_to(to)
    (tmp_path / "other").symlink_to("sub")
    system.rm("x", recursive=True)
    system.rm("other", recursive=True)
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "other").is_symlink()
    assert (tmp_path / "sub" / "a").read_bytes() == CONTENT
    with pytest.raises(OSError, match="not empty"):
        system.rm("sub")
    assert (tmp_path / "sub" / "a").exists()


def test_a_move_is_a_rename(system: Any, tmp_path: Path) -> None:
    """Whole, or not at all: also of an empty folder, and never into itself."""
    (tmp_path / "empty").mkdir()
    number = (tmp_path / "sub" / "a").stat().st_ino
    with pytest.raises(OSError, match="Invalid argument"):
        system.mv("sub", "sub/below", recursive=True)
    system.mv("empty", "moved", recursive=True)
    assert (tmp_path / "moved").is_dir()
    system.mv("sub", "moved", recursive=True)
    assert (tmp_path / "moved" / "sub" / "a").stat().st_ino == number
    system.mv("moved/sub/a", "b")
    assert (tmp_path / "b").read_bytes() == CONTENT
    with pytest.raises(FileNotFoundError):
        system.mv("nothing", "b")
    assert (tmp_path / "b").read_bytes() == CONTENT


def test_a_target_stays_if_there_is_no_source(system: Any, tmp_path: Path) -> None:
    for source, kind in (("/no/such/file", FileNotFoundError), (str(tmp_path / "sub"), FileExistsError)):
        with pytest.raises(kind):
            system.put_file(source, "b")
    with pytest.raises(TypeError):
        system.pipe_file("b", "text")
    with pytest.raises(FileNotFoundError):
        system.put_file("/no/such/file", "new")
    assert (tmp_path / "b").read_bytes() == b"b"
    assert not (tmp_path / "new").exists()


def test_what_is_there(system: Any) -> None:
    for path in ("sub", "sub/a", "", "/"):
        assert system.exists(path), path
    for path in ("b/below", "x" * 5000, "a\0b", "nothing", "../.."):
        assert not system.exists(path), path[:20]
    system.makedirs("", exist_ok=True)
    for path in ("", "b", "sub"):
        with pytest.raises(FileExistsError):
            system.makedirs(path)
    with pytest.raises(FileExistsError):
        system.makedirs("b", exist_ok=True)


def test_closed_and_opened_again(no_leaks: None, tmp_path: Path) -> None:
    from zerohop.integrations.fsspec import StoreFileSystem

    (tmp_path / "x").write_bytes(b"x")
    for _ in range(2):
        files = StoreFileSystem(tmp_path)
        assert files.cat("x") == b"x"
        files.close()


def test_a_file_that_changes_while_it_is_read(system: Any, tmp_path: Path) -> None:
    """No byte is of another file, and none is left out in silence."""
    with system.open("sub/a", block_size=100, cache_type="none") as file:
        assert file.read(50) == CONTENT[:50]
        (tmp_path / "new").write_bytes(bytes(len(CONTENT)))
        (tmp_path / "new").replace(tmp_path / "sub" / "a")
        assert file.read(50) == CONTENT[50:100]
    with system.open("sub/a", block_size=100, cache_type="none") as file:
        (tmp_path / "sub" / "a").write_bytes(b"short")
        with pytest.raises(EOFError):
            file.read()


def test_transactions_are_refused(system: Any, tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="no transactions"), system.transaction:
        pass
    with pytest.raises(NotImplementedError, match="no transactions"):
        system.open("b", "wb", autocommit=False)
    assert (tmp_path / "b").read_bytes() == b"b"


def test_a_url_of_another_server(system: Any) -> None:
    for call in (system.cat, system.exists, system.rm):
        with pytest.raises(ValueError, match="of another server"):
            call("zerohop://10.0.0.1:7000/b")
    server = urlsplit(system.store.folder).netloc
    if server:
        assert system.cat(f"zerohop://{server}/b") == b"b"
