"""Connects to a peer: to its Unix socket if that is on this host and works, else by TCP."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from zerohop.core.base.deadlines import wait_with_timeout
from zerohop.core.control import address, sockets
from zerohop.core.control.channel import Channel, ChannelEnded
from zerohop.errors import (
    AccessDenied,
    DeadlineExceeded,
    PeerLost,
    ProtocolError,
    Unsupported,
    ZerohopError,
    copy_of,
    from_os,
    out_of_descriptors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.core.control.address import Address
    from zerohop.core.control.name_lookup import NameLookup
    from zerohop.core.runtime.control_thread import ControlThread

_T = TypeVar("_T")
_CONNECT_S: Final = 5.0
_BACKLOG_PAUSE_S: Final = 0.005
_NO_WAY: Final = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)
_V6: Final = 6
_LISTEN: Final = (
    'have the peer listen where others reach it: listen="0.0.0.0:0" (or ZEROHOP_LISTEN), '
    "and the same secret= (or ZEROHOP_SECRET) on both sides"
)


async def open_channel(
    control: ControlThread, names: NameLookup, where: Address, waits: Callable[[str], None]
) -> Channel:
    """Connect to an address, by the Unix socket if that works.

    ``names`` looks up the host. ``waits`` is told for what this waits, where that is worth telling; there is no time
    limit but the caller's.

    Raises:
        PeerLost: nobody answers.
        LimitReached: this process is out of descriptors.
        Unsupported: the system refuses a call to this process.
    """
    why_not, refused = "", None
    if where.socket_path and where.host_id in ("", address.host_id()):
        try:
            return await _open_unix(control, where.socket_path, waits)
        except Unsupported as error:
            why_not, refused = error.reason, error
        except (OSError, AccessDenied) as error:
            _check_descriptors(error, where)
            why_not = f"nobody answers at {where.socket_path} ({getattr(error, 'strerror', None) or error})"
    if where.listens:
        return await open_tcp(control, names, where, why_not, waits)
    if refused is not None:
        raise refused
    raise PeerLost(
        why_not or "the peer is on another host and does not listen on TCP",
        fix=_fix(where) if why_not else _LISTEN,
        peer=where.context,
        operation="connect",
    )


def explained(error: ZerohopError, where: Address) -> ZerohopError:
    """Return a copy of the error of a dial. It says so if the address means another process on each host.

    Such an address is tried all the same, because a tunnel may lead from it to the peer.
    """
    error = copy_of(error)
    astray = isinstance(error, (PeerLost, ProtocolError, AccessDenied, DeadlineExceeded))
    if astray and where.host_id not in ("", address.host_id()) and _is_loopback(where.host):
        error.reason += (
            f"; the peer is on another host and listens on loopback only: {where.place} is another process here, if any"
        )
        error.fix = f"{error.fix}; or {_LISTEN}" if error.fix else _LISTEN
    return error


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _fix(where: Address) -> str:
    """Return what to do about a peer that nobody answers for."""
    if where.host_id != address.host_id():
        return "is the peer still running, and does it listen there?"
    user = address.user_of(where.socket_path) if where.socket_path else None
    if user not in (None, os.getuid()):
        return f"the peer runs as user {user}, this process as user {os.getuid()}: run both as one user, or {_LISTEN}"
    directory = Path(where.socket_path).parent
    # With the directory here, both see the same files, and no mount would help.
    away = where.socket_path and not directory.exists()
    way = f"mount the peer's {directory.parent} here, or {_LISTEN}" if away else _LISTEN
    return f"is the peer still running? It is on this host. If it is in another container or network namespace, {way}"


async def _open_unix(control: ControlThread, path: str, waits: Callable[[str], None]) -> Channel:
    _check_path(path)
    sock = sockets.new(socket.AF_UNIX, socket.SOCK_STREAM)
    control.own(sock)
    try:
        while True:
            try:
                sock.connect(path)
                break
            except BlockingIOError:
                # The listener's backlog is full, and nothing tells this side when there is room again.
                waits("the peer does not accept connections: its backlog is full")
                await asyncio.sleep(_BACKLOG_PAUSE_S)
        waits("")
        _check_user(sock)
        return Channel(sock)
    except BaseException:
        sock.close()
        raise


async def open_tcp(
    control: ControlThread,
    names: NameLookup,
    where: Address,
    tried: str = "",
    waits: Callable[[str], None] | None = None,
) -> Channel:
    """Connect to an address by TCP; raises what ``open_channel`` raises. ``tried``: what has failed before.

    With ``waits`` there is no time limit but the caller's: a host may be busy, or its listener's backlog full.
    """
    failure: OSError | Unsupported | None = None
    tried += ", and " if tried else ""
    if waits is not None:
        hint = "does a name server answer here?"
        waits(f"{tried}the host {where.host!r} is being looked up, or waits for other names ({hint})")
    try:
        found = await names.find(where)
    except OSError as error:
        _check_descriptors(error, where)
        found, failure = [], _sandboxed() or error
    for place, (family, kind, protocol, _, target) in enumerate(found, 1):
        sock = None
        limit = _CONNECT_S if waits is None or place < len(found) else None
        if waits is not None:
            waits(f"{tried}nobody answers at {where.place} (is that host up, or does a firewall drop the port?)")
        try:
            sock = sockets.new(family, kind, protocol)
            control.own(sock)
            await wait_with_timeout(asyncio.get_running_loop().sock_connect(sock, target), limit)
            if waits is not None:
                waits("")
            return Channel(sock)
        except TimeoutError:
            failure = TimeoutError("no answer")
        except (OSError, Unsupported) as error:
            _check_descriptors(error, where)
            failure = error
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        if sock is not None:
            sock.close()
    if isinstance(failure, Unsupported):
        raise failure
    why, fix = _unreached(where, failure)
    raise PeerLost(f"{tried}{why}", fix=fix, peer=where.context, operation="connect")


def _unreached(where: Address, failure: OSError | None) -> tuple[str, str]:
    """Return why nobody was reached by TCP, and what to check."""
    # The URL may come from a stranger.
    host = shlex.quote(where.host)
    bare, _, zone = where.host.partition("%")
    if isinstance(failure, socket.gaierror) and ":" in bare and zone:
        return (
            f"there is no interface {zone!r} here, which the address {where.host} is to be reached by",
            f"name the interface of this host that leads there, as in [{bare}%25eth0]:{where.port}: ip -6 route",
        )
    if isinstance(failure, socket.gaierror):
        said = f"no host is called {where.host!r} here: {failure.strerror}"
        return said, f"check the host in the URL, and how this host finds it: getent hosts {host}"
    # asyncio puts words of its own in the place of the system's.
    said = os.strerror(failure.errno) if failure is not None and failure.errno else "no answer"
    if isinstance(failure, ConnectionRefusedError):
        return f"nobody listens at {where.place} ({said})", _fix(where)
    if failure is not None and failure.errno in _NO_WAY:
        return (
            f"nothing leads from this host to {where.place} ({said})",
            f"check the address, that its host is up, routes and firewalls: ip route get {host}",
        )
    if failure is not None and failure.errno == errno.EINVAL and _lacks_zone(where.host):
        return (
            f"{where.place} is an address of one link, and does not say which ({said})",
            f"name the interface of this host that leads there: [{where.host}%25eth0]:{where.port} in the URL",
        )
    return f"nobody answers at {where.place} ({said})", _fix(where)


def _lacks_zone(host: str) -> bool:
    with contextlib.suppress(ValueError):
        there = ipaddress.ip_address(host)
        return there.is_link_local and there.version == _V6 and "%" not in host
    return False


def _sandboxed() -> Unsupported | None:
    """Return the error of a sandbox that allows no sockets of TCP, of which a lookup of a name says nothing."""
    try:
        sockets.new(socket.AF_INET, socket.SOCK_STREAM).close()
    except Unsupported as error:
        return error
    except OSError:
        pass
    return None


def _check_descriptors(error: Exception, where: Address) -> None:
    """Raise LimitReached if this process is out of descriptors: no other address would help."""
    if isinstance(error, OSError) and out_of_descriptors(error):
        raise from_os(error, operation="connect", peer=where.context) from None


def _check_path(path: str) -> None:
    """Raise AccessDenied if a path from a handle leads to another service of this user, which must not be greeted."""
    if os.path.lexists(path) and not address.is_ours(path):
        raise AccessDenied("it is not the socket of a Context of this user")


def _check_user(sock: socket.socket) -> None:
    """Raise AccessDenied if the socket's path belongs to another user by now."""
    if address.peer_uid(sock) != os.getuid():
        raise AccessDenied("the Unix socket belongs to another user")


async def unless_ended(conversation: Coroutine[Any, Any, _T], peer: str) -> _T:
    """Await a handshake; raise PeerLost if the peer hangs up meanwhile."""
    # There is no time limit here but that of the waiting operations: a silent peer may only be stopped for a while.
    try:
        return await conversation
    except ChannelEnded as ended:
        raise PeerLost(
            f"the peer hung up during the handshake: {ended}",
            fix="look at the log of the peer's process: it is closing, out of descriptors (ulimit -n), or in a sandbox",
            peer=peer,
            operation="connect",
        ) from None
