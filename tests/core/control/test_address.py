"""URLs, and the directory of a Context's Unix socket."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zerohop as zh
from support.patience import PATIENCE_S
from zerohop.core.control import address, sockets
from zerohop.core.control.address import Address

if TYPE_CHECKING:
    from zerohop.core.base.sandbox import Socket

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
        f"zerohop:///{ID}?unix=/tmp/%0Ax",
        f"zerohop:///{ID}?unix=/tmp/%1B[2Jx",
        f"zerohop://h:1/{'?' * 2000}",
        "zerohop://h:1/\n",
        "zerohop://[::1",
        "zerohop://[::1]",
        "zerohop://[]:5",
        "zerohop://::1:5000",
        "zerohop://h",
        "zerohop://h:",
        "zerohop://h:0",
        "zerohop://:5000",
        "zerohop://h:-1",
        "zerohop://h:+1",
        "zerohop://h:1_0",
        "zerohop://h: 1",
        "zerohop://h:1 ",
        "zerohop://h:\N{ARABIC-INDIC DIGIT FIVE}",
        "zerohop://a..b:1",
        "h:1",
        "\ud800",
    ],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="is no zerohop URL") as caught:
        address.parse(url)
    assert repr(url[:100])[:-1] in str(caught.value)
    assert "such as the peer's context.url or zerohop://HOST:PORT" in str(caught.value)


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


@pytest.mark.parametrize("zone", ["lo", "eth0", "25", "251", "2"])
def test_the_zone_of_an_address(zone: str) -> None:
    """A URL encodes its percent sign, and people may leave that."""
    where = Address(f"fe80::1%{zone}", 5, ID)
    assert f"[fe80::1%25{zone}]:5" in where.url()
    assert address.parse(where.url()) == where
    assert address.parse("zerohop://[fe80::1%lo]:5").host == "fe80::1%lo"
    assert address.parse("zerohop://[fe80::1%25]:5").host == "fe80::1%25"


def test_the_host_has_one_id() -> None:
    assert address.host_id() == address.host_id()
    assert len(address.host_id()) == 32


@pytest.mark.parametrize("target", ["127.0.0.1", "127.0.1.1"])
def test_a_connection_within_this_host(target: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listening, socket.socket() as sock:
        assert not address.connected_here(sock)
        sock.connect((target, listening.getsockname()[1]))
        assert address.connected_here(sock)


class TestDirectory:
    def test_is_private_and_goes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        short = _short(tmp_path, monkeypatch)
        with address.make_directory() as directory:
            pass
        assert directory.parent == short
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        address.remove_directory(directory)
        address.remove_directory(directory)
        assert not directory.exists()

    @pytest.mark.parametrize("runtime", ["", "relative", "/does/not/exist", "/" + "x" * 90])
    def test_without_a_usable_runtime_directory(self, monkeypatch: pytest.MonkeyPatch, runtime: str) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        with address.make_directory() as directory:
            pass
        assert directory.parent == Path("/tmp")
        assert len(str(directory / address.SOCKET_NAME)) <= address.MAX_SOCKET_PATH
        address.remove_directory(directory)

    @pytest.mark.parametrize(
        "name", [b"a\nb", b"a\tb", b"a\x7f", "a\u00a0b".encode(), "a\u200db".encode(), "\u202ea".encode(), b"\xff\xfe"]
    )
    def test_a_runtime_directory_that_no_url_can_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes
    ) -> None:
        """It is passed over, so that peers can connect by the URL."""
        runtime = _short(tmp_path, monkeypatch) / os.fsdecode(name)
        runtime.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        with zh.Context(listen=None) as here, zh.Context(listen=None) as there, here.alloc(5) as memory:
            there.write(b"hello", memory.share("rw")).result(PATIENCE_S)
            there.connect(here.url).result(PATIENCE_S)
            assert memory.read_bytes() == b"hello"
            assert Path(address.parse(here.url).socket_path).parent.parent == Path("/tmp")

    def test_no_place_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither of the usual directories can be written to, and TMPDIR is too long for a Unix socket."""

        def refuse(prefix: str, parent: str) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        long = "/" + "x" * 90
        monkeypatch.setenv("TMPDIR", long)
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/a\nb")
        monkeypatch.setattr(address, "_make_locked", refuse)
        with pytest.raises(zh.Unsupported) as caught:
            zh.Context()
        for said in ("/tmp: Permission denied", f"{long}: longer than", r"/a\nb: its path"):
            assert said in caught.value.reason
        assert "TMPDIR=" in caught.value.fix

    def test_tmpdir_where_tmp_cannot_be_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        short = _short(tmp_path, monkeypatch)
        make = address._make_locked

        def refuse_tmp(prefix: str, parent: str) -> tuple[Path, int]:
            if parent == "/tmp":
                raise OSError(errno.EROFS, "Read-only file system")
            return make(prefix, parent)

        monkeypatch.setattr(address, "_make_locked", refuse_tmp)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setenv("TMPDIR", str(short))
        with zh.Context() as context:
            assert Path(address.parse(context.url).socket_path).parent.parent == short

    def test_another_place_where_a_socket_cannot_be_made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first place has room for a directory, and none for a socket in it."""
        short = _short(tmp_path, monkeypatch)
        listen, refused = sockets.listen, []

        def refuse_first(sock: Socket, where: Any) -> None:
            if not str(where).startswith(str(short)) and isinstance(where, str):
                refused.append(Path(where).parent)
                raise OSError(errno.ENOSPC, "No space left on device")
            listen(sock, where)

        monkeypatch.setattr(sockets, "listen", refuse_first)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setenv("TMPDIR", str(short))
        with zh.Context() as context:
            assert Path(address.parse(context.url).socket_path).parent.parent == short
        assert refused
        assert not any(directory.exists() for directory in refused)

    def test_which_paths_are_ours(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        short = _short(tmp_path, monkeypatch)
        with address.make_directory() as directory:
            pass
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
        """At once, and nothing that is in use: neither where somebody listens nor where somebody is about to."""
        _short(tmp_path, monkeypatch)
        with (
            address.make_directory() as making,
            socket.socket(socket.AF_UNIX) as listening,
            socket.socket(socket.AF_UNIX) as gone,
        ):
            with address.make_directory() as dead:
                gone.bind(str(dead / address.SOCKET_NAME))
                gone.listen()
            gone.close()
            with address.make_directory() as living:
                listening.bind(str(living / address.SOCKET_NAME))
                listening.listen()
            assert not dead.exists()
            with address.make_directory() as empty:
                pass
            with address.make_directory():
                assert (empty.exists(), making.exists(), living.exists()) == (False, True, True)

    def test_those_of_other_containers_stay(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kernel's list does not show them, but they answer."""
        _short(tmp_path, monkeypatch)
        monkeypatch.setattr(address, "_bound_sockets", frozenset)
        with socket.socket(socket.AF_UNIX) as listening:
            with address.make_directory() as living:
                listening.bind(str(living / address.SOCKET_NAME))
                listening.listen(0)
            for _ in range(4):  # its backlog is full from the second on
                with address.make_directory():
                    assert living.exists()

    def test_many_that_live_hide_none_that_was_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _short(tmp_path, monkeypatch)
        monkeypatch.setattr(address, "_SWEPT_AT_ONCE", 2)
        with contextlib.ExitStack() as living:
            for _ in range(6):
                listening = living.enter_context(socket.socket(socket.AF_UNIX))
                with address.make_directory() as directory:
                    listening.bind(str(directory / address.SOCKET_NAME))
                    listening.listen()
            with address.make_directory() as dead:
                pass
            with address.make_directory():
                assert not dead.exists()

    def test_one_that_was_swept_while_it_was_made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another one is made."""
        _short(tmp_path, monkeypatch)
        make, made = tempfile.mkdtemp, []

        def make_and_lose(**named: str) -> str:
            made.append(make(**named))
            if len(made) == 1:
                Path(made[0]).rmdir()
            return made[-1]

        monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
        with address.make_directory() as directory:
            assert str(directory) == made[1]
            assert directory.exists()

    def test_a_link_of_somebody_elses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody is led to remove another directory."""
        short = _short(tmp_path, monkeypatch)
        victim = tmp_path / "victim"
        victim.mkdir()
        link = short / f"zerohop-{os.getuid()}-link"
        link.symlink_to(victim)
        with address.make_directory():
            assert victim.exists()


def _short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory; pytest's own paths may be too long for a socket."""
    monkeypatch.chdir(tmp_path)
    runtime = Path(f"/proc/{os.getpid()}/cwd")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    return runtime


@pytest.mark.parametrize(
    "host", ["a..b", ".a", f"{'a' * 64}.example", "x" * 300, "\N{LATIN SMALL LETTER E WITH ACUTE}" * 70]
)
def test_no_name_of_a_host(host: str) -> None:
    with pytest.raises(ValueError, match="no name of a host"):
        address.parse(f"zerohop://{host}:1/")
    with pytest.raises(ValueError, match="not host:port"):
        address.split_listen(f"{host}:0")
