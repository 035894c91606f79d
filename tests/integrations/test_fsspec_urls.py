"""URLs of files on servers: fsspec opens them, and gets them back, whichever way the server is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("fsspec.asyn").get_loop()  # its thread stays for good, and is no leak of a test
CONTEXT, HOST = "0123456789abcdef" * 2, "fedcba9876543210" * 2
OWN = f"zerohop://10.0.0.7:7000/{CONTEXT}?host={HOST}&unix=/tmp/zerohop-0-x_1/s"
SOCKET = f"zerohop:///{CONTEXT}?host={HOST}&unix=/run/user/7/zerohop-7-abc/s"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    from zerohop.integrations.fsspec import StoreFileSystem, register

    register()
    yield
    StoreFileSystem.clear_instance_cache()


@pytest.mark.parametrize(
    ("server", "path", "name"),
    [
        ("zerohop://10.0.0.7:7000", "/a/b", "a/b"),
        ("zerohop://10.0.0.7:7000", "", ""),
        ("zerohop://10.0.0.7:7000", f"/{CONTEXT}/b", f"{CONTEXT}/b"),  # a folder of such a name
        ("zerohop://10.0.0.7:7000", "/what?.bin", "what?.bin"),
        ("zerohop://10.0.0.7:7000", f"/{CONTEXT}?host=1/b", f"{CONTEXT}?host=1/b"),
        ("zerohop://[0:0:0:0:0:0:0:1]:7000", "/a", "a"),
        (OWN, "/sub/a", "sub/a"),
        (OWN, "/s/a", "s/a"),
        (OWN, "", ""),
        (SOCKET, "/a", "a"),
        (OWN.partition("&")[0], "/a", "a"),
    ],
)
def test_the_server_and_the_path(server: str, path: str, name: str) -> None:
    from zerohop.integrations.fsspec import StoreFileSystem

    assert StoreFileSystem._get_kwargs_from_urls(server + path) == {"where": server}
    assert StoreFileSystem._strip_protocol(server + path) == name
    assert StoreFileSystem._strip_protocol([server + path]) == [name]


def test_what_is_no_url() -> None:
    from zerohop.integrations.fsspec import StoreFileSystem

    assert StoreFileSystem._get_kwargs_from_urls("/a/b") == {}
    assert StoreFileSystem._strip_protocol("/a/b/") == "a/b"
    with pytest.raises(TypeError, match="a path is a string, not int"):
        StoreFileSystem._strip_protocol(5)
    with pytest.raises(ValueError, match="write all eight parts"):
        fsspec.open("zerohop://[::1]:7000/a")


@pytest.mark.parametrize("secret", [None, "a secret of thirty-two characters"])
def test_a_file_of_a_server(tmp_path: Path, secret: str | None) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"content")
    options: dict[str, Any] = {"secret": secret} if secret else {}
    with storage.Server(tmp_path, **options) as server:
        for url in (server.url, f"zerohop://{urlsplit(server.url).netloc}"):
            given = {"store_options": options} if secret else {}
            with fsspec.open(f"{url}/sub/a", **given) as file:
                assert file.read() == b"content"
                system, again = file.fs, file.full_name
            assert again == f"{url}/sub/a"
            with fsspec.open_files(f"{url}/sub/*", **given)[0] as file:
                assert file.full_name == again
            found, path = fsspec.core.url_to_fs(again, **given)
            assert (found is system, path) == (True, "sub/a")
            for each in (server.url, f"zerohop://{urlsplit(server.url).netloc}"):
                assert system.cat(f"{each}/sub/a") == b"content"
                assert system.glob(f"{each}/sub/*") == ["sub/a"]
            system.mv(f"{url}/sub/a", f"{url}/sub/b")
            system.cp(f"{url}/sub/b", f"{url}/sub/a")
            system.rm(f"{url}/sub/b")
            system.close()


def test_a_url_of_a_file_on_this_machine(tmp_path: Path) -> None:
    from zerohop.integrations.fsspec import StoreFileSystem

    (tmp_path / "a").write_bytes(b"content")
    system = StoreFileSystem(tmp_path)
    with fsspec.open(system.unstrip_protocol("a")) as file:
        assert file.read() == b"content"
    with pytest.raises(ValueError, match="of another server"):
        system.cat(f"{OWN}/a")
    system.close()


def test_options_that_nothing_takes(tmp_path: Path) -> None:
    """A secret that is left aside in silence would be asked for later."""
    with (
        storage.Server(tmp_path, secret="a secret of thirty-two characters") as server,
        pytest.raises(TypeError, match=r"no option 'secret': .*store_options=\{\"secret\": \.\.\.\}"),
    ):
        fsspec.open(f"{server.url}/a", secret="a secret of thirty-two characters")


def test_urls_of_one_server() -> None:
    from zerohop.integrations import fsspec_urls as urls

    assert urls.is_same(OWN, "zerohop://10.0.0.7:7000")
    assert urls.is_same("zerohop://Node:7000", "zerohop://node:7000")
    assert not urls.is_same(OWN, "zerohop://10.0.0.7:7001")
    assert not urls.is_same(OWN, OWN.replace(CONTEXT, HOST))
    assert not urls.is_same(SOCKET, "zerohop://10.0.0.7:7000")
    assert urls.url_of("zerohop://[::1]:7000", "a") == "zerohop://[0000:0000:0000:0000:0000:0000:0000:0001]:7000/a"
