"""Declares the Operations of transfers between files and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zerohop._native import Status
from zerohop.core.face import Explanation, InFlight
from zerohop.errors import DeadlineExceeded
from zerohop.storage import failures

if TYPE_CHECKING:
    from zerohop._native import Endpoint, Op


class FilePath(NamedTuple):
    """Describes the path of a transfer between a file and memory."""

    filename: str
    explanation: Explanation
    peer: str = ""

    def endpoint(self) -> Endpoint | None:
        """Return None: no lane carries out the transfer."""
        return None


class ServedPath:
    """Describes the path of a transfer that a server carries out. The server tells in the end how it has done it."""

    def __init__(self, filename: str, ends: tuple[str, str], peer: str) -> None:
        self.filename = filename
        self.peer = peer
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

    _path: FilePath

    def result(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the number of bytes."""
        return self._outcome(timeout)

    def _value_of(self, native: Op) -> int:
        return native.bytes_done

    def _error_of(self, native: Op) -> BaseException:
        if native.status == Status.DEADLINE:
            return DeadlineExceeded(
                f"the deadline passed: {self._path.filename!r}",
                fix="allow more time with timeout=, or look at why the disk or its server does not answer",
                operation=self._kind,
                bytes_done=native.bytes_done,
            )
        if native.status != Status.FILE_ERROR:
            return super()._error_of(native)
        path, done = self._path.filename, native.bytes_done
        if native.value:
            return failures.of_errno(native.value, self._kind, path, bytes_done=done)
        return failures.file_ends(path, self._kind, done)
