"""Declares Server, which serves the files of a folder to other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from zerohop.config.checks import check_flag, check_int
from zerohop.core.face import Face
from zerohop.errors import Closed
from zerohop.storage.local_store import LocalStore, threads_of
from zerohop.storage.serving.blocks import Blocks
from zerohop.storage.serving.service import StorageService
from zerohop.storage.wire import SERVICE

if TYPE_CHECKING:
    import os

    from zerohop.core.face import Context, Link, RemoteBuffer
    from zerohop.errors import ZerohopError

_MEMORY_BYTES: Final = 256 << 20
_LEAST_BYTES: Final = 4 << 20
_MOST_BYTES: Final = 1 << 40


class ServerStatistics(NamedTuple):
    """Counts the work of a Server.

    Attributes:
        clients: clients that are connected.
        files: files that they have open.
        bytes_read: bytes that were moved out of files.
        bytes_written: bytes that were moved into files.
        memory_in_use: bytes of the server's memory that hold data on its way to clients or from them.
    """

    clients: int
    files: int
    bytes_read: int
    bytes_written: int
    memory_in_use: int


class Server(Face):
    """Serves the files of a folder to other processes, which open it with ``open_store(server.url)``.

    The server moves the bytes: it reads a file straight into the client's memory where that is mapped here or a device
    here reaches it, and otherwise through its own memory and one-sided writes. The client's processor does nothing.

    Whoever may connect to the Context may use the folder: processes of the same user on this host, and with
    ``listen=`` and a secret others. Thread-safe; a context manager. Keep a reference to it, and close it: it serves by
    itself until then.

    Attributes:
        context: the Context that clients connect to.
        folder: path of the folder.
        url: what clients pass to ``open_store``.
    """

    _copy_refusal = "a Server stays in its process, and is not copied; send server.url"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        ctx: Context | None = None,
        read_only: bool = False,
        engine: Literal["auto", "threads"] = "auto",
        threads: int | None = None,
        memory: int = _MEMORY_BYTES,
        timeout: float | None = None,
        **settings: Any,
    ) -> None:
        """Serve a folder from now on.

        Args:
            folder: the folder. No path of a client leads out of it.
            ctx: the Context; it stays open, and has one Server at most. None: a new one, which is closed with this.
            read_only: refuse everything that would change the folder or a file.
            engine: as for ``open_store``.
            threads: as for ``open_store``, and the most threads for calls that may block, such as fsync.
            memory: bytes for data on its way: for clients on other hosts, and for GPUs. They are taken at once, and are
                never more. Where they are all in use, transfers wait. A client has at most half of them.
            timeout: as for ``open_store``.
            settings: arguments of Context, for a new one: ``listen="HOST:PORT"`` and ``secret=`` for other hosts.

        Raises:
            StorageError: there is no such folder, or it may not be read.
            ValueError, TypeError: an argument makes no sense; the Context has a Server.
            RegistrationFailed, LimitReached: there is not so much memory.
        """
        check_flag("read_only", read_only)
        threads = threads_of(threads)
        check_int("memory", memory, _LEAST_BYTES, _MOST_BYTES)
        super().__init__(ctx, settings, timeout)
        try:
            self._check_first()
            half = memory // 2
            self._store = LocalStore(folder, self.context, engine, threads, half, timeout, {}, operation="serve")
            service: StorageService | None = None
            try:
                self._memory = self.context.alloc(half)
                self._blocks = Blocks(self._memory)
                service = StorageService(
                    self._store,
                    self._blocks,
                    self._reach_client,
                    self._in_thread,
                    read_only=read_only,
                    threads=threads,
                )
                self._answers = self._service(SERVICE, lambda: service)
                self.folder = self._store.folder
                self.url = self.context.url
                self._closed = False
                self._join_context()
            except BaseException:
                self._leave_context()
                if service is not None:
                    self._end_service(SERVICE, service)
                self._store.close()
                raise
        except BaseException:
            self._close_context()
            raise

    @property
    def engine(self) -> str:
        """Return ``"io_uring"`` or ``"threads"``: how files are read and written."""
        return self._store.engine

    def statistics(self) -> ServerStatistics:
        """Count the work so far."""
        self._check()
        return ServerStatistics(*self._answers.count(), self._blocks.in_use)

    def close(self, timeout: float = 5.0) -> None:
        """Serve no more. What clients have under way ends with an error there; what the system does now ends as usual.

        Args:
            timeout: seconds that closing a Context of its own may take.
        """
        self._closed = True
        self._end_once(self._end)
        self._close_context(timeout)

    def _end(self) -> None:
        self._answers.ended = True
        self._end_service(SERVICE, self._answers)
        self._leave_context()
        if not self._core.forked:
            self._on_control_thread(self._answers.end)
        self._store.close()
        self._memory.close()

    def __repr__(self) -> str:
        return f"<Server of {self.folder!r} at {self.url}{', closed' if self._closed else ''}>"

    def _peer_lost(self, link: Link, error: ZerohopError) -> None:
        del error
        self._answers.lost(link)

    async def _reach_client(self, memory: RemoteBuffer) -> Any:
        return await self._reach(self._memory, memory)

    def _check_first(self) -> None:
        if SERVICE in self._core.services:
            raise ValueError("this Context has a Server already: make another Context, or close that Server")

    def _check(self) -> None:
        self._core.check_open()
        if self._closed:
            raise Closed("the Server is closed", operation="storage")
