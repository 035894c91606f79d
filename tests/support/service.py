"""What a test may ask of the other side of a transfer. The same methods serve a peer process and a second Context in
the test's own process; every argument and result is a plain value."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import zerohop as zh
from support.buffers import Buffer, Kind
from support.files import Files, MappedFile, Pages
from support.leaks import Holdings, holdings
from support.limits import Limits
from support.loads import Loads
from support.outcomes import Outcome, attempt, outcome_of
from support.patience import PATIENCE_S
from support.sandboxed import Sandboxed
from support.serving import Serving
from support.transports import Transports

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.options import Options
    from zerohop.core.memory.rights import Rights


class Identity(NamedTuple):
    pid: int
    id: str
    url: str


class Note(NamedTuple):
    """A Notification as a plain value; `peer` is the id of the Context that it came from."""

    value: int
    nbytes: int
    peer: str
    message: bytes = b""


class Service(Loads, Limits, Sandboxed, Transports, Files, Serving):
    """One Context and the buffers registered with it."""

    def __init__(self, options: Options) -> None:
        self.context = options.open()
        self._buffers: dict[int, Buffer] = {}
        self._created = 0
        self._transports: dict[int, zh.Transport] = {}
        self._files: dict[str, MappedFile] = {}
        self._pages: list[Pages] = []
        self._touched: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []

    # Memory

    def new(self, kind: Kind, nbytes: int, device: int = 0) -> int:
        """Register a new buffer, all poison; returns its number."""
        self._created += 1
        self._buffers[self._created] = Buffer(self.context, kind, nbytes, device=device)
        return self._created

    def buffer(self, number: int) -> Buffer:
        return self._buffers[number]

    def shared_name(self, number: int) -> str:
        return self._buffers[number].shared_name

    def drop(self, number: int) -> None:
        self._buffers.pop(number).close()

    def close_memory(self, number: int) -> None:
        """Close the Memory alone; `drop` still has to follow."""
        self._buffers[number].memory.close()

    def share(self, number: int, rights: Rights = "rw", *, revocable: bool = True) -> bytes:
        return bytes(self._buffers[number].memory.share(rights, revocable=revocable))

    def share_part(self, number: int, first: int, end: int) -> bytes:
        return bytes(self._buffers[number].memory[first:end].share("rw"))

    def revoke(self, number: int, timeout: float) -> Outcome:
        return attempt(lambda: self._buffers[number].memory.revoke(timeout=timeout))

    def put(self, number: int, offset: int, data: bytes) -> None:
        self._buffers[number].put(offset, np.frombuffer(data, np.uint8))

    def get(self, number: int, offset: int, nbytes: int) -> bytes:
        return self._buffers[number].get(offset, nbytes).tobytes()

    def fill(self, number: int, offset: int, nbytes: int, seed: int) -> None:
        self._buffers[number].fill(offset, nbytes, seed)

    def poison(self, number: int, offset: int = 0, nbytes: int | None = None) -> None:
        self._buffers[number].poison(offset, self._buffers[number].nbytes if nbytes is None else nbytes)

    def expect(self, number: int, offset: int, nbytes: int, seed: int) -> None:
        self._buffers[number].expect(offset, nbytes, seed)

    def expect_poison(self, number: int, start: int = 0, stop: int | None = None) -> None:
        self._buffers[number].expect_poison(start, stop)

    def settle(self, number: int, offset: int, nbytes: int, seed: int) -> None:
        self._buffers[number].settle(offset, nbytes, seed)

    def settle_pages(
        self, number: int, offset: int, span: int, page_bytes: int, placed: list[tuple[int, int]], seed: int
    ) -> None:
        self._buffers[number].settle_pages(offset, span, page_bytes, placed, seed)

    def touch(self, nbytes: int) -> None:
        """Own that much memory, every page of it, until the process ends."""
        block = np.empty(nbytes, np.uint8)
        block[::4096] = 1
        self._touched.append(block)

    # Operations of its own

    def identity(self) -> Identity:
        return Identity(os.getpid(), self.context.id, self.context.url)

    def connect(self, url: str) -> str:
        """Id of the Context at the URL."""
        return self.context.connect(url).result(PATIENCE_S).peer

    def connections(self) -> int:
        """Return how many peers it is connected to."""
        return len(self.context.connections)

    def try_connect(self, url: str) -> Outcome:
        return outcome_of(self.context.connect(url).exception(PATIENCE_S))

    def write(self, handle: bytes, number: int, offset: int, nbytes: int, notify: int | None = None) -> int:
        view = self._buffers[number].memory[offset : offset + nbytes]
        target = zh.RemoteBuffer.from_bytes(handle)[:nbytes]
        return self.context.write(view, target, notify=notify).result(PATIENCE_S)

    def read(self, handle: bytes, number: int, offset: int, nbytes: int) -> int:
        view = self._buffers[number].memory[offset : offset + nbytes]
        return self.context.read(zh.RemoteBuffer.from_bytes(handle)[:nbytes], view).result(PATIENCE_S)

    def try_read(self, handle: bytes, number: int, nbytes: int) -> Outcome:
        return attempt(lambda: self.read(handle, number, 0, nbytes))

    def try_read_parts(self, handles: list[bytes], number: int, nbytes: int) -> Outcome:
        """Read all at once, one after the other into the buffer; the Outcome is that of the first that fails."""
        memory = self._buffers[number].memory
        reads = [
            self.context.read(zh.RemoteBuffer.from_bytes(handle), memory[place * nbytes : (place + 1) * nbytes])
            for place, handle in enumerate(handles)
        ]
        ended = [outcome_of(read.exception(PATIENCE_S)) for read in reads]
        return next((each for each in ended if each.kind != "ok"), Outcome("ok"))

    def try_write(self, handle: bytes, number: int, nbytes: int) -> Outcome:
        return attempt(lambda: self.write(handle, number, 0, nbytes))

    def notify(self, url: str, value: int) -> int:
        return self.context.notify(self.context.connect(url).result(PATIENCE_S), value).result(PATIENCE_S)

    def send(self, url: str, number: int, offset: int, nbytes: int) -> int:
        connection = self.context.connect(url).result(PATIENCE_S)
        return connection.send(self._buffers[number].memory[offset : offset + nbytes]).result(PATIENCE_S)

    def try_send(self, url: str, number: int, nbytes: int) -> Outcome:
        return attempt(lambda: self.send(url, number, 0, nbytes))

    def recv(self, url: str, number: int, offset: int, nbytes: int) -> int:
        """Received length."""
        connection = self.context.connect(url).result(PATIENCE_S)
        return connection.recv(self._buffers[number].memory[offset : offset + nbytes]).result(PATIENCE_S)

    def notification(self, timeout: float = PATIENCE_S) -> Note:
        note = self.context.notification(timeout).result()
        return Note(note.value, note.nbytes, note.peer.peer, note.message)

    def expect_no_notification(self) -> None:
        """Nothing has arrived. Complete only where the sender's operations are done, which implies arrival."""
        try:
            note = self.context.notification_nowait()
        except zh.WouldBlock:
            return
        raise AssertionError(f"an unexpected notification: {note.value} of {note.nbytes} bytes")

    # The process itself

    def holdings(self) -> Holdings:
        return holdings()

    def close(self, timeout: float) -> float:
        """Close the Context; seconds that it took."""
        return _seconds(lambda: self.context.close(timeout=timeout))

    def shutdown(self) -> None:
        self._transports.clear()
        for number in list(self._buffers):
            self.drop(number)
        self._touched.clear()
        self.context.close()


def _seconds(action: Callable[[], None]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started
