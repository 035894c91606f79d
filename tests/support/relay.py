"""A relay between a side that dials and one that listens: it sees and may change every byte, and knows no secret."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from support.patience import PATIENCE_S
from zerohop.core.control import address

if TYPE_CHECKING:
    from collections.abc import Callable


class Relay:
    """Listens on a port of its own, and connects each socket that comes in with the port behind it."""

    def __init__(
        self,
        url: str,
        forth: Callable[[bytes], bytes] | None = None,
        back: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Stand before the TCP listener of a URL; ``forth`` changes what the dialler sends, ``back`` the answers."""
        self._behind = address.parse(url)
        self._forth, self._back = forth, back
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        # All bytes that went through, in both directions.
        self.heard = bytearray()
        self._start(self._accept)

    def url(self, of: str) -> str:
        """The URL of a Context with the relay's port in place of its own, as seen from another host."""
        where = address.parse(of)
        host, port = self._listening.getsockname()
        return where._replace(host=host, port=port, host_id="0" * 32, socket_path="").url()

    @property
    def bare(self) -> str:
        """The URL that somebody writes by hand."""
        host, port = self._listening.getsockname()
        return f"zerohop://{host}:{port}"

    def say(self, data: bytes) -> None:
        """Say something to both sides of the first socket that came in, each in the name of the other."""
        for sock in self.pairs[0]:
            # One may hang up on both as soon as it has heard it.
            with contextlib.suppress(OSError):
                sock.sendall(data)

    def __enter__(self) -> Relay:  # noqa: PYI034 - Self is younger than Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for sock in (self._listening, *self._sockets):
            sock.close()

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                front = self._listening.accept()[0]
            except OSError:
                return
            back = socket.create_connection((self._behind.host, self._behind.port))
            self._sockets += [front, back]
            self.pairs.append((front, back))
            self._start(self._pump, front, back, self._forth)
            self._start(self._pump, back, front, self._back)

    def _pump(self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes] | None) -> None:
        try:
            while data := source.recv(1 << 16):
                self.heard += data
                target.sendall(change(data) if change is not None else data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # One side has reset its connection, which the other is to learn.
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)
