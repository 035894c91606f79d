"""Moves ranges between files of a server and the memory of its clients: straight, or through blocks of the server's."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import NativeError, Status
from zerohop.core.face import offset_of, region_of
from zerohop.errors import CANCELLED, DeadlineExceeded, PeerLost, ZerohopError, reason_of, status_of
from zerohop.storage.completion import RECORD
from zerohop.storage.serving.pieces import Pieces, Results, chosen, cut, joined
from zerohop.storage.wire import MOST_RANGES

if TYPE_CHECKING:
    from typing import TypeAlias

    from zerohop._native import OpenFile, Reached
    from zerohop.core.face import Operation, RemoteBuffer
    from zerohop.storage.local_store import LocalStore
    from zerohop.storage.serving.blocks import Blocks, Borrower
    from zerohop.storage.serving.pieces import Numbers

    Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

# Bytes of one Move that are under way at once where no block limits them.
_WINDOW_BYTES: Final = 64 << 20
# Blocks that one Move uses at once: while one is sent, the next is read.
_BLOCKS_AT_ONCE: Final = 2
# From this length on a lane carries a range over several sockets (native/provider/tcp).
_LONG_BYTES: Final = 1 << 20


class Delivery:
    """Moves the ranges of one Move. On the control thread.

    Attributes:
        results: how the ranges have ended, so far.
    """

    def __init__(
        self,
        store: LocalStore,
        file: OpenFile,
        memory: RemoteBuffer,
        *,
        writes: bool,
        priority: int,
        deadline_ns: int,
    ) -> None:
        self._store = store
        self._file = file
        self._memory = memory
        self._writes = writes
        self._priority = priority
        self._deadline_ns = deadline_ns
        # Ranges that were cancelled; None: all.
        self._cancelled: set[int] | None = set()
        self._late = False  # whether all were cancelled because their time has passed
        self._under_way: dict[Any, Pieces] = {}  # by the ring that carries them out
        self.results: Results

    def cancel(self, ranges: Numbers | None = None) -> None:
        """End some ranges, or all, as soon as nothing uses their memory any more."""
        if ranges is None or self._cancelled is None:
            self._cancelled = new = None
        else:  # only numbers that a range can have, so that the set stays small whatever a client sends
            new = {*ranges[(ranges >= 0) & (ranges < MOST_RANGES)].tolist()} - self._cancelled
            self._cancelled |= new
        for ring, pieces in self._under_way.items():
            self._cancel_in(ring, pieces, new)

    def _cancel_in(self, ring: Any, pieces: Pieces, ranges: set[int] | None) -> None:
        with contextlib.suppress(NativeError):  # the Store is closed, and has ended all of them
            if ranges is None:
                ring.cancel(None, 0)
                return
            for place in np.flatnonzero(np.isin(pieces.ranges, list(ranges))) if ranges else ():
                ring.cancel(int(place), 0)

    async def straight(self, reached: Reached, start: int, offsets: Numbers, at: Numbers, lengths: Numbers) -> None:
        """Let the system, or a device, move the bytes between the file and the peer's memory itself."""
        self.results = Results(lengths)
        for pieces in cut(offsets, at, lengths, _WINDOW_BYTES, self.results.has_ended):
            if (status := self._over()) is not None:
                self.results.fail_rest(pieces, status)
                break
            await self._through_ring(pieces, reached, start, self._memory.nbytes, pieces.at)

    async def by_blocks(
        self, blocks: Blocks, client: Borrower, offsets: Numbers, at: Numbers, lengths: Numbers
    ) -> None:
        """Move the bytes through blocks of the server's, and between those and the peer over a lane."""
        self.results = Results(lengths)
        at_once = asyncio.Semaphore(_BLOCKS_AT_ONCE)
        tasks: set[asyncio.Task[None]] = set()

        def begin(pieces: Pieces) -> None:
            task = asyncio.ensure_future(self._by_block(blocks, client, pieces))
            tasks.add(task)
            task.add_done_callback(ended)

        def ended(task: asyncio.Task[None]) -> None:
            at_once.release()
            if not task.cancelled() and task.exception() is None:
                tasks.discard(task)
            else:  # gather() raises its error
                self.cancel()

        try:
            for pieces in cut(offsets, at, lengths, blocks.block_bytes, self.results.has_ended):
                await at_once.acquire()
                if (status := self._over()) is not None:
                    self.results.fail_rest(pieces, status)
                    break
                begin(pieces)
            await asyncio.gather(*tasks)
        except BaseException:
            self.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            # The error of a task has this frame in its traceback, and with it the file that it would keep open.
            tasks.clear()

    async def _by_block(self, blocks: Blocks, client: Borrower, pieces: Pieces) -> None:
        async with blocks.lent(client) as block:
            if (status := self._over()) is not None:  # it may have waited long for a block
                self.results.fail_all(pieces, status)
                return
            places = np.cumsum(pieces.lengths) - pieces.lengths
            where = region_of(block), offset_of(block), block.nbytes
            lengths = pieces.lengths if self._writes else await self._through_ring(pieces, *where, places)
            with blocks.handed_to(client):
                crossed = await self._each_over_lane(pieces, block, places, lengths)
            if self._writes:
                await self._through_ring(chosen(pieces, crossed), *where, places[crossed])

    async def _each_over_lane(self, pieces: Pieces, block: Any, places: Numbers, lengths: Numbers) -> Mask:
        """Move bytes between a block and the peer's memory; tell which pieces have crossed. The others have failed.

        Raises:
            PeerLost: the client is gone.
        """
        count = len(pieces.ranges)
        try:
            await self._over_lane(pieces, block, places, lengths)
            return np.ones(count, bool)
        except PeerLost:
            raise
        except ZerohopError as error:
            if count == 1:
                self.results.fail_all(pieces, status_of(error), reason_of(error))
                return np.zeros(1, bool)
        # Some of the memory is not there: each is tried by itself, because a failure is to end no other transfer.
        crossed = np.zeros(count, bool)
        for i in range(count):
            one = slice(i, i + 1)
            crossed[one] = await self._each_over_lane(chosen(pieces, one), block, places[one], lengths[one])
        return crossed

    async def _over_lane(self, pieces: Pieces, block: Any, places: Numbers, lengths: Numbers) -> None:
        """Move bytes between a block and the peer's memory."""
        # Without a deadline: an operation that a deadline ends goes on using the block, which another client is to get
        # next. So a client that has stopped keeps it until it goes on, is lost, or is given up for others' sake.
        context, memory, forever = self._store.context, self._memory, math.inf
        here, there, sizes = joined(places, pieces.at, lengths)
        # A lane may carry one long range over several sockets at once, and does so with none of a list.
        long = sizes >= _LONG_BYTES
        moving = []
        for at, start, size in zip(here[long].tolist(), there[long].tolist(), sizes[long].tolist(), strict=True):
            ends = block[at : at + size], memory[start : start + size]
            moving.append(
                context.read(ends[1], ends[0], timeout=forever)
                if self._writes
                else context.write(*ends, timeout=forever)
            )
        here, there, sizes = here[~long], there[~long], sizes[~long]
        if sizes.size:
            moving.append(
                context.read_list(memory, block, there, here, sizes, timeout=forever)
                if self._writes
                else context.write_list(block, memory, here, there, sizes, timeout=forever)
            )
        await _all_of(moving)

    async def _through_ring(
        self, pieces: Pieces, memory: Any, part_offset: int, part_nbytes: int, at: Numbers
    ) -> Numbers:
        """Move pieces between the file and memory; return the bytes of each."""
        count = len(pieces.ranges)
        ring = self._store.new_ring(count, self._writes, self._priority)
        self._under_way[ring] = pieces
        try:
            ring.prepare(self._file, memory, part_offset, part_nbytes, pieces.offsets, at, pieces.lengths, None)
            ring.submit(count)
            if self._cancelled is None or self._cancelled:
                self._cancel_in(ring, pieces, self._cancelled)
            if ring.ready < count:
                await self._ended(ring, count)
        finally:
            del self._under_way[ring]
        records = np.frombuffer(ring.take(count), RECORD)
        order = np.empty(count, np.int64)
        order[records["userdata"]] = np.arange(count)
        records = records[order]
        if self._late:  # native code knows that they were cancelled, and not why
            records["status"][records["status"] == CANCELLED] = Status.DEADLINE.value
        self.results.note(pieces, records)
        done: Numbers = records["done"]
        return done

    async def _ended(self, ring: Any, count: int) -> None:
        try:
            await self._store.pending("serve", ring.end_when(count, self._deadline_ns), ring)
        except DeadlineExceeded:
            self._late = self._cancelled is not None
            self.cancel()
            await self._store.pending("serve", ring.end_when(count, 0), ring)

    def _over(self) -> int | None:
        """Return the status with which what has not begun fails, because of a cancellation or a deadline; else None."""
        if self._late or (bool(self._deadline_ns) and not self._store.seconds_until(self._deadline_ns)):
            return Status.DEADLINE.value
        return Status.CANCELLED.value if self._cancelled is None else None


async def _all_of(operations: list[Operation[Any]]) -> None:
    """Wait for the end of all, and raise the first one's error; the block is another client's afterwards.

    The list is empty then, and no variable has an operation: each has its error, whose traceback has these frames, and
    these frames have the file, which would stay open.
    """
    failed = None
    while operations:
        try:
            await operations.pop()
        except ZerohopError as error:
            failed = error
    if failed is not None:
        try:
            raise failed
        finally:
            del failed
