"""Receives the peer's allocations, one message for all shares that lie in one, and has each mapped or reached here.

On the control thread. An allocation comes before the answer that refers to it, and belongs to this side until the owner
is told that it was dropped. No descriptor is kept once its memory is mapped.
"""

from __future__ import annotations

import asyncio
import os
import resource
from typing import TYPE_CHECKING, Final, NamedTuple

from zerohop._native import NativeError, Reason, Status
from zerohop.config.providers import P2P, SHM
from zerohop.core.control.descriptors import copies_of
from zerohop.core.control.received import close_received, is_memory_or_pipe
from zerohop.core.lanes.imported import Allocation
from zerohop.core.lanes.lane import retrieve
from zerohop.errors import ProtocolError, ZerohopError, from_native, said_by_peer

if TYPE_CHECKING:
    from zerohop.core.control import wire
    from zerohop.core.peers.peer_core import PeerCore
    from zerohop.core.peers.peer_link import PeerLink

# Pieces that one memory may have; each has at least 2 MiB.
_MAX_PIECES: Final = 1 << 17
# Part of the limit of descriptors that this process may have in use while some wait for further parts of an allocation.
_MOST_OF_LIMIT: Final = 0.75
# Allocations that devices here are given access to at the same time: each takes a thread while a driver works on it.
_MAX_THREADS: Final = 4


class _Arriving(NamedTuple):
    """Holds an allocation of which parts are still to come: its first message, and copies of the descriptors so far."""

    first: wire.Allocation
    fds: list[int]


class Allocations:
    """Holds the allocations that have come over one Connection, and that no answer has referred to yet."""

    def __init__(self, core: PeerCore, link: PeerLink) -> None:
        self._core = core
        self._link = link
        self.threads = asyncio.Semaphore(_MAX_THREADS)
        # By number, the first with their provider; of the second, of which there is one at most, more is to come.
        self._arrived: dict[int, tuple[str, asyncio.Future[Allocation]]] = {}
        self._unfinished: dict[int, _Arriving] = {}

    def on_allocation(self, message: wire.Allocation, fds: list[int], expected: int) -> None:
        """Handle Allocation; the caller closes the descriptors.

        ``expected``: the number of shares that the peer is being asked for over this provider.

        Raises:
            ProtocolError: the peer gives what nobody has asked for.
        """
        number = message.number
        if number in self._arrived or number in self._unfinished or number in self._link.allocations:
            raise ProtocolError("malformed: an allocation begun twice")
        here = [provider for provider, _ in self._arrived.values()]
        here += [arriving.first.provider for arriving in self._unfinished.values()]
        if here.count(message.provider) >= expected:
            raise ProtocolError("malformed: memory that nobody has asked for")
        if self._unfinished:
            raise ProtocolError("malformed: an allocation within another")
        pieces = message.exported.pieces if message.exported is not None else None
        if message.provider not in (SHM, P2P) or (message.provider == SHM and pieces is not None):
            raise ProtocolError("malformed: an allocation of a kind that its provider has not")
        if message.more and not pieces:
            raise ProtocolError("malformed: an allocation without pieces")
        _check_count(message.nfds, _needed(message))
        if message.more:
            self._unfinished[number] = _Arriving(message, [])
            self._gather(number, fds)
        else:
            self._begin(message, fds)

    def on_part(self, part: wire.AllocationPart, fds: list[int]) -> None:
        """Handle AllocationPart, the continuation of an allocation; the caller closes the descriptors."""
        arriving = self._unfinished.get(part.number)
        if arriving is None:
            raise ProtocolError("malformed: a part of an allocation that has not begun")
        first = arriving.first
        assert first.exported is not None  # on_allocation() has checked it
        if not part.pieces:
            raise ProtocolError("malformed: a part of an allocation without pieces")
        _check_count(part.nfds, sum(not handle for _, handle in part.pieces))
        first.exported.pieces.extend(part.pieces)
        first.nfds += part.nfds
        if len(first.exported.pieces) > _MAX_PIECES:
            raise ProtocolError("malformed: more pieces than any memory has")
        self._gather(part.number, fds)
        if not part.more:
            del self._unfinished[part.number]
            try:
                self._begin(first, arriving.fds)
            finally:
                close_received(arriving.fds)

    async def take(self, number: int) -> Allocation | None:
        """Return an allocation that is mapped here; None if there is none, so that the owner has to give it again.

        Raises:
            NativeError: it cannot be mapped here.
            ZerohopError: a limit of this process is reached, or the peer described the memory wrongly.
        """
        if number in self._arrived:
            allocation = await asyncio.shield(self._arrived[number][1])
            # Another answer may have taken it meanwhile.
            if number in self._arrived:
                self._link.allocations[number] = allocation  # first, so that lack of memory leaves it in one of both
                del self._arrived[number]
            return allocation
        found = self._link.allocations.get(number)
        # One without users is being given back, which its owner does not know yet.
        return found if found is not None and found.users else None

    def unclaimed(self, provider: str) -> list[tuple[int, asyncio.Future[Allocation]]]:
        """Take out, by number, what has arrived for a provider, once all answers of the provider were handled."""
        return [
            (number, self._arrived.pop(number)[1])
            for number, (its_provider, _) in self._arrived.copy().items()
            if its_provider == provider
        ]

    def end(self) -> None:
        """Drop everything, because the Connection is lost."""
        for arriving in self._unfinished.values():
            close_received(arriving.fds)
        self._unfinished.clear()
        for _, future in self._arrived.values():
            if not future.cancel() and not future.cancelled() and future.exception() is None:
                future.result().whole.close()
        self._arrived.clear()

    def _gather(self, number: int, fds: list[int]) -> None:
        gathered = self._unfinished[number].fds
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Once all parts have come, too few descriptors tell that some were closed here.
        try:
            copies = copies_of(fds)
        except OSError:
            close_received(gathered)
            return
        gathered.extend(copies)
        # The system gives the lowest free number, so a number tells how many are in use, also by other links. The
        # caller closes the descriptors that came.
        if any(fd - len(fds) >= _MOST_OF_LIMIT * soft for fd in copies):
            close_received(gathered)

    def _begin(self, message: wire.Allocation, fds: list[int]) -> None:
        """Map an allocation that has come whole, or have another thread import it."""
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(retrieve)
        self._arrived[message.number] = message.provider, future
        try:
            self._check(message, fds)
            if message.provider == SHM and is_memory_or_pipe(fds[0]):
                future.set_result(self._map(message, fds[0]))
            elif not fds:
                # No driver is asked before a device opens the memory, which another thread has it do.
                future.set_result(self._take_memory(message, []))
            else:
                # A file system or a driver may take long. The thread needs copies of its own, because the caller closes
                # these.
                task = self._link.start(self._import, message, copies_of(fds), future)
                task.add_done_callback(lambda _: future.cancel())
        except (NativeError, ZerohopError, MemoryError) as error:
            future.set_exception(error)
        except OSError:
            future.set_exception(from_native(Status.NO_MEMORY.value, Reason.OUT_OF_DESCRIPTORS.value))

    def _check(self, message: wire.Allocation, fds: list[int]) -> None:
        """Check the descriptors of an allocation."""
        needed = _needed(message)
        if message.nfds < needed:
            raise said_by_peer(Status.NO_MEMORY.value, Reason.OUT_OF_DESCRIPTORS.value, peer=self._link.peer)
        if len(fds) != needed:
            # The kernel dropped them: the process that they were for had no number left.
            raise from_native(Status.NO_MEMORY.value, Reason.OUT_OF_DESCRIPTORS.value)

    def _map(self, message: wire.Allocation, fd: int) -> Allocation:
        self._check_size(message, fd)
        mapping = self._core.engine.map(fd, message.offset, message.nbytes, message.writable)
        return Allocation(message, mapping)

    def _check_size(self, message: wire.Allocation, fd: int) -> None:
        # The owner has looked before it shared the file: it has become shorter since.
        if os.fstat(fd).st_size < message.offset + message.nbytes:
            raise from_native(Status.ACCESS_DENIED.value, Reason.MEMORY_GONE.value, peer=self._link.peer)

    async def _import(self, message: wire.Allocation, fds: list[int], future: asyncio.Future[Allocation]) -> None:
        try:
            async with self.threads:
                take = self._core.control.run_in_thread
                allocation = await take(self._take_memory, message, fds, discard=_close)
        except Exception as error:  # noqa: BLE001 - the operations that wait must get it
            close_received(fds)
            if not future.done():
                future.set_exception(error)
            return
        if future.done():
            _close(allocation)
        else:
            future.set_result(allocation)

    def _take_memory(self, message: wire.Allocation, fds: list[int]) -> Allocation:
        """Map a file, or import memory for devices here, on a new thread; closes the descriptors."""
        engine, exported = self._core.engine, message.exported
        try:
            if message.provider == SHM:
                return self._map(message, fds[0])
            if exported is None:
                self._check_size(message, fds[0])
                memory = engine.import_host(fds[0], message.offset, message.nbytes, message.writable)
                return Allocation(message, memory)
            form, process = exported.form, exported.process
            place = exported.address, exported.offset, message.nbytes
            pieces = exported.pieces, fds, message.writable
            memory = engine.import_memory(form, exported.device, process, *place, *pieces)
            return Allocation(message, memory, exported.device)
        finally:
            close_received(fds)


def _needed(message: wire.Allocation) -> int:
    """Return how many descriptors belong to the pieces of an allocation, as far as they have come."""
    return 1 if message.exported is None else sum(not handle for _, handle in message.exported.pieces)


def _check_count(given: int, needed: int) -> None:
    # Fewer of them are no fault of the format: their sender had reached its limit of descriptors.
    if given > needed:
        raise ProtocolError("malformed: more descriptors than pieces of memory")


def _close(allocation: Allocation) -> None:
    allocation.whole.close()
