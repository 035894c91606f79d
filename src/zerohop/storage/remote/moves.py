"""Speaks with a server: asks it, and has it move bytes. On the control thread of the client."""

from __future__ import annotations

import asyncio
import errno
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop import errors
from zerohop._native import Reason, Status
from zerohop.core.face import call, is_open, send
from zerohop.errors import Closed, ProtocolError, StorageError, Unsupported, ZerohopError
from zerohop.storage import wire
from zerohop.storage.completion import RECORD
from zerohop.storage.failures import of_errno

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Link
    from zerohop.storage.operation import ServedPath
    from zerohop.storage.remote.lending import Lent
    from zerohop.storage.remote.remote_file import RemoteFile
    from zerohop.storage.remote.remote_ring import Batch, RemoteRing
    from zerohop.storage.serving.pieces import Numbers

# The errors that a server may report, by name.
_ERRORS: Final = {
    each.__name__: each
    for each in (
        errors.AccessDenied,
        errors.Closed,
        errors.DeadlineExceeded,
        errors.DeviceFailed,
        errors.LimitReached,
        errors.PeerLost,
        errors.ProtocolError,
        errors.RegistrationFailed,
        errors.Unsupported,
    )
}


class Moves:
    """Holds the conversation with one server.

    Attributes:
        link: the connection.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._room = asyncio.Semaphore(wire.MOST_CALLS // 2)
        self._number = 0
        self._batches: dict[asyncio.Task[None], tuple[RemoteRing, Batch, list[int]]] = {}

    async def begin(self) -> wire.Welcome:
        """Introduce this side; return what the server says of itself.

        Raises:
            Unsupported: nothing is served there, or by another version.
        """
        try:
            answer = await self.ask(wire.Hello(wire.VERSION), "open_store", "")
        except Unsupported as error:
            raise Unsupported(
                f"the Context at that URL serves no files: {error.reason}",
                fix='start a server there: zerohop serve FOLDER, or zerohop.storage.Server("FOLDER")',
                operation="open_store",
            ) from None
        if not isinstance(answer, wire.Welcome) or answer.version != wire.VERSION:
            raise Unsupported(
                "the server speaks another version",
                fix="install the same version of zerohop on both sides",
                operation="open_store",
            )
        return answer

    def tell(self, request: wire.Request) -> None:
        """Send a request that has no answer worth waiting for."""
        send(self.link, wire.SERVICE, wire.encode(request))

    async def ask(self, request: wire.Request, kind: str, path: str, keep: object = None) -> Any:
        """Return the answer to a request; ``keep`` stays alive until then.

        Raises:
            ZerohopError: what the server reports, or the loss of it.
        """
        async with self._room:
            answer = wire.answer_of(await call(self.link, wire.SERVICE, wire.encode(request)))
        del keep
        if isinstance(answer, wire.Failed):
            raise _error_of(answer, kind, path)
        return answer

    async def move(
        self,
        file: RemoteFile,
        lent: Lent,
        ranges: tuple[Numbers, Numbers, Numbers],
        *,
        writes: bool,
        priority: int,
        deadline_ns: int = 0,
        numbers: list[int] | None = None,
        path: ServedPath | None = None,
    ) -> np.ndarray[Any, Any]:
        """Move ranges; return a record for each (completion.py), in order, whose userdata is its number.

        When it is cancelled, it tells the server to stop.

        Args:
            file: the file.
            lent: the memory.
            ranges: offsets in the file, offsets in what the handle names, and lengths.
            writes: whether the file is written.
            priority: as in wire.Move.
            deadline_ns: on the monotonic clock; 0: none.
            numbers: gets the numbers with which the server knows it, one for each ``wire.MOST_RANGES`` ranges.
            path: gets the way that the bytes have taken.
        """
        lengths = ranges[2]
        parts = range(0, len(lengths), wire.MOST_RANGES)
        chosen = [slice(first, first + wire.MOST_RANGES) for first in parts]
        mine = [self._next() for _ in chosen]
        if numbers is not None:
            numbers += mine
        records = np.zeros(len(lengths), RECORD)
        records["userdata"] = np.arange(len(lengths))

        async def one(number: int, part: slice) -> None:
            offsets, at, sizes = (each[part].astype("<i8").tobytes() for each in ranges)
            seconds = max(1e-6, (deadline_ns - time.monotonic_ns()) / 1e9) if deadline_ns else 0.0
            request = wire.Move(number, file.number, writes, priority, lent.handle, offsets, at, sizes, seconds)
            answer = await self.ask(request, "transfer", "", file)
            if not isinstance(answer, wire.Moved):
                raise ProtocolError("malformed: an answer of the storage service")
            _take_results(answer, lengths[part], records[part])
            if path is not None:
                path.took(answer.how)

        try:
            if len(chosen) == 1:
                await one(mine[0], chosen[0])
            else:
                await asyncio.gather(*(one(number, part) for number, part in zip(mine, chosen, strict=True)))
        except BaseException:
            for number in mine:
                self.tell(wire.Cancel(number, b""))
            if not is_open(lent.view):
                raise Closed("the memory of a transfer was closed", operation="transfer") from None
            raise
        return records

    def begin_batch(self, ring: RemoteRing, batch: Batch) -> None:
        """Begin transfers of a Ring, which hears of their ends."""
        numbers: list[int] = []
        task = asyncio.ensure_future(self._run_batch(ring, batch, numbers))
        self._batches[task] = ring, batch, numbers
        task.add_done_callback(lambda done: self._batches.pop(done, None))

    async def _run_batch(self, ring: RemoteRing, batch: Batch, numbers: list[int]) -> None:
        records = np.zeros(len(batch.userdata), RECORD)
        records["status"], records["reason"] = Status.CLOSED.value, Reason.OWNER_CLOSED.value
        try:
            records = await self.move(
                batch.file,
                batch.lent,
                (batch.offsets, batch.at, batch.lengths),
                writes=ring.writes,
                priority=ring.priority,
                numbers=numbers,
            )
        except StorageError as error:
            records["result"], records["status"] = -(error.errno or errno.EIO), Status.FILE_ERROR.value
        except ZerohopError as error:
            records["status"], records["reason"] = errors.status_of(error), Reason.NONE.value
        finally:
            records["userdata"] = batch.userdata
            ring.complete(records)
            batch.lent.release()

    def cancel_batches(self, ring: RemoteRing, userdata: int | None, soon: Callable[..., object]) -> int:
        """Cancel transfers of a Ring that are under way; return how many have no result here yet. Any thread."""
        found = 0
        for of, batch, numbers in list(self._batches.values()):
            meant = np.arange(len(batch.userdata)) if userdata is None else np.flatnonzero(batch.userdata == userdata)
            if of is not ring or not meant.size:
                continue
            found += len(meant)
            for place, number in enumerate(numbers):
                first = place * wire.MOST_RANGES
                some = meant[(meant >= first) & (meant < first + wire.MOST_RANGES)] - first
                if some.size:
                    chosen = b"" if userdata is None else some.astype("<i8").tobytes()
                    soon(self.tell, wire.Cancel(number, chosen))
        return found

    def end(self) -> None:
        """End everything that is under way, and leave the server."""
        for task in list(self._batches):
            task.cancel()
        self.tell(wire.Leave())

    def _next(self) -> int:
        self._number += 1
        return self._number


def _take_results(answer: wire.Moved, lengths: Any, records: Any) -> None:
    """Put what a server told into the records of some ranges."""
    count = len(lengths)
    sizes = len(answer.done), len(answer.errors), len(answer.outcomes)
    if any(size not in (0, of * count) for size, of in zip(sizes, (8, 4, 2), strict=True)):
        raise ProtocolError("malformed: results of the storage service")
    records["done"] = np.frombuffer(answer.done, "<i8") if answer.done else lengths
    if bool(((records["done"] < 0) | (records["done"] > lengths)).any()):
        raise ProtocolError("malformed: results of the storage service")
    records["result"] = records["done"]
    if answer.outcomes:
        outcomes = np.frombuffer(answer.outcomes, np.uint8).reshape(count, 2)
        records["status"], records["reason"] = outcomes[:, 0], outcomes[:, 1]
    if answer.errors:
        numbers = np.frombuffer(answer.errors, "<i4")
        failed = (numbers > 0) & (records["status"] != 0)
        records["result"][failed] = -numbers[failed]


def _error_of(answer: wire.Failed, kind: str, path: str) -> Exception:
    if answer.errno:
        said = answer.said.removesuffix(f": {path!r}") if path else answer.said
        return of_errno(answer.errno, kind, path, said=said, fix=answer.fix)
    if answer.kind == "ValueError":
        return ValueError(answer.said)
    error = _ERRORS.get(answer.kind, ZerohopError)
    return error(f"{answer.said} (said by the server)", fix=answer.fix, operation=kind)
