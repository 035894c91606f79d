"""Declares work requests: checked when they are made, and posted as often as you like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from zerohop._native import FabricReceive, FabricRequest
from zerohop.core.runtime.devices import HOST
from zerohop.fabric.memory import Access, LocalRange, RemoteMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerohop.fabric.memory import MemoryRegion

    Local = LocalRange | Sequence[LocalRange]
    Bytes = bytes | bytearray | memoryview

# Codes of verbs (enum ibv_wr_opcode, enum ibv_send_flags).
_WRITE, _WRITE_IMM, _SEND, _SEND_IMM, _READ, _SWAP, _ADD = range(7)
_FENCE, _SIGNALED, _INLINE = 1, 2, 8
_ATOMIC_BYTES: Final = 8
# The specification's limit; the port's limit is checked when the request is posted.
_LONGEST: Final = 1 << 31
_32_BITS: Final = 0xFFFF_FFFF
_64_BITS: Final = 0xFFFF_FFFF_FFFF_FFFF


class SendRequest:
    """Holds a request for a send queue; the base of Write, Read, Send, FetchAdd and CompareSwap.

    Keeps the regions that it names alive.

    Attributes:
        wr_id: 64 bits of your choice, which the completion carries.
        nbytes: number of bytes that the request moves.
        signalled: whether a success gives a completion; a failure always does. On one queue pair, all requests before a
            request that has succeeded have succeeded, too.
        inline: whether the bytes are copied into the request when it is posted.
    """

    __slots__ = ("_native", "_regions", "_sge", "inline", "nbytes", "signalled", "wr_id")

    def __init__(
        self,
        opcode: int,
        pieces: tuple[LocalRange, ...],
        remote: RemoteMemory | None,
        wr_id: int,
        *,
        payload: bytes = b"",
        imm: int | None = None,
        operand: int = 0,
        compare: int = 0,
        inline: bool = False,
        signalled: bool = True,
        fence: bool = False,
    ) -> None:
        for name, flag in (("inline", inline), ("signalled", signalled), ("fence", fence)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be True or False, not {flag!r}")
        _check_unsigned("wr_id", wr_id, _64_BITS)
        if imm is not None:
            _check_unsigned("imm", imm, _32_BITS)
        self.wr_id = wr_id
        self.nbytes = len(payload) + sum(piece.length for piece in pieces)
        self.signalled = signalled
        self.inline = inline
        _check_length(self.nbytes)
        if remote is not None:
            if not isinstance(remote, RemoteMemory):
                raise TypeError(f"the remote side is a RemoteMemory, not {type(remote).__name__}")
            if remote.length != self.nbytes:
                raise ValueError(
                    f"{self.nbytes} bytes here and {remote.length} there; slice the longer one: remote[:{self.nbytes}]"
                )
        self._regions: tuple[MemoryRegion, ...] = tuple(piece.region for piece in pieces)
        self._sge = len(pieces)
        self._native = FabricRequest(
            id=wr_id,
            opcode=opcode,
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.nbytes} bytes, wr_id {self.wr_id})"


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

    def __init__(
        self,
        local: Local | Bytes,
        remote: RemoteMemory,
        *,
        wr_id: int = 0,
        imm: int | None = None,
        inline: bool = False,
        signalled: bool = True,
        fence: bool = False,
    ) -> None:
        _check_remote(remote)
        pieces, payload = _outgoing(local, inline=inline)
        opcode = _WRITE if imm is None else _WRITE_IMM
        super().__init__(
            opcode, pieces, remote, wr_id, payload=payload, imm=imm, inline=inline, signalled=signalled, fence=fence
        )


class Send(SendRequest):
    """Sends a message into the next receive that the peer has posted. Arguments and errors as for Write."""

    __slots__ = ()

    def __init__(
        self,
        local: Local | Bytes = (),
        *,
        wr_id: int = 0,
        imm: int | None = None,
        inline: bool = False,
        signalled: bool = True,
        fence: bool = False,
    ) -> None:
        pieces, payload = _outgoing(local, inline=inline)
        opcode = _SEND if imm is None else _SEND_IMM
        super().__init__(
            opcode, pieces, None, wr_id, payload=payload, imm=imm, inline=inline, signalled=signalled, fence=fence
        )


class Read(SendRequest):
    """Reads a peer's memory into local memory (RDMA read), which needs LOCAL_WRITE. Otherwise like Write."""

    __slots__ = ()

    def __init__(
        self, into: Local, remote: RemoteMemory, *, wr_id: int = 0, signalled: bool = True, fence: bool = False
    ) -> None:
        _check_remote(remote)
        super().__init__(_READ, _incoming(into), remote, wr_id, signalled=signalled, fence=fence)


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

    def __init__(
        self,
        into: Local,
        remote: RemoteMemory,
        add: int,
        *,
        wr_id: int = 0,
        signalled: bool = True,
        fence: bool = False,
    ) -> None:
        _check_unsigned("add", add, _64_BITS)
        _check_word(remote)
        super().__init__(_ADD, _incoming(into), remote, wr_id, operand=add, signalled=signalled, fence=fence)


class CompareSwap(SendRequest):
    """Replaces 8 bytes of a peer's memory by ``swap`` if they equal ``compare``; ``into`` receives the old value.

    Arguments, atomicity and errors as for FetchAdd.
    """

    __slots__ = ()

    def __init__(
        self,
        into: Local,
        remote: RemoteMemory,
        compare: int,
        swap: int,
        *,
        wr_id: int = 0,
        signalled: bool = True,
        fence: bool = False,
    ) -> None:
        _check_unsigned("compare", compare, _64_BITS)
        _check_unsigned("swap", swap, _64_BITS)
        _check_word(remote)
        super().__init__(
            _SWAP, _incoming(into), remote, wr_id, operand=swap, compare=compare, signalled=signalled, fence=fence
        )


class Receive:
    """Gives the memory for one message to a receive queue. Keeps the regions that it names alive.

    Args:
        into: a region, a slice, or several; none for a message without bytes, such as a write with ``imm``.
        wr_id: 64 bits of your choice, which the completion carries.

    Raises:
        TypeError: the memory is not registered, or an argument has the wrong type.
        ValueError: a region lacks LOCAL_WRITE, or an argument is out of range.
    """

    __slots__ = ("_native", "_regions", "_sge", "nbytes", "wr_id")

    def __init__(self, into: Local = (), *, wr_id: int = 0) -> None:
        pieces = _incoming(into)
        _check_unsigned("wr_id", wr_id, _64_BITS)
        self.wr_id = wr_id
        self.nbytes = sum(piece.length for piece in pieces)
        _check_length(self.nbytes)
        self._regions: tuple[MemoryRegion, ...] = tuple(piece.region for piece in pieces)
        self._sge = len(pieces)
        self._native = FabricReceive(id=wr_id, pieces=_native_pieces(pieces))

    def __repr__(self) -> str:
        return f"Receive({self.nbytes} bytes, wr_id {self.wr_id})"


def _check_unsigned(name: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 <= value <= most:
        raise ValueError(f"{name} must be from 0 to {most}, not {value}")


def _check_length(nbytes: int) -> None:
    if nbytes > _LONGEST:
        raise ValueError(f"{nbytes} bytes are more than the {_LONGEST} that a message may have; post several")


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
