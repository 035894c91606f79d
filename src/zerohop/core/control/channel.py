"""Carries the control plane's messages over a stream socket, and descriptors beside them on Unix sockets.

A channel reads not one byte beyond the message that it was asked for, because a lane's socket goes to the data plane
after its handshake. Messages that cannot be sent at once wait in a bounded queue; if it overflows, the peer is lost.
After ``protect`` everything goes through TLS.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import select
import socket
from typing import TYPE_CHECKING, Final

from zerohop.core.base.peer_process import process_at
from zerohop.core.control import address, keepalive, wire
from zerohop.core.control.descriptors import close_all, copies_of, received, rights_to
from zerohop.core.control.received import FD_SPACE, close_received, drop_unread
from zerohop.core.control.tls import TlsStream
from zerohop.errors import ProtocolError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from zerohop.core.base.peer_process import PeerProcess
    from zerohop.core.control.wire import Hello, Message

_MAX_QUEUED_BYTES: Final = 2 << 20
_PIECE_BYTES: Final = 64 << 10
# Seconds between attempts to send descriptors while too many are on their way.
_CROWDED_S: Final = 0.002
# Pieces that are received before others have their turn, and bytes of TLS's handshake.
_PIECES_A_TURN: Final = 8
_MAX_HANDSHAKE_BYTES: Final = 64 << 10
# Turns of the event loop that `until_read` waits at most. Three are enough unless the peer keeps sending.
_MOST_TURNS: Final = 100


class ChannelEnded(Exception):
    """Raised when the stream has ended; the text says whether the peer closed it, it broke, or this side closed it."""


class Channel:
    """Sends and receives messages over one socket. Only the control thread may use it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self.unix = sock.family == socket.AF_UNIX
        if not self.unix:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The handshake raises the limits of bytes and descriptors once the peer has proved who it is.
        self.limit = wire.MAX_FRAME_UNAUTHENTICATED
        self.most_fds = 0
        # Received descriptors of the message that is being received; None: the kernel dropped them.
        self._fds: list[int] | None = []
        self._outgoing: collections.deque[tuple[memoryview, list[int]]] = collections.deque()
        self._queued_bytes = self._pieces = 0
        self._ended = ""
        self._crowded = False
        self._tls: TlsStream | None = None
        self._readable: asyncio.Future[None] | None = None
        self._flushed: asyncio.Future[None] | None = None

    def end_when_silent(self, seconds: float) -> None:
        """Have the kernel end the channel when the other host has not answered for about that long; 0: never."""
        if not self.unix and seconds:
            keepalive.begin(self._sock, seconds)

    def unread(self) -> bool:
        """Tell whether data has arrived that was not read yet; the end of the stream counts as data.

        A sandbox may refuse the look: then there is none.
        """
        if self._ended:
            return False
        if self._tls is not None and self._tls.pending():
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        try:
            return bool(poll.poll(0))
        except OSError:
            return False

    def connected_here(self) -> bool:
        """Tell whether the other end of a TCP connection is on this host."""
        return address.connected_here(self._sock)

    def process(self) -> PeerProcess | None:
        """Return the process at the other end; None if it has ended."""
        return process_at(self._sock)

    def protection(self) -> str:
        """Return how messages are protected, in words."""
        return "through TLS" if self._tls else "a Unix socket of this user" if self.unix else "not encrypted"

    async def protect(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        """Do TLS's handshake, through which all later messages go.

        Raises:
            Distrusted: this side refuses the other's certificate. If the other refuses this side's, ``receive`` raises
                it, on a side that dials.
            ChannelEnded: the channel has ended.
            ProtocolError: the other side does not speak TLS 1.3.
        """
        stream = TlsStream(context, server_side=server_side)
        left = _MAX_HANDSHAKE_BYTES
        try:
            while not stream.shake_hands():
                self._queue(stream.outgoing(), [])
                if left <= 0:
                    raise ProtocolError("malformed: a TLS handshake without end")
                piece = await self._some(min(left, _PIECE_BYTES), "the peer closed the connection")
                left -= len(piece)
                stream.feed(piece)
        finally:
            # After a failure this is the alert that says so.
            self._queue(stream.outgoing(), [])
        self._tls = stream

    async def linger(self) -> None:
        """Say that no more comes, and wait until the peer has hung up; what it sends meanwhile is dropped.

        A socket that is closed with bytes unread has the kernel drop the last words that it has sent.
        """
        await self.flush()
        try:
            self._sock.shutdown(socket.SHUT_WR)
            while True:
                await self._some(_PIECE_BYTES, "the peer closed the connection")
        except (ChannelEnded, OSError):
            pass

    async def receive(self) -> tuple[Message, list[int]]:
        """Receive the next message and its descriptors, which the caller closes.

        Announced descriptors are missing if this process had reached its limit of descriptors.

        Raises:
            ChannelEnded: the channel has ended.
            ProtocolError: the frame is no message.
        """
        message = wire.decode(await self._body())
        expected: int = getattr(message, "nfds", 0)
        fds, self._fds = self._fds, []
        if fds is not None and len(fds) != expected:
            error = ProtocolError(f"malformed: {len(fds)} descriptors where {expected} were announced")
            close_received(fds)
            raise error
        return message, fds or []

    async def receive_hello(self) -> Hello:
        """Receive the first message of a side that connects; raises what ``receive`` raises."""
        return wire.decode_hello(await self._body())

    def post(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message, and borrowed descriptors beside it, as soon as the peer takes it. Never waits.

        Does nothing if the channel has ended, which ``receive`` reports.

        Raises:
            OSError: out of descriptors; nothing is sent.
        """
        if self._ended:
            return
        frame = wire.encode(message)
        if self._tls is not None:
            try:
                frame = self._tls.encrypt(frame)
            except ProtocolError as error:
                self._queue(self._tls.outgoing(), [])  # the alert
                self._end(error.reason)  # after which nothing is queued
        self._queue(frame, fds)

    def _queue(self, data: bytes, fds: Sequence[int]) -> None:
        if self._ended or not data:
            return
        frame = memoryview(data)
        if not self._outgoing:
            # Only a message that has to wait needs copies, because the caller keeps its descriptors no longer.
            sent = self._send(frame, fds)
            if sent == len(frame) or self._ended:
                return
            if sent:
                frame, fds = frame[sent:], ()  # the descriptors went with the first byte
        self._outgoing.append((frame, copies_of(fds)))
        self._queued_bytes += len(frame)
        if self._queued_bytes > _MAX_QUEUED_BYTES:
            self._end("the peer takes no more messages")
        elif len(self._outgoing) == 1:
            self._pump_when_writable()

    async def flush(self) -> None:
        """Wait until the kernel has all posted messages, or the channel has ended."""
        while self._outgoing and not self._ended:
            if self._flushed is None or self._flushed.done():
                self._flushed = self._loop.create_future()
            await asyncio.wait([self._flushed])

    def unsent(self) -> bool:
        """Tell whether messages wait to be sent."""
        return bool(self._outgoing)

    async def until_read(self) -> None:
        """Wait until everything that the peer has sent by now was received here, or the channel has ended."""
        for _ in range(_MOST_TURNS):
            if not self.unread():
                return
            await asyncio.sleep(0)

    def detach(self) -> socket.socket:
        """Return the socket for the data plane; call flush() before, and nothing after."""
        self._forget_socket()
        self._ended = "given to the data plane"
        return self._sock

    def close(self) -> None:
        """End the channel at once; messages that were not flushed are lost."""
        self._end("closed on this side")
        if self.unix:
            drop_unread(self._sock)
        self._sock.close()

    async def _body(self) -> bytes:
        header = await self._read(wire.HEADER.size)
        return await self._read(wire.body_length(header, self.limit))

    async def _read(self, nbytes: int) -> bytes:
        data = bytearray()
        while len(data) < nbytes:
            end = "the peer closed the connection" if not data else "the connection ended within a message"
            data += await self._some(min(nbytes - len(data), _PIECE_BYTES), end)
        return bytes(data)

    async def _some(self, nbytes: int, end: str) -> bytes:
        """Receive up to so many bytes, one at least; ``end`` is what the end of the stream means."""
        while not self._ended:
            self._pieces += 1
            if self._pieces > _PIECES_A_TURN:
                # A peer that always has something to say must not keep the loop from all others.
                self._pieces = 0
                await asyncio.sleep(0)
            try:
                piece = self._receive_some(nbytes)
            except (BlockingIOError, InterruptedError):
                await self._until_readable()
                continue
            except OSError as error:
                self._end(f"the connection broke: {error.strerror}")
                continue
            if piece:
                return piece
            self._end(end)
        raise ChannelEnded(self._ended)

    def _receive_some(self, nbytes: int) -> bytes:
        if self._tls is not None:
            return self._tls.receive(self._sock, nbytes)
        if not self.unix:
            return self._sock.recv(nbytes)
        data, ancillary, flags, _ = self._sock.recvmsg(nbytes, FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        fds, cut = received(ancillary), flags & socket.MSG_CTRUNC
        # All descriptors of a message come with one of its bytes.
        if (fds or cut) and (self._fds != [] or len(fds) > self.most_fds):
            close_received(fds)
            raise ProtocolError("malformed: more descriptors than the message that is due may bring")
        if cut:
            # The kernel drops descriptors at this process's limit; their message then has none.
            close_received(fds)
            self._fds = None
        elif fds:
            self._fds = fds
        return data

    async def _until_readable(self) -> None:
        ready = self._readable = self._loop.create_future()
        self._loop.add_reader(self._sock.fileno(), _wake, ready)
        try:
            await ready
        finally:
            self._readable = None
            if not self._ended:
                self._loop.remove_reader(self._sock.fileno())

    def _send(self, frame: memoryview, fds: Sequence[int]) -> int:
        """Return how much of a frame the kernel has taken, all of it if nobody will ever read it."""
        try:
            if fds:
                return self._sock.sendmsg([frame], rights_to(fds))
            return self._sock.send(frame)
        except (BlockingIOError, InterruptedError):
            return 0
        except (BrokenPipeError, ConnectionResetError):
            # The peer's last messages are still to be read; after them `receive` reports the end.
            return len(frame)
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                # Too many descriptors of this user wait for peers to read them, and no event tells when they do.
                self._crowded = True
                self._loop.call_later(_CROWDED_S, self._pump)
                return 0
            self._end(f"the connection broke: {error.strerror}")
            return 0

    def _pump(self) -> None:
        """Send what the kernel takes."""
        self._crowded = False
        while self._outgoing:
            frame, fds = self._outgoing[0]
            sent = self._send(frame, fds)
            if self._ended:
                return
            if not sent:
                self._pump_when_writable()
                return
            self._queued_bytes -= sent
            close_all(fds)
            self._outgoing.popleft()
            if sent < len(frame):
                # The descriptors went with the first byte.
                self._outgoing.appendleft((frame[sent:], []))
        if not self._ended:
            self._loop.remove_writer(self._sock.fileno())
        _wake(self._flushed)

    def _pump_when_writable(self) -> None:
        if self._crowded:
            self._loop.remove_writer(self._sock.fileno())
        else:
            self._loop.add_writer(self._sock.fileno(), self._pump)

    def _end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = why
        self._forget_socket()
        for _, fds in self._outgoing:
            close_all(fds)
        self._outgoing.clear()
        self._queued_bytes = 0
        close_received(self._fds or [])
        _wake(self._readable)
        _wake(self._flushed)

    def _forget_socket(self) -> None:
        if self._sock.fileno() >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
