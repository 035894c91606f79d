"""Lanes of the native engine without the Python around it, so that one end of them can lie.

`linked` joins two engines; the initiator's routes may claim whatever they like. `RawLane` speaks the framed protocol
itself, one frame at a time, to an engine at the other end of a socket.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from support.patience import PATIENCE_S
from support.pattern import expect_poison, poison
from zerohop._native import Engine

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

    from support.pattern import Bytes
    from zerohop._native import Endpoint, Region

SPIN_NS = 50_000
CAPABILITY = bytes(range(16))
READ, WRITE = 1, 2
HOST = -1


def deadline(seconds: float = PATIENCE_S) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection to ourselves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


class Owner:
    """An engine with one memory, of which the middle is shared; the rest of it is nobody's business."""

    # Shared: MARGIN to MARGIN + SHARED.
    MARGIN, SHARED = 8192, 64 * 1024

    def __init__(self, rights: int = READ | WRITE) -> None:
        self.engine = Engine(SPIN_NS, 1, 0)
        self.memory: Bytes = poison(self.SHARED + 2 * self.MARGIN)
        self.region = self.engine.register(self.memory.ctypes.data, self.memory.nbytes, HOST)
        self.share = self.share_middle(rights)

    def share_middle(self, rights: int, capability: bytes = CAPABILITY) -> int:
        return self.engine.share(self.region, self.MARGIN, self.SHARED, rights, capability)

    @property
    def shared(self) -> Bytes:
        return self.memory[self.MARGIN : self.MARGIN + self.SHARED]

    def expect_untouched(self) -> None:
        expect_poison(self.memory, "the owner's memory")

    def expect_margins_untouched(self) -> None:
        expect_poison(self.memory[: self.MARGIN], "the memory below the share")
        expect_poison(self.memory[self.MARGIN + self.SHARED :], "the memory above the share")

    def close(self) -> None:
        """Close and let go of what is native, which pytest would otherwise keep until after its leak check."""
        assert self.engine.close(deadline()), "the engine did not close in time"
        self.region.close()
        del self.engine, self.region


class Liar:
    """An engine whose routes claim what they are told to claim."""

    NBYTES = 256 * 1024

    def __init__(self) -> None:
        self.engine = Engine(SPIN_NS, 1, 0)
        self.memory: Bytes = np.zeros(self.NBYTES, np.uint8)
        self.region: Region = self.engine.register(self.memory.ctypes.data, self.memory.nbytes, HOST)

    def close(self) -> None:
        """Close and let go of what is native, which pytest would otherwise keep until after its leak check."""
        assert self.engine.close(deadline()), "the engine did not close in time"
        self.region.close()
        del self.engine, self.region


def met(one: Engine, other: Engine) -> int:
    """Number of the other engine among the peers of the first."""
    doorbell, _ = other.make_doorbell()
    try:
        return one.add_peer(other.presence_fd, doorbell)
    finally:
        os.close(doorbell)


def linked(provider: str, one: Engine, other: Engine) -> tuple[Endpoint, Endpoint]:
    """The two ends of a new lane between two engines."""
    here = one.endpoint(provider, met(one, other))
    there = other.endpoint(provider, met(other, one))
    if provider == "tcp":
        left, right = tcp_pair()
        with left, right:
            here.connect(b"", [left.fileno()])
            there.connect(b"", [right.fileno()])
    else:
        ours, theirs = here.address(), there.address()
        here.connect(*theirs)
        there.connect(*ours)
    return here, there


_HEADER = struct.Struct("<BBBBIII16sQQIIII")
HEADER_BYTES = _HEADER.size

# FrameKind of native/provider/framed/frame.hpp.
(
    KIND_WRITE,
    KIND_WRITE_PAGES,
    KIND_READ,
    KIND_READ_PAGES,
    KIND_FETCH_ADD,
    KIND_COMPARE_SWAP,
    KIND_NOTIFY,
    KIND_SEND,
    KIND_SEND_DATA,
    KIND_READ_DATA,
    KIND_ACK,
    KIND_CLEAR_TO_SEND,
    KIND_CREDIT,
    KIND_PING,
    KIND_WITHDRAW,
    KIND_WRITE_RANGES,
) = range(1, 17)
LAST, NOTIFY, ABORTED = 1, 2, 4


class Frame(NamedTuple):
    """The header of a frame; see native/provider/framed/frame.hpp."""

    kind: int
    flags: int = 0
    status: int = 0
    reason: int = 0
    ticket: int = 0
    share_index: int = 0
    share_generation: int = 0
    capability: bytes = CAPABILITY
    offset: int = 0
    arg: int = 0
    payload: int = 0
    table: int = 0
    notify: int = 0
    page_bytes: int = 0

    def pack(self) -> bytes:
        return _HEADER.pack(*self)

    def of_share(self, share: int) -> Frame:
        """The same about a share, named as the engine names it."""
        return self._replace(share_index=share >> 32, share_generation=share & 0xFFFF_FFFF)

    def of_queue(self, queue: int) -> Frame:
        """The same with a notification for that queue."""
        return self._replace(flags=self.flags | NOTIFY, status=queue & 0xFF, reason=queue >> 8)


class RawLane:
    """One end of a tcp lane that is no engine: bytes out, frames in."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.peer = engine.add_peer(-1, -1)
        self.endpoint = engine.endpoint("tcp", self.peer)
        self.socket, theirs = tcp_pair()
        self.socket.settimeout(PATIENCE_S)
        with theirs:
            self.endpoint.connect(b"", [theirs.fileno()])

    def send(self, frame: Frame, table: tuple[int, ...] = (), payload: bytes = b"") -> None:
        """One frame, with lengths that fit unless the header says otherwise."""
        head = frame._replace(table=frame.table or len(table), payload=frame.payload or len(payload))
        self.socket.sendall(head.pack() + struct.pack(f"<{len(table)}Q", *table) + payload)

    def flood(self, raw: bytes, times: int) -> str:
        """Send it that often without reading anything; "hung up", "full" or "taken", whichever comes first."""
        try:
            for _ in range(times):
                self.socket.sendall(raw)
        except (BrokenPipeError, ConnectionResetError):
            return "hung up"
        except TimeoutError:
            return "full"
        return "taken"

    def answer(self) -> tuple[Frame, bytes] | None:
        """The next frame that is no ping, with its payload; None when the engine has hung up."""
        while True:
            head = self._receive(HEADER_BYTES)
            if head is None:
                return None
            frame = Frame(*_HEADER.unpack(head))
            payload = self._receive(8 * frame.table + frame.payload)
            assert payload is not None, "the engine hung up in the middle of a frame"
            if frame.kind != KIND_PING:
                return frame, payload

    def _receive(self, nbytes: int) -> bytes | None:
        got = bytearray()
        while len(got) < nbytes:
            try:
                piece = self.socket.recv(nbytes - len(got))
            except ConnectionResetError:
                piece = b""
            if not piece:
                assert not got, "the engine hung up in the middle of a frame"
                return None
            got += piece
        return bytes(got)

    def expect_hung_up(self) -> None:
        """The engine ends the lane, which is all that it does."""
        while self.answer() is not None:
            pass
        eventually(lambda: not self.endpoint.alive, "the endpoint is alive although its stream has ended")

    def end(self) -> None:
        """Nothing more comes from this side; nothing happens where the engine has hung up before."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()
        del self.engine, self.endpoint


def eventually(condition: Callable[[], bool], otherwise: str) -> None:
    """What another thread brings about without an event for it."""
    limit = deadline()
    while not condition():
        assert time.monotonic_ns() < limit, otherwise
        time.sleep(0.001)


def eventually_freed(what: weakref.ref[Any]) -> None:
    """With its last reference, which another thread may be about to let go of."""

    def freed() -> bool:
        gc.collect()
        return what() is None

    eventually(freed, "it is held")
