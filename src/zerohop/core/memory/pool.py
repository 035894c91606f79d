"""Declares Pool, which registers memory of one device once and hands it out in parts."""

from __future__ import annotations

import collections
import threading
import time
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, Status
from zerohop.core.base.deadlines import seconds_of
from zerohop.core.base.resource import Closeable, NotCopyable
from zerohop.core.memory.free_ranges import FreeRanges
from zerohop.core.memory.memory import Memory
from zerohop.core.memory.pool_chunks import Block, Chunk, Range
from zerohop.core.memory.rights import RIGHTS, length_of
from zerohop.core.runtime.devices import HOST
from zerohop.errors import Closed, LimitReached, RegistrationFailed, WouldBlock, from_native

if TYPE_CHECKING:
    from zerohop._native import Engine
    from zerohop.core.memory.memory_core import MemoryCore

# torch gives its own tensors this alignment, and no kernel asks for more.
ALIGNMENT: Final = 512
# Seconds between two looks for room, first and longest: no event tells that memory is no longer in use.
_FIRST_PAUSE_S: Final = 0.0002
_LONGEST_PAUSE_S: Final = 0.01
_NS: Final = 1e9


class Pool(Closeable, NotCopyable):
    """Registers memory of one device once and hands it out in parts. Made by ``Context.pool``.

    While there is room, ``alloc`` asks neither the driver nor a NIC for anything. It returns a Memory like any other,
    which can be shared, transferred, viewed as a tensor (``torch.from_dlpack(memory)``) and closed by itself. A part
    returns to the pool when its Memory is closed or dropped, no tensor shows it, no transfer uses it, and all peers
    have given it back. On a GPU it is used again only once all work that was queued there by then, on any stream, has
    ended. The pool grows by chunks.

    A Pool is thread-safe, and a context manager that closes itself.

    Attributes:
        device: name of the device.
        chunk_bytes: bytes by which the pool grows, at least.
        max_bytes: bytes that it never exceeds; None: as much as the device has.
    """

    _copy_refusal = "a Pool stays in its process, and is not copied; send memory.share() of what it gave"

    def __init__(self, core: MemoryCore, device: str, chunk_bytes: int, max_bytes: int | None) -> None:
        self.device = device
        self.chunk_bytes = chunk_bytes
        self.max_bytes = max_bytes
        self._core = core
        self._index = core.devices.index_of(device)
        self._lock = threading.RLock()
        self._chunks: list[Chunk] = []
        self._closed = False
        # The error when the device, or this process, last had no room for more.
        self._refused: RegistrationFailed | LimitReached | None = None
        # Whether a change is under way, or one was broken off by an exception, such as a signal handler's.
        self._changing = False
        # Parts that destructors have returned, and those of them that the device may still use.
        self._freed: collections.deque[Range] = collections.deque()
        self._unmarked: list[Range] = []
        # Marks in the device's queues, each with the parts that are free once it is reached.
        self._marked: list[tuple[Engine.DeviceMark, list[Range]]] = []

    @property
    def nbytes(self) -> int:
        """Return the bytes that the pool has of the device."""
        return sum(chunk.ranges.nbytes for chunk in list(self._chunks))

    @property
    def free_bytes(self) -> int:
        """Return the bytes that can be handed out now, in however many ranges."""
        self._core.check_process()
        self._check_alone()
        with self._lock:
            self._begin_change()
            self._collect()
            self._changing = False
            return sum(chunk.ranges.free for chunk in self._chunks)

    def alloc(self, nbytes: int, *, timeout: float | None = None) -> Memory:
        """Return new memory at a multiple of 512 bytes; its contents are undefined.

        If neither the pool nor the device has room, the call waits for returned memory that the device or a transfer
        still uses.

        Before returned memory is used again, the pool looks at all streams of the GPU, which ends a capture into a CUDA
        graph on one of them. So allocate before a capture; during one, allocate only memory that the pool has never
        handed out.

        Args:
            nbytes: length, at least 1.
            timeout: seconds to wait at most; None: the Context's; 0: not at all.

        Raises:
            TypeError: ``nbytes`` is no integer.
            ValueError: memory cannot have this length.
            RegistrationFailed: there is no room.
            LimitReached: a limit of this process leaves no room.
            DeviceFailed: the device is lost.
            WouldBlock: called by a signal handler or a destructor, in the middle of a call of this Pool.
            Closed: the pool or its Context is closed.
        """
        self._core.check_process()
        nbytes = length_of(nbytes)
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        limit_s = self._core.timeout_ns / _NS if timeout is None else seconds_of(timeout)
        deadline = time.monotonic() + limit_s
        pause = _FIRST_PAUSE_S
        self._check_alone()
        while True:
            with self._lock:
                self._check_open()
                self._begin_change()
                taken = self._take(size) or self._reuse(size) or self._grow(size) or self._exchange(size)
                # The block is made under the lock, so that close() leaves the chunk alone.
                block = Block(taken, self._freed) if taken is not None else None
                coming = taken is None and self._coming()
                self._changing = False
            if self._closed:
                self._give_up()  # a signal's handler has closed the pool in the middle of this
            if taken is not None:
                return self._memory(taken, block, nbytes)
            if not coming or (time.monotonic() >= deadline and (limit_s or timeout is not None)):
                raise self._full(nbytes)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def trim(self) -> int:
        """Return whole chunks of which nothing is in use to the device; return the number of bytes.

        Raises:
            DeviceFailed: the device is lost.
            Closed: the Context is closed.
        """
        self._core.check_open()
        self._check_alone()
        with self._lock:
            self._begin_change()
            self._collect()
            self._free_marked()
            idle = [chunk for chunk in self._chunks if chunk.ranges.free == chunk.ranges.nbytes]
            self._chunks = [chunk for chunk in self._chunks if chunk not in idle]
            self._changing = False
        if self._closed:
            self._give_up()
        for chunk in idle:
            chunk.give_up()
        return sum(chunk.ranges.nbytes for chunk in idle)

    def close(self) -> None:
        """Hand out nothing more; idempotent. The device gets each chunk back when the last Memory in it is closed."""
        if self._core.forked:
            return  # the memory belongs to the parent
        self._closed = True
        if not self._held_here():  # or the call that this thread is in the middle of gives the chunks up at its end
            self._give_up()

    def _give_up(self) -> None:
        with self._lock:
            chunks, self._chunks = self._chunks, []
            self._unmarked.clear()
            self._marked.clear()
        for chunk in chunks:
            chunk.give_up()
        self._freed.clear()

    def _held_here(self) -> bool:
        """Tell whether this thread is in the middle of a call of the Pool, which has been interrupted to make another.

        A signal's handler does that, or a destructor that the garbage collector calls.
        """
        # No public method tells; threading.Condition asks this one, too. A signal could leave a flag of ours wrong.
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def _check_alone(self) -> None:
        """Raise WouldBlock where this very thread is in the middle of a call, and has the tables half changed."""
        if self._held_here():
            raise WouldBlock(
                "this thread is in the middle of a call of the Pool, which a signal handler or a destructor interrupts",
                fix="let the handler note what to do, and do it afterwards",
                operation="alloc",
            )

    def _begin_change(self) -> None:
        """Begin a change of the tables, with the lock held; take stock first if the last change was broken off."""
        if self._changing:
            self._take_stock()
        self._changing = True

    def _take_stock(self) -> None:
        """Make the tables anew from the blocks in use. All else counts as returned, and as used by the device still."""
        # In this order: a destructor on another thread returns its range first, and then takes its block away. A range
        # that is returned in between must not count twice.
        used_of = [(chunk, sorted(chunk.blocks.copy().values())) for chunk in self._chunks]
        returned = [self._freed.popleft() for _ in range(len(self._freed))]
        self._marked.clear()
        self._unmarked.clear()
        for chunk, used in used_of:
            chunk.ranges = FreeRanges(chunk.ranges.nbytes, free=False)
            self._unmarked += [each for each in returned if each[0] is chunk and each[1:] in used]
            end = 0
            for start, size in [*used, (chunk.ranges.nbytes, 0)]:
                if start > end:
                    self._unmarked.append((chunk, end, start - end))
                # A destructor that was interrupted has left its block, whose range may be in another's by now.
                end = max(end, start + size)

    def _take(self, size: int) -> Range | None:
        for chunk in self._chunks:
            start = chunk.ranges.take(size)
            if start is not None:
                return chunk, start, size
        return None

    def _reuse(self, size: int) -> Range | None:
        """Take a range of returned memory that nothing can touch any more."""
        self._collect()
        self._free_marked()
        return self._take(size)

    def _collect(self) -> None:
        self._core.shares.sweep()
        self._core.retention.drain()
        while self._freed:
            self._unmarked.append(self._freed.popleft())
        if self.device == HOST:
            # Only transfers and arrays use host memory, and they have ended.
            self._give(self._unmarked)
            self._unmarked = []

    def _free_marked(self) -> None:
        """Mark the device's queues for returned parts, and free the parts whose mark was reached."""
        if self._unmarked:
            try:
                mark = self._core.engine.mark_device(self._index)
            except NativeError as error:
                # A stream is being captured, so the next call tries again.
                if error.args[0] != Status.UNSUPPORTED.value:
                    raise from_native(*error.args, operation="alloc") from None
            else:
                self._marked.append((mark, self._unmarked))
                self._unmarked = []
        for mark, ranges in [each for each in self._marked if not each[0].pending]:
            self._marked.remove((mark, ranges))
            self._give(ranges)

    def _give(self, ranges: list[Range]) -> None:
        for chunk, start, size in ranges:
            chunk.ranges.give(start, size)

    def _exchange(self, size: int) -> Range | None:
        """Take a range of a new chunk, which replaces chunks of which nothing is in use and which are too small."""
        idle = [chunk for chunk in self._chunks if chunk.ranges.free == chunk.ranges.nbytes]
        in_use = self.nbytes - sum(chunk.ranges.nbytes for chunk in idle)
        if not idle or (self.max_bytes is not None and in_use + size > self.max_bytes):
            return None
        self._chunks = [chunk for chunk in self._chunks if chunk not in idle]
        for chunk in idle:
            chunk.give_up()
        return self._grow(size)

    def _coming(self) -> bool:
        """Tell whether a device, a transfer or a peer still uses returned memory. Other memory may never come back."""
        retention = self._core.retention
        kept = [*self._core.shares.kept(), *retention.kept()]
        # Look in this order: memory that leaves one of these places is in the next one by then, so none is missed.
        return bool(
            any(type(keep) is Block and keep.goes_to(self._freed) for keep in kept)
            or retention.releasing
            or self._freed
            or self._unmarked
            or self._marked
        )

    def _grow(self, size: int) -> Range | None:
        wanted = max(self.chunk_bytes, size)
        if self.max_bytes is not None:
            wanted = min(wanted, (self.max_bytes - self.nbytes) // ALIGNMENT * ALIGNMENT)
        for nbytes in dict.fromkeys((wanted, size)):
            if size <= nbytes <= wanted:
                try:
                    registration = self._core.registration_cache.allocate(nbytes, self.device, whole=False)
                except (RegistrationFailed, LimitReached) as error:
                    self._refused = error
                    continue
                self._chunks.append(Chunk(self._core.retention, registration))
                return self._take(size)
        return None

    def _memory(self, taken: Range, block: Block | None, nbytes: int) -> Memory:
        part = self._core.registration_cache.part(taken[0].registration, taken[1], nbytes)
        return Memory(self._core, part, 0, nbytes, RIGHTS["rw"], block, owned=True)

    def _full(self, nbytes: int) -> RegistrationFailed | LimitReached:
        free, largest = self.free_bytes, max((chunk.ranges.largest for chunk in self._chunks), default=0)
        held = f"it holds {self.nbytes} bytes, of which {free} are free, {largest} in one piece"
        refused = self._refused
        if self.max_bytes is None and isinstance(refused, LimitReached):
            said = f"the pool has no room for {nbytes} bytes: {held}; {refused.reason}"
            return LimitReached(said, fix=refused.fix, limit=refused.limit, value=refused.value, operation="alloc")
        if self.max_bytes is None:
            why, fix = "" if refused is None else refused.reason, "close what is not needed, here or in other programs"
        else:
            why = f"it may have {self.max_bytes}"
            fix = "close Memories and drop tensors of it, or make it with a larger max_bytes="
        return RegistrationFailed(f"the pool has no room for {nbytes} bytes: {held}; {why}", fix=fix, operation="alloc")

    def _check_open(self) -> None:
        self._core.check_open()
        if self._closed:
            raise Closed("this Pool was closed", fix="make another with ctx.pool()")

    def __repr__(self) -> str:
        return f"Pool({self.nbytes} bytes of {self.device}{', closed' if self._closed or self._core.closed else ''})"
