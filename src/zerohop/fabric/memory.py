"""Declares memory regions (memory registered with a device), their slices, and the values that peers reach them by."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from zerohop.config.checks import check_int
from zerohop.core.base.resource import NotCopyable
from zerohop.core.memory.remote_buffer import byte_range
from zerohop.fabric.handle import ValueFormat
from zerohop.fabric.resource import Resource

if TYPE_CHECKING:
    from zerohop._native import FabricRegion
    from zerohop.fabric.devices import OpenedDevice

# Address, length and key.
_FORMAT: Final = ValueFormat("RemoteMemory", b"ZHRM", "QQI", "bytes(remote)")
_ADDRESSES, _KEYS = 1 << 64, 1 << 32


class Access(enum.Flag):
    """Names the permitted uses of a memory region: the flags of verbs (``IBV_ACCESS_*``), with the same numbers."""

    NONE = 0
    # The device may write to the region: receives, and the results of reads and atomics.
    LOCAL_WRITE = 1
    # Peers may do these three; REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE, too.
    REMOTE_WRITE = 1 << 1
    REMOTE_READ = 1 << 2
    REMOTE_ATOMIC = 1 << 3
    # The device may write the bytes of one message in any order; devices without it ignore the flag.
    RELAXED_ORDERING = 1 << 20


REMOTE: Final = Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
WRITES: Final = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_ATOMIC


class RemoteMemory:
    """Names a part of a peer's memory in requests, by address and key.

    A frozen value: hashable, comparable, picklable, 25 bytes as ``bytes(remote)``. Slices (``remote[a:b]``, in bytes)
    are RemoteMemories with the same key. Every process that has this value and an endpoint connected to the region's
    device context can use the region until it is closed; the key is the only protection.

    Attributes:
        addr: address of the first byte, as the owner's device knows it.
        rkey: remote key of the memory region.
        length: in bytes.

    Raises:
        TypeError, ValueError: a value has the wrong type, or is out of range.
    """

    __slots__ = ("addr", "length", "rkey")

    addr: int
    rkey: int
    length: int

    def __init__(self, addr: int, rkey: int, length: int) -> None:
        check_int("addr", addr, 0, _ADDRESSES - 1)
        check_int("rkey", rkey, 0, _KEYS - 1)
        check_int("length", length, 0, _ADDRESSES - 1)
        if length > _ADDRESSES - addr:
            raise ValueError(f"no memory has address {addr:#x} and {length} bytes")
        set_field = object.__setattr__
        set_field(self, "addr", addr)
        set_field(self, "rkey", rkey)
        set_field(self, "length", length)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a RemoteMemory is a value; {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a RemoteMemory is a value; {name} cannot be deleted")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: slice) -> RemoteMemory:
        start, stop = byte_range(key, self.length)
        return RemoteMemory(self.addr + start, self.rkey, stop - start)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemoteMemory):
            return NotImplemented
        return (self.addr, self.rkey, self.length) == (other.addr, other.rkey, other.length)

    def __hash__(self) -> int:
        return hash((self.addr, self.rkey, self.length))

    def __repr__(self) -> str:
        return f"RemoteMemory({self.length} bytes at {self.addr:#x}, rkey {self.rkey:#x})"

    def __bytes__(self) -> bytes:
        return _FORMAT.pack(self.addr, self.length, self.rkey)

    def __reduce__(self) -> tuple[Any, ...]:
        # Goes through bytes, so that unpickling checks as from_bytes does.
        return RemoteMemory.from_bytes, (bytes(self),)

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> RemoteMemory:
        """Return the value whose ``bytes()`` these are.

        Raises:
            TypeError: neither bytes nor another object with the buffer protocol.
            ProtocolError: the bytes are no RemoteMemory, or come from another version of zerohop.
        """
        addr, length, rkey = _FORMAT.unpack(data)
        try:
            return RemoteMemory(addr, rkey, length)
        except ValueError as error:
            raise _FORMAT.malformed(str(error)) from None


class LocalRange:
    """Names a range that requests read or fill; the base of regions and their slices."""

    __slots__ = ()

    addr: int
    length: int

    @property
    def region(self) -> MemoryRegion:
        """Return the memory region that contains the range."""
        raise NotImplementedError

    @property
    def lkey(self) -> int:
        """Return the local key, by which this side's device knows the memory."""
        return self.region._lkey

    @property
    def rkey(self) -> int:
        """Return the remote key, by which peers reach the memory as far as ``access`` permits."""
        return self.region._rkey

    @property
    def access(self) -> Access:
        """Return the permitted uses that the region was registered with."""
        return self.region._access

    @property
    def device(self) -> str:
        """Return the place of the memory: ``"host"``, ``"sim:0"``, ..."""
        return self.region._device

    def remote(self) -> RemoteMemory:
        """Return the value that a peer needs to reach this range.

        Raises:
            ValueError: the region was registered without any right for peers.
            Closed: the region is closed.
        """
        self.region._check_open()
        if not self.access & REMOTE:
            raise ValueError("this region gives peers no right; register it with REMOTE_WRITE, REMOTE_READ or both")
        return RemoteMemory(self.addr, self.rkey, self.length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: slice) -> RegionSlice:
        start, stop = byte_range(key, self.length)
        return RegionSlice(self.region, self.addr + start, stop - start)


class RegionSlice(LocalRange, NotCopyable):
    """Names a part of a memory region, made by slicing: ``region[a:b]``, in bytes. Keeps the region alive.

    Attributes:
        addr: address of the first byte.
        length: in bytes.
    """

    __slots__ = ("_region", "addr", "length")

    _copy_refusal = "a RegionSlice stays in its process, and is not copied; slice it anew, or send slice.remote()"

    def __init__(self, region: MemoryRegion, addr: int, length: int) -> None:
        self._region = region
        self.addr = addr
        self.length = length

    @property
    def region(self) -> MemoryRegion:
        """Return the memory region that it is a part of."""
        return self._region

    def __repr__(self) -> str:
        return f"RegionSlice({self.length} bytes at {self.addr:#x} of {self.device})"


class MemoryRegion(LocalRange, Resource):
    """Holds memory registered with a device; made by ``DeviceContext.register``. Keeps the memory alive.

    Requests in flight keep the region alive, too. If you close it while requests use it, they end with an error, and
    the device touches the memory no more once ``close`` has returned.

    Attributes:
        addr: address of the first byte; for memory of an accelerator the address on the device.
        length: in bytes.
        how: how the device registered the memory, and the attempts that failed before, in words.
    """

    __slots__ = ("_access", "_device", "_device_context", "_keep", "_lkey", "_rkey", "addr", "how", "length")

    _kind = "MemoryRegion"
    _copy_refusal = "a MemoryRegion stays in its process, and is not copied; send region.remote() instead"

    def __init__(
        self,
        device_context: OpenedDevice,
        native: FabricRegion,
        addr: int,
        length: int,
        access: Access,
        device: str,
        keep: object,
    ) -> None:
        self._device_context = device_context
        self._keep = keep
        self._lkey = native.local_key
        self._rkey = native.remote_key
        self._access = access
        self._device = device
        self.addr = addr
        self.length = length
        self.how = native.how
        super().__init__(device_context, native)

    @property
    def region(self) -> MemoryRegion:
        """Return the region itself."""
        return self

    def _release(self) -> None:
        # Deregister before the memory may be freed.
        super()._release()
        self._keep = None

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"MemoryRegion({self.length} bytes at {self.addr:#x} of {self.device}, {self.access}{state})"
