"""Declares work requests, checked when they are made and posted as often as you like, and the queues they go to."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar

from zerohop._native import FabricReceive, FabricRequest, NativeError
from zerohop.config.checks import check_flag, check_int
from zerohop.core.runtime.devices import HOST
from zerohop.fabric.completions import translate
from zerohop.fabric.memory import Access, LocalRange, RemoteMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Unpack

    from zerohop.fabric.devices import OpenedDevice
    from zerohop.fabric.memory import MemoryRegion

    Local = LocalRange | Sequence[LocalRange]
    Bytes = bytes | bytearray | memoryview

# FabricRequest or FabricReceive: the form that native code takes.
Native = TypeVar("Native")

# Codes of verbs (enum ibv_wr_opcode, enum ibv_send_flags).
_WRITE, _WRITE_IMM, _SEND, _SEND_IMM, _READ, _SWAP, _ADD = range(7)
_WITH_IMM: Final = {_WRITE: _WRITE_IMM, _SEND: _SEND_IMM}
_FENCE, _SIGNALED, _INLINE = 1, 2, 8
_ATOMIC_BYTES: Final = 8
# The specification's limit; the port's limit is checked when the request is posted.
_LONGEST: Final = 1 << 31
_32_BITS: Final = 0xFFFF_FFFF
_64_BITS: Final = 0xFFFF_FFFF_FFFF_FFFF


class RequestOptions(TypedDict, total=False):
    """Declares the arguments that all requests for a send queue take; Write and FetchAdd describe them."""

    wr_id: int
    signalled: bool
    fence: bool


class MessageOptions(RequestOptions, total=False):
    """Declares the arguments of Write and Send beside their memory; Write describes them."""

    imm: int | None
    inline: bool


class WorkRequest(Generic[Native]):
    """Holds a request for one of an endpoint's queues, and keeps the regions that it names alive.

    Attributes:
        wr_id: 64 bits of your choice, which the completion carries.
        nbytes: number of bytes that the request moves.
    """

    __slots__ = ("_native", "_regions", "nbytes", "wr_id")

    _native: Native

    def __init__(self, pieces: tuple[LocalRange, ...], wr_id: int, payload: bytes = b"") -> None:
        check_int("wr_id", wr_id, 0, _64_BITS)
        self.wr_id = wr_id
        self.nbytes = len(payload) + sum(piece.length for piece in pieces)
        if self.nbytes > _LONGEST:
            raise ValueError(f"{self.nbytes} bytes are more than the {_LONGEST} that a message may have; post several")
        self._regions: tuple[MemoryRegion, ...] = tuple(piece.region for piece in pieces)

    def _check_for(self, device: OpenedDevice, max_sge: int) -> None:
        """Raise ValueError or Closed if an endpoint of a device, with its largest number of ranges, cannot post it."""
        for region in self._regions:
            region._check_open()
            if region._device_context is not device:
                raise ValueError("the memory was registered with another device context, whose keys mean nothing here")
        if len(self._regions) > max_sge:
            raise ValueError(f"{len(self._regions)} local ranges are more than the max_sge={max_sge} of one request")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.nbytes} bytes, wr_id {self.wr_id})"


class Queue(Generic[Native]):
    """Posts requests to one of an endpoint's two queues, and keeps their regions alive until they have completed.

    The caller holds the endpoint's lock.
    """

    def __init__(self, operation: str, post: Callable[[list[Native]], None], taken: Callable[[], int]) -> None:
        """Take the operation that errors name, what posts a chain, and what counts the places taken in the queue."""
        self._operation = operation
        self._post = post
        self._taken = taken
        self._regions: deque[tuple[MemoryRegion, ...]] = deque()

    def post(self, requests: Sequence[WorkRequest[Native]]) -> None:
        """Post a chain of requests; the errors are those of the endpoint's calls."""
        # Added before posting, so that the memory is kept alive at all times.
        self._regions.extend(request._regions for request in requests)
        try:
            self._post([request._native for request in requests])
        except NativeError as error:
            raise translate(error, self._operation) from None
        finally:
            # What was refused was added last.
            while len(self._regions) > self._taken():
                self._regions.pop()

    def drop_completed(self) -> None:
        """Drop the regions of requests whose completions have been polled."""
        while len(self._regions) > self._taken():
            self._regions.popleft()

    def clear(self) -> None:
        """Drop all regions, once the queue pair is gone."""
        self._regions.clear()


class SendRequest(WorkRequest[FabricRequest]):
    """Holds a request for a send queue; the base of Write, Read, Send, FetchAdd and CompareSwap.

    Keeps the regions that it names alive.

    Attributes:
        wr_id, nbytes: see WorkRequest.
        signalled: whether a success gives a completion; a failure always does. On one queue pair, all requests before a
            request that has succeeded have succeeded, too.
        inline: whether the bytes are copied into the request when it is posted.
    """

    __slots__ = ("inline", "signalled")

    def __init__(
        self,
        opcode: int,
        pieces: tuple[LocalRange, ...],
        payload: bytes,
        remote: RemoteMemory | None,
        operand: int = 0,
        compare: int = 0,
        /,
        *,
        wr_id: int = 0,
        imm: int | None = None,
        inline: bool = False,
        signalled: bool = True,
        fence: bool = False,
    ) -> None:
        for name, flag in (("inline", inline), ("signalled", signalled), ("fence", fence)):
            check_flag(name, flag)
        if opcode not in _WITH_IMM and (inline or imm is not None):
            raise TypeError(f"{type(self).__name__} takes neither imm nor inline")
        if imm is not None:
            check_int("imm", imm, 0, _32_BITS)
        super().__init__(pieces, wr_id, payload)
        self.signalled = signalled
        self.inline = inline
        if remote is not None and remote.length != self.nbytes:
            raise ValueError(
                f"{self.nbytes} bytes here and {remote.length} there; slice the longer one: remote[:{self.nbytes}]"
            )
        self._native = FabricRequest(
            id=wr_id,
            opcode=opcode if imm is None else _WITH_IMM[opcode],
            flags=_FENCE * fence | _SIGNALED * signalled | _INLINE * inline,
            immediate=imm or 0,
            remote_address=remote.addr if remote is not None else 0,
            remote_key=remote.rkey if remote is not None else 0,
            operand=operand,
            compare=compare,
            pieces=_native_pieces(pieces),
            payload=payload,
            nbytes=self.nbytes,
        )


class Write(SendRequest):
    """Writes local memory to a peer's memory (RDMA write). The peer does not notice, unless ``imm`` is given.

    Args:
        local: a region, a slice, or several of them, one after the other; with ``inline`` also any bytes.
        remote: the destination, of the same length.
        wr_id: 64 bits of your choice, which the completion carries.
        imm: 32 bits for the peer. They use up one of its receives, which completes when the data is there.
        inline: copy the bytes into the request, so that you may reuse them once it is posted. Host memory only.
        signalled: give a completion for a success, too.
        fence: begin after all reads and atomics that were posted before are done.

    Raises:
        TypeError: the memory is not registered, or an argument has the wrong type.
        ValueError: the lengths differ, or an argument is out of range.
    """

    __slots__ = ()

    def __init__(self, local: Local | Bytes, remote: RemoteMemory, **options: Unpack[MessageOptions]) -> None:
        _check_remote(remote)
        super().__init__(_WRITE, *_outgoing(local, inline=options.get("inline", False)), remote, **options)


class Send(SendRequest):
    """Sends a message into the next receive that the peer has posted. Arguments and errors as for Write."""

    __slots__ = ()

    def __init__(self, local: Local | Bytes = (), **options: Unpack[MessageOptions]) -> None:
        super().__init__(_SEND, *_outgoing(local, inline=options.get("inline", False)), None, **options)


class Read(SendRequest):
    """Reads a peer's memory into local memory (RDMA read), which needs LOCAL_WRITE. Otherwise like Write."""

    __slots__ = ()

    def __init__(self, into: Local, remote: RemoteMemory, **options: Unpack[RequestOptions]) -> None:
        _check_remote(remote)
        super().__init__(_READ, _incoming(into), b"", remote, **options)


class FetchAdd(SendRequest):
    """Adds to an unsigned 8-byte integer in a peer's memory, which wraps around.

    Atomic against atomics of the same device, and also against the CPU if the device's limits say ``"global"``.

    Args:
        into: 8 bytes, which receive the old value, in this machine's byte order.
        remote: 8 bytes, at a multiple of 8.
        add: the summand, 64 bits.
        wr_id: 64 bits of your choice, which the completion carries.
        signalled: give a completion for a success, too.
        fence: begin after all reads and atomics that were posted before are done.

    Raises:
        TypeError, ValueError: as for Read; also if ``remote`` has not 8 bytes, or is not aligned to them.
    """

    __slots__ = ()

    def __init__(self, into: Local, remote: RemoteMemory, add: int, **options: Unpack[RequestOptions]) -> None:
        check_int("add", add, 0, _64_BITS)
        _check_word(remote)
        super().__init__(_ADD, _incoming(into), b"", remote, add, **options)


class CompareSwap(SendRequest):
    """Replaces 8 bytes of a peer's memory by ``swap`` if they equal ``compare``; ``into`` receives the old value.

    Arguments, atomicity and errors as for FetchAdd.
    """

    __slots__ = ()

    def __init__(
        self, into: Local, remote: RemoteMemory, compare: int, swap: int, **options: Unpack[RequestOptions]
    ) -> None:
        check_int("compare", compare, 0, _64_BITS)
        check_int("swap", swap, 0, _64_BITS)
        _check_word(remote)
        super().__init__(_SWAP, _incoming(into), b"", remote, swap, compare, **options)


class Receive(WorkRequest[FabricReceive]):
    """Gives the memory for one message to a receive queue. Keeps the regions that it names alive.

    Args:
        into: a region, a slice, or several; none for a message without bytes, such as a write with ``imm``.
        wr_id: 64 bits of your choice, which the completion carries.

    Raises:
        TypeError: the memory is not registered, or an argument has the wrong type.
        ValueError: a region lacks LOCAL_WRITE, or an argument is out of range.
    """

    __slots__ = ()

    def __init__(self, into: Local = (), *, wr_id: int = 0) -> None:
        pieces = _incoming(into)
        super().__init__(pieces, wr_id)
        self._native = FabricReceive(id=wr_id, pieces=_native_pieces(pieces))


def _check_remote(remote: object) -> None:
    if not isinstance(remote, RemoteMemory):
        raise TypeError(f"the remote side is a RemoteMemory, not {type(remote).__name__}; region.remote() gives one")


def _check_word(remote: RemoteMemory) -> None:
    _check_remote(remote)
    if remote.length != _ATOMIC_BYTES or remote.addr % _ATOMIC_BYTES:
        raise ValueError(f"an atomic is on 8 bytes at a multiple of 8, not {remote.length} at {remote.addr:#x}")


def _ranges(local: Any) -> tuple[LocalRange, ...]:
    """Return the ranges of a request's local argument, without empty ones: to a device, length 0 may mean 2 GiB."""
    pieces = (local,) if isinstance(local, LocalRange) else local
    if not isinstance(pieces, (tuple, list)):
        raise TypeError(f"local memory is a MemoryRegion or a slice of one, not {type(local).__name__}; register it")
    for piece in pieces:
        if not isinstance(piece, LocalRange):
            raise TypeError(f"local memory is a MemoryRegion or a slice of one, not {type(piece).__name__}")
    return tuple(piece for piece in pieces if piece.length)


def _outgoing(local: Any, *, inline: bool) -> tuple[tuple[LocalRange, ...], bytes]:
    if not isinstance(local, (LocalRange, tuple, list)):
        try:
            view = memoryview(local)
        except TypeError:
            raise TypeError(f"{type(local).__name__} is no registered memory, and no bytes either") from None
        if not inline:
            raise TypeError(f"{type(local).__name__} is not registered; register it, or send it with inline=True")
        return (), view.tobytes()
    pieces = _ranges(local)
    if inline and any(piece.device != HOST for piece in pieces):
        raise ValueError("the CPU copies inline bytes, and cannot touch the memory of an accelerator")
    return pieces, b""


def _incoming(into: Any) -> tuple[LocalRange, ...]:
    pieces = _ranges(into)
    if not all(Access.LOCAL_WRITE in piece.access for piece in pieces):
        raise ValueError("the region was registered without LOCAL_WRITE, so that nothing can be written to it")
    return pieces


def _native_pieces(pieces: tuple[LocalRange, ...]) -> list[tuple[int, int, int]]:
    return [(piece.addr, piece.length, piece.lkey) for piece in pieces]
