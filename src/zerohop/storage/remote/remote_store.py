"""Declares RemoteStore, the Store of a folder that a Server has."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from zerohop._native import FileRing as NativeRing
from zerohop._native import NativeError, gather_pages
from zerohop.core.face import begun, index_array, parse_url, region_of, whole_of
from zerohop.errors import ProtocolError, Unsupported, ZerohopError, from_native
from zerohop.storage import wire
from zerohop.storage.completion import ToldErrors
from zerohop.storage.file import File
from zerohop.storage.imported_iov import ImportedIov
from zerohop.storage.iov import Iov
from zerohop.storage.numbers import check_ranges
from zerohop.storage.operation import ServedPath, ServedTransfer
from zerohop.storage.remote.begun import Begun
from zerohop.storage.remote.lending import Lending
from zerohop.storage.remote.memory_numbers import MemoryNumbers
from zerohop.storage.remote.moves import Moves
from zerohop.storage.remote.remote_file import RemoteFile
from zerohop.storage.remote.remote_ring import RemoteRing
from zerohop.storage.remote.results import encoded, joined, names_of, value_of
from zerohop.storage.remote.transfer import Transfer
from zerohop.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zerohop._native import Op
    from zerohop.core.face import Context, Local, Memory, Operation, View
    from zerohop.storage.file import Mode
    from zerohop.storage.file_engine import AnyMemory, OpenFile, Places
    from zerohop.storage.file_ring import FileRing
    from zerohop.storage.remote.lending import Lent
    from zerohop.storage.remote.memory_numbers import MemoryNumber
    from zerohop.storage.remote.remote_ring import Batch
    from zerohop.storage.serving.pieces import Numbers

_PRIORITY_NORMAL = 1
_RESULT = (wire.Value, wire.Stat)


class RemoteStore(Store):
    """Reads and writes a folder of a server; made by ``open_store``.

    Attributes:
        url: the server's URL.
    """

    def __init__(self, url: str, ctx: Context | None, timeout: float | None, settings: dict[str, Any]) -> None:
        """Use ``open_store``."""
        where = parse_url(url)
        super().__init__(ctx, settings, timeout)
        self.url = self.folder = url
        self._lending = Lending()
        self._told = ToldErrors()
        self.told = self._told.by_number
        # Numbers of the files that are open at the server. On the control thread.
        self._open_files: set[int] = set()

        greeted: list[Moves] = []
        given_up: list[bool] = []

        async def begin() -> tuple[Moves, wire.Welcome]:
            moves = Moves.over(await self._connect(where))
            welcome = await moves.begin(lambda: self._file_asking(moves.link))
            greeted.append(moves)
            if given_up:
                moves.leave()
            return moves, welcome

        def give_up() -> None:
            given_up.append(True)
            if greeted:
                greeted[0].leave()

        try:
            self._moves, welcome = self._defer("open_store", self._deadline(None), begin).result()
            self._engine, self._why_no_uring = welcome.engine, welcome.why_no_uring
            self.read_only = welcome.read_only
        except BaseException:
            # The answer may come all the same, and the server would take this side for a client.
            self._on_control_thread(give_up)
            self._close_context()
            raise
        self._numbers = MemoryNumbers(self._moves)
        self._closed = False
        self._join_context()

    @property
    def engine(self) -> str:
        """Return ``"io_uring"`` or ``"threads"``: how the server reads and writes files."""
        return self._engine

    @property
    def why_no_uring(self) -> str:
        """Return why the server's threads read and write instead of io_uring; empty if io_uring does."""
        return self._why_no_uring

    def import_iov(self, data: bytes) -> Operation[ImportedIov]:
        """Refuse: the server knows the memory of its own clients alone."""
        del data
        raise Unsupported(
            "a server moves bytes between its files and memory of the process that asks",
            fix="open_store() the server in the process that has the memory",
            operation="import_iov",
        )

    def memory_of(self, x: Local | Iov | ImportedIov) -> Memory | View:
        """Return the memory that an argument names; an array's is lent to the server for one transfer."""
        memory = super().memory_of(x)
        if isinstance(memory, ImportedIov):
            raise TypeError("memory of another process is for a Store of a folder of this machine")
        if memory is not x and not isinstance(x, Iov):
            self._lending.note_array(memory)
        return memory

    def open_file(self, path: str, mode: Mode, direct: bool | None) -> Operation[File]:
        """Do ``Store.open_file``."""
        request = wire.Open(encoded(path, "open"), mode, direct)
        close = self._close_file

        async def work() -> File:
            with self._unless_closed():
                answer = await self._moves.ask(request, wire.Opened, "open", path)
            number, served = answer.number, self._moves.number(answer.place, of_file=True)
            if self._closed:
                self._moves.tell(wire.Close(number))
                self.check_usable()
            self._open_files.add(number)
            return File(self, path, mode, RemoteFile(number, served, close))

        return self._ask("open", work)

    def file_of(self, fd: int, *, direct: bool | None = None) -> Operation[File]:
        """Refuse: a descriptor is of this machine."""
        del fd, direct
        raise Unsupported(
            "a descriptor of this process means nothing to the server",
            fix="open the file by its path, or open_store() a folder of this machine",
            operation="file_of",
        )

    def folder_call(self, kind: str, *paths: str) -> Operation[Any]:
        """Do ``Store.folder_call``."""
        request = wire.FolderCall(kind, [encoded(path, kind) for path in paths])

        async def work() -> Any:
            with self._unless_closed():
                return value_of(await self._moves.ask(request, _RESULT, kind, paths[0]))

        async def list_names() -> list[str]:
            found: list[str] = []
            while True:
                with self._unless_closed():
                    answer = await self._moves.ask(request, wire.Names, kind, paths[0])
                found += names_of(answer)
                if not answer.more:
                    return found
                if not answer.names or answer.names[-1] <= request.after:
                    raise ProtocolError("malformed: a list of names from the storage service that does not go on")
                request.after = answer.names[-1]

        return self._ask(kind, list_names if kind == "listdir" else work)

    def file_call(self, kind: str, file: OpenFile, *args: int) -> Operation[Any]:
        """Do ``FileEngine.file_call``."""
        native = file.native()
        request = wire.FileCall(kind, native.number, list(args))

        async def work() -> Any:
            with self._unless_closed():
                return value_of(await self._moves.ask(request, _RESULT, kind, file.path, native))

        return self._ask(kind, work)

    def new_iov(self, memory: Memory | View, *, owned: bool) -> Iov:
        """Return an Iov of memory. The server has its system keep the pages at hand, if it reaches them."""
        self._lending.note_kept(memory)
        lent = self._lending.lent(self._lend, self._take_back, memory, writes=memory.readonly)
        tell = self._moves.tell

        def release() -> None:
            if not self._closed and not self._core.forked:
                self._on_control_thread(tell, wire.Forget(lent.handle))
            lent.release()

        gather_pages(region_of(memory))
        self._on_control_thread(tell, wire.Keep(lent.handle))
        self._number_of(lent)
        return Iov(memory, "", release, owned=owned)

    def new_ring(self, entries: int, writes: bool, priority: int) -> FileRing:
        """Return a ring whose transfers the server carries out."""
        native = NativeRing(self._core.engine, self._moves.asking, entries, writes, priority)
        begun, peer = Begun(self._moves, self._told), self._moves.link.peer

        def begin(ring: RemoteRing, batch: Batch) -> None:
            run = begun.add(ring, batch)
            # An operation of its own, for which a flush waits: the server uses the memory until it has ended.
            self._defer("serve", 0, run, keep=batch, peer=peer, at_end=batch.lent.release)

        def cancel(_: RemoteRing, number: int | None) -> int:
            return begun.cancel(number, self._on_control_thread)

        def give_back(lent: Lent) -> None:
            if not self._core.forked:
                self._on_control_thread(lent.release)

        return RemoteRing(native, begin, cancel, give_back, writes=writes, priority=priority)

    def _number_of(self, lent: Lent) -> MemoryNumber | None:
        """Return the number of memory in requests over the lane; None if it has none yet, for which this asks."""
        if lent.is_once:
            return None
        memory = whole_of(lent.view)
        number = self._numbers.number(memory)
        if number is None and not self._numbers.knows(memory):
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
        path = ServedPath(file.path, ends, peer, lambda: self._closed)
        deadline_ns = self._deadline(timeout)
        lent = self._lending.lent(self._lend, self._take_back, _own(view), writes=writes)
        whole = not (short or writes)
        posted = self._over_lane(kind, native, lent, (offsets, at, lengths), deadline_ns, writes=writes, whole=whole)
        if posted is not None:
            op, how = posted
            path.took(how)
            operation = ServedTransfer()
            begun(operation, self._core, kind, nbytes, op, (view, native), path)
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
            began.append(self._defer("serve", 0, serve, keep=(view, native), peer=peer, at_end=lent.release))
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
            keep=(view, native),
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
        if number is None or file.served is None or asking is None:
            return None
        part = region_of(view), writes, lent.start, view.nbytes
        try:
            op = asking.transfer(file.served, number.number, *part, *ranges, whole, deadline_ns)
        except NativeError as error:
            self.check_usable()
            raise from_native(*error.args, operation=kind) from None
        return None if op is None else (op, number.how)

    def close(self, timeout: float = 5.0) -> None:
        """End the store. What is under way ends with Closed, or as usual; the server closes its files.

        Args:
            timeout: seconds that closing a Context of its own may take.
        """
        if not self._closed:
            self._closed = True
            self._leave_context()
            if not self._core.forked:
                self._on_control_thread(self._leave)
        self._close_context(timeout)

    def __del__(self) -> None:
        # The constructor may have raised.
        if not self._closed:
            self._closed = True
            if not self._core.forked:
                self._on_control_thread(self._leave)
            self._drop_context()

    def __repr__(self) -> str:
        return f"<Store {self.url!r}{', closed' if self._closed else ''}>"

    @contextlib.contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Raise Closed instead of what the server says of a Store that was closed here meanwhile."""
        self.check_usable()
        try:
            yield
        except ZerohopError:
            self.check_usable()
            raise

    def _ask(self, kind: str, work: Any) -> Operation[Any]:
        self.check_usable()
        return self._defer(kind, self._deadline(None), work)

    def _close_file(self, number: int) -> None:
        # Any thread drops a file, also one that holds locks: this only queues the message.
        if not self._core.forked:
            self._on_control_thread(self._forget_file, number)

    def _forget_file(self, number: int) -> None:
        if number in self._open_files:
            self._open_files.discard(number)
            self._moves.tell(wire.Close(number))

    def _leave(self) -> None:
        for number in list(self._open_files):
            self._forget_file(number)
        self._moves.leave()


def _own(view: AnyMemory) -> Memory | View:
    assert not isinstance(view, ImportedIov)  # memory_of() has refused it
    return view
