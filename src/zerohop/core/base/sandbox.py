"""Names the system calls that a sandbox refuses to this process.

They are named where they are made, because the system's own error does not say which call it was.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from zerohop.errors import NO_MEMORY, OUT_OF_WATCHES, from_native, named, of_sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

_REFUSALS: Final = (errno.EPERM, errno.EACCES, errno.ENOSYS)


@contextmanager
def naming(call: str, operation: str = "open", *, addressed: bool = False) -> Iterator[None]:
    """Raise Unsupported, with the name of the call that the block makes, if the system refuses it as such.

    ``addressed``: the call has an address, to which alone permission (EACCES) may be missing. Also a decorator.
    """
    try:
        yield
    except OSError as error:
        if addressed and error.errno == errno.EACCES:
            raise
        raise of_sandbox(error, call, operation=operation) or error from None


@contextmanager
def unless_refused() -> Iterator[None]:
    """Do the block, which closes something. Where the system refuses that it stays open: nobody could do better."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise


def close(fd: int) -> None:
    """Close a descriptor, unless the system refuses it."""
    with unless_refused():
        os.close(fd)


def random_bytes(length: int) -> bytes:
    """Return bytes that nobody can guess."""
    try:  # not by `naming`, which takes more calls than all else that a share needs
        return os.urandom(length)
    except OSError as error:
        raise of_sandbox(error, "getrandom", operation="") or error from None


class Socket(socket.socket):
    """Raises Unsupported, with the name of the system call, where the system refuses the call to this process."""

    bind = naming("bind", "", addressed=True)(socket.socket.bind)
    close = unless_refused()(socket.socket.close)
    connect = naming("connect", "", addressed=True)(socket.socket.connect)
    getpeername = naming("getpeername", "")(socket.socket.getpeername)
    getsockname = naming("getsockname", "")(socket.socket.getsockname)
    getsockopt = naming("getsockopt", "")(socket.socket.getsockopt)
    listen = naming("listen", "")(socket.socket.listen)
    recv = naming("recvfrom", "")(socket.socket.recv)
    recvmsg = naming("recvmsg", "")(socket.socket.recvmsg)
    send = naming("sendto", "")(socket.socket.send)
    sendmsg = naming("sendmsg", "")(socket.socket.sendmsg)
    setblocking = naming("ioctl", "")(socket.socket.setblocking)
    setsockopt = naming("setsockopt", "")(socket.socket.setsockopt)


def named_socket(sock: socket.socket) -> Socket:
    """Return a Socket, non-blocking, in the place of a socket that the standard library has made."""
    named = Socket(sock.family, sock.type, sock.proto, sock.detach())
    try:
        named.setblocking(False)  # the program may have set another default
    except BaseException:
        named.close()
        raise
    return named


@contextmanager
def _watching() -> Iterator[None]:
    """Raise the library's errors where the block cannot watch another descriptor."""
    try:
        with naming("epoll_ctl", ""):
            yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise from_native(NO_MEMORY, OUT_OF_WATCHES, f"epoll_ctl: {error.strerror}") from None
        raise named(error) from None


# gevent removes it where it has patched the process, and says so when a Context is opened (frameworks.py).
_Epoll: Final = getattr(selectors, "EpollSelector", selectors.SelectSelector)


class Selector(_Epoll):  # type: ignore[misc,valid-type]  # a base that is chosen at run time
    """Raises Unsupported, as Socket does, and LimitReached or RegistrationFailed where there is no room."""

    close = unless_refused()(_Epoll.close)
    modify = _watching()(_Epoll.modify)
    register = _watching()(_Epoll.register)
    select = naming("epoll_wait", "")(_Epoll.select)
