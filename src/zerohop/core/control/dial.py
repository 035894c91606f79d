"""Connects to a peer: to its Unix socket if that is on this host and works, else by TCP."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING, Final

from zerohop.core.base.deadlines import wait_with_timeout
from zerohop.core.control import address
from zerohop.core.control.channel import Channel
from zerohop.core.runtime.control_thread import resolve
from zerohop.errors import AccessDenied, PeerLost, from_os, out_of_descriptors

if TYPE_CHECKING:
    from zerohop.core.control.address import Address
    from zerohop.core.runtime.control_thread import ControlThread

_CONNECT_S: Final = 5.0
_BACKLOG_PAUSE_S: Final = 0.005


async def open_channel(control: ControlThread, where: Address) -> Channel:
    """Connect to an address, by the Unix socket if that works.

    Raises:
        PeerLost: nobody answers, or this process is out of descriptors.
    """
    why_not = ""
    if where.socket_path and where.host_id in ("", address.host_id()):
        try:
            return await _open_unix(control, where.socket_path)
        except (OSError, AccessDenied) as error:
            _check_descriptors(error, where)
            why_not = f"nobody answers at {where.socket_path} ({error})"
    if where.listens:
        return await open_tcp(control, where)
    raise PeerLost(
        why_not or "the peer is on another host and does not listen on TCP",
        fix="is the peer still running?",
        peer=where.context,
        operation="connect",
    )


async def _open_unix(control: ControlThread, path: str) -> Channel:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.sockets.add(sock)
    try:
        sock.setblocking(False)
        deadline = time.monotonic() + _CONNECT_S
        while True:
            try:
                sock.connect(path)
                break
            except BlockingIOError:
                # The listener's backlog is full, and nothing tells this side when there is room again.
                if time.monotonic() > deadline:
                    raise TimeoutError("its backlog stays full") from None
                await asyncio.sleep(_BACKLOG_PAUSE_S)
        _check_user(sock)
        return Channel(sock)
    except BaseException:
        sock.close()
        raise


async def open_tcp(control: ControlThread, where: Address) -> Channel:
    """Connect to an address by TCP; raises what ``open_channel`` raises."""
    failure: OSError | None = None
    try:
        found = await resolve(where.host, where.port)
    except OSError as error:
        found, failure = [], error
    for family, kind, protocol, _, target in found:
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            control.sockets.add(sock)
            sock.setblocking(False)
            await wait_with_timeout(asyncio.get_running_loop().sock_connect(sock, target), _CONNECT_S)
            return Channel(sock)
        except TimeoutError:
            failure = TimeoutError("no answer")
        except OSError as error:
            _check_descriptors(error, where)
            failure = error
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        if sock is not None:
            sock.close()
    why = (failure.strerror or str(failure)) if failure is not None else "no address"
    raise PeerLost(
        f"nobody answers at {where.host}:{where.port}: {why}",
        fix="is the peer still running, and does it listen there?",
        peer=where.context,
        operation="connect",
    )


def _check_descriptors(error: Exception, where: Address) -> None:
    """Raise LimitReached if this process is out of descriptors: no other address would help."""
    if isinstance(error, OSError) and out_of_descriptors(error):
        raise from_os(error, operation="connect", peer=where.context) from None


def _check_user(sock: socket.socket) -> None:
    """Raise AccessDenied if the socket's path belongs to another user by now."""
    if address.peer_uid(sock) != os.getuid():
        raise AccessDenied("the Unix socket belongs to another user")
