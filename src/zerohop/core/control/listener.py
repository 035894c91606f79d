"""Lets peers in: a TCP listener, a Unix socket, and the handshake with each peer that connects."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import ipaddress
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from zerohop.config import protection
from zerohop.core.base.deadlines import wait_while_running
from zerohop.core.base.sandbox import Socket, named_socket, naming
from zerohop.core.control import address, auth, handshake, sockets
from zerohop.core.control.advertised import advertised_host
from zerohop.core.control.channel import Channel, ChannelEnded
from zerohop.core.control.handshake import CLOSED, DUPLICATE, LANE, LOCATE, THROTTLED, TOKEN, Refused
from zerohop.core.control.received import turn_away, turn_away_all
from zerohop.core.control.throttle import Throttle, source_of
from zerohop.core.control.waiting_room import WaitingRoom
from zerohop.errors import ProtocolError, Unsupported, ZerohopError, from_os, out_of_descriptors
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from zerohop.config.settings import Settings
    from zerohop.core.control.handshake import Identity
    from zerohop.core.control.waiting_room import Guest
    from zerohop.core.control.wire import Hello
    from zerohop.core.runtime.control_thread import ControlThread

# Tokens that were given up and are still known, so that a peer that comes too late is told from a stranger.
_FORGOTTEN: Final = 256
_ANOTHER: Final = "choose another address; port 0 takes a free port"
# Seconds after a failed accept() until the next one.
_ACCEPT_PAUSE_S: Final = 0.1
# Seconds that turning peers away may take before this side goes on to accept others.
_TURNING_AWAY_S: Final = 1.0
# Place of the interface's number in an IPv6 socket's address.
_SCOPE: Final = 3


class Listeners:
    """Holds the listening sockets of a Context. The constructor binds them; they accept after ``start``.

    Raises:
        ValueError: the address is off loopback, and there is neither a secret nor ``insecure``; ``advertise`` makes no
            sense.
        Unsupported: the address cannot be bound; or it is off loopback, and nothing here can protect what peers say; or
            the system refuses sockets, or a directory for one.
        LimitReached: this process is out of descriptors.
    """

    def __init__(self, settings: Settings) -> None:
        self.host, self.port = "", 0
        self.socket_path = ""
        self._closed = False
        self._accepting = False
        self._sockets: list[socket.socket] = []
        self._directory: Path | None = None
        # Names of the last tokens that were given up before a peer came with them.
        self._forgotten: collections.deque[bytes] = collections.deque(maxlen=_FORGOTTEN)
        # A spare: at the limit of descriptors, closing it lets this side accept peers to turn them away.
        self._reserve: socket.socket | None = None
        self._turning_away: asyncio.Task[None] | None = None
        # Whether all who come are turned away just now.
        self._full = False
        # Tokens and sockets of lanes that peers may open, by the token's public name.
        self._invited: dict[bytes, tuple[bytes, asyncio.Future[socket.socket]]] = {}
        self._throttle = Throttle()
        where = str(settings.listen)
        if "listen" in settings.from_environment:
            where += f" ({settings.source('listen')})"
        try:
            if settings.listen is not None:
                self._bind_tcp(settings.listen, settings)
            where = "a Unix socket"
            self._bind_unix()
            self._reserve = _new_reserve()
        except OSError as error:
            self.close()
            if out_of_descriptors(error):
                raise from_os(error, operation="listen") from None
            zone = isinstance(error, socket.gaierror) and "%" in where
            fix = "name an interface of this host behind the %: ip -6 addr" if zone else _ANOTHER
            if error.errno == errno.EAFNOSUPPORT:  # of the kernel, or of a sandbox such as systemd's
                fix = "have the sandbox allow sockets of the family"
                if not where.startswith("a Unix"):
                    fix += ", or pass listen=None: peers of this host then come by the Unix socket"
            raise Unsupported(
                f"cannot listen on {where}: {error.strerror or error}",
                fix=fix,
                operation="listen",
            ) from None
        except BaseException as error:
            self.close()
            if isinstance(error, ZerohopError):
                error.operation = error.operation or "listen"
            raise

    def start(
        self,
        control: ControlThread,
        me: Identity,
        admit: Callable[[Hello], None],
        enter: Callable[[Channel, Hello, str], Coroutine[Any, Any, None]],
    ) -> None:
        """Begin to accept. On the control thread, ``admit`` may raise Refused and ``enter`` takes over the channel.

        The third argument of ``enter`` is the peer's address. The peer keeps its place until ``enter`` returns, and
        must go if that is cancelled.
        """
        self._control = control
        self._me = me
        self._admit = admit
        self._enter = enter
        self._accepting = True
        if self._reserve is not None:
            control.own(self._reserve)
        for sock in self._sockets:
            control.own(sock)
            # Each has a room of its own: who comes by the Unix socket is this user.
            control.start(self._accept, sock, WaitingRoom(control, "do not speak"))

    def invite(self) -> tuple[bytes, asyncio.Future[socket.socket]]:
        """Return a token that works once, and a future for the socket of the peer that sends the token."""
        token = auth.new_capability()
        name = auth.name_of(token)
        future = self._control.loop.create_future()
        self._invited[name] = token, future
        future.add_done_callback(lambda _: self._forget(name))
        return token, future

    def _forget(self, name: bytes) -> None:
        if self._invited.pop(name, None) is not None:
            self._forgotten.append(name)

    def close(self) -> None:
        """Stop listening and remove the Unix socket; on the control thread once started. Idempotent."""
        self._closed = True
        while self._sockets:
            sock = self._sockets.pop()
            if self._accepting and sock.fileno() >= 0:
                # The loop would otherwise take the next socket with this descriptor's number for this one.
                self._control.loop.remove_reader(sock)
            if sock.family == socket.AF_UNIX:
                with contextlib.suppress(OSError):  # it does not listen yet
                    sock.shutdown(socket.SHUT_RDWR)
                turn_away_all(sock)
            sock.close()
        if self._reserve is not None:
            self._reserve.close()
        if self._directory is not None:
            address.remove_directory(self._directory)

    def _bind_tcp(self, listen: str, settings: Settings) -> None:
        host, port = address.split_listen(listen, settings.source("listen"))
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if not ipaddress.ip_address(where[0]).is_loopback:
            _check_exposed(listen, settings)
        sock = sockets.new(family, kind, protocol)
        self._sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sockets.listen(sock, where)
        bound = sock.getsockname()
        both = family == socket.AF_INET6 and not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        self.host, self.port = (
            advertised_host(_with_zone(bound), settings.advertise, settings.source("advertise"), both=both),
            bound[1],
        )

    def _bind_unix(self) -> None:
        sock = sockets.new(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sockets.append(sock)
        with address.make_directory(partial(sockets.listen_in, sock)) as self._directory:
            self.socket_path = str(self._directory / address.SOCKET_NAME)

    async def _accept(self, listening: socket.socket, room: WaitingRoom) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await room.vacancy()
            try:
                with naming("accept4", "listen"):
                    accepted, where = await loop.sock_accept(listening)
                sock = named_socket(accepted)
            except (OSError, ZerohopError) as error:
                if self._closed:
                    return
                full = isinstance(error, OSError) and out_of_descriptors(error)
                fix = "Fix: raise the limit: ulimit -n" if full else "It is tried again"
                self._control.warn_once("", "accept", "cannot accept peers: %s. %s", error, fix)
                if full:
                    self._turning_away = self._turning_away or self._control.start(self._turn_away, listening)
                    self._full = True
                    await asyncio.wait([self._turning_away], timeout=_TURNING_AWAY_S)
                    self._full = False
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if self._full:  # it has the number that the reserve has left for those who are turned away
                turn_away(sock)
                continue
            self._control.own(sock)
            who = str(where[0]) if where else "this host"
            room.seat(who, partial(self._control.start, self._receive, sock, who))

    async def _turn_away(self, listening: socket.socket) -> None:
        """Close connections that cannot be let in, so that the peers learn it at once and not by a timeout."""
        if self._reserve is not None:
            self._reserve.close()
        try:
            # On a thread: the kernel itself closes descriptors that came for which no number is left, and may wait.
            with contextlib.suppress(ZerohopError):  # there is no room for a thread
                await self._control.run_in_thread(turn_away_all, listening)
        finally:
            self._reserve = None if self._closed else _new_reserve()
            self._turning_away = None

    async def _receive(self, sock: socket.socket, who: str, guest: Guest) -> None:
        """Do the handshake with a peer that has connected."""
        channel = None
        try:
            channel = Channel(sock)
            if channel.unix and address.peer_uid(sock) != os.getuid():
                self._control.warn_once(source_of(who), "uid", "refused a process of user %s", address.peer_uid(sock))
                return
            await guest.speaks(sock)
            # Without keys the handshake itself tells the peer why.
            with contextlib.suppress(ZerohopError):
                await self._me.ready(over_tcp=not channel.unix)
            gate = _Gate(self, who, guest, unix=channel.unix)
            hello = await wait_while_running(handshake.answer(channel, self._me, gate), handshake.TIMEOUT_S)
            if hello.purpose == LOCATE:
                await wait_while_running(channel.flush(), handshake.TIMEOUT_S)
            elif gate.invited is not None:
                await wait_while_running(channel.flush(), handshake.TIMEOUT_S)
                if not gate.invited.done():
                    gate.invited.set_result(channel.detach())
                    channel = None
            else:
                entering = self._enter(channel, hello, who)
                channel = None
                # It has proved who it is, and has still to begin the conversation.
                guest.silent = True
                await entering
        except Refused:  # which the gate has noted
            pass
        except TimeoutError:
            self._control.warn_once(
                source_of(who), "timeout", "a peer at %s did not finish its handshake; disconnected", who
            )
        except ProtocolError as error:
            # The topic is not that of peers, so that strangers use up no warnings about them.
            self._control.warn_once(source_of(who), "stranger", "disconnected somebody at %s: %s", who, error.reason)
        except ZerohopError as error:  # of this side: a sandbox, or a limit of this process
            self._control.warn_once(source_of(who), "own", "cannot serve a peer at %s: %s", who, error)
        except (ChannelEnded, OSError):
            # The peer only checked whether this side exists, or has left again.
            pass
        finally:
            if channel is not None:
                channel.close()


class _Gate:
    """Decides about one peer that has connected; ``invited`` is the future of the lane that it has opened."""

    def __init__(self, listeners: Listeners, who: str, guest: Guest, *, unix: bool) -> None:
        """Prepare; ``who`` is the peer's address, and ``unix`` says that it has come by a Unix socket."""
        self._listeners = listeners
        self._who = who
        # A process at the other end of a Unix socket is no stranger, and is not slowed down.
        self._unix = unix
        self._guest = guest
        self.invited: asyncio.Future[socket.socket] | None = None

    def hello_came(self) -> None:
        self._guest.introduced = True

    async def wait_turn(self) -> None:
        seconds = 0.0 if self._unix else self._listeners._throttle.turn(self._who)
        if seconds is None:
            raise Refused(THROTTLED, "many wrong secrets came from this address, and others of it wait already")
        if seconds:
            await asyncio.sleep(seconds)

    def token_of(self, hello: Hello) -> bytes:
        if self._unix:  # descriptors that came with its bytes would be closed by the data plane, and that may wait
            raise Refused(TOKEN, "a lane comes by TCP")
        token, future = self._listeners._invited.get(hello.token, (b"", None))
        if future is None or future.done():
            # A peer may be on its way while this side closes the connection, which is no fault of anybody.
            given_up = hello.token in self._listeners._forgotten
            raise Refused(CLOSED if given_up else TOKEN, "nobody invited this lane")
        return token

    def admit(self, hello: Hello) -> None:
        if self._listeners._closed:
            raise Refused(CLOSED, "this Context is closing")
        if hello.purpose != LANE:
            self._listeners._admit(hello)
            return
        # The name works once: it is taken by the first socket that has proved that it knows the token.
        _, self.invited = self._listeners._invited.pop(hello.token, (b"", None))
        if self.invited is None or self.invited.done():
            raise Refused(TOKEN, "nobody invited this lane")

    def refused(self, refusal: Refused) -> None:
        """Log a refusal, and count a wrong secret."""
        control, who = self._listeners._control, self._who
        if refusal.code not in (DUPLICATE, CLOSED):
            control.warn_once(source_of(who), refusal.code, "refused a peer at %s: %s", who, refusal.text)
        if refusal.guess and not self._unix and self._listeners._throttle.wrong(who):
            control.warn_once(source_of(who), "slow", "%s has given many wrong secrets; it is slowed down", who)


def _with_zone(bound: tuple[Any, ...]) -> str:
    """Return the host of a socket's address; a link-local one has its interface's name, without which none reach it."""
    host, scope = str(bound[0]), bound[3] if len(bound) > _SCOPE else 0
    if not scope or "%" in host:
        return host
    try:
        return f"{host}%{socket.if_indextoname(scope)}"
    except OSError:  # the interface has gone meanwhile
        return f"{host}%{scope}"


def _check_exposed(listen: str, settings: Settings) -> None:
    """Raise ValueError or Unsupported if these settings are not good enough for an address off loopback."""
    exposed = f"{settings.source('listen')}={shown(listen)} can be reached from other hosts"
    if settings.secret is None and not settings.insecure:
        raise ValueError(
            f"{exposed}, and there is no secret to keep them out. "
            f"Fix: pass secret= (or set ZEROHOP_SECRET), "
            f"or on a network that you trust insecure=True (ZEROHOP_INSECURE=1)"
        )
    if why := protection.why_not(settings.encryption):
        raise Unsupported(
            f"{exposed}, and what they say cannot be protected: {why}",
            fix=protection.fix(),
            operation="listen",
        )


def _new_reserve() -> socket.socket | None:
    try:
        return Socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None
