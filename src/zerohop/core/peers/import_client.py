"""Imports the peer's memory: asks for it at first use, and gives it back when the peer asks.

On the control thread. Memory on this host is mapped (shm): its owner sends a descriptor. Memory of a device on this
host is mapped for devices here (p2p): its owner sends what its driver exports. Memory that NICs reach (verbs) has one
key for each rail of the lane. No handle carries these: the owner is asked, so that it knows its importers, and
registers memory with a NIC only when a peer wants to reach it through that NIC.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, Reason, RemoteKeys, Status
from zerohop.config.providers import P2P, SHM, VERBS
from zerohop.core.control import wire
from zerohop.core.control.channel import close_all, copies_of
from zerohop.core.lanes.imported import Import
from zerohop.core.lanes.lane import retrieve
from zerohop.core.lanes.reachability import note_no_peer_link
from zerohop.core.runtime.deferred import seconds_left, wait_shared
from zerohop.errors import ProtocolError, ZerohopError, copy_of, from_native, silent_error

if TYPE_CHECKING:
    from zerohop._native import Mapping, PeerMemory
    from zerohop.core.control.channel import Channel
    from zerohop.core.lanes.link import Link
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.remote_buffer import Share
    from zerohop.core.peers.peer_core import PeerCore

_WRITE: Final = 2
_STILL_MAPPED: Final = (
    "what this process had of that memory is still mapped, because a copy is under way or a stream of a GPU here waits"
)
# Seconds that a side that leaves waits for the last copies.
LAST_COPIES_S: Final = 0.5
# Statuses of an owner that cannot give memory to this provider. Another provider may still reach it.
_CANNOT: Final = (Status.UNSUPPORTED.value, Status.NO_MEMORY.value, Status.DEVICE_ERROR.value)

# Pieces that one memory may have; each has at least 2 MiB.
_MAX_PIECES: Final = 1 << 17

# Imports of one peer beyond which unused ones are given back.
_MAX_IMPORTS: Final = 1024
# Seconds between two attempts to release an import that is in use.
_UNMAP_PAUSE_S: Final = 0.002

_ShareKey = tuple[str, int]
_Reply = tuple[wire.ImportReply, list[int]]
_RequestKey = tuple[str, int, tuple[int, ...]]


class Imports:
    """Imports the peer's memory over one Connection."""

    def __init__(self, core: PeerCore, link: Link, channel: Channel) -> None:
        self._core = core
        self._link = link
        self._channel = channel
        self._requests = 0
        self._replies: dict[int, asyncio.Future[_Reply]] = {}
        # Answers of which more pieces are to come, by request.
        self._unfinished: dict[int, _Reply] = {}
        self._importing: dict[_RequestKey, asyncio.Task[None]] = {}
        # Counts of requests without an answer; tasks that release an import.
        self._asking: Counter[_ShareKey] = Counter()
        self._leaving: dict[_ShareKey, asyncio.Task[None]] = {}
        # Shares for which Released is due once they are in neither of these, so that one Released covers all.
        self._owed: set[_ShareKey] = set()

    async def ask(self, share: Share, provider: str, rails: tuple[int, ...]) -> None:
        """Import the memory behind the peer's share, or note why that is impossible. ``rails``: NICs of the peer.

        Raises:
            AccessDenied: the owner does not allow it.
            PeerLost: the owner is gone.
            DeadlineExceeded: the owner does not answer before the operation's deadline, or an earlier import is still
                being released; the request stays under way.
            Closed: this side is leaving.
        """
        if self._link.closing is not None:
            raise copy_of(self._link.closing)
        key = (provider, share.share_id, rails)
        task = self._importing.get(key)
        if task is None:
            task = self._importing[key] = asyncio.get_running_loop().create_task(self._import(share, provider, rails))
            task.add_done_callback(lambda _: self._importing.pop(key, None))
            task.add_done_callback(retrieve)
        leaving, limit = self._leaving.get((provider, share.share_id)), seconds_left()
        if leaving is not None and limit is not None:
            # The wait ends before the operation's deadline, so that there is time to report this reason.
            await asyncio.wait([task, leaving], timeout=0.9 * limit, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and not leaving.done():
                raise silent_error(self._link.peer, _STILL_MAPPED)
        await wait_shared(task, self._link, seconds_left())

    def on_import_reply(self, reply: wire.ImportReply, fds: list[int]) -> None:
        """Handle ImportReply, the owner's answer; the caller closes the descriptors."""
        future = self._replies.get(reply.request)
        if future is None or future.done():
            return
        if reply.request in self._unfinished or (reply.more and reply.exported is None):
            raise ProtocolError("malformed: an answer begun twice, or without pieces")
        if reply.more:
            self._unfinished[reply.request] = reply, copies_of(fds)
        else:
            future.set_result((reply, copies_of(fds)))

    def on_import_part(self, part: wire.ImportPart, fds: list[int]) -> None:
        """Handle ImportPart, the continuation of an answer; the caller closes the descriptors."""
        begun = self._unfinished.get(part.request)
        if begun is None:
            return  # no task waits for the answer any more
        reply, gathered = begun
        assert reply.exported is not None  # on_import_reply() has checked it
        pieces = reply.exported.pieces
        pieces.extend(part.pieces)
        if len(pieces) > _MAX_PIECES:
            raise ProtocolError("malformed: more pieces than any memory has")
        gathered.extend(copies_of(fds))
        if not part.more:
            del self._unfinished[part.request]
            self._replies[part.request].set_result((reply, gathered))

    async def make_ready(self, imported: Import, share: Share, registration: Registration) -> None:
        """Let a device here reach both the peer's memory and the memory here, or note why none can."""
        core = self._core
        try:
            await core.control.run_in_thread(core.routes.make_ready, imported, registration)
        except NativeError as error:
            if imported.closed:
                return  # the import was given back meanwhile; an operation that needs it asks anew
            if error.args[0] == Status.CLOSED.value:
                raise
            note_no_peer_link(self._link, registration, share, error)

    def on_release(self, message: wire.Release) -> None:
        """Handle Release: the owner wants its memory back."""
        key = message.provider, message.share
        self._owed.add(key)
        imported = self._link.imports.pop(key, None)
        if imported is not None:
            self._start_release(key, imported)
        self._send_released(key)

    def release(self, provider: str, share_id: int, imported: Import) -> None:
        """Release an import, and tell the owner when that is done."""
        self._owed.add((provider, share_id))
        self._start_release((provider, share_id), imported)

    async def give_all_back(self) -> None:
        """Give back all imports before this side leaves, and wait a short time for the last operations with them."""
        loop, imports = asyncio.get_running_loop(), self._link.imports
        limit = loop.time() + LAST_COPIES_S
        while True:
            for provider, share_id in list(imports):
                self.release(provider, share_id, imports.pop((provider, share_id)))
            under_way = {*self._leaving.values(), *self._importing.values()}
            left_s = limit - loop.time()
            if not under_way or left_s <= 0:
                return
            await asyncio.wait(under_way, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    def end(self, error: ZerohopError) -> None:
        """End all requests and imports that are under way, because the Connection is lost."""
        for future in self._replies.values():
            if not future.done():
                future.set_exception(copy_of(error))
        for task in self._importing.values():
            task.cancel()

    async def _import(self, share: Share, provider: str, rails: tuple[int, ...]) -> None:
        key = provider, share.share_id
        old = self._link.imports.pop(key, None)
        if old is not None and provider == VERBS:
            # The old import is for NICs that the lane does not use any more. For the owner both are one import.
            unmap(self._core, old)
        elif old is not None:
            self.release(provider, share.share_id, old)
        # Released names only the share, so a late one would seem to end the new import.
        while (leaving := self._leaving.get(key)) is not None:
            await asyncio.wait([leaving])
        self._asking[key] += 1
        try:
            await self._ask_owner(share, provider, rails)
        finally:
            self._asking[key] -= 1
            if not self._asking[key]:
                del self._asking[key]
            self._send_released(key)

    async def _ask_owner(self, share: Share, provider: str, rails: tuple[int, ...]) -> None:
        link = self._link
        self._requests += 1
        number = self._requests
        future = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            request = wire.ImportRequest(number, provider, share.share_id, share.capability, list(rails))
            self._channel.post(request)
            # This waits as long as the Connection lasts, because a late answer still serves the next operation.
            reply, fds = await future
        except BaseException:
            # The answer may have come just before; then its descriptors must be closed here.
            if future.done() and not future.cancelled() and future.exception() is None:
                close_all(future.result()[1])
            raise
        finally:
            self._replies.pop(number, None)
            if number in self._unfinished:
                close_all(self._unfinished.pop(number)[1])
        try:
            if reply.status == Status.UNSUPPORTED.value or (provider != SHM and reply.status in _CANNOT):
                why = reply.text or "its owner cannot give it out"
                link.unreachable.record_failure((provider, share.share_id, rails), why, reply.status, reply.reason)
            elif reply.status != Status.OK.value:
                raise from_native(reply.status, reply.reason, "said by the peer", peer=link.peer, provider=provider)
            else:
                await self._accept(share, provider, rails, reply, fds)
        finally:
            close_all(fds)

    async def _accept(
        self, share: Share, provider: str, rails: tuple[int, ...], reply: wire.ImportReply, fds: list[int]
    ) -> None:
        link, key = self._link, (provider, share.share_id)
        access: Mapping | RemoteKeys | PeerMemory
        try:
            if provider == SHM:
                access = self._map(reply, fds)
            elif provider == P2P:
                # The thread needs copies of its own: this task may be cancelled, and then closes the descriptors.
                copies = copies_of(fds)
                access = await self._core.control.run_in_thread(self._take_memory, reply, copies)
            elif len(reply.keys) == len(rails):
                access = RemoteKeys(reply.address, reply.nbytes, reply.rights, reply.keys, reply.atomics)
            else:
                raise ProtocolError("malformed: not one key for each rail", peer=link.peer)
        except (NativeError, ZerohopError) as error:
            self._owed.add(key)
            if isinstance(error, ZerohopError):
                raise
            status, reason, text = error.args
            link.unreachable.record_failure((*key, rails), f"it could not be mapped here: {text}", status, reason)
            return
        # The device is the one that the owner names now, because a handle may have been altered on its way.
        device = reply.exported.device if reply.exported is not None else ""
        imported = Import(access, share.capability, reply.nbytes, reply.rights, rails, reply.text, device)
        if key in self._owed:  # the owner has asked for the memory back meanwhile
            self._start_release(key, imported)
            return
        other = link.imports.pop(key, None)
        if other is not None:
            # Another import of the share, for other NICs, was asked for at the same time.
            unmap(self._core, other)
        link.imports[key] = imported
        link.unreachable.record_success((*key, rails))
        self._drop_old_imports()

    def _take_memory(self, reply: wire.ImportReply, fds: list[int]) -> PeerMemory:
        """Import device memory, on a new thread; closes the descriptors."""
        engine, exported, writable = self._core.engine, reply.exported, bool(reply.rights & _WRITE)
        try:
            if exported is None:
                self._check_file(reply, fds)
                return engine.import_host(fds[0], reply.offset, reply.nbytes, writable)
            if sum(not handle for _, handle in exported.pieces) != len(fds):
                raise from_native(Status.NO_MEMORY.value, Reason.OUT_OF_DESCRIPTORS.value, peer=self._link.peer)
            return engine.import_memory(
                exported.form,
                exported.device,
                exported.process,
                exported.address,
                exported.offset,
                reply.nbytes,
                exported.pieces,
                fds,
                writable,
            )
        finally:
            close_all(fds)

    def _check_file(self, reply: wire.ImportReply, fds: list[int]) -> None:
        peer = self._link.peer
        if not fds:
            raise from_native(Status.NO_MEMORY.value, Reason.OUT_OF_DESCRIPTORS.value, peer=peer)
        # A copy beyond the end of the file would crash the process.
        if os.fstat(fds[0]).st_size < reply.offset + reply.nbytes:
            raise ProtocolError("malformed: the peer's file is shorter than what it shared", peer=peer)

    def _map(self, reply: wire.ImportReply, fds: list[int]) -> Mapping:
        self._check_file(reply, fds)
        return self._core.engine.map(fds[0], reply.offset, reply.nbytes, bool(reply.rights & _WRITE))

    def _drop_old_imports(self) -> None:
        """Give back imports that nothing uses if there are very many."""
        for (provider, share_id), imported in list(self._link.imports.items())[:-_MAX_IMPORTS]:
            if not imported.routes:
                del self._link.imports[provider, share_id]
                self.release(provider, share_id, imported)

    def _start_release(self, key: _ShareKey, imported: Import) -> None:
        task = self._leaving[key] = self._core.control.start(self._wait_unused, imported, self._leaving.get(key))
        # A callback runs even if the task is cancelled before it has begun.
        task.add_done_callback(lambda done: self._release_ended(key, done))

    async def _wait_unused(self, imported: Import, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        await drained(imported)

    def _release_ended(self, key: _ShareKey, task: asyncio.Task[None]) -> None:
        if self._leaving.get(key) is task:
            del self._leaving[key]
        if not task.cancelled():
            self._send_released(key)

    def _send_released(self, key: _ShareKey) -> None:
        """Send Released, if it is due, once no import of the share is left here or asked for."""
        if key in self._owed and key not in self._leaving and key not in self._asking:
            self._owed.remove(key)
            provider, share_id = key
            self._channel.post(wire.Released(provider=provider, share=share_id))


def unmap(core: PeerCore, imported: Import) -> None:
    """Release a peer's memory, now or when the last operation with it has ended."""
    if not imported.close():
        core.control.start(drained, imported)


async def drained(imported: Import) -> None:
    """Wait until nothing here uses a peer's memory."""
    # The last copies end within microseconds, and no event reports that.
    while not imported.close():  # noqa: ASYNC110
        await asyncio.sleep(_UNMAP_PAUSE_S)
