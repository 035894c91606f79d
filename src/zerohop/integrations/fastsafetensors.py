"""Offers zerohop as a copier of fastsafetensors: its programs then read files through a Store.

After ``register()``, ``BaseSafeTensorsFileLoader(None, device, "zerohop")`` reads files of this machine.
With ``store=`` and ``root=`` the data of what lies below the folder ``root`` comes from the Store, such as a server's.
fastsafetensors itself reads the headers, so that the files have to be there for it, too, as on a network file system.
"""

from __future__ import annotations

import math
import os
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from fastsafetensors.copier.base import CopierInterface, validated_byte_ranges, validated_chunk_allocation_size
from fastsafetensors.copier.registry import register_copier_constructor
from fastsafetensors.st_types import DeviceType, DType

from zerohop.storage import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop import Memory, Operation
    from zerohop.storage import File

COPIER: Final = "zerohop"
_PIECE: Final = 16 << 20


class _Lease:
    """Keeps a Store open while copiers use it; one that is opened here is closed when none does any more."""

    def __init__(self, store: Store | str | None) -> None:
        if isinstance(store, Store):
            self.store = store
        else:
            self.store = open_store("." if store is None else store)
            weakref.finalize(self, self.store.close)


class StoreCopier(CopierInterface):  # type: ignore[misc]  # fastsafetensors has no types
    """Reads the bytes of one safetensors file into the buffer that fastsafetensors allocates."""

    def __init__(self, metadata: Any, device: Any, framework: Any, lease: _Lease, root: str | None) -> None:
        """Take what fastsafetensors passes, the Store, and the folder that is the Store's; None: none is."""
        self.metadata = metadata
        self.framework = framework
        self._device = device
        self._lease = lease
        self._root = root
        self._ranges: list[tuple[int, int]] | None = None
        self._names: set[str] | None = None
        self._allocation: int | None = None
        self._base = metadata.header_length
        self._under_way: list[Operation[int]] = []
        self._memory: Memory | None = None
        self._file: File | None = None

    def set_byte_ranges(self, byte_ranges: list[tuple[int, int]] | None) -> None:
        """Read only these ranges of the file, from one offset to the next; None: all."""
        self._ranges = validated_byte_ranges(self.metadata, byte_ranges)

    def set_chunk(
        self, byte_ranges: list[tuple[int, int]], names: set[str], allocation_size: int | None = None
    ) -> None:
        """Read these ranges into a buffer that is no longer than they need, or ``allocation_size`` bytes long."""
        self._ranges = validated_byte_ranges(self.metadata, byte_ranges)
        self._names = names
        self._allocation = validated_chunk_allocation_size(byte_ranges, allocation_size)

    @classmethod
    def chunk_transient_multiplier(cls, paths: list[str]) -> int:
        """Return how often a chunk is in memory of the device while it is read."""
        del paths
        return 1

    @classmethod
    def fixed_device_overhead(cls, paths: list[str]) -> int:
        """Return the bytes of the device that are in use beside chunks."""
        del paths
        return 0

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any:
        """Begin to read, and return the buffer."""
        del use_buf_register
        start, end = self.metadata.header_length, self.metadata.size_bytes
        runs = [(start, end)] if self._ranges is None else self._ranges
        if self._names is not None:
            self._base = min((first for first, _ in runs), default=start)
            end = max((last for _, last in runs), default=self._base)
        nbytes = self._allocation or end - self._base
        buffer = self.framework.alloc_tensor_memory(nbytes, self._device)
        if not nbytes:
            return buffer
        try:
            self._begin(buffer, nbytes, runs, min(_PIECE, max_copy_block_size))
        except BaseException:
            self._end(fail=False)
            self.framework.free_tensor_memory(buffer, self._device)
            raise
        return buffer

    def wait_io(self, gbuf: Any, dtype: Any = DType.AUTO, noalign: bool = False, owner: Any = None) -> Any:
        """Wait until all bytes are there, and return the tensors, which are parts of the buffer."""
        del noalign
        self._end(fail=True)
        if self._names is not None:
            return self.metadata._get_tensors(  # noqa: SLF001  # the public one makes all tensors, also unread ones
                gbuf, self._device, self._base, dtype=dtype, names=self._names, owner=owner
            )
        return self.metadata.get_tensors(gbuf, self._device, self._base, dtype=dtype, owner=owner)

    def finish_io(self) -> None:
        """Wait until nothing writes to the buffer any more, whether all went well or not."""
        self._end(fail=False)

    def _begin(self, buffer: Any, nbytes: int, runs: list[tuple[int, int]], piece: int) -> None:
        where = "host" if self._device.type == DeviceType.CPU else f"cuda:{self._device.index or 0}"
        self._memory = self._lease.store.context.register([(buffer.get_base_address(), nbytes, where)])[0]
        self._file = _opened(self._lease.store, self.metadata.src, self._root)
        if self._root is not None:
            self._check_same(self._file)
        # Its allocator gives out memory that work of before may still use, and no stream orders the reads behind that.
        self.framework.synchronize_current_stream(self._device)
        for first, last in runs:
            for at in range(first, last, piece):
                place = at - self._base
                view = self._memory[place : place + min(piece, last - at)]
                # Without a deadline: one that ends before its time leaves the system writing to a buffer that is
                # given back then.
                self._under_way.append(self._file.read_into(view, at, timeout=math.inf))

    def _check_same(self, file: File) -> None:
        """Raise ValueError unless the Store's file is as long as the one here, and begins with the same header."""
        here, nbytes = self.metadata.src, self.metadata.header_length
        same = file.size == self.metadata.size_bytes
        if same:
            header = np.empty(nbytes, np.uint8)
            file.read_into(header).result()
            with open(here, "rb") as local:  # noqa: PTH123  # a path of any kind that open() takes
                same = local.read(nbytes) == header.tobytes()
        if not same:
            raise ValueError(
                f"{here} is another file in the store than here: root= has to be the folder here that is the store's"
            )

    def _end(self, *, fail: bool) -> None:
        """Wait for all reads; the first that failed is told if wanted."""
        failed: BaseException | None = None
        for operation in self._under_way:
            error = operation.exception()
            failed = failed or error
        self._under_way.clear()
        if self._file is not None:
            self._file.close()
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if failed is not None and fail:
            raise failed


def register() -> None:
    """Make the copier known to fastsafetensors by the name ``"zerohop"``."""
    register_copier_constructor(COPIER, StoreCopier)(_constructor)


def _constructor(
    device: Any, store: Store | str | None = None, root: str | os.PathLike[str] | None = None, **_: Any
) -> Callable[[Any, Any, Any], StoreCopier]:
    """Return what makes a copier of one file.

    Raises:
        ValueError: only one of ``store`` and ``root`` is given.
    """
    del device
    if (store is None) != (root is None):
        raise ValueError("give store= and root=, the folder here that is the Store's, or neither")
    lease = _Lease(store)
    folder = None if root is None else os.path.realpath(root)

    def construct(metadata: Any, device: Any, framework: Any) -> StoreCopier:
        return StoreCopier(metadata, device, framework, lease, folder)

    return construct


def _opened(store: Store, path: str, root: str | None) -> File:
    if root is not None:
        return store.open(os.path.relpath(os.path.realpath(path), root)).result()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return store.file_of(fd).result()
    finally:
        os.close(fd)
