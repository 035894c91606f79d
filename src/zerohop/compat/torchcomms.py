"""Offers torchcomms' RdmaTransport, with its names, signatures and return codes, on `zerohop.Transport`.

Write ``from zerohop.compat.torchcomms import RdmaMemory, RdmaTransport`` in place of
``from torchcomms._transport import …``. Memory may be all that `Context.register` takes, and a device all that
`Transport` takes, the host too. All use one Context per process, with the environment's settings. docs/torchcomms.md
lists the differences.
"""

from __future__ import annotations

import base64
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from zerohop.compat.process import shared_context
from zerohop.config.checks import as_int, check_int
from zerohop.core.memory.access import close_in_destructor
from zerohop.core.memory.remote_buffer import RemoteBuffer
from zerohop.errors import Closed, DeadlineExceeded, ZerohopError
from zerohop.shown import shown
from zerohop.transport.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.runtime.operation import Operation

# Numbers of torchcomms' commResult_t.
COMM_SUCCESS: Final = 0
COMM_INTERNAL_ERROR: Final = 3
COMM_TIMEOUT: Final = 8
COMM_USER_ABORT: Final = 9


@dataclass(frozen=True)
class RdmaRemoteBuffer:
    """Names a range of the peer's memory. A plain value, picklable with every protocol.

    Make a part of ``b``, a result of `to_remote_buffer`, with ``RdmaRemoteBuffer(b.ptr + n, m, b.access_key)``. Use of
    a part that reaches beyond ``b`` raises ValueError.

    Attributes:
        ptr: address of the first byte, in its owner's process.
        len: number of bytes.
        access_key: gives access to the memory to all who have it.
    """

    ptr: int
    len: int
    access_key: str = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ptr, self.len, self.access_key)


class RdmaMemoryView:
    """Names a range of an RdmaMemory to write from. Keeps the memory alive."""

    def __init__(self, memory: RdmaMemory, view: View) -> None:
        self._memory = memory
        self._view = view

    def size(self) -> int:
        """Return the number of bytes."""
        return self._view.nbytes


class RdmaMemoryMutableView(RdmaMemoryView):
    """Names a range of an RdmaMemory to read into. Keeps the memory alive."""


def _has_gaps(tensor: Any) -> bool:
    """Tell whether an object is a tensor of torch, in one range but for gaps or the order of its axes."""
    try:
        return str(tensor.layout) == "torch.strided" and not tensor.is_contiguous()
    except (AttributeError, RuntimeError):  # no tensor; or one of several ranges, of which `register` says what to do
        return False


class RdmaMemory:
    """Registers a tensor, or another single object that ``Context.register`` takes, and keeps it alive.

    Once it and its views are dropped, its remote buffers give no access any more.
    """

    def __init__(self, tensor: Any, cache_reg: bool = False) -> None:
        """Register; errors as for ``Context.register``. ``cache_reg`` has no effect: registrations are always kept."""
        del cache_reg
        if isinstance(tensor, list):
            raise TypeError("a list has no memory of its own. Fix: make an RdmaMemory of each of its tensors")
        # As torchcomms does. The Context would take a tensor with permuted axes as bytes, by an argument unknown here.
        if _has_gaps(tensor):
            raise ValueError("the tensor is not contiguous. Fix: pass tensor.contiguous()")
        self._memory: Memory = shared_context().register(tensor)

    def to_view(self, offset: int | None = None, length: int | None = None) -> RdmaMemoryView:
        """Return ``length`` bytes from ``offset`` on, or all the rest; ValueError outside the memory."""
        return RdmaMemoryView(self, self._memory.view(offset or 0, length, readonly=True))

    def to_mutable_view(self, offset: int | None = None, length: int | None = None) -> RdmaMemoryMutableView:
        """Return a view like ``to_view``, to read into."""
        return RdmaMemoryMutableView(self, self._memory.view(offset or 0, length))

    def to_remote_buffer(self) -> RdmaRemoteBuffer:
        """Return the whole memory, as a value for the peer."""
        key = base64.b64encode(self._memory.remote_key()).decode()
        return RdmaRemoteBuffer(self._memory.address, self._memory.nbytes, f"{self._memory.address:x}:{key}")

    def reused_registration(self) -> bool:
        """Tell whether the memory had been registered before."""
        return self._memory.reused_registration

    def __del__(self) -> None:
        # __init__ may have raised.
        if "_memory" in self.__dict__:
            close_in_destructor(self._memory)


class RdmaTransport:
    """Joins one end of a pair. Dropping it ends the waits of other threads with COMM_USER_ABORT."""

    def __init__(self, device: Any) -> None:
        """Make an end; ``device`` is a ``torch.device``, or what else `Transport` takes, with the same errors."""
        self._transport = Transport(device, ctx=shared_context())

    @staticmethod
    def supported() -> bool:
        """Tell whether transports can be made here; ``zerohop doctor`` says what keeps them from being fast."""
        try:
            shared_context()
        except (ZerohopError, ValueError):
            return False
        return True

    def bind(self) -> bytes:
        """Return the URL for the peer's `connect`. Errors as for ``Transport.bind``."""
        return self._transport.bind().encode()

    def connect(self, peer_url: bytes) -> int:
        """Return COMM_SUCCESS once both sides know each other; a call on one side suffices.

        Raises:
            TypeError, ValueError: ``peer_url`` is no result of the peer's `bind`.
            ZerohopError: as for ``Transport.connect``.
        """
        if not isinstance(peer_url, bytes):
            raise TypeError(f"a peer's URL is bytes, not {type(peer_url).__name__}")
        self._transport.connect(peer_url.decode(errors="replace")).result()
        return COMM_SUCCESS

    def connected(self) -> bool:
        """Tell whether the transport is connected, as ``Transport.connected``."""
        return self._transport.connected()

    def write(self, local_buffer: RdmaMemoryView, remote_buffer: RdmaRemoteBuffer) -> int:
        """Write all of ``local_buffer`` to the beginning of ``remote_buffer``, and return the outcome at the end.

        Returns:
            COMM_SUCCESS; COMM_TIMEOUT after ``ZEROHOP_TIMEOUT`` seconds; COMM_USER_ABORT if this transport was closed
            meanwhile; COMM_INTERNAL_ERROR for any other failure, such as a peer that is gone.

        Raises:
            ValueError: the remote buffer is shorter, not the peer's, or not within the memory that it was made of.
            TypeError: an argument is no view or remote buffer.
        """
        if not isinstance(local_buffer, RdmaMemoryView):
            raise TypeError(f"what is written is an RdmaMemoryView, not {type(local_buffer).__name__}")
        return _result_code(self._transport.write, local_buffer, remote_buffer)

    def read(self, local_buffer: RdmaMemoryMutableView, remote_buffer: RdmaRemoteBuffer) -> int:
        """Fill all of ``local_buffer`` from the beginning of ``remote_buffer``. Results and errors as for `write`."""
        if not isinstance(local_buffer, RdmaMemoryMutableView):
            raise TypeError(f"what is read into is an RdmaMemoryMutableView, not {type(local_buffer).__name__}")
        return _result_code(self._transport.read, local_buffer, remote_buffer)


def attach_rdma_memory_hook(reg: Any, dereg: Any) -> None:
    """Do nothing; offered because torchcomms has it. zerohop's cache needs no hook into torch's allocator.

    GPU memory is registered under the driver's id of its allocation. Memory that was freed and allocated again at the
    same address has another id.
    """
    del reg, dereg


def _result_code(
    post: Callable[[View, RemoteBuffer], Operation[int]], local: RdmaMemoryView, remote: RdmaRemoteBuffer
) -> int:
    if not isinstance(remote, RdmaRemoteBuffer):
        raise TypeError(f"the peer's memory is an RdmaRemoteBuffer, not {type(remote).__name__}")
    if not isinstance(remote.access_key, str):
        raise TypeError(
            f"an access key is the text that to_remote_buffer() gave, not {type(remote.access_key).__name__}"
        )
    base, handle = _parse_access_key(remote.access_key)
    offset = _whole("ptr", remote.ptr) - base
    length = _whole("len", remote.len)
    if not 0 <= offset <= handle.nbytes - length:
        raise ValueError(
            f"bytes {shown(offset)} to {shown(offset + length)} do not lie within the peer's {handle.nbytes}"
        )
    try:
        post(local._view, handle[offset : offset + length]).result()
    except DeadlineExceeded:
        return COMM_TIMEOUT
    except Closed:
        return COMM_USER_ABORT
    except ZerohopError:
        return COMM_INTERNAL_ERROR
    return COMM_SUCCESS


def _whole(name: str, value: Any) -> int:
    """Return an integer of any kind, such as numpy's, as int."""
    return check_int(name, as_int(name, value), 0)


@functools.lru_cache(maxsize=1024)
def _parse_access_key(access_key: str) -> tuple[int, RemoteBuffer]:
    """Return the address where the memory begins in its owner's process, and its handle."""
    address, _, key = access_key.partition(":")
    try:
        return int(address, 16), RemoteBuffer.from_bytes(base64.b64decode(key, validate=True))
    except (ValueError, ZerohopError) as error:
        raise ValueError(f"this is no access key that to_remote_buffer() gave: {error}") from None
