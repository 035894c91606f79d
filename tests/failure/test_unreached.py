"""A peer that cannot be reached from here: the error says why, and what to type where."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.control import address, dial
from zerohop.core.lanes import agreement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext

OTHER = "0" * 32
LISTEN = 'listen="0.0.0.0:0"'


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of loopback at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def _refusal(context: zh.Context, url: str, timeout: float = PATIENCE_S) -> zh.ZerohopError:
    with pytest.raises(zh.ZerohopError) as caught:
        context.connect(url, timeout=timeout).result()
    return caught.value


def _expect_loopback(error: zh.ZerohopError, kind: type[zh.ZerohopError]) -> None:
    assert type(error) is kind
    assert error.reason.count("another host and listens on loopback only") == 1
    assert LISTEN in error.fix
    assert "secret=" in error.fix


class TestLoopbackOfAnotherHost:
    def test_nobody_answers(self, open_context: OpenContext, closed_port: int) -> None:
        error = _refusal(open_context(Options()), f"zerohop://127.0.0.1:{closed_port}/{OTHER}?host={OTHER}")
        _expect_loopback(error, zh.PeerLost)

    @pytest.mark.parametrize("host", ["localhost", "[::1]", "127.0.0.5"])
    def test_by_any_name(self, open_context: OpenContext, closed_port: int, host: str) -> None:
        error = _refusal(open_context(Options()), f"zerohop://{host}:{closed_port}/{OTHER}?host={OTHER}")
        _expect_loopback(error, zh.PeerLost)

    def test_another_context_answers(self, open_context: OpenContext) -> None:
        context, stranger = open_context(Options()), open_context(Options())
        port = address.parse(stranger.url).port
        error = _refusal(context, f"zerohop://127.0.0.1:{port}/{OTHER}?host={OTHER}")
        _expect_loopback(error, zh.PeerLost)

    def test_one_with_a_secret_answers(self, open_context: OpenContext) -> None:
        context, stranger = open_context(Options()), open_context(Options(secret="sesame"))
        port = address.parse(stranger.url).port
        error = _refusal(context, f"zerohop://127.0.0.1:{port}/{OTHER}?host={OTHER}")
        _expect_loopback(error, zh.AccessDenied)

    def test_something_else_answers(self, open_context: OpenContext) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(PATIENCE_S)

            def serve() -> None:
                with listening.accept()[0] as sock:
                    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    with contextlib.suppress(ConnectionError):
                        while sock.recv(4096):
                            pass

            server = threading.Thread(target=serve)
            server.start()
            port = listening.getsockname()[1]
            error = _refusal(open_context(Options()), f"zerohop://127.0.0.1:{port}/{OTHER}?host={OTHER}")
            server.join(PATIENCE_S)
        _expect_loopback(error, zh.ProtocolError)

    def test_something_silent_listens(self, open_context: OpenContext) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            url = f"zerohop://127.0.0.1:{listening.getsockname()[1]}/{OTHER}?host={OTHER}"
            _expect_loopback(_refusal(open_context(Options()), url, timeout=0.2), zh.DeadlineExceeded)

    def test_a_tunnel_leads_there(self, open_context: OpenContext) -> None:
        context, peer = open_context(Options()), open_context(Options())
        port = address.parse(peer.url).port
        connection = context.connect(f"zerohop://127.0.0.1:{port}/{peer.id}?host={OTHER}").result(PATIENCE_S)
        assert connection.peer == peer.id

    def test_a_tunnel_leads_there_and_the_secret_is_wrong(self, open_context: OpenContext) -> None:
        """The very peer has answered, so that its address is not to blame."""
        context, peer = open_context(Options(secret="sesame")), open_context(Options(secret="open"))
        port = address.parse(peer.url).port
        error = _refusal(context, f"zerohop://127.0.0.1:{port}/{peer.id}?host={OTHER}")
        assert type(error) is zh.AccessDenied
        assert "another process" not in error.reason
        assert error.fix == "give both Contexts the same secret="

    def test_it_listens_nowhere(self, open_context: OpenContext) -> None:
        error = _refusal(open_context(Options()), f"zerohop:///{OTHER}?host={OTHER}&unix=/tmp/zerohop-0-x/s")
        assert "another host" in error.reason
        assert LISTEN in error.fix


def test_nobody_listens(open_context: OpenContext, closed_port: int) -> None:
    error = _refusal(open_context(Options()), f"zerohop://127.0.0.1:{closed_port}")
    assert type(error) is zh.PeerLost
    assert error.reason == f"nobody listens at 127.0.0.1:{closed_port} (Connection refused)"
    assert "is the peer still running" in error.fix


def test_no_way_there(open_context: OpenContext) -> None:
    """TCP goes to no broadcast address."""
    error = _refusal(open_context(Options()), "zerohop://255.255.255.255:5")
    assert type(error) is zh.PeerLost
    assert error.reason == "nothing leads from this host to 255.255.255.255:5 (Network is unreachable)"
    assert "ip route get 255.255.255.255" in error.fix


@pytest.mark.parametrize(
    ("failure", "reason", "fix"),
    [
        # asyncio puts words of its own in the place of the system's.
        (OSError(errno.EHOSTUNREACH, "Connect call failed ('h', 5)"), "to h:5 (No route to host)", "ip route get h"),
        (OSError(errno.ETIMEDOUT, "Connect call failed ('h', 5)"), "at h:5 (Connection timed out)", "still running"),
        (TimeoutError(), "nobody answers at h:5 (no answer)", "still running"),
        (None, "nobody answers at h:5 (no answer)", "still running"),
        (socket.gaierror(socket.EAI_NONAME, "not known"), "no host is called 'h' here: not known", "getent hosts h"),
    ],
)
def test_in_plain_words(failure: OSError | None, reason: str, fix: str) -> None:
    said, advice = dial._unreached(address.Address("h", 5), failure)
    assert said.endswith(reason)
    assert fix in advice


def test_a_command_to_type_is_the_librarys_own() -> None:
    """The URL may come with a stranger's handle."""
    _, advice = dial._unreached(address.Address("$(reboot)", 5), OSError(errno.EHOSTUNREACH, ""))
    assert "ip route get '$(reboot)'" in advice


@pytest.mark.parametrize("tcp", [False, True])
def test_another_network_namespace(open_context: OpenContext, closed_port: int, tcp: bool) -> None:
    """As it looks from here: the peer is on this host, and neither of its addresses leads to anybody."""
    where = f"127.0.0.1:{closed_port}" if tcp else ""
    path = "/tmp/nowhere/zerohop-0-x/s"
    error = _refusal(open_context(Options()), f"zerohop://{where}/{OTHER}?host={address.host_id()}&unix={path}")
    assert type(error) is zh.PeerLost
    assert path in error.reason
    assert (f"127.0.0.1:{closed_port}" in error.reason) == tcp
    for word in ("on this host", "namespace", "mount the peer's /tmp/nowhere", LISTEN):
        assert word in error.fix


def test_a_socket_that_nobody_accepts_at(open_context: OpenContext, tmp_path: Path) -> None:
    """Its backlog is full and stays full: the peer is there, and time runs out."""
    context = open_context(Options())
    path = _place_of_a_context(tmp_path)
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listening.bind(path)
        listening.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                client.setblocking(False)
                client.connect(path)
        error = _refusal(context, f"zerohop:///{OTHER}?unix={path}", timeout=0.2)
        assert type(error) is zh.DeadlineExceeded
        assert "does not accept connections" in error.reason


def test_a_socket_of_another_service_is_not_greeted(open_context: OpenContext, tmp_path: Path) -> None:
    """A handle from a stranger can name any socket that this user may connect to."""
    path = str(tmp_path / "agent")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as service:
        service.bind(path)
        service.listen()
        error = _refusal(open_context(Options()), f"zerohop:///{OTHER}?host={address.host_id()}&unix={path}")
        assert type(error) is zh.PeerLost
        assert "it is not the socket of a Context of this user" in error.reason
        service.setblocking(False)
        with pytest.raises(BlockingIOError):
            service.accept()


@pytest.mark.parametrize("where", ["unix", "tcp"])
def test_sockets_that_a_sandbox_refuses(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, closed_port: int, tmp_path: Path, where: str
) -> None:
    """The system allowed them while the Context opened, and does not any more."""
    context = open_context(Options())
    path = _place_of_a_context(tmp_path)
    host = f"127.0.0.1:{closed_port}" if where == "tcp" else ""
    unix = f"&unix={path}" if where == "unix" else ""

    def refuse(family: int, kind: int, protocol: int = 0) -> socket.socket:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("zerohop.core.control.sockets.Socket", refuse)
    error = _refusal(context, f"zerohop://{host}/{OTHER}?host={address.host_id()}{unix}")
    assert type(error) is zh.Unsupported
    assert "socket: Operation not permitted" in error.reason
    assert "seccomp" in error.fix


def test_a_peer_of_another_user(open_context: OpenContext) -> None:
    path = f"/tmp/zerohop-{os.getuid() + 1}-abc/s"
    error = _refusal(open_context(Options()), f"zerohop:///{OTHER}?host={address.host_id()}&unix={path}")
    assert f"runs as user {os.getuid() + 1}, this process as user {os.getuid()}" in error.fix
    assert LISTEN in error.fix


def test_a_peer_that_has_left_its_directory(open_context: OpenContext, tmp_path: Path) -> None:
    """Both see the same files, so the advice to mount the peer's directory would lead astray."""
    path = _place_of_a_context(tmp_path)
    error = _refusal(open_context(Options()), f"zerohop:///{OTHER}?host={address.host_id()}&unix={path}")
    assert "is the peer still running?" in error.fix
    assert "network namespace, have the peer listen" in error.fix
    assert "mount" not in error.fix


def _place_of_a_context(parent: Path) -> str:
    """Return the path of a Unix socket as a Context would have it."""
    directory = parent / f"zerohop-{os.getuid()}-abc"
    directory.mkdir(mode=0o700)
    return str(directory / "s")


class TestWhyNoSharedMemory:
    def test_another_file_system(self, open_context: OpenContext) -> None:
        """As from a container with a /tmp of its own: tcp is taken, and says why."""
        here, there = open_context(Options()), open_context(Options())
        handle = there.alloc(64).share("rw")
        directory = Path(address.parse(there.url).socket_path).parent
        away = directory.rename(directory.with_name(f"{directory.name}away"))
        try:
            rejected = dict(here.explain(np.zeros(64, np.uint8), handle).rejected)
        finally:
            away.rename(directory)
        why = rejected["shm (mapped)"]
        assert "on this host" in why
        assert f"mount the same {directory.parent} for both" in why

    def test_another_user(self) -> None:
        path = f"/tmp/zerohop-{os.getuid() + 1}-abc/s"
        why = agreement._why_apart(address.Address("127.0.0.1", 1, OTHER, address.host_id(), path))
        assert f"runs as user {os.getuid() + 1}, this process as user {os.getuid()}" in why

    def test_another_host(self) -> None:
        why = agreement._why_apart(address.Address("127.0.0.1", 1, OTHER, OTHER, "/tmp/zerohop-0-abc/s"))
        assert why == "the peer is on another host"


def test_a_host_that_does_not_answer_yet(open_context: OpenContext) -> None:
    """The dial lasts as long as its operation: a backlog that is full now may have room in a while."""
    context, peer = open_context(Options(providers=("tcp",))), open_context(Options(providers=("tcp",)))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as others:
        for _ in range(8):  # what the kernel takes although nobody accepts, and more
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        url = f"zerohop://127.0.0.1:{listener.getsockname()[1]}/{peer.id}?host={'0' * 32}"
        with pytest.raises(zh.DeadlineExceeded, match=f"nobody answers at 127.0.0.1:{listener.getsockname()[1]}"):
            context.connect(url, timeout=7).result(PATIENCE_S)
