"""Imports the peer's memory: asks for it at first use, and gives it back when the peer asks.

On the control thread. Memory on this host is mapped (shm): its owner sends a descriptor. Memory of a device on this
host is mapped for devices here (p2p): its owner sends what its driver exports. Both come once for all shares of one
allocation (allocations.py). Memory that NICs reach (verbs) has one key for each rail of the lane. No handle carries
these: the owner is asked, so that it knows its importers, and registers memory with a NIC only when a peer wants to
reach it through that NIC.

However many shares are used for the first time at once, one request over each provider is under way, and the next one
names all shares that were asked for meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from zerohop._native import Grants, NativeError, RemoteKeys, Status
from zerohop.config.providers import SHM, VERBS
from zerohop.core.base.peer_text import printable, quoted
from zerohop.core.control import wire
from zerohop.core.lanes.imported import Import
from zerohop.core.lanes.lane import retrieve
from zerohop.core.lanes.peer_grants import PeerGrants
from zerohop.core.lanes.reachability import note_no_peer_link
from zerohop.core.peers.allocations import Allocations
from zerohop.core.peers.releases import UNMAP_PAUSE_S, Releases, unmap
from zerohop.core.runtime.served import seconds_left, wait_shared
from zerohop.errors import ProtocolError, ZerohopError, copy_of, out_of_memory, said_by_peer, silent_error

if TYPE_CHECKING:
    from zerohop.core.control.channel import Channel
    from zerohop.core.lanes.imported import Allocation
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.remote_buffer import Share
    from zerohop.core.peers.peer_core import PeerCore
    from zerohop.core.peers.peer_link import PeerLink

_WRITE: Final = 2
_STILL_MAPPED: Final = (
    "what this process had of that memory is still mapped, because a copy is under way or a stream of a GPU here waits"
)
# Seconds that a side that leaves waits for the last copies.
LAST_COPIES_S: Final = 0.5
# Statuses of an owner that cannot give memory to this provider. Another provider may still reach it.
_CANNOT: Final = (Status.UNSUPPORTED.value, Status.NO_MEMORY.value, Status.DEVICE_ERROR.value)

# Imports of one peer, and allocations that they lie in, beyond which unused imports are given back.
_MAX_IMPORTS: Final = 1 << 16
_MAX_ALLOCATIONS: Final = 1024
# Number of the oldest imports of which each new one then gives back those that are unused.
_OLDEST: Final = 4
# Times that an answer may refer to an allocation that this side was just giving back.
_MAX_ASKED: Final = 8

_Reply = list[wire.Imported]
# A provider, a share and its capability, and the NICs of the peer.
_RequestKey = tuple[str, int, bytes, tuple[int, ...]]
# A provider, and the NICs of the peer: a request asks for shares of one such pair.
_Way = tuple[str, tuple[int, ...]]


class _Want(NamedTuple):
    """Holds a share that operations wait for, and the future that they wait for."""

    share: Share
    done: asyncio.Future[None]
    asked: int = 0


class Imports:
    """Imports the peer's memory over one Connection."""

    def __init__(self, core: PeerCore, link: PeerLink, channel: Channel) -> None:
        self._core = core
        self._link = link
        self._channel = channel
        self.allocations = Allocations(core, link)
        self.releases = Releases(core, link, channel)
        self._granted = False
        self._requests = 0
        # Requests without an answer, by number: provider, number of shares asked for, and the future of the answer.
        self._replies: dict[int, tuple[str, int, asyncio.Future[_Reply]]] = {}
        self._importing: dict[_RequestKey, asyncio.Future[None]] = {}
        # Shares that wait for the next request, and the tasks that make the requests.
        self._wanted: dict[_Way, deque[_Want]] = {}
        self._asking_tasks: dict[_Way, asyncio.Task[None]] = {}
        # Devices here that are being given access to an allocation for the first time.
        self._readying: dict[tuple[Allocation, Registration], asyncio.Task[None]] = {}

    async def ask(self, share: Share, provider: str, rails: tuple[int, ...]) -> None:
        """Import the memory behind the peer's share, or note why that is impossible. ``rails``: NICs of the peer.

        Raises:
            AccessDenied: the owner does not allow it.
            LimitReached: this process, or the owner's, has reached a limit.
            PeerLost: the owner is gone.
            DeadlineExceeded: the owner does not answer before the operation's deadline, or an earlier import is still
                being released; the request stays under way.
            Closed: this side is leaving.
        """
        future = self.begin(share, provider, rails)
        leaving, limit = self.leaving(share, provider), seconds_left()
        if leaving is not None and limit is not None:
            # The wait ends before the operation's deadline, so that there is time to report this reason.
            await asyncio.wait([future, leaving], timeout=0.9 * limit, return_when=asyncio.FIRST_COMPLETED)
            if not future.done() and not leaving.done():
                raise silent_error(self._link.peer, _STILL_MAPPED)
        await wait_shared(future, self._link, seconds_left())

    def begin(self, share: Share, provider: str, rails: tuple[int, ...]) -> asyncio.Future[None]:
        """Begin to import a share, unless that is under way; return the future of its end, as ``ask`` waits for it.

        Raises:
            Closed: this side is leaving.
        """
        if self._link.closing is not None:
            raise copy_of(self._link.closing)
        # With the capability, so that a handle with a wrong one does not fail what waits for the right one.
        key = (provider, share.share_id, share.capability, rails)
        future = self._importing.get(key)
        # One that has ended is of an import that may have been given back since: its callback has still to run.
        if future is None or future.done():
            future = self._importing[key] = asyncio.get_running_loop().create_future()
            future.add_done_callback(functools.partial(self._import_ended, key))
            try:
                self._ask(_Want(share, future), (provider, rails))
            except MemoryError as error:  # others may wait for the future, and the owner for Released
                self._link.step_failed(error)
                raise
        return future

    def leaving(self, share: Share, provider: str) -> asyncio.Future[None] | None:
        """Return the end of an earlier import of a share, which is still being released; None if there is none."""
        return self.releases.leaving.get((provider, share.share_id))

    def on_allocation(self, message: wire.Allocation, fds: list[int]) -> None:
        """Handle Allocation, which comes before the answer that refers to it; the caller closes the descriptors."""
        expected = sum(count for provider, count, _ in self._replies.values() if provider == message.provider)
        self.allocations.on_allocation(message, fds, expected)

    def on_grants(self, message: wire.GrantTable, fds: list[int]) -> None:
        """Handle GrantTable, which the owner sends once; the caller closes the descriptor."""
        if message.nfds != 1 or self._granted:
            raise ProtocolError("malformed: not one table of grants")
        self._granted = True
        try:
            self._link.grants = PeerGrants(Grants(fds[0]), _MAX_IMPORTS) if fds else None
        except NativeError as error:
            if error.args[0] == Status.PROTOCOL.value:
                raise ProtocolError(f"malformed: {error.args[2]}") from None
            # Without memory or numbers of this process for the table, the owner is asked for each share.

    def on_import_reply(self, reply: wire.ImportReply) -> None:
        """Handle ImportReply, the owner's answer."""
        _, count, future = self._replies.get(reply.request, ("", 0, None))
        if future is None or future.done():
            return
        if len(reply.answers) != count:
            raise ProtocolError("malformed: not one answer for each share")
        future.set_result(reply.answers)

    async def make_ready(self, imported: Import, share: Share, registration: Registration) -> None:
        """Let a device here reach both the peer's memory and the memory here, or note why none can."""
        assert imported.allocation is not None
        key = imported.allocation, registration
        task = self._readying.get(key)
        if task is None:
            task = self._readying[key] = self._core.control.loop.create_task(self._make_ready(imported, registration))
            task.add_done_callback(lambda _: self._readying.pop(key, None))
            task.add_done_callback(retrieve)
        await asyncio.wait([task])
        if task.cancelled():
            return  # the Connection is lost, which the caller finds out next
        error = task.exception()
        if error is None or imported.closed:
            return  # an import that was given back meanwhile is asked for anew by an operation that needs it
        if not isinstance(error, NativeError) or error.args[0] == Status.CLOSED.value:
            raise error
        note_no_peer_link(self._link, registration, share, error)

    async def _make_ready(self, imported: Import, registration: Registration) -> None:
        async with self.allocations.threads:
            await self._core.control.run_in_thread(self._core.routes.make_ready, imported, registration)

    async def give_all_back(self) -> None:
        """Give back all imports before this side leaves, and wait a short time for the last operations with them."""
        loop, imports = asyncio.get_running_loop(), self._link.imports
        limit = loop.time() + LAST_COPIES_S
        while True:
            with self._link.imports_lock:  # no other thread takes a share any more, because this side is leaving
                left = imports.copy().items()
                imports.clear()
            for key, imported in left:
                self.releases.release(key, imported)
            self.releases.give_back_cut_short()
            under_way = {*self.releases.leaving.values(), *self._asking_tasks.values()}
            left_s = limit - loop.time()
            if not under_way or left_s <= 0:
                self.releases.tell()
                return
            await asyncio.wait(under_way, timeout=left_s)

    def end(self) -> None:
        """End all requests and imports that are under way, because the Connection is lost."""
        for task in [*self._asking_tasks.values(), *self._readying.values()]:
            task.cancel()
        for waiting in list(self._importing.values()):
            waiting.cancel()
        self.allocations.end()

    def _import_ended(self, key: _RequestKey, future: asyncio.Future[None]) -> None:
        retrieve(future)
        if self._importing.get(key) is future:
            del self._importing[key]

    def _ask(self, want: _Want, way: _Way) -> None:
        provider, share_id = way[0], want.share.share_id
        old = self._link.imports.pop((provider, share_id), None)
        if old is not None and provider == VERBS:
            # The old import is for NICs that the lane does not use any more. For the owner both are one import.
            unmap(self._core, old)
        elif old is not None:
            self.releases.release((provider, share_id), old)
        if (provider, share_id) in self.releases.leaving:
            self._link.start(self._ask_after_release, want, way)
        else:
            self._ask_soon(want, way)

    async def _ask_after_release(self, want: _Want, way: _Way) -> None:
        # Released names only the share, so a late one would seem to end the new import.
        while (leaving := self.releases.leaving.get((way[0], want.share.share_id))) is not None:
            await asyncio.wait([leaving])
        if not want.done.done():
            self._ask_soon(want, way)

    def _ask_soon(self, want: _Want, way: _Way) -> None:
        """Name the share in the next request of its kind; the first of a kind goes out in the next turn of the loop."""
        self.releases.asking((way[0], want.share.share_id))
        self._wanted.setdefault(way, deque()).append(want)
        if way not in self._asking_tasks:
            self._asking_tasks[way] = self._link.start(self._ask_owner, way)

    async def _ask_owner(self, way: _Way) -> None:
        """Ask for the shares that are wanted, in one request after the other, until none is left."""
        wanted = self._wanted[way]
        try:
            await self._ask_for_all(wanted, way)
        finally:
            # In the same turn of the loop as the last look at `wanted`: a share that comes later begins a new task.
            del self._asking_tasks[way], self._wanted[way]
            for want in wanted:  # the task was cancelled
                self.releases.asked((way[0], want.share.share_id))

    async def _ask_for_all(self, wanted: deque[_Want], way: _Way) -> None:
        while wanted:
            batch = [wanted.popleft() for _ in range(min(len(wanted), wire.MAX_SHARES))]
            try:
                for want, answer in zip(batch, await self._answers(batch, way), strict=True):
                    try:
                        if await self._accept(want, way, answer) and not want.done.done():
                            want.done.set_result(None)
                    except Exception as error:  # noqa: BLE001 - whatever it is, the waiting operations must get it
                        self._failed([want], error)
            except Exception as error:  # noqa: BLE001 - such as this side leaving: the same for all of them
                self._failed(batch, error)
            finally:
                for want in batch:
                    self.releases.asked((way[0], want.share.share_id))
                for number, future in self.allocations.unclaimed(way[0]):
                    future.add_done_callback(functools.partial(self.releases.drop_unclaimed, number))

    def _failed(self, wants: list[_Want], error: Exception) -> None:
        """Let operations that wait for shares fail; lose the link if the error may have left an import half made."""
        for want in wants:
            if not want.done.done():
                want.done.set_exception(copy_of(error) if isinstance(error, ZerohopError) else error)
        if not isinstance(error, ZerohopError):
            self._link.step_failed(error)

    async def _ask_again(self, want: _Want, way: _Way, number: int) -> None:
        """Ask for a share once more, because its owner did not know yet that its allocation was given back here."""
        while number in self._link.allocations and self._link.lost is None:  # noqa: ASYNC110 - no event reports that
            await asyncio.sleep(UNMAP_PAUSE_S)
        if not want.done.done():
            self._ask_soon(want._replace(asked=want.asked + 1), way)
        self.releases.asked((way[0], want.share.share_id))

    async def _answers(self, batch: list[_Want], way: _Way) -> _Reply:
        if self._link.closing is not None:
            raise copy_of(self._link.closing)
        self.releases.tell()
        self._requests += 1
        number = self._requests
        future: asyncio.Future[_Reply] = asyncio.get_running_loop().create_future()
        self._replies[number] = way[0], len(batch), future
        wanted = [wire.Wanted(want.share.share_id, want.share.capability) for want in batch]
        try:
            self._channel.post(wire.ImportRequest(number, way[0], wanted, list(way[1])))
            # This waits as long as the Connection lasts, because a late answer still serves the next operation.
            return await future
        finally:
            del self._replies[number]

    async def _accept(self, want: _Want, way: _Way, answer: wire.Imported) -> bool:
        """Import a share as its owner has answered; return False if the owner is asked once more."""
        link, share, (provider, rails) = self._link, want.share, way
        key = provider, share.share_id
        status = answer.status
        if status == Status.UNSUPPORTED.value or (provider != SHM and status in _CANNOT):
            why = quoted(answer.text) if answer.text else "its owner cannot give it out"
            link.unreachable.record_failure((*key, rails), why, status, answer.reason)
            return True
        if status != Status.OK.value:
            raise said_by_peer(status, answer.reason, peer=link.peer, provider=provider)
        try:
            if provider == VERBS:
                imported = self._with_keys(share, rails, answer)
            else:
                allocation = await self.allocations.take(answer.allocation)
                if allocation is None:
                    if want.asked == _MAX_ASKED:
                        never = ProtocolError("malformed: a share of memory that never came", peer=link.peer)
                        raise never  # noqa: TRY301 - the clause below gives back what was taken for every error
                    self.releases.asking(key)
                    self._link.start(self._ask_again, want, way, answer.allocation)
                    return False
                imported = self._part_of(allocation, share, provider, answer)
        except Exception as error:  # whatever it is: what was taken goes back, or no later use could take it
            self.releases.owed.add(key)
            self.releases.drop_unused(answer.allocation)
            if isinstance(error, MemoryError):
                raise out_of_memory(error) from None
            if not isinstance(error, (NativeError, ZerohopError)):
                raise
            if isinstance(error, ZerohopError):
                raise copy_of(error) from None
            status, reason, text = error.args
            link.unreachable.record_failure((*key, rails), f"it could not be mapped here: {text}", status, reason)
            return True
        if key in self.releases.owed or link.lost is not None:  # the owner has asked for the memory back meanwhile
            self.releases.release(key, imported)
            return True
        with link.imports_lock:
            other = link.imports.get(key)
            if other is None or provider == VERBS:
                link.imports[key] = imported
        if other is not None and provider == VERBS:
            # Another import of the share, for other NICs, was asked for at the same time.
            unmap(self._core, other)
        elif other is not None:
            # Another thread has taken the share meanwhile.
            self.releases.drop(imported)
        link.unreachable.record_success((*key, rails))
        self._drop_old_imports(key)
        return True

    def _with_keys(self, share: Share, rails: tuple[int, ...], answer: wire.Imported) -> Import:
        if len(answer.keys) != len(rails):
            raise ProtocolError("malformed: not one key for each rail", peer=self._link.peer)
        keys = RemoteKeys(answer.address, answer.nbytes, answer.rights, answer.keys, answer.atomics)
        return Import(keys, share.capability, answer.nbytes, answer.rights, rails, printable(answer.text))

    def _part_of(self, allocation: Allocation, share: Share, provider: str, answer: wire.Imported) -> Import:
        if allocation.provider != provider:
            raise ProtocolError("malformed: a share of memory of another provider", peer=self._link.peer)
        part = allocation.whole.part(answer.offset, answer.nbytes, bool(answer.rights & _WRITE))
        return Import(part, share.capability, answer.nbytes, answer.rights, allocation=allocation)

    def _drop_old_imports(self, newest: tuple[str, int]) -> None:
        """Give back old imports that nothing uses if there are very many, and not the newest, which is used next."""
        link = self._link
        if len(link.imports) <= _MAX_IMPORTS and len(link.allocations) <= _MAX_ALLOCATIONS:
            return
        unused = []
        with link.imports_lock:
            for key in list(itertools.islice(link.imports, _OLDEST)):
                if key == newest or link.imports[key].routes or link.imports[key].keepers:
                    link.imports.move_to_end(key)
                else:
                    unused.append((key, link.imports.pop(key)))
        for key, imported in unused:
            self.releases.release(key, imported)
