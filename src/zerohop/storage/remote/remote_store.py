"""Declares RemoteStore, the Store of a folder that a Server has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerohop.core.face import one_line, parse_url
from zerohop.errors import ProtocolError, Unsupported
from zerohop.storage import wire
from zerohop.storage.completion import ToldErrors
from zerohop.storage.file import File
from zerohop.storage.remote.lending import Lending
from zerohop.storage.remote.memory_numbers import MemoryNumbers
from zerohop.storage.remote.moves import Moves
from zerohop.storage.remote.remote_file import RemoteFile
from zerohop.storage.remote.results import answer_to, encoded, names_of, value_of
from zerohop.storage.remote.served_transfers import ServedTransfers

if TYPE_CHECKING:
    from zerohop.core.face import Context, Operation
    from zerohop.storage.file import Mode
    from zerohop.storage.file_engine import OpenFile
    from zerohop.storage.imported_iov import ImportedIov


class RemoteStore(ServedTransfers):
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

        greeted: list[tuple[Moves, int]] = []
        given_up: list[bool] = []

        async def begin() -> tuple[Moves, wire.Welcome]:
            moves = Moves.over(await self._connect(where))
            welcome = await moves.begin(lambda: self._file_asking(moves.link))
            greeted.append((moves, welcome.server))
            if given_up:
                moves.leave(welcome.server)
            return moves, welcome

        def give_up() -> None:
            given_up.append(True)
            if greeted:
                moves, server = greeted[0]
                moves.leave(server)

        try:
            self._moves, welcome = self._defer("open_store", self._deadline(None), begin).result()
            self._engine, self._why_no_uring = one_line(welcome.engine), one_line(welcome.why_no_uring)
            self.read_only = welcome.read_only
            self._server = welcome.server
        except BaseException:
            # The answer may come all the same, and the server would take this side for a client.
            self._on_control_thread(give_up)
            self._close_context()
            raise
        self._numbers = MemoryNumbers(self._moves)
        self._closed = self._left = False
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

    def open_file(self, path: str, mode: Mode, direct: bool | None) -> Operation[File]:
        """Do ``Store.open_file``."""
        request = wire.Open(encoded(path, "open"), mode, direct)
        close = self._close_file

        async def work() -> File:
            with self._unless_closed():
                answer, lane_number = await self._moves.ask_numbered(request, wire.Opened, "open", path)
            number = answer.number
            if self._closed:
                self._moves.tell(wire.Close(number))
                self.check_usable()
            self._open_files.add(number)
            return File(self, path, mode, RemoteFile(number, lane_number, close))

        return self._ask("open", work)

    def file_of(self, fd: int, *, direct: bool | None = None) -> Operation[File]:
        """Refuse: a descriptor is of this machine."""
        del fd, direct
        raise Unsupported(
            "a descriptor of this process means nothing to the server",
            fix="open the file by its path, or open_store() a folder of this machine",
            operation="file_of",
        )

    def folder_call(self, kind: str, *paths: str, numbers: tuple[int, ...] = ()) -> Operation[Any]:
        """Do ``Store.folder_call``."""
        request = wire.FolderCall(kind, [encoded(path, kind) for path in paths], numbers=list(numbers))

        async def work() -> Any:
            with self._unless_closed():
                return value_of(await self._moves.ask(request, answer_to(kind), kind, paths[0]), kind)

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
                return value_of(await self._moves.ask(request, answer_to(kind), kind, file.path, native), kind)

        return self._ask(kind, work)

    def close(self, timeout: float = 5.0) -> None:
        """End the store. What is under way ends with Closed, or as usual; the server closes its files.

        Args:
            timeout: seconds that closing a Context of its own may take.
        """
        self._closed = True
        self._end_once(self._end)
        self._close_context(timeout)

    def _end(self) -> None:
        self._leave_context()
        if not self._core.forked:
            self._on_control_thread(self._leave)

    def __del__(self) -> None:
        # The constructor may have raised, or a signal's handler in the middle of close().
        if hasattr(self, "_left") and not self._ended:
            self._closed = self._ended = True
            if not self._core.forked:
                self._on_control_thread(self._leave)
            self._drop_context()

    def __repr__(self) -> str:
        return f"<Store {self.url!r}{', closed' if self._closed else ''}>"

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
        if self._left:
            return
        self._left = True
        for number in list(self._open_files):
            self._forget_file(number)
        self._moves.leave(self._server)
