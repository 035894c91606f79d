"""Makes the event loop of a control thread, which names each system call that a sandbox refuses."""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import socket
from typing import TypeAlias

from zerohop.core.base.sandbox import Selector, Socket, named_socket, naming
from zerohop.errors import Unsupported

# The device and the inode of a descriptor's file.
File: TypeAlias = tuple[int, int]


def file_of(fd: int) -> File | None:
    """Return what tells a descriptor's file from others, though not one epoll from another.

    (-1, -1): it is closed. None: a sandbox refuses the look.
    """
    try:
        info = os.fstat(fd)
    except OSError as error:
        return (-1, -1) if error.errno == errno.EBADF else None
    return info.st_dev, info.st_ino


class Loop(asyncio.SelectorEventLoop):
    """Wakes itself by a pair of Sockets. The plain ones say nothing when the system refuses to send.

    Attributes:
        ends: the pair: the end that the loop watches, and the one by which it is woken.
        refusal: the error of a wake-up that the system has refused; None if it has refused none.
    """

    ends: tuple[Socket, Socket]
    refusal: Unsupported | None = None

    def _make_self_pipe(self) -> None:
        try:
            super()._make_self_pipe()  # type: ignore[misc] # not in its stub: the event loop's own
            for end in ("_ssock", "_csock"):
                setattr(self, end, named_socket(getattr(self, end)))
        except BaseException:
            # The destructor of a loop that is not closed would miss what was not made.
            self._closed = True
            raise
        self.ends = self._ssock, self._csock  # type: ignore[attr-defined] # as above

    def _write_to_self(self) -> None:
        try:
            super()._write_to_self()  # type: ignore[misc] # as above
        except Unsupported as error:
            self.refusal = error

    def wake_by_closing(self) -> None:
        """Wake the loop for the last time, where it can be woken in no other way: the end of a stream is readable."""
        self.ends[1].close()


def new_loop() -> tuple[Loop, Selector]:
    """Make an event loop; return it and its selector.

    Raises:
        Unsupported: the system refuses a call that the loop needs.
        OSError: there are too few descriptors for one.
    """
    with naming("epoll_create1"):
        selector = Selector()
    try:
        _try_calls(selector)
        return Loop(selector), selector
    except BaseException:
        selector.close()
        raise


def _try_calls(selector: selectors.BaseSelector) -> None:
    """Make the calls by which another thread wakes a loop, because a loop that is refused one sleeps or spins.

    The loop's constructor makes a socket pair, too, and leaks the selector if that fails.
    """
    with naming("socketpair"):
        ours, theirs = map(named_socket, socket.socketpair())
    with ours, theirs:
        selector.register(ours, selectors.EVENT_READ)
        theirs.send(b"\0")
        selector.select(0)
        ours.recv(1)
        selector.unregister(ours)
