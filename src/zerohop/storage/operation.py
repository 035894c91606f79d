"""Declares the Operations of transfers between files and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop._native import Reason, Status
from zerohop.core.face import HOST, Explanation, InFlight
from zerohop.errors import Closed, DeadlineExceeded, PeerLost
from zerohop.storage import failures

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import Endpoint, Moved, Op


# This is said of bytes that do not go by GPUDirect Storage although their file does.
_NOT_ALL = (
    "it takes what goes past the page cache, in multiples of 4096 bytes at such offsets and addresses, and what cuFile "
    "does not refuse"
)


class FilePath:
    """Describes the path of a transfer between a file and memory: the one that the bytes have taken so far."""

    __slots__ = "_device", "_engine", "_moved", "_rejected", "_why_staged", "_writes", "filename"

    peer = ""

    def __init__(
        self, filename: str, engine: str, why_no_uring: str, device: str, moved: Moved, why_staged: str, *, writes: bool
    ) -> None:
        """Hold what is known.

        Args:
            filename: path of the file.
            engine: how the store reads and writes.
            why_no_uring: why that is not io_uring; empty if it is.
            device: where the memory is.
            moved: what native code counts.
            why_staged: why bytes to and from the device pass through host buffers; empty if they need not all.
            writes: whether the file is written.
        """
        self.filename = filename
        self._engine = engine
        self._device = device
        self._moved = moved
        self._writes = writes
        self._rejected: tuple[tuple[str, str], ...] = (("io_uring", why_no_uring),) if why_no_uring else ()
        self._why_staged = why_staged

    @property
    def explanation(self) -> Explanation:
        """Return the path, with the way of the bytes that have moved so far."""
        past, through = self._moved.past_and_through()
        straight = self._moved.by_gpudirect
        ends = (self._device, "file") if self._writes else ("file", self._device)
        on_device = self._device != HOST
        staged = on_device and bool(past or through or not straight)
        rejected = self._rejected
        if staged:
            rejected += (("GPUDirect Storage", self._why_staged or _NOT_ALL),)
        form, way = self._engine, ("staged, " if staged else "") + _in_words(past, through)
        if straight and staged:
            form = f"cuFile, {form}"
            way = f"{straight} bytes by GPUDirect Storage, others {way}"
        elif straight:
            form, way = "cuFile", "by GPUDirect Storage"
        direct = not staged if on_device else bool(past) and not through
        return Explanation("file", form, direct, *ends, rejected, way=way)

    def endpoint(self) -> Endpoint | None:
        """Return None: no lane carries out the transfer."""
        return None


def _in_words(past: int, through: int) -> str:
    if past and through:
        return f"{past} bytes past the page cache and {through} through it"
    return "past the page cache" if past else "through the page cache" if through else "no byte moved"


class ServedPath:
    """Describes the path of a transfer that a server carries out. The server tells in the end how it has done it."""

    def __init__(self, filename: str, ends: tuple[str, str], peer: str, has_closed: Callable[[], bool]) -> None:
        """Hold what is known; ``has_closed`` tells whether the Store was closed on this side."""
        self.filename = filename
        self.peer = peer
        self.has_closed = has_closed
        self.explanation = Explanation("server", "not begun", False, *ends, ())

    def took(self, how: str) -> None:
        """Note the way that the bytes have taken: ``"mapped"``, ``"peer"`` or the name of a provider."""
        self.explanation = self.explanation._replace(form=how, direct=how == "mapped")

    def endpoint(self) -> Endpoint | None:
        """Return None: the server's lane carries out the transfer."""
        return None


class FileTransfer(InFlight[int]):
    """Represents a transfer between a file and memory; its value is the number of bytes that it has moved."""

    __slots__ = ()

    _path: FilePath | ServedPath

    def result(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the number of bytes."""
        try:
            return self._outcome(timeout)
        finally:
            del self  # which has its error, whose traceback has this frame

    def _value_of(self, native: Op) -> int:
        return native.bytes_done

    def _bytes_moved(self) -> int:
        return self._outcome(0)  # fewer than were asked for, if the file ended there

    def _error_of(self, native: Op) -> BaseException:
        if native.status == Status.DEADLINE:
            return DeadlineExceeded(
                f"the deadline passed: {self._path.filename!r}",
                fix="allow more time with timeout=, or look at why the disk or its server does not answer",
                operation=self._kind,
                bytes_done=native.bytes_done,
            )
        if native.status == Status.CLOSED and native.reason == Reason.OWNER_CLOSED:
            return Closed("the Store was closed", operation=self._kind, bytes_done=native.bytes_done)
        if native.status != Status.FILE_ERROR:
            return super()._error_of(native)
        path, done = self._path.filename, native.bytes_done
        if native.value:
            return failures.of_errno(native.value, self._kind, path, bytes_done=done)
        return failures.file_ends(path, self._kind, done)


class ServedTransfer(FileTransfer):
    """Represents a transfer that a server of this host was asked for over a lane."""

    __slots__ = ()

    _path: ServedPath

    def _error_of(self, native: Op) -> BaseException:
        if native.status == Status.PEER_LOST and native.reason == Reason.OWNER_CLOSED:
            if self._path.has_closed():
                return Closed("the Store was closed", operation=self._kind, bytes_done=native.bytes_done)
            return failures.server_closed(self._kind, native.bytes_done, self._path.peer)
        error = super()._error_of(native)
        if isinstance(error, PeerLost):
            error.fix = failures.REOPEN
        return error
