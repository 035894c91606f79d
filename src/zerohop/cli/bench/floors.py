"""Measures the raw limits that rows are compared with, by `zerohop._floors`, between both processes."""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import time
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from zerohop._floors import (
    FLAG_BYTES,
    Flag,
    Ring,
    SharedCopy,
    socket_ping,
    socket_ping_spinning,
    socket_send,
    sockets_send,
    tls_send,
    tls_why_not,
)
from zerohop.cli.bench.gpu_floors import FloorBroken, GpuFloors
from zerohop.cli.bench.rows import ENCRYPTED, FLOWS
from zerohop.cli.payload import Octets, PageLists, RangeLists, digest, random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop.cli.bench.rows import Case
    from zerohop.cli.peer import PeerProcess

_TIMEOUT: Final = 30.0
_RING_BYTES: Final = 2 << 20
MOST: Final = 500  # rounds of a floor at most: on processors that others use, two spinning processes starve
_HEADER_BYTES: Final = 64  # of each message of zerohop over TCP
_MESSAGES: Final = 64  # different ones that a floor sends in turn
_SMALL: Final = 64  # up to this size a socket floor is a round trip, above it a stream with an answer at its end


class FloorDescriptors:
    """Holds memory and sockets for both processes, made before the second process starts and inherited by it."""

    def __init__(self) -> None:
        """Create them; none has a name in the file system, so that none can be left behind."""
        self.shared = os.memfd_create("zerohop-floor-copy")
        self.ring = os.memfd_create("zerohop-floor-ring")
        self.flag = os.memfd_create("zerohop-floor-flag")
        os.ftruncate(self.ring, _RING_BYTES)
        os.ftruncate(self.flag, FLAG_BYTES)
        self.tcp, self.tcp_there = _tcp_pair()
        self.unix, self.unix_there = socket.socketpair()
        for end in (self.unix, self.unix_there):
            end.settimeout(None)  # blocking, in the kernel too
        self.flows = [_tcp_pair() for _ in range(max(FLOWS))]

    def for_peer(self) -> dict[str, int]:
        """Return the descriptors that the second process needs, by name."""
        sockets = {"tcp": self.tcp_there.fileno(), "unix": self.unix_there.fileno()}
        sockets |= {f"flow{number}": there.fileno() for number, (_, there) in enumerate(self.flows)}
        return {"shared": self.shared, "ring": self.ring, "flag": self.flag, **sockets}

    def close(self) -> None:
        """Close all of them in this process."""
        for fd in (self.shared, self.ring, self.flag):
            os.close(fd)
        for end in (self.tcp, self.tcp_there, self.unix, self.unix_there, *chain.from_iterable(self.flows)):
            end.close()


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    for end in (here, there):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.settimeout(None)  # blocking, in the kernel too
    return here, there


class Floors:
    """Runs floors. Each method moves `source` (or a message) `rounds` times, checks it, returns nanoseconds."""

    def __init__(self, peer: PeerProcess, descriptors: FloorDescriptors) -> None:
        """Take the second process, which has inherited `descriptors`."""
        self._peer = peer
        self._fds = descriptors
        self._copy: tuple[int, SharedCopy] | None = None
        peer.call("floor_open", descriptors=descriptors.for_peer(), ring_bytes=_RING_BYTES)

    def _shared_copy(self, nbytes: int) -> SharedCopy:
        """Map `nbytes`; the mapping of the last size is kept, so that rounds do not pay for page faults."""
        if self._copy is None or self._copy[0] != nbytes:
            self._copy = None
            os.ftruncate(self._fds.shared, max(nbytes, mmap.PAGESIZE))
            self._copy = (nbytes, SharedCopy(self._fds.shared, nbytes))
        return self._copy[1]

    def copy_in(self, source: Octets, rounds: int, pages: PageLists | RangeLists | None = None) -> list[int]:
        """Copy (memcpy) into a mapping that the other process reads back and digests.

        Each of `pages`, which may be ranges, is one memcpy.
        """
        copy = self._shared_copy(source.size)
        if pages is not None:
            copy.write(np.zeros_like(source), 1)
        if pages is None:
            times = copy.write(source, rounds)
        elif isinstance(pages, RangeLists):
            times = copy.write_ranges(source, *pages, rounds)
        else:
            times = copy.write_pages(source, *pages, rounds)
        self._check("floor_shared_digest", source, pages)
        return times

    def copy_out(self, source: Octets, rounds: int, pages: PageLists | RangeLists | None = None) -> list[int]:
        """Copy (memcpy) out of a mapping that holds `source`; each of `pages`, which may be ranges, by one memcpy."""
        copy = self._shared_copy(source.size)
        copy.write(source, 1)
        target = np.zeros_like(source)
        if pages is None:
            times = copy.read(target, rounds)
        elif isinstance(pages, RangeLists):
            times = copy.read_ranges(target, *pages, rounds)
        else:
            times = copy.read_pages(target, *pages, rounds)
        if not np.array_equal(target, source if pages is None else pages.placed(source)):
            raise FloorBroken(
                f"memcpy{'' if pages is None else ' of pages'} out of a shared mapping delivered wrong bytes"
            )
        return times

    def ring(self, source: Octets, rounds: int, pages: PageLists | None = None) -> list[int]:
        """Send through a ring with one producer and one consumer, both spinning; done once the bytes are placed.

        Each of `pages` is one record.
        """
        ring = Ring(self._fds.ring, _RING_BYTES)
        ring.reset()
        nbytes = source.size if pages is None else pages.page_bytes * pages.batch
        self._peer.begin("floor_ring", target_bytes=source.size, nbytes=nbytes * rounds)
        if pages is None:
            times = ring.write(source, rounds, _TIMEOUT)
        else:
            times = ring.write_pages(source, *pages, rounds, _TIMEOUT)
        self._peer.finish()
        self._check("floor_target_digest", source, pages)
        return times

    def flag(self, rounds: int) -> list[int]:
        """Exchange a flag with 8 bytes of payload in shared memory; return half round trips."""
        flag = Flag(self._fds.flag)
        flag.reset()
        self._peer.begin("floor_flag", rounds=rounds, seed=rounds)
        times = flag.ping(rounds, rounds, _TIMEOUT)
        self._peer.finish()
        return [time // 2 for time in times]

    def round_trip(self, which: str, source: Octets, nbytes: int, rounds: int, *, pause: float = 0.0) -> list[int]:
        """Send messages of `nbytes` over a blocking socket, "tcp" or "unix", and wait for each echo.

        A pause before each message lets both processes and their processors go to sleep.
        """
        end = self._fds.tcp if which == "tcp" else self._fds.unix
        self._peer.begin("floor_pong", which=which, nbytes=nbytes, rounds=rounds)
        if pause:
            times = []
            for _ in range(rounds):
                time.sleep(pause)
                times += socket_ping(end.fileno(), source, nbytes, 1, _TIMEOUT)
        else:
            times = socket_ping(end.fileno(), source, nbytes, rounds, _TIMEOUT)
        self._peer.finish()
        return times

    def spinning_round_trip(self, nbytes: int, rounds: int) -> list[int]:
        """Send messages of a header and `nbytes` over the TCP socket, and wait for each echo; neither end sleeps."""
        whole = _HEADER_BYTES + nbytes
        self._peer.begin("floor_pong", which="tcp", nbytes=whole, rounds=rounds, spinning=True)
        messages = random_bytes(nbytes, _MESSAGES * whole)
        times = socket_ping_spinning(self._fds.tcp.fileno(), messages, whole, rounds, _TIMEOUT)
        self._peer.finish()
        return times

    def asyncio_one_way(self, which: str, nbytes: int, rounds: int, pause: float) -> list[int]:
        """Send messages and answers over a "tcp" or "unix" socket, between two asyncio loops that pause before each."""
        end = self._fds.tcp if which == "tcp" else self._fds.unix
        self._peer.begin("floor_pong_asyncio", which=which, nbytes=nbytes, rounds=rounds, pause=pause)
        here = asyncio.run(asyncio_ping(end.fileno(), bytes(nbytes), rounds, pause))
        return one_way(here, self._peer.finish()["times"])

    def tcp_stream(self, source: Octets, rounds: int) -> list[int]:
        """Send `source` over a blocking TCP socket, until one byte of answer says that all of it has come."""
        send = partial(socket_send, self._fds.tcp.fileno())
        return self._stream(source, rounds, send, "floor_receive")

    def tcp_streams(self, flows: int, source: Octets, rounds: int) -> list[int]:
        """Send equal parts of `source` over as many sockets at once, until each is answered as in `tcp_stream`."""
        send = partial(sockets_send, [here.fileno() for here, _ in self._fds.flows[:flows]])
        return self._stream(source, rounds, send, "floor_receive_flows", flows=flows)

    def tls_stream(self, source: Octets, rounds: int) -> list[int]:
        """Send `source` as `tcp_stream` does, through a session of TLS 1.3 that is made before the first round."""
        send = partial(tls_send, self._fds.tcp.fileno())
        return self._stream(source, rounds, send, "floor_receive_tls")

    def _stream(
        self, source: Octets, rounds: int, send: Callable[[Octets, int, float], list[int]], command: str, **more: int
    ) -> list[int]:
        """Send `source` while the other process carries out `command`, and compare what it has received."""
        self._peer.begin(command, nbytes=source.size, rounds=rounds, **more)
        times = send(source, rounds, _TIMEOUT)
        self._peer.finish()
        self._check("floor_target_digest", source)
        return times

    def _check(self, command: str, source: Octets, pages: PageLists | RangeLists | None = None) -> None:
        self._peer.begin(command, nbytes=source.size)
        # Computed while the other process digests its bytes.
        wanted = digest(source if pages is None else pages.placed(source))
        if self._peer.finish()["digest"] != wanted:
            raise FloorBroken(f"wrong bytes after {command}")


async def asyncio_ping(fd: int, message: bytes, rounds: int, pause: float) -> list[int]:
    """Send `message` after each pause, and await as many bytes.

    Returns:
        Departure and arrival times in turn, in nanoseconds of the monotonic clock.
    """
    times = []
    for _ in range(rounds):
        await asyncio.sleep(pause)
        times.append(time.monotonic_ns())
        os.write(fd, message)
        await _receive(fd, len(message))
        times.append(time.monotonic_ns())
    return times


async def asyncio_pong(fd: int, message: bytes, rounds: int, pause: float) -> list[int]:
    """Answer each message after a pause; return arrival and departure times in turn."""
    times = []
    for _ in range(rounds):
        await _receive(fd, len(message))
        times.append(time.monotonic_ns())
        await asyncio.sleep(pause)
        times.append(time.monotonic_ns())
        os.write(fd, message)
    return times


async def _receive(fd: int, nbytes: int) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(fd, readable.set_result, None)
    try:
        await readable
    finally:
        loop.remove_reader(fd)
    while nbytes:
        got = len(os.read(fd, nbytes))
        if not got:
            raise EOFError("the other process has closed its end")
        nbytes -= got


def one_way(here: Sequence[int], there: Sequence[int]) -> list[int]:
    """Pair departures with arrivals; both processes read the one monotonic clock of their host.

    Args:
        here: times at which a message departed and its answer arrived, in turn.
        there: times at which the message arrived and its answer departed, in turn.
    """
    out = [arrival - departure for departure, arrival in zip(here[::2], there[::2], strict=True)]
    back = [arrival - departure for departure, arrival in zip(there[1::2], here[1::2], strict=True)]
    return out + back


def transfer_floor(
    floors: Floors, case: Case, pause: float
) -> tuple[str | None, Callable[[Octets, int], list[int]] | None]:
    """Return the floor of a case that writes or reads one range: its name, and its measurement (source, rounds).

    Both are None if there is no floor: between host memory and a GPU, for many small operations on a GPU, or without
    OpenSSL.

    `source` holds one measurement's bytes, or several messages for the small socket floors. `pause` is the time that a
    case with a sleeping target waits before each measurement; its floor waits as long.
    """
    total = case.bytes * case.batch
    if case.provider == "p2p" and case.on_gpu:
        if not case.between_gpus or case.batch > 1:
            return None, None
        copies = GpuFloors(case, total)
        return "C++ copy", lambda source, n: copies.copy(source[:total], n)
    if case.provider == "tcp":
        if total <= _SMALL and case.target == "asleep":
            return "TCP socket, blocking", lambda source, n: floors.round_trip("tcp", source, total, n, pause=pause)
        if total <= _SMALL:
            return "TCP socket, spinning", lambda _, n: floors.spinning_round_trip(total, n)
        if case.flows > 1:
            return "TCP socket streams", lambda source, n: floors.tcp_streams(case.flows, source[:total], n)
        if case.mode != ENCRYPTED:
            return "TCP socket stream", lambda source, n: floors.tcp_stream(source[:total], n)
        if tls_why_not():
            return None, None
        return "TLS socket stream", lambda source, n: floors.tls_stream(source[:total], n)
    if case.target == "asleep":
        name = "Unix socket, blocking"
        return name, lambda source, n: floors.round_trip("unix", source, min(total, source.size), n, pause=pause)
    if case.form == "ring" and total <= 1 << 16:
        return "C++ ring", lambda source, n: floors.ring(source[:total], n)
    if case.reads:
        return "memcpy", lambda source, n: floors.copy_out(source[:total], n)
    return "memcpy", lambda source, n: floors.copy_in(source[:total], n)
