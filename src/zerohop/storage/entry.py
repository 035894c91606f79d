"""Opens the Store that a name stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from zerohop.errors import Unsupported
from zerohop.storage.local_store import LocalStore

if TYPE_CHECKING:
    import os

    from zerohop.core.face import Context
    from zerohop.storage.store import Store

_STAGING_BYTES: Final = 64 << 20
_SCHEME: Final = "zerohop://"


def open_store(
    where: str | os.PathLike[str],
    *,
    ctx: Context | None = None,
    engine: Literal["auto", "threads"] = "auto",
    threads: int | None = None,
    staging_bytes: int = _STAGING_BYTES,
    timeout: float | None = None,
    require: Literal["direct"] | None = None,
    **settings: Any,
) -> Store:
    """Open a folder as a Store: of this machine, or of a server.

    Args:
        where: the folder; or the URL of a Server, ``"zerohop://HOST:PORT"``. There, ``engine``, ``threads`` and
            ``staging_bytes`` are the server's own.
        ctx: the Context whose memory is read into; it stays open. None: a new one, which is closed with the Store.
        engine: ``"auto"``: io_uring, or threads where the system refuses it (``Store.engine`` tells which);
            ``"threads"``: threads in any case.
        threads: the most threads that copy between the page cache and memory, that read and write everything where
            there is no io_uring, and that wait for GPUDirect Storage. They start when they are needed. None: one for
            each processor, at least 8 and at most 16.
        staging_bytes: bytes of host memory that bytes to and from GPUs pass through. They are taken when the first such
            transfer begins, and are never more. Full buffers make later transfers wait, and are no error.
        timeout: seconds for each operation unless the call says otherwise, ``math.inf`` for none; None: the Context's.
        require: ``"direct"``: a transfer that cannot go past the page cache, straight between disk and memory, fails
            with Unsupported before a byte moves, and so does opening a file whose file system has no such way; so
            does one with a GPU's memory that would pass through host buffers. Not for servers. None: transfers take
            the way that there is; a Context with ``require="direct"`` demands the second all the same.
        settings: arguments of Context, for a new one.

    Raises:
        StorageError: there is no such folder, or it may not be read.
        PeerLost, Unsupported, DeadlineExceeded: there is no server at the URL; Unsupported also for ``require``.
        ValueError, TypeError: an argument makes no sense; the errors of Context.
        LimitReached: this process has no descriptor or thread left that it needs.
        Closed: the Context is closed.
    """
    if isinstance(where, str) and where.startswith(_SCHEME):
        # Imported here because a local folder needs nothing of it.
        from zerohop.storage.remote.remote_store import RemoteStore

        if require is not None:
            raise Unsupported(
                "require= is for folders of this machine: a server chooses how it reads its files, and says nothing of "
                "its page cache",
                fix="leave require out, or open_store() the folder on the server's machine",
                operation="open_store",
            )
        return RemoteStore(where, ctx, timeout, settings)
    return LocalStore(where, ctx, engine, threads, staging_bytes, timeout, settings, require)
