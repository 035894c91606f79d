"""A peer passes a descriptor whose closing waits for as long as the peer likes: nobody else is held up."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.raw_control import RawControl
from zerohop.core.control import received as module
from zerohop.core.control import wire
from zerohop.core.control.received import close_received, is_memory_or_pipe, turn_away_all
from zerohop.core.control.waiting_room import PLACES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext

# Longer than any test lasts.
LINGER_S = 3600
NOWHERE = f"zerohop:///{'0' * 32}?unix=/nowhere"


class Lingering:
    """A TCP socket with bytes that nobody reads: its last owner waits in ``close`` until `reader` is closed."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            writer = socket.create_connection(server.getsockname())
            self.reader, _ = server.accept()
        writer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                writer.send(bytes(1 << 16))
        writer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
        self.fd = writer.detach()


def is_open(fd: int) -> bool:
    return Path(f"/proc/self/fd/{fd}").exists()


@pytest.fixture
def lingering() -> Iterator[Lingering]:
    made = Lingering()
    yield made
    made.reader.close()  # what is unread then resets the other end, whose close ends


def test_what_a_peer_has_sent_is_closed_without_waiting(lingering: Lingering) -> None:
    fds = [lingering.fd, os.memfd_create("memory")]
    socket_, memory = fds
    close_received(fds)
    assert not fds
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory)
    eventually(lambda: not is_open(socket_), "a socket that lingers is still open")


def test_files_whose_closing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many a peer sends, a few threads wait for them; when they can go on, all are closed."""
    goes_on = threading.Event()
    closed: list[int] = []

    def close(fd: int) -> None:
        assert goes_on.wait(PATIENCE_S)
        closed.append(fd)
        os.close(fd)

    monkeypatch.setattr(module, "sandbox", SimpleNamespace(close=close))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    for fd in files:
        close_received([fd])
    closing = [thread for thread in threading.enumerate() if thread.name == "zerohop-drop"]
    assert 0 < len(closing) <= 4
    goes_on.set()
    for thread in closing:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert sorted(closed) == sorted(files)


def test_who_is_turned_away(lingering: Lingering) -> None:
    """A connection that is not let in may bring descriptors, too."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/socket")
        listening.listen()
        listening.setblocking(False)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{folder}/socket")
            socket.send_fds(client, [b"x"], [lingering.fd])
        os.close(lingering.fd)
        turning = threading.Thread(target=turn_away_all, args=(listening,), daemon=True)
        turning.start()
        turning.join(PATIENCE_S)
        assert not turning.is_alive()


def test_closed_while_somebody_waits_to_be_let_in(open_context: OpenContext, lingering: Lingering) -> None:
    context = open_context(Options())
    with contextlib.ExitStack() as clients:
        for _ in range(PLACES):
            clients.enter_context(contextlib.closing(RawControl(context.url, unix=True)))
        last = clients.enter_context(contextlib.closing(RawControl(context.url, unix=True)))
        socket.send_fds(last.socket, [b"x"], [lingering.fd])
        os.close(lingering.fd)
        context.close()
        eventually(lambda: not context._core.control._thread.is_alive(), "the control thread waits")


def test_kinds(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    ours, theirs = socket.socketpair()
    memory, file = os.memfd_create("memory"), os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        assert [is_memory_or_pipe(fd) for fd in (reading, writing, memory)] == [True] * 3
        assert [is_memory_or_pipe(fd) for fd in (ours.fileno(), file, 1 << 20)] == [False] * 3
    finally:
        for fd in (reading, writing, memory, file):
            os.close(fd)
        ours.close()
        theirs.close()


@pytest.mark.parametrize("how", ["with Setup", "never read"])
def test_others_go_on(open_context: OpenContext, lingering: Lingering, how: str) -> None:
    context, peer = open_context(Options()), open_context(Options())
    array = np.ones(4096, np.uint8)
    peer.write(array, context.alloc(4096).share("rw")).result(PATIENCE_S)
    with contextlib.closing(RawControl(context.url, unix=True)) as client:
        if how == "with Setup":
            client.shake_hands()
            _receive(client)
            client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="raw", nfds=1), [lingering.fd])
        else:
            hello = {field: getattr(client.hello(), field) for field in wire.Hello.__struct_fields__}
            client.send(wire.Hello(**{**hello, "version": wire.VERSION + 1}))
            with contextlib.suppress(BrokenPipeError):  # it may have hung up already
                socket.send_fds(client.socket, [b"x"], [lingering.fd])
        close_received([lingering.fd])  # this may be the last one, if the Context has hung up before
        while _receive(client):  # until it has hung up
            pass
    memory = context.alloc(4096)
    peer.write(array, memory.share("rw"), timeout=PATIENCE_S).result()
    memory.revoke(timeout=PATIENCE_S)


def _receive(client: RawControl) -> bool:
    """Receive a message, and close what came with it; False once the other side has hung up."""
    received = client.receive()
    for fd in received[1] if received is not None else ():
        os.close(fd)
    return received is not None
