"""Declares ServedTransfers, the part of a RemoteStore that has its server move bytes."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from zerohop._native import FileRing as NativeRing
from zerohop._native import NativeError, gather_pages
from zerohop.core.face import all_ended, begun, index_array, may_be_replaced, region_of, whole_of
from zerohop.errors import ZerohopError, from_native
from zerohop.storage import wire
from zerohop.storage.imported_iov import ImportedIov
from zerohop.storage.iov import REPLACEABLE, Iov
from zerohop.storage.numbers import check_ranges
from zerohop.storage.operation import ServedPath, ServedTransfer
from zerohop.storage.remote.begun import Begun
from zerohop.storage.remote.remote_ring import RemoteRing
from zerohop.storage.remote.results import joined
from zerohop.storage.remote.transfer import Transfer
from zerohop.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zerohop._native import Op
    from zerohop.core.face import Local, Memory, Operation, View
    from zerohop.storage.completion import ToldErrors
    from zerohop.storage.file_engine import AnyMemory, OpenFile, Places
    from zerohop.storage.file_ring import FileRing
    from zerohop.storage.remote.lending import Lending, Lent
    from zerohop.storage.remote.memory_numbers import MemoryNumber, MemoryNumbers
    from zerohop.storage.remote.moves import Moves
    from zerohop.storage.remote.remote_file import RemoteFile
    from zerohop.storage.remote.remote_ring import Batch
    from zerohop.storage.serving.pieces import Numbers

_PRIORITY_NORMAL = 1


class ServedTransfers(Store):
    """Has a server move bytes. It is asked over the lane where it reaches the memory, and by messages where not."""

    # All are set by the constructor of RemoteStore.
    _moves: Moves
    _lending: Lending
    _numbers: MemoryNumbers
    _told: ToldErrors

    def memory_of(self, x: Local | Iov | ImportedIov) -> Memory | View:
        """Return the memory that an argument names; an array's is lent to the server for one transfer."""
        memory = super().memory_of(x)
        if isinstance(memory, ImportedIov):
            raise TypeError("memory of another process is for a Store of a folder of this machine")
        if memory is not x and not isinstance(x, Iov):
            self._lending.note_array(memory)
        return memory

    def new_iov(self, memory: Memory | View, *, owned: bool) -> Iov:
        """Return an Iov of memory. The server has its system keep the pages at hand, if it reaches them."""
        self._lending.note_kept(memory)
        lent = self._lending.lent(self._lend, self._take_back, memory, writes=memory.readonly)
        tell = self._moves.tell

        def release() -> None:
            if not (why_not or self._closed or self._core.forked):
                self._on_control_thread(tell, wire.Forget(lent.handle))
            lent.release()

        why_not = REPLACEABLE if may_be_replaced(memory) else ""
        if not why_not:
            gather_pages(region_of(memory))
            self._on_control_thread(tell, wire.Keep(lent.handle))
        self._number_of(lent)
        return Iov(memory, why_not, release, owned=owned)

    def new_ring(self, entries: int, writes: bool, priority: int) -> FileRing:
        """Return a ring whose transfers the server carries out."""
        native = NativeRing(self._core.engine, self._moves.asking, entries, writes, priority)
        by_messages, peer = Begun(self._moves, self._told), self._moves.link.peer

        def move(ring: RemoteRing, batch: Batch) -> Operation[None]:
            moving = by_messages.add(ring, batch)
            # An operation of its own: it goes on where a signal's handler ends the call that has begun the batch.
            return self._defer("serve", 0, moving.run, keep=batch, peer=peer, at_end=moving.end)

        def begin(ring: RemoteRing) -> None:
            async def ask() -> None:
                await all_ended([move(ring, batch) for batch in ring.take_left()])

            # A flush waits for this one from now on: the server uses the memory until all have ended.
            self._defer("serve", 0, ask, peer=peer)

        def cancel(_: RemoteRing, number: int | None) -> int:
            return by_messages.cancel(number, self._on_control_thread)

        def give_back(lent: Lent) -> None:
            if not self._core.forked:
                self._on_control_thread(lent.release)

        return RemoteRing(native, begin, cancel, give_back, writes=writes, priority=priority)

    def _number_of(self, lent: Lent) -> MemoryNumber | None:
        """Return the number of memory in requests over the lane; None if it has none yet, for which this asks."""
        if lent.is_once:
            return None
        memory = whole_of(lent.view)
        number = self._numbers.number(memory, lent.handle)
        if number is None and self._numbers.asks_for(memory, lent.handle):
            self._on_control_thread(self._numbers.ask, memory, lent.handle)
        return number

    def place_of(self, file: OpenFile, view: AnyMemory, *, writes: bool) -> tuple[Any, Any, int, int]:
        """Return the file's number, and the memory that was lent."""
        native = file.native()
        lent = self._lending.lent(self._lend, self._take_back, _own(view), writes=writes)
        lent.number = self._number_of(lent)
        return native, lent, lent.start, view.nbytes

    def transfer(
        self,
        kind: str,
        file: OpenFile,
        view: AnyMemory,
        places: Places,
        timeout: float | None,
        *,
        writes: bool,
        short: bool,
    ) -> Operation[int]:
        """Have the server move the bytes."""
        native = file.native()
        offsets = np.array(index_array(places[0], "offsets in the file"))
        at = np.array(index_array(places[1], "offsets in the memory"))
        lengths = np.array(index_array(places[2], "lengths"))
        check_ranges(offsets, at, lengths, view.nbytes)
        nbytes = int(lengths.sum())
        ends = (view.device, "file") if writes else ("file", view.device)
        peer = self._moves.link.peer
        path = ServedPath(file.path, ends, peer, _is_closed(self))
        deadline_ns = self._deadline(timeout)
        lent = self._lending.lent(self._lend, self._take_back, _own(view), writes=writes)
        whole = not (short or writes)
        posted = self._over_lane(kind, native, lent, (offsets, at, lengths), deadline_ns, writes=writes, whole=whole)
        if posted is not None:
            op, how = posted
            path.took(how)
            operation = ServedTransfer()
            begun(operation, self._core, kind, nbytes, op, view, path)  # native code keeps the file's number
            return operation

        moving = Transfer(
            self._moves,
            native,
            lent,
            (offsets, at + lent.start, lengths),
            writes=writes,
            priority=_PRIORITY_NORMAL,
            deadline_ns=deadline_ns,
            path=path,
        )
        began: list[Operation[Any]] = []

        async def work(operation: Any) -> int:
            self.check_usable()
            answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            async def serve() -> None:
                try:
                    answer: Any = await moving.run()
                except (ZerohopError, ValueError) as error:
                    answer = error
                if not answered.done():
                    answered.set_result(answer)

            # The server uses the memory until this one has ended, also if the other has a deadline or is cancelled.
            began.append(self._defer("serve", 0, serve, keep=view, peer=peer, at_end=lent.release))
            operation.made_of(began)
            try:
                answer = await answered
            except asyncio.CancelledError:
                moving.cancel()
                raise
            with self._unless_closed():
                if isinstance(answer, Exception):
                    raise answer
            moved = joined(answer, nbytes, kind, file.path, whole=whole)
            operation.moved(moved)
            return moved

        def at_end() -> None:
            if not began:  # it was cancelled, or too late, before that
                lent.release()

        return self._defer(
            kind,
            deadline_ns,
            work,
            nbytes=nbytes,
            keep=view,
            path=path,
            peer=peer,
            wants_operation=True,
            at_end=at_end,
        )

    def _over_lane(
        self,
        kind: str,
        file: RemoteFile,
        lent: Lent,
        ranges: tuple[Numbers, Numbers, Numbers],
        deadline_ns: int,
        *,
        writes: bool,
        whole: bool,
    ) -> tuple[Op, str] | None:
        """Ask for a transfer over the lane, and return its Op and the way that it takes; None: messages have to ask."""
        number, asking, view = self._number_of(lent), self._moves.asking, lent.view
        if number is None or file.lane_number is None or asking is None:
            return None
        part = region_of(view), writes, lent.start, view.nbytes
        try:
            op = asking.transfer(file.lane_number, number.number, *part, *ranges, whole, deadline_ns)
        except NativeError as error:
            self.check_usable()
            raise from_native(*error.args, operation=kind) from None
        return None if op is None else (op, number.how)

    @contextlib.contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Raise Closed instead of what the server says of a Store that was closed here meanwhile."""
        self.check_usable()
        try:
            yield
        except ZerohopError:
            self.check_usable()
            raise


def _own(view: AnyMemory) -> Memory | View:
    assert not isinstance(view, ImportedIov)  # memory_of() has refused it
    return view


def _is_closed(store: ServedTransfers) -> Callable[[], bool]:
    """Return a function that tells whether a Store was closed, and does not keep it alive."""
    there = weakref.ref(store)

    def is_closed() -> bool:
        found = there()
        return found is None or found._closed

    return is_closed
