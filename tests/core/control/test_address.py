"""URLs, listening addresses, and the directory of a Context's Unix socket."""

from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerohop.core.control import address
from zerohop.core.control.address import Address

ID = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "where",
    [
        Address("127.0.0.1", 5000),
        Address("127.0.0.1", 5000, ID),
        Address("::1", 65535, ID, ID),
        Address("node7.example", 1, ID, ID, "/run/user/0/zerohop-0-x/s"),
        Address("", 0, ID, ID, "/tmp/with space&=?#%/s"),
    ],
)
def test_round_trip(where: Address) -> None:
    assert address.parse(where.url()) == where


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://127.0.0.1:80/",
        "zerohop://",
        "zerohop://127.0.0.1/",
        "zerohop://127.0.0.1:99999/",
        "zerohop://127.0.0.1:port/",
        "zerohop://[::1/",
        f"zerohop://h:1/{ID}0",
        "zerohop://h:1/../../etc",
        "zerohop://h:1/?host=nonsense",
        f"zerohop:///{ID}?unix=relative/path",
        f"zerohop:///{ID}?unix=/{'x' * 107}",
        f"zerohop://h:1/{'?' * 2000}",
        "zerohop://h:1/\n",
    ],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        address.parse(url)


def test_what_is_no_string() -> None:
    with pytest.raises(TypeError):
        address.parse(b"zerohop://h:1/")  # type: ignore[arg-type]


@given(st.text(max_size=100))
def test_random_text(text: str) -> None:
    try:
        parsed = address.parse(f"zerohop://{text}")
    except ValueError:
        return
    assert parsed.listens or parsed.socket_path


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
        ("host", ("host", 0)),
        ("0.0.0.0:7", ("0.0.0.0", 7)),
    ],
)
def test_listen(listen: str, expected: tuple[str, int]) -> None:
    assert address.split_listen(listen) == expected


@pytest.mark.parametrize("listen", ["", ":80", "h:port", "h:99999", "h:1/path", "user@h:1", "[::1:80"])
def test_what_cannot_be_listened_on(listen: str) -> None:
    with pytest.raises(ValueError, match="listen="):
        address.split_listen(listen)


def test_the_host_has_one_id() -> None:
    assert address.host_id() == address.host_id()
    assert len(address.host_id()) == 32


def test_a_wildcard_is_not_advertised() -> None:
    assert address.advertised_host("10.1.2.3") == "10.1.2.3"
    assert address.advertised_host("0.0.0.0") != "0.0.0.0"


@pytest.mark.parametrize("target", ["127.0.0.1", "127.0.1.1"])
def test_a_connection_within_this_host(target: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listening, socket.socket() as sock:
        assert not address.connected_here(sock)
        sock.connect((target, listening.getsockname()[1]))
        assert address.connected_here(sock)


class TestDirectory:
    def test_is_private_and_goes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        short = _short(tmp_path, monkeypatch)
        directory = address.make_directory()
        assert directory.parent == short
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        address.remove_directory(directory)
        address.remove_directory(directory)
        assert not directory.exists()

    @pytest.mark.parametrize("runtime", ["", "relative", "/does/not/exist", "/" + "x" * 90])
    def test_without_a_usable_runtime_directory(self, monkeypatch: pytest.MonkeyPatch, runtime: str) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        directory = address.make_directory()
        assert directory.parent == Path("/tmp")
        assert len(str(directory / address.SOCKET_NAME)) <= address.MAX_SOCKET_PATH
        address.remove_directory(directory)

    def test_which_paths_are_ours(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        short = _short(tmp_path, monkeypatch)
        directory = address.make_directory()
        name = directory.name
        assert address.is_ours(f"{directory}/s")
        (short / "zerohop-0-link").symlink_to(directory)
        for path in (
            "",
            "s",
            f"{name}/s",
            f"{directory}/other",
            f"{directory}/",
            f"{directory}/s/",
            f"{short}/zerohop-0-link/s",
            f"{short}/zerohop-0-none/s",
            f"{short}/zerohop-0-no\0ne/s",
            f"{short}/ssh-x/s",
        ):
            assert not address.is_ours(path), path
        directory.chmod(0o750)
        assert not address.is_ours(f"{directory}/s")
        address.remove_directory(directory)
        assert not address.is_ours(f"{directory}/s")

    def test_what_killed_processes_left_is_swept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _short(tmp_path, monkeypatch)
        dead, living, young = (address.make_directory() for _ in range(3))
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(living / address.SOCKET_NAME))
        listening.listen()
        gone = socket.socket(socket.AF_UNIX)
        gone.bind(str(dead / address.SOCKET_NAME))
        gone.close()
        long_ago = time.time() - 3600
        os.utime(dead, (long_ago, long_ago))
        os.utime(living, (long_ago, long_ago))
        address.make_directory()
        assert (dead.exists(), living.exists(), young.exists()) == (False, True, True)
        listening.close()


def _short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory; pytest's own paths may be too long for a socket."""
    monkeypatch.chdir(tmp_path)
    runtime = Path(f"/proc/{os.getpid()}/cwd")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    return runtime
