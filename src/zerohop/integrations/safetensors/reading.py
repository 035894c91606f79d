"""Carries out the reads of a plan, within a fixed number of bytes."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from zerohop.errors import ZerohopError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zerohop import Memory, Operation
    from zerohop.integrations.safetensors.making import Tensors
    from zerohop.integrations.safetensors.plan import Copy, Read
    from zerohop.storage import File, Store

# Bytes of reads under way at once: what a second has brought so far, within these limits. Many keep a GPU's link
# busy. On a slow disk each only takes longer by them, and has less time left before its deadline.
_LEAST_AHEAD: Final = 64 << 20
_MOST_AHEAD: Final = 512 << 20
# Slots that the budget is split into: some are read into while others are copied from.
SLOTS: Final = 4


class _Begun(NamedTuple):
    read: Read
    operation: Operation[int]
    slot: int | None


class Reader:
    """Reads into tensors; of one load, and by one thread."""

    def __init__(
        self,
        store: Store,
        files: list[File],
        tensors: Tensors,
        timeout: float | None,
        progress: Callable[[int], None],
    ) -> None:
        """Take what the numbers in the reads stand for."""
        self._store = store
        self._files = files
        self._tensors = tensors
        self._framework = tensors.framework
        self._timeout = timeout
        self._progress = progress
        self._memories: dict[int, Memory] = {}
        self._rooms: list[Any] = []
        self._room_memories: list[Memory] = []
        self._free: list[int] = []
        self._under_way: deque[_Begun] = deque()
        self._ahead = 0
        self._done = 0
        self._started = 0.0

    def run(self, reads: list[Read]) -> None:
        """Carry out all reads, and return when all bytes are in the tensors.

        Raises:
            EndOfFile, StorageError, DeadlineExceeded, PeerLost: a read failed. Nothing is under way any more.
        """
        left = _last_reads(reads)
        with self._slots(reads), self._nothing_left_behind():
            self._started = time.monotonic()
            for read in reads:
                while self._under_way and (
                    self._ahead + read.nbytes > self._most_ahead() or (read.tensor is None and not self._free)
                ):
                    self._end_first(left)
                self._prepare(read.file, left)
                self._begin(read)
            self._tensors.make_rest()
            while self._under_way:
                self._end_first(left)
            self._framework.finish()

    def _most_ahead(self) -> int:
        a_second = self._done / max(1e-3, time.monotonic() - self._started)
        return max(_LEAST_AHEAD, min(_MOST_AHEAD, int(a_second)))

    def _prepare(self, file: int, left: dict[int, int]) -> None:
        """Have the tensors of a file, and the memory of those that reads go straight into."""
        straight = [number for number in self._tensors.make(file) if number in left]
        if straight:
            # One call for all of them takes a fraction of the time of as many calls.
            memories = self._store.context.register([self._tensors.flat[number] for number in straight])
            self._memories.update(zip(straight, memories, strict=True))

    def _begin(self, read: Read) -> None:
        file, slot = self._files[read.file], None
        if read.tensor is None:
            slot = self._free.pop()
            memory = self._room_memories[slot]
        else:
            memory = self._memories[read.tensor]
        operation = file.read_many(memory, read.offsets, read.lengths, read.into, timeout=self._timeout)
        self._ahead += read.nbytes
        self._under_way.append(_Begun(read, operation, slot))

    def _end_first(self, left: dict[int, int]) -> None:
        """Wait for the read that began first, and copy what it has brought to a slot."""
        read, operation, slot = self._under_way[0]
        operation.result()
        self._under_way.popleft()
        self._ahead -= read.nbytes
        self._done += read.nbytes
        if slot is not None:
            self._copy(self._rooms[slot], read.copies)
            self._free.append(slot)
        else:
            assert read.tensor is not None
            left[read.tensor] -= 1
            if not left[read.tensor]:
                self._memories.pop(read.tensor).close()
        self._progress(read.nbytes)

    def _copy(self, room: Any, copies: tuple[Copy, ...]) -> None:
        targets, sources = [], []
        for copy in copies:
            target = self._tensors.flat[copy.tensor][copy.at : copy.at + copy.count * copy.run]
            if copy.count == 1:
                sources.append(room[copy.source : copy.source + copy.run])
            else:
                sources.append(_strided(room, copy))
                target = target.reshape(copy.count, copy.run)
            targets.append(target)
        self._framework.scatter(targets, sources)

    @contextlib.contextmanager
    def _slots(self, reads: list[Read]) -> Iterator[None]:
        """Have as many slots as the reads need, and register them."""
        rooms = [read.room for read in reads if read.tensor is None]
        with contextlib.ExitStack() as memories:
            for number in range(min(SLOTS, len(rooms))):
                room = self._framework.room(max(rooms))
                # Memory of a Context begins at a page, and a server on this host can reach it.
                context = self._store.context
                memory = context.alloc(max(rooms)) if room is None else context.register([room])[0]
                memories.callback(memory.close)
                self._rooms.append(memory.numpy() if room is None else room)
                self._room_memories.append(memory)
                self._free.append(number)
            yield

    @contextlib.contextmanager
    def _nothing_left_behind(self) -> Iterator[None]:
        """End what is under way if a read fails: nothing may write to memory that the caller has given up."""
        try:
            yield
        except BaseException:
            for begun in self._under_way:
                begun.operation.cancel()
            for begun in self._under_way:
                # The first failure is the one that is told.
                with contextlib.suppress(ZerohopError, CancelledError):
                    begun.operation.result()
            raise
        finally:
            for memory in self._memories.values():
                memory.close()
            self._memories.clear()


def _last_reads(reads: list[Read]) -> dict[int, int]:
    """Return how many reads each tensor has that go straight into it."""
    counts: dict[int, int] = {}
    for read in reads:
        if read.tensor is not None:
            counts[read.tensor] = counts.get(read.tensor, 0) + 1
    return counts


def _strided(room: Any, copy: Copy) -> Any:
    """Return the runs of a copy, which lie in a slot at equal distances, as the rows of an array."""
    shape, strides = (copy.count, copy.run), (copy.step, 1)
    if isinstance(room, np.ndarray):
        return np.lib.stride_tricks.as_strided(room[copy.source :], shape, strides, writeable=False)
    return room.as_strided(shape, strides, room.storage_offset() + copy.source)
