"""Declares the methods of Context that move bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop._native import Transfers, begin_posting
from zerohop.core.base.resource import AsyncCloseable
from zerohop.core.runtime.native_operation import InFlight
from zerohop.core.runtime.operation import Finished
from zerohop.core.transfers import many, ranges, transfer
from zerohop.core.transfers.connection import receive
from zerohop.core.transfers.posting import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerohop.core.lifecycle import Core
    from zerohop.core.memory.register import Local
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.runtime.explanation import Explanation
    from zerohop.core.runtime.operation import Operation
    from zerohop.core.runtime.streams import Stream
    from zerohop.core.transfers.connection import Connection, Received
    from zerohop.core.transfers.transfer import Pages


class ContextTransfers(AsyncCloseable, Transfers):
    """Adds writes, reads, page lists, atomics, notifications and flush to Context.

    ``write``, ``write_many`` and ``read`` are native, and documented in native/bind/transfers.cpp.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        core.posters[id(self)] = self
        long_way = _write, _write_many, _read
        begin_posting(self, core.engine, core, InFlight, Finished, prepare, *long_way, core.timeout_ns)

    def write_nowait(
        self,
        src: Local,
        dst: RemoteBuffer,
        *,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Write like ``write``, but post nothing and raise WouldBlock if the lane is full or not ready yet."""
        return transfer.transfer(self._core, "write", src, dst, notify, timeout, message=message, nowait=True)

    def read_nowait(
        self,
        src: RemoteBuffer,
        into: Local,
        *,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Read like ``read``, but post nothing and raise WouldBlock if the lane is full or not ready yet."""
        return transfer.transfer(self._core, "read", into, src, notify, timeout, message=message, nowait=True)

    def write_pages(
        self,
        src: Local,
        dst: RemoteBuffer,
        src_pages: Pages,
        dst_pages: Pages,
        *,
        page_bytes: int,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
        stream: Stream | None = None,
    ) -> Operation[int]:
        """Write page ``src_pages[i]`` of ``src`` to page ``dst_pages[i]`` of ``dst``, for all i, as one Operation.

        Page n of a range is its bytes ``n * page_bytes`` to ``(n + 1) * page_bytes``. The pages have no order among
        each other: a page of ``dst`` that is named twice holds bytes of either, or a mixture. ``notify`` comes after
        all of them. The index arrays may be reused when the call returns.
        Done and errors as for ``write``; pages outside the remote range are AccessDenied, from the Operation.

        Args:
            src: memory here; the lengths of ``src`` and ``dst`` need not be equal.
            dst: memory there.
            src_pages: one-dimensional array of integers.
            dst_pages: an array like ``src_pages``, and as long.
            page_bytes: length of a page, at least 1.
            notify: as for ``write``.
            message: as for ``write``.
            timeout: as for ``write``.
            stream: as for ``write``.
        """
        return transfer.transfer_pages(
            self._core,
            "write_pages",
            src,
            dst,
            src_pages,
            dst_pages,
            page_bytes,
            notify,
            timeout,
            message=message,
            stream=stream,
        )

    def write_pages_nowait(
        self,
        src: Local,
        dst: RemoteBuffer,
        src_pages: Pages,
        dst_pages: Pages,
        *,
        page_bytes: int,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Write pages like ``write_pages``, but post nothing and raise WouldBlock if the lane is full or not ready."""
        return transfer.transfer_pages(
            self._core,
            "write_pages",
            src,
            dst,
            src_pages,
            dst_pages,
            page_bytes,
            notify,
            timeout,
            message=message,
            nowait=True,
        )

    def read_pages(
        self,
        src: RemoteBuffer,
        into: Local,
        src_pages: Pages,
        dst_pages: Pages,
        *,
        page_bytes: int,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
        stream: Stream | None = None,
    ) -> Operation[int]:
        """Read page ``src_pages[i]`` of ``src`` into page ``dst_pages[i]`` of ``into``, for all i; see write_pages.

        ``notify`` and ``message`` are as for ``read``.
        """
        return transfer.transfer_pages(
            self._core,
            "read_pages",
            into,
            src,
            dst_pages,
            src_pages,
            page_bytes,
            notify,
            timeout,
            message=message,
            stream=stream,
        )

    def read_pages_nowait(
        self,
        src: RemoteBuffer,
        into: Local,
        src_pages: Pages,
        dst_pages: Pages,
        *,
        page_bytes: int,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Read pages like ``read_pages``, but post nothing and raise WouldBlock if the lane is full or not ready."""
        return transfer.transfer_pages(
            self._core,
            "read_pages",
            into,
            src,
            dst_pages,
            src_pages,
            page_bytes,
            notify,
            timeout,
            message=message,
            nowait=True,
        )

    def write_list(
        self,
        src: Local,
        dst: RemoteBuffer,
        src_offsets: Pages,
        dst_offsets: Pages,
        lengths: Pages,
        *,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
        stream: Stream | None = None,
    ) -> Operation[int]:
        """Write ``lengths[i]`` bytes at ``src_offsets[i]`` of ``src`` to ``dst_offsets[i]`` of ``dst``, for all i.

        They are one Operation. The value is the sum of the lengths, of which some may be 0. The ranges have no order
        among each other: bytes of ``dst`` that two of them name are those of either, or a mixture. Ranges that follow
        each other on both sides move as one. ``notify`` comes after all of them. The arrays may be reused when the call
        returns.
        Done and errors as for ``write``; ranges outside of the remote one are AccessDenied, from the Operation.

        Args:
            src: memory here; the lengths of ``src`` and ``dst`` need not be equal.
            dst: memory there.
            src_offsets: one-dimensional array of integers, in bytes.
            dst_offsets: an array like ``src_offsets``, and as long.
            lengths: an array like ``src_offsets``, and as long, in bytes.
            notify: as for ``write``.
            message: as for ``write``.
            timeout: as for ``write``.
            stream: as for ``write``.
        """
        return ranges.transfer_list(
            self._core,
            "write_list",
            src,
            dst,
            src_offsets,
            dst_offsets,
            lengths,
            notify,
            timeout,
            message=message,
            stream=stream,
        )

    def read_list(
        self,
        src: RemoteBuffer,
        into: Local,
        src_offsets: Pages,
        dst_offsets: Pages,
        lengths: Pages,
        *,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
        stream: Stream | None = None,
    ) -> Operation[int]:
        """Read ``lengths[i]`` bytes at ``src_offsets[i]`` of ``src`` to ``dst_offsets[i]`` of ``into``; see write_list.

        ``notify`` and ``message`` are as for ``read``.
        """
        return ranges.transfer_list(
            self._core,
            "read_list",
            into,
            src,
            dst_offsets,
            src_offsets,
            lengths,
            notify,
            timeout,
            message=message,
            stream=stream,
        )

    def read_many(
        self,
        pairs: Sequence[tuple[RemoteBuffer, Local]],
        *,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Read each remote range into its memory here, all of them as one Operation; value: bytes moved.

        Many small reads cost a fraction of as many calls of ``read``, where they go from one handle to one Memory: they
        then are one request. Where one fails, the content of all is undefined.

        Args:
            pairs: a list of ``(src, into)``, each as for ``read``.
            notify: as for ``read``; it comes after all of them, with the sum of their bytes.
            message: as for ``write``.
            timeout: as for ``write``, of all together.

        Raises:
            ValueError, TypeError, Closed: as for ``read``, with nothing posted.
        """
        return many.transfer_many(self._core, "read_many", pairs, notify, timeout, message=message)

    def fetch_add(
        self, dst: RemoteBuffer, value: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Add to the 8 bytes at ``offset``, an unsigned integer in the target's byte order that wraps around.

        The Operation's value is the number that was there before. The addition is atomic against operations of the same
        provider on the same memory, and only those. It needs both rights.

        Raises:
            ValueError: not within ``dst``, or not aligned to 8 bytes. Other errors are those of ``write``.
        """
        return transfer.atomic(self._core, "fetch_add", dst, value, 0, offset, timeout)

    def fetch_add_nowait(
        self, dst: RemoteBuffer, value: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Add like ``fetch_add``, but post nothing and raise WouldBlock if the lane is full or not ready yet."""
        return transfer.atomic(self._core, "fetch_add", dst, value, 0, offset, timeout, nowait=True)

    def compare_swap(
        self, dst: RemoteBuffer, compare: int, swap: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Put ``swap`` into the 8 bytes at ``offset`` if they are ``compare``; value: the number there before.

        The swap was done if the value equals ``compare``. Atomicity and errors are those of ``fetch_add``.
        """
        return transfer.atomic(self._core, "compare_swap", dst, swap, compare, offset, timeout)

    def compare_swap_nowait(
        self, dst: RemoteBuffer, compare: int, swap: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Swap like ``compare_swap``, but post nothing and raise WouldBlock if the lane is full or not ready yet."""
        return transfer.atomic(self._core, "compare_swap", dst, swap, compare, offset, timeout, nowait=True)

    def notify(
        self,
        target: Connection | RemoteBuffer,
        value: int,
        *,
        message: bytes | None = None,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Give a peer, or the owner of a handle, a notification without data; value: 0.

        ``message`` and errors are as for ``write``.
        """
        return transfer.notify_peer(self._core, target, value, timeout, message=message)

    def notify_nowait(
        self,
        target: Connection | RemoteBuffer,
        value: int,
        *,
        message: bytes | None = None,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Notify like ``notify``, but post nothing and raise WouldBlock if the lane is full or not ready yet."""
        return transfer.notify_peer(self._core, target, value, timeout, message=message, nowait=True)

    def recv(self, into: Local, *, timeout: float | None = None) -> Operation[Received]:
        """Receive the next message of any peer; value: its length, and the Connection by which it came.

        Messages of one peer come in the order in which they were sent; ``Connection.recv`` of that peer goes first. One
        that is longer than ``into`` fails this Operation. If the peer is lost in the middle of its message, PeerLost.

        Args:
            into: a Memory, a View, or any object that ``register`` takes.
            timeout: seconds, for the operation; None: none, it waits until a message comes.

        Raises:
            TypeError, ValueError, Closed: at once. Everything else comes from the Operation.
        """
        return receive(self._core, into, timeout)

    def flush(self, connection: Connection | None = None, *, timeout: float | None = None) -> Operation[int]:
        """Flush: done when all that was posted before, to one peer or to all, is visible there; value: 0."""
        return transfer.flush(self._core, connection, timeout)

    def explain(self, local: Local, remote: RemoteBuffer, *, timeout: float | None = None) -> Explanation:
        """Explain which path transfers between two memories take, and why no other; connect first if needed, and wait.

        Raises:
            Unsupported: there is no path; the reason names every candidate. Other errors are those of ``write``.
        """
        return transfer.explain(self._core, local, remote, timeout)


def core_of(context: ContextTransfers) -> Core:
    """Return the core of a Context, for face.py."""
    return context._core


# The native methods call these functions if they posted nothing themselves: on a first use, on a full lane, or for
# memory that is not registered yet.


def _write(
    self: ContextTransfers,
    src: Local,
    dst: RemoteBuffer,
    *,
    notify: int | None = None,
    message: bytes | None = None,
    timeout: float | None = None,
    stream: Stream | None = None,
) -> Operation[int]:
    return transfer.transfer(self._core, "write", src, dst, notify, timeout, message=message, stream=stream)


def _read(
    self: ContextTransfers,
    src: RemoteBuffer,
    into: Local,
    *,
    notify: int | None = None,
    message: bytes | None = None,
    timeout: float | None = None,
    stream: Stream | None = None,
) -> Operation[int]:
    return transfer.transfer(self._core, "read", into, src, notify, timeout, message=message, stream=stream)


def _write_many(
    self: ContextTransfers,
    pairs: Sequence[tuple[Local, RemoteBuffer]],
    *,
    notify: int | None = None,
    message: bytes | None = None,
    timeout: float | None = None,
) -> Operation[int]:
    return many.transfer_many(self._core, "write_many", pairs, notify, timeout, message=message)


# Errors of wrong arguments name the methods by which users know these.
for _function, _name in ((_write, "write"), (_read, "read"), (_write_many, "write_many")):
    _function.__qualname__ = f"Context.{_name}"
