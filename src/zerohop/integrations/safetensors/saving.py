"""Saves tensors as a safetensors file, which is there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import struct
from collections import deque
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop.errors import StorageError, ZerohopError
from zerohop.integrations.safetensors.arguments import check_metadata, check_numbers, check_tensors
from zerohop.integrations.safetensors.describing import described, frameworks_of
from zerohop.integrations.safetensors.dtypes import BITS
from zerohop.integrations.safetensors.layout import MAX_HEADER_BYTES, PREFIX_BYTES, SafetensorsError, check_count
from zerohop.integrations.safetensors.progress import shown_progress
from zerohop.integrations.safetensors.sources import descriptor_of, ended, store_of
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeAlias

    from zerohop import Memory, Operation
    from zerohop.integrations.safetensors.arguments import Where
    from zerohop.storage import File, Store

    # Offset in the file, and bytes: of a tensor, or gathered from small ones.
    Piece: TypeAlias = tuple[int, Any]

_MIB: Final = 1 << 20
_BUDGET: Final = 64 * _MIB
_SLOTS: Final = 4
_PIECE: Final = 16 * _MIB
# Smaller tensors are gathered in host memory and written together.
_DIRECT: Final = 1 * _MIB
_ALIGNMENT: Final = 8
# As many as Linux follows in one path.
_MOST_LINKS: Final = 40


def save(
    tensors: Mapping[str, Any],
    path: Where,
    store: Store | Where | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
    budget: int = _BUDGET,
    progress: bool | None = None,
    timeout: float | None = None,
) -> None:
    """Save tensors as one safetensors file. Done means that it outlives a crash of the machine.

    It is written under a temporary name in the same folder, flushed, and renamed: ``path`` is never half a file, and
    what was there stays until the new file is whole. After an error nothing is left of it, unless a
    server no longer answers. Where ``path`` is a link, the file that it leads to is replaced, and the link stays. In a
    Store, a link may not lead out of it, and the rename itself is flushed only as its file system does so by itself.

    Args:
        tensors: arrays of numpy or torch, on the host or on a GPU, by name. They must be contiguous.
        path: the file.
        store: a Store, or the folder or URL of one, in which the path is; None: the path is one of this process.
        metadata: texts that go into the header.
        budget: bytes of memory that small tensors are gathered in, and those of a GPU pass through; at least 1 MiB.
        progress: whether to show a bar with the rate on the standard error; None: if that is a terminal.
        timeout: seconds for each write of at most 16 MiB, and for each other answer of a server, such as that all is
            flushed; None: the Store's. Files of this machine are opened, flushed and renamed within no time limit.

    Raises:
        ValueError, TypeError: an argument makes no sense, or a tensor is not contiguous or of a dtype that the format
            has not.
        StorageError: the file cannot be written.
        PeerLost, DeadlineExceeded, LimitReached, RegistrationFailed, Closed: as for ``File.write_from``.
    """
    check_numbers(budget, progress, timeout)
    target = check_tensors(tensors, path)
    check_metadata(metadata)
    within = store is not None
    if not within:
        target = _followed(target)
    header, pieces, size = _described(tensors, metadata or {})
    # Tensors of a GPU are read by no stream of torch's: kernels that still write to them have to end before.
    for framework in frameworks_of(tensors.values()):
        framework.finish()
    with (
        store_of(store, budget, [target], timeout) as writes_by,
        shown_progress("saving", size, progress) as done,
        _temporary(
            writes_by, _followed_in(writes_by, target, timeout) if within else target, timeout, within=within
        ) as file,
    ):
        _write(file, [(0, header), *pieces], budget // _SLOTS, timeout, done)
        ended(file.fsync(), timeout)


def _described(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> tuple[Any, list[Piece], int]:
    """Return the header, the bytes of the tensors with their offsets, and the size of the file."""
    facts = []
    for name, tensor in tensors.items():
        if name == "__metadata__":
            raise ValueError("no tensor can be named __metadata__, which the format has for something else")
        try:
            facts.append((name, *described(tensor)))
        except (TypeError, ValueError) as error:
            raise type(error)(f"tensor {shown(name)}: {error}") from None
    # Wide elements first: then each tensor begins at a multiple of its element.
    facts.sort(key=lambda each: (-BITS[each[1]], each[0]))
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    pieces, at = [], 0
    for name, dtype, shape, flat in facts:
        nbytes = int(flat.shape[0])
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        pieces.append((at, flat))
        at += nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(
            f"the header takes {len(text)} bytes; the format allows {MAX_HEADER_BYTES}: save less at a time"
        )
    try:
        check_count(text)
    except SafetensorsError as error:
        raise ValueError(f"{error}, also by load: save fewer tensors at a time") from None
    start = PREFIX_BYTES + len(text)
    header = np.frombuffer(struct.pack("<Q", len(text)) + text, np.uint8)
    return header, [(start + at, flat) for at, flat in pieces], start + at


def _write(
    file: File,
    pieces: list[Piece],
    slot: int,
    timeout: float | None,
    done: Callable[[int], None],
) -> None:
    under_way: deque[tuple[Operation[int], Memory]] = deque()

    def end_first() -> None:
        operation, memory = under_way[0]
        done(operation.result())
        under_way.popleft()
        memory.close()

    try:
        for offset, flat in _gathered(pieces, slot):
            while len(under_way) >= _SLOTS:
                end_first()
            (memory,) = file.store.context.register([flat])
            under_way.append((file.write_from(memory, offset, timeout=timeout), memory))
        while under_way:
            end_first()
    finally:
        # After a failure nothing may read the tensors any more when the caller has them back.
        for operation, memory in under_way:
            operation.cancel()
            with contextlib.suppress(ZerohopError, CancelledError):
                operation.result()
            memory.close()


def _gathered(pieces: list[Piece], slot: int) -> Iterator[Piece]:
    """Give the pieces, the large ones cut into parts, and small ones that follow each other copied together."""
    small: list[Any] = []
    at = filled = 0
    for offset, flat in pieces:
        nbytes = int(flat.shape[0])
        if small and (nbytes >= min(_DIRECT, slot) or filled + nbytes > slot):
            yield at, np.concatenate(small)
            small, filled = [], 0
        if nbytes >= min(_DIRECT, slot):
            for part in range(0, nbytes, _PIECE):
                yield offset + part, flat[part : part + _PIECE]
        elif nbytes:
            at = at if small else offset
            small.append(flat if isinstance(flat, np.ndarray) else flat.cpu().numpy())
            filled += nbytes
    if small:
        yield at, np.concatenate(small)


@contextlib.contextmanager
def _temporary(store: Store, target: str, timeout: float | None, *, within: bool) -> Iterator[File]:
    """Lend a new file in the folder of ``target``, which gets that name at the end, or is removed after an error."""
    folder, name = os.path.split(target)
    if name in ("", ".", ".."):
        raise ValueError(f"path names a folder, and not a file: {shown(target)}")
    if _is_folder(store, target, timeout, within=within):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
    path = target.removesuffix(name) + f".{secrets.token_hex(16)}.tmp"
    try:
        with store.open(path, "x").result(timeout) if within else _made(store, path, target) as file:
            yield file
        if within:
            ended(store.rename(path, target), timeout)
        else:
            Path(path).replace(target)
            _flush_folder(folder or ".")
    except BaseException:
        with contextlib.suppress(ZerohopError, OSError):
            if within:
                ended(store.unlink(path), timeout)
            else:
                Path(path).unlink(missing_ok=True)
        raise


def _is_folder(store: Store, target: str, timeout: float | None, *, within: bool) -> bool:
    if not within:
        folder = os.path.split(target)[0]
        if folder and not Path(folder).is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder, make it first", folder)
        return Path(target).is_dir()
    try:
        return stat.S_ISDIR(ended(store.stat(target), timeout).st_mode)
    except StorageError as error:
        # Nothing is there, or a link that leads nowhere.
        if error.errno not in (errno.ENOENT, errno.EXDEV, errno.ELOOP):
            raise
    folder = os.path.split(target)[0]
    if folder:
        ended(store.stat(folder), timeout)  # its error names the folder that is not there
    return False


def _followed(target: str) -> str:
    """Return the path that a link leads to, or the path itself; raise OSError for a link that leads to itself."""
    if not Path(target).is_symlink():
        return target
    found = os.path.realpath(target)
    if Path(found).is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), target)
    return found


def _followed_in(store: Store, target: str, timeout: float | None) -> str:
    """Do ``_followed`` for a path of a Store, which refuses to follow a link that leads out of it."""
    path = target
    for _ in range(_MOST_LINKS):
        try:
            to: str = ended(store.readlink(path), timeout)
        except StorageError as error:
            # It is no link, a path that names no file, or nothing is there; _temporary() tells of the last two.
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return path
            raise
        if to.startswith("/"):
            raise _no_way(errno.EXDEV, f"the link leads out of the store, to {shown(to)}", target)
        path = f"{path.rpartition('/')[0]}/{to}".lstrip("/")
    raise _no_way(errno.ELOOP, os.strerror(errno.ELOOP), target)


def _no_way(number: int, said: str, target: str) -> StorageError:
    fix = "save under the name of a file, or remove the link first"
    return StorageError(f"{said}: {target!r}", errno=number, filename=target, fix=fix, operation="save")


def _made(store: Store, path: str, target: str) -> File:
    """Make the file ``path``, with the mode of the one whose place it is to take."""
    fd = descriptor_of(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(fd, stat.S_IMODE(os.stat(target).st_mode))  # noqa: PTH116  # as the calls around it
        return store.file_of(fd).result()
    finally:
        os.close(fd)


def _flush_folder(folder: str) -> None:
    """Have the names in a folder outlive a crash of the machine."""
    fd = descriptor_of(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
