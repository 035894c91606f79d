"""torchcomms' RdmaTransport by its own names, signatures and return codes, on `zerohop.Transport`.

``from zerohop.compat.torchcomms import RdmaMemory, RdmaTransport`` in place of ``from torchcomms._transport import …``.
Memory may be all that `Context.register` takes, and a device all that `Transport` takes, the host too. The process has
one Context for it, with the environment's settings. docs/torchcomms.md has what is different.
"""

from __future__ import annotations

import base64
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from zerohop.compat.shared import shared_context
from zerohop.core.memory.remote_buffer import RemoteBuffer
from zerohop.errors import Closed, DeadlineExceeded, ZerohopError
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
    """A range of the peer's memory, as a value that pickles, with every protocol.

    A part of what `RdmaMemory.to_remote_buffer` gave is made as ``RdmaRemoteBuffer(b.ptr + n, m, b.access_key)``; who
    uses one that reaches beyond gets a ValueError.

    Attributes:
        ptr: address of its first byte, in its owner's process.
        len: bytes.
        access_key: whoever has it reaches the memory.
    """

    ptr: int
    len: int
    access_key: str = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ptr, self.len, self.access_key)


class RdmaMemoryView:
    """A range of an RdmaMemory to write from. It keeps the memory."""

    def __init__(self, memory: RdmaMemory, view: View) -> None:
        self._memory = memory
        self._view = view

    def size(self) -> int:
        """Bytes."""
        return self._view.nbytes


class RdmaMemoryMutableView(RdmaMemoryView):
    """The same to read into."""


class RdmaMemory:
    """A registered tensor, which it keeps; or anything else that ``Context.register`` takes.

    When it and its views are dropped, remote buffers of it reach nothing any more.
    """

    def __init__(self, tensor: Any, cache_reg: bool = False) -> None:
        """Errors as for ``Context.register``; ``cache_reg`` changes nothing: registrations are always kept."""
        del cache_reg
        self._memory: Memory = shared_context().register(tensor)

    def to_view(self, offset: int | None = None, length: int | None = None) -> RdmaMemoryView:
        """``length`` bytes from ``offset`` on, or what is left; ValueError outside the memory."""
        return RdmaMemoryView(self, self._memory.view(offset or 0, length, readonly=True))

    def to_mutable_view(self, offset: int | None = None, length: int | None = None) -> RdmaMemoryMutableView:
        """The same, to read into."""
        return RdmaMemoryMutableView(self, self._memory.view(offset or 0, length))

    def to_remote_buffer(self) -> RdmaRemoteBuffer:
        """All of it, for the peer."""
        key = base64.b64encode(self._memory.remote_key()).decode()
        return RdmaRemoteBuffer(self._memory.address, self._memory.nbytes, f"{self._memory.address:x}:{key}")

    def reused_registration(self) -> bool:
        """Whether its memory had been registered before."""
        return self._memory.reused_registration

    def __del__(self) -> None:
        # __init__ may have raised.
        if "_memory" in self.__dict__:
            # Like close(), but it waits for nobody.
            self._memory._close(0)


class RdmaTransport:
    """One end of a pair. When it is dropped, what other threads wait for ends with COMM_USER_ABORT."""

    def __init__(self, device: Any) -> None:
        """``device``: a ``torch.device``, or whatever else `Transport` takes. Errors as for that."""
        self._transport = Transport(device, context=shared_context())

    @staticmethod
    def supported() -> bool:
        """Whether transports can be made here; ``zerohop doctor`` says what keeps one from being fast."""
        try:
            shared_context()
        except (ZerohopError, ValueError):
            return False
        return True

    def bind(self) -> bytes:
        """The URL for the peer's `connect`. Errors as for ``Transport.bind``."""
        return self._transport.bind().encode()

    def connect(self, peer_url: bytes) -> int:
        """COMM_SUCCESS once both sides know of each other; one side's call is enough.

        Raises:
            TypeError, ValueError: not what the peer's `bind` gave.
            ZerohopError: as ``Transport.connect`` has them.
        """
        if not isinstance(peer_url, bytes):
            raise TypeError(f"a peer's URL is bytes, not {type(peer_url).__name__}")
        self._transport.connect(peer_url.decode()).result()
        return COMM_SUCCESS

    def connected(self) -> bool:
        """As ``Transport.connected``."""
        return self._transport.connected()

    def write(self, local_buffer: RdmaMemoryView, remote_buffer: RdmaRemoteBuffer) -> int:
        """Write all of ``local_buffer`` into the begin of ``remote_buffer``; when it has ended, how.

        Returns:
            COMM_SUCCESS; COMM_TIMEOUT after ``ZEROHOP_TIMEOUT`` seconds; COMM_USER_ABORT where this transport ended
            meanwhile; COMM_INTERNAL_ERROR for everything else that can happen, such as a peer that is gone.

        Raises:
            ValueError: the remote buffer is shorter, not the peer's, or not within the memory that it was made of.
            TypeError: not views and remote buffers.
        """
        if not isinstance(local_buffer, RdmaMemoryView):
            raise TypeError(f"what is written is an RdmaMemoryView, not {type(local_buffer).__name__}")
        return _result_code(self._transport.write, local_buffer, remote_buffer)

    def read(self, local_buffer: RdmaMemoryMutableView, remote_buffer: RdmaRemoteBuffer) -> int:
        """Fill all of ``local_buffer`` from the begin of ``remote_buffer``. As `write`."""
        if not isinstance(local_buffer, RdmaMemoryMutableView):
            raise TypeError(f"what is read into is an RdmaMemoryMutableView, not {type(local_buffer).__name__}")
        return _result_code(self._transport.read, local_buffer, remote_buffer)


def attach_rdma_memory_hook(reg: Any, dereg: Any) -> None:
    """Does nothing, and is there to be called: our cache needs no hook into torch's allocator.

    A GPU's memory is registered by the driver's id of its allocation, and known again by that; one that was freed and
    came back at the same address has another.
    """
    del reg, dereg


def _result_code(
    post: Callable[[View, RemoteBuffer], Operation[int]], local: RdmaMemoryView, remote: RdmaRemoteBuffer
) -> int:
    if not isinstance(remote, RdmaRemoteBuffer):
        raise TypeError(f"the peer's memory is an RdmaRemoteBuffer, not {type(remote).__name__}")
    base, handle = _parse_access_key(remote.access_key)
    offset = remote.ptr - base
    if not (0 <= offset <= handle.nbytes and 0 <= remote.len <= handle.nbytes - offset):
        raise ValueError(f"bytes {offset} to {offset + remote.len} do not lie within the peer's {handle.nbytes}")
    try:
        post(local._view, handle[offset : offset + remote.len]).result()
    except DeadlineExceeded:
        return COMM_TIMEOUT
    except Closed:
        return COMM_USER_ABORT
    except ZerohopError:
        return COMM_INTERNAL_ERROR
    return COMM_SUCCESS


@functools.lru_cache(maxsize=1024)
def _parse_access_key(access_key: str) -> tuple[int, RemoteBuffer]:
    """Where that memory begins in its owner's process, and its handle."""
    address, _, key = access_key.partition(":")
    try:
        return int(address, 16), RemoteBuffer.from_bytes(base64.b64decode(key, validate=True))
    except (ValueError, ZerohopError) as error:
        raise ValueError(f"this is no access key that to_remote_buffer() gave: {error}") from None
