"""Answers the calls of a server's clients."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import errno
import itertools
import os
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import NativeError, ServedBytes, Status
from zerohop.core.face import Refusal, random_bytes, start_of
from zerohop.errors import Closed, LimitReached, ProtocolError, StorageError, ZerohopError, from_native, limit_for
from zerohop.storage import file_calls, names, wire
from zerohop.storage.failures import of_errno, server_closed
from zerohop.storage.numbers import byte_number, check_ranges
from zerohop.storage.serving.client import Client
from zerohop.storage.serving.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.core.face import Link
    from zerohop.storage.local_store import LocalStore
    from zerohop.storage.serving.blocks import Blocks
    from zerohop.storage.serving.client import Reach

_INT64: Final = np.dtype("<i8")
# Folders whose names are kept while clients ask for page after page of them.
_MOST_LISTINGS: Final = 8


class StorageService:
    """Answers calls, for one server. On the control thread.

    Attributes:
        clients: the state of each client, by its link.
        bytes_read, bytes_written: bytes that were moved out of files, and into them, as Moves asked for.
        ended: whether the server was closed. Any thread sets it; calls that fail from then on say so.
    """

    def __init__(
        self,
        store: LocalStore,
        blocks: Blocks,
        reach: Reach,
        in_thread: Callable[..., Coroutine[Any, Any, Any]],
        *,
        read_only: bool,
        threads: int,
    ) -> None:
        self._store = store
        self._blocks = blocks
        self._reach = reach
        self._in_thread = in_thread
        self._read_only = read_only
        # Calls that may block, such as fsync, have threads of their own. This limits how many.
        self._threads = asyncio.Semaphore(threads)
        self.ended = False
        self.clients: dict[Link, Client] = {}
        self.bytes_read = self.bytes_written = 0
        self._count = ServedBytes()
        # The names of folders of which somebody has had a page, and not the last, by their paths.
        self._listings: OrderedDict[str, list[bytes]] = OrderedDict()
        # Numbers of files are never used again, nor are those of another server of this Context.
        self._number = int.from_bytes(random_bytes(7), "big") | 1
        self._numbers = itertools.count(int.from_bytes(random_bytes(5), "big") << 20)

    def __call__(self, link: Link, body: bytes) -> bytes | Coroutine[Any, Any, bytes]:
        """Answer a call of a client."""
        try:
            request = wire.request_of(body)
        except ProtocolError as error:
            raise Refusal(Status.UNSUPPORTED, error.reason) from None
        client = self.clients.get(link)
        if client is None:
            if not isinstance(request, wire.Hello):
                raise Refusal(Status.PEER_LOST, "the server has ended, or the Store was closed: open_store() again")
            client = self.clients[link] = Client(link, self._store, self._numbers, self._count)
            self._blocks.clients = len(self.clients)
        if isinstance(request, wire.Hello):
            if client.calls >= wire.MOST_CALLS:
                raise _too_many_calls()
            client.stores += 1
            return self._greet(client, request)
        if isinstance(request, wire.Close):
            client.close_file(request.file)
            return b""
        if isinstance(request, wire.Leave):
            if request.server in (0, self._number):
                client.stores -= 1
                if client.stores <= 0:
                    self.lost(link)
            return b""
        if isinstance(request, wire.Forget):
            client.forget(request.handle)
            return b""
        if isinstance(request, wire.Cancel):
            delivery = client.moves.get(request.number)
            if delivery is not None:
                whole = request.ranges[: len(request.ranges) // 8 * 8]
                delivery.cancel(np.frombuffer(whole, _INT64) if request.ranges else None)
            return b""
        if client.calls >= wire.MOST_CALLS:
            raise _too_many_calls()
        return self._answer(client, request)

    def lost(self, link: Link) -> None:
        """Give up what a client has, which is gone."""
        client = self.clients.pop(link, None)
        if client is not None:
            self._blocks.clients = len(self.clients)
            client.end()

    def count(self) -> tuple[int, int, int, int]:
        """Count clients, their files, and the bytes that were read and written. Any thread may call this."""
        clients = list(self.clients.values())
        read, written = self.bytes_read + self._count.read, self.bytes_written + self._count.written
        return len(clients), sum(each.files for each in clients), read, written

    def end(self) -> None:
        """Give up what all clients have."""
        for link in list(self.clients):
            self.lost(link)

    async def _greet(self, client: Client, request: wire.Hello) -> bytes:
        asked = 0
        client.calls += 1
        try:
            if request.version == wire.VERSION:
                # Without a lane the client asks by Move, or is gone.
                with contextlib.suppress(ZerohopError, NativeError):
                    asked = await client.greet(request.answers)
        finally:
            client.calls -= 1
        store = self._store
        welcome = wire.Welcome(wire.VERSION, store.engine, store.why_no_uring, self._read_only, asked, self._number)
        return wire.encode(welcome)

    async def _answer(self, client: Client, request: wire.Request) -> bytes:
        client.calls += 1
        try:
            return wire.encode(await self._do(client, request))
        except (ZerohopError, NativeError, ValueError, OverflowError) as error:
            return wire.encode(self._failure(error))
        finally:
            client.calls -= 1

    def _failure(self, error: Exception) -> wire.Failed:
        said = from_native(*error.args) if isinstance(error, NativeError) else error
        return _failed(server_closed() if self.ended or isinstance(said, Closed) else said)

    async def _do(self, client: Client, request: wire.Request) -> wire.Answer:
        if isinstance(request, wire.Move):
            return await self._move(client, request)
        if isinstance(request, wire.Keep):
            await client.keep(request.handle, self._reach, self._blocking)
            return wire.Value()
        if isinstance(request, wire.Reach):
            return await client.lane_number(request.handle, self._reach)
        if isinstance(request, wire.Open):
            if self._read_only and request.mode != "r":
                raise _read_only("open", request.path)
            path = os.fsdecode(request.path)
            opened = await self._blocking(lambda: self._store.open(path, request.mode, direct=request.direct).result())  # type: ignore[arg-type]  # the store checks the mode
            return client.add_file(opened)
        if isinstance(request, wire.FolderCall):
            return await self._folder_call(request)
        assert isinstance(request, wire.FileCall)
        file = client.file(request.file)
        if request.kind not in file_calls.CALLS or len(request.args) != file_calls.CALLS[request.kind][1]:
            raise ValueError(f"no such call: {request.kind!r} of {len(request.args)} numbers")
        for number in request.args:
            byte_number("an offset or a length", number)
        value = await self._blocking(lambda: self._store.file_call(request.kind, file, *request.args).result())
        return _result(value)

    async def _folder_call(self, request: wire.FolderCall) -> wire.Answer:
        kind, paths = request.kind, [os.fsdecode(path) for path in request.paths]
        count = len(request.numbers)
        takes = (0, 2) if kind == "utime" else (0,)
        if kind not in names.CALLS or len(paths) != (2 if kind == "rename" else 1) or count not in takes:
            raise ValueError(f"no such call: {kind!r} of {len(paths)} paths and {count} numbers")
        if self._read_only and kind in names.CHANGING:
            raise _read_only(kind, request.paths[0])
        if kind == "listdir":
            return await self._page(paths[0], request.after)
        times = tuple(request.numbers)
        value = await self._blocking(lambda: self._store.folder_call(kind, *paths, numbers=times).result())
        return _result(value)

    async def _page(self, path: str, after: bytes) -> wire.Names:
        """Return as many names of a folder after one as an answer has room for. The first page lists it for all."""
        found = self._listings.pop(path, None) if after else None
        if found is None:
            # Not on the control thread: a folder may have millions of names.
            found = await self._blocking(
                lambda: sorted(map(os.fsencode, self._store.folder_call("listdir", path).result()))
            )
        first = last = bisect.bisect_right(found, after) if after else 0
        size = 0
        while last < len(found) and size < wire.PAGE_BYTES:
            size += len(found[last]) + 3
            last += 1
        if last < len(found):
            self._listings[path] = found
            if len(self._listings) > _MOST_LISTINGS:
                self._listings.popitem(last=False)
        return wire.Names(found[first:last], more=last < len(found))

    async def _move(self, client: Client, request: wire.Move) -> wire.Answer:
        file = client.file(request.file)
        file.check_mode("storage", writes=request.writes)
        known = await client.memory(request.handle, self._reach)
        offsets, at, lengths = (np.frombuffer(each, _INT64) for each in (request.offsets, request.at, request.lengths))
        check_ranges(offsets, at, lengths, known.memory.nbytes)
        deadline_ns = time.monotonic_ns() + int(min(request.seconds, 1e9) * 1e9) if request.seconds else 0
        delivery = Delivery(
            self._store,
            file.native(),
            known.memory,
            writes=request.writes,
            priority=request.priority,
            deadline_ns=deadline_ns,
        )
        if request.number in client.moves:
            raise ValueError(f"number {request.number} is taken")
        client.moves[request.number] = delivery
        try:
            if known.reached is not None:
                how = known.route.explanation.form
                await delivery.straight(known.reached, start_of(known.memory), offsets, at, lengths)
            else:
                how = known.route.explanation.provider
                await delivery.by_blocks(self._blocks, client, offsets, at, lengths)
        finally:
            client.moves.pop(request.number, None)
        results = delivery.results
        # Closed is what the Store of the server says, when it or its Context is being closed.
        if (self.ended and results.failed) or (results.outcomes[:, 0] == Status.CLOSED.value).any():
            raise server_closed()
        moved = int(results.done.sum())
        if request.writes:
            self.bytes_written += moved
        else:
            self.bytes_read += moved
        done = b"" if results.whole else results.done.astype(_INT64).tobytes()
        if not results.failed:
            return wire.Moved(how, done, b"", b"")
        return wire.Moved(how, done, results.errors.astype("<i4").tobytes(), results.outcomes.tobytes())

    async def _blocking(self, call: Callable[[], Any]) -> Any:
        async with self._threads:
            return await self._in_thread(call)


def _too_many_calls() -> Refusal:
    return Refusal(Status.ACCESS_DENIED, f"more than {wire.MOST_CALLS} calls of one client at a time")


def _failed(error: Exception) -> wire.Failed:
    """Return an error as a message."""
    if not isinstance(error, ZerohopError):
        return wire.Failed("ValueError", str(error), "", 0)
    if isinstance(error, LimitReached):
        return wire.Failed("LimitReached", *limit_for(error, "the server's process", "the client's process"), 0)
    if not isinstance(error, StorageError):
        return wire.Failed(type(error).__name__, error.reason, error.fix, 0)
    path = os.fsencode(error.filename)[: wire.LONGEST_PATH]
    return wire.Failed(type(error).__name__, error.reason, error.fix, error.errno, path)


def _result(value: int | str | os.stat_result | None) -> wire.Value | wire.Stat | wire.Target:
    """Return the result of a call as a message."""
    if isinstance(value, str):
        return wire.Target(os.fsencode(value))
    if isinstance(value, os.stat_result):
        return wire.Stat({name: getattr(value, name) for name in dir(value) if name.startswith("st_")})
    return wire.Value(value)


def _read_only(kind: str, path: bytes) -> StorageError:
    return of_errno(
        errno.EROFS, kind, os.fsdecode(path), said="the server lets files be read only", fix="serve without --read-only"
    )
