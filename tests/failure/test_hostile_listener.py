"""Who answers at a port may say where its Unix socket is; it cannot send anybody to a socket that is not its own."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.raw_control import ANSWER_S, RawControl, proof_key
from zerohop.core.control import address, auth, wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext

SECRET = "open sesame"


class _Answering(RawControl):
    """The other side of a RawControl: a socket that a Context has connected."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(ANSWER_S)
        self.socket = sock


class _Listener:
    """It claims to be a Context on this host, and to have its Unix socket at the path."""

    def __init__(self, context: str, path: str, secret: str | None) -> None:
        self.heard: list[str] = []
        self._said = (context, path, secret)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"zerohop://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        # Wakes accept().
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                sock = self._listening.accept()[0]
            except OSError:
                return
            with contextlib.closing(_Answering(sock)) as peer:
                self._answer(peer)

    def _answer(self, peer: RawControl) -> None:
        context, path, secret = self._said
        said = peer.receive()
        assert said is not None
        hello = said[0]
        assert isinstance(hello, wire.Hello)
        self.heard.append(hello.purpose)
        if hello.purpose == "locate":
            challenge = wire.Challenge(
                context=context, host=hello.host, nonce=auth.new_nonce(), encryption=hello.encryption
            )
            peer.send(challenge)
            peer.receive()
            proof = auth.Transcript(hello, challenge).proof(
                proof_key(secret.encode() if secret else None), "server", os.fsencode(path)
            )
            peer.send(wire.Location(proof=proof, socket_path=os.fsencode(path)))
            peer.hung_up()


@pytest.fixture
def service() -> Iterator[socket.socket]:
    """Some other program's Unix socket, of this user."""
    with tempfile.TemporaryDirectory(prefix="zh-") as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/s")
        listening.listen()
        listening.setblocking(False)
        yield listening


def _refused(context: zh.Context, listener: _Listener, expected: type[zh.ZerohopError]) -> None:
    with contextlib.closing(listener), pytest.raises(expected):
        context.connect(listener.url).result(PATIENCE_S)
    assert not list(context.connections)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_another_programs_socket(open_context: OpenContext, service: socket.socket, secret: str | None) -> None:
    """Nobody connects to it, even where the listener knows the secret."""
    context = open_context(Options(secret=secret))
    listener = _Listener("0" * 32, service.getsockname(), secret)
    _refused(context, listener, zh.PeerLost)
    assert listener.heard == ["locate", "control"]
    with pytest.raises(BlockingIOError):
        service.accept()


def test_another_programs_socket_in_place_of_ours(open_context: OpenContext) -> None:
    """At a path as ours are; whoever listens there is told who we are, as at the port, and no more."""
    context = open_context(Options())
    with address.make_directory() as directory, socket.socket(socket.AF_UNIX) as service:
        service.bind(str(directory / address.SOCKET_NAME))
        service.listen()
        heard: list[bytes] = []

        def hear() -> None:
            with service.accept()[0] as sock, contextlib.suppress(ConnectionResetError):
                heard.append(sock.recv(1 << 16))
                sock.sendall(b"SSH-2.0-\r\n")
                heard.append(sock.recv(1 << 16))

        thread = threading.Thread(target=hear)
        thread.start()
        listener = _Listener("0" * 32, str(directory / address.SOCKET_NAME), None)
        _refused(context, listener, zh.PeerLost)
        thread.join()
    address.remove_directory(directory)
    assert isinstance(wire.decode(heard[0][wire.HEADER.size :]), wire.Hello)
    assert heard[1:] in ([], [b""])
    assert listener.heard == ["locate", "control"]


@pytest.mark.parametrize("claimed", ["other", "own"])
def test_another_contexts_socket(open_context: OpenContext, claimed: str) -> None:
    """It is asked who it is, and hung up on when it is not who the listener claimed to be."""
    context, other = open_context(Options()), open_context(Options())
    path = address.parse(other.url if claimed == "other" else context.url).socket_path
    _refused(context, _Listener("0" * 32, path, None), zh.PeerLost)
    assert not list(other.connections)


@pytest.mark.parametrize("theirs", [None, "open sesam"])
def test_without_the_secret(open_context: OpenContext, theirs: str | None) -> None:
    """What it says is not acted on at all."""
    context, other = open_context(Options(secret=SECRET)), open_context(Options(secret=SECRET))
    listener = _Listener(other.id, address.parse(other.url).socket_path, theirs)
    _refused(context, listener, zh.AccessDenied)
    assert listener.heard == ["locate"]
    assert not list(other.connections)
