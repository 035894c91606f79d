"""Saves tensors as a safetensors file, which is there whole or not at all."""

from __future__ import annotations

import contextlib
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

from zerohop.config.checks import check_int
from zerohop.errors import ZerohopError
from zerohop.integrations.safetensors.dtypes import BITS
from zerohop.integrations.safetensors.frameworks import described, frameworks_of
from zerohop.integrations.safetensors.layout import MAX_HEADER_BYTES, PREFIX_BYTES
from zerohop.integrations.safetensors.progress import shown_progress
from zerohop.integrations.safetensors.sources import store_of
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeAlias

    from zerohop import Memory, Operation
    from zerohop.integrations.safetensors.sources import Where
    from zerohop.storage import File, Store

    # Offset in the file, and bytes: of a tensor, or gathered from small ones.
    Piece: TypeAlias = tuple[int, Any]

_MIB: Final = 1 << 20
_BUDGET: Final = 64 * _MIB
_MOST_BUDGET: Final = 1 << 40
_SLOTS: Final = 4
_PIECE: Final = 16 * _MIB
# Smaller tensors are gathered in host memory and written together.
_DIRECT: Final = 1 * _MIB
_ALIGNMENT: Final = 8


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
    what was there stays until the new file is whole. After an error nothing is left of it. In a Store, the rename
    itself is flushed only as its file system does so by itself.

    Args:
        tensors: arrays of numpy or torch, on the host or on a GPU, by name. They must be contiguous.
        path: the file.
        store: a Store, or the folder or URL of one, in which the path is; None: the path is one of this process.
        metadata: texts that go into the header.
        budget: bytes of memory that small tensors are gathered in, and those of a GPU pass through; at least 1 MiB.
        progress: whether to show a bar with the rate on the standard error; None: if that is a terminal.
        timeout: seconds for each write of at most 16 MiB; None: the Store's.

    Raises:
        ValueError, TypeError: an argument makes no sense, or a tensor is not contiguous or of a dtype that the format
            has not.
        StorageError: the file cannot be written.
        PeerLost, DeadlineExceeded, LimitReached, RegistrationFailed, Closed: as for ``File.write_from``.
    """
    check_int("budget", budget, _MIB, _MOST_BUDGET)
    target = os.fspath(path)
    header, pieces, size = _described(tensors, metadata or {})
    # Tensors of a GPU are read by no stream of torch's: kernels that still write to them have to end before.
    for framework in frameworks_of(tensors.values()):
        framework.finish()
    with (
        store_of(store, budget, [target]) as writes_by,
        shown_progress("saving", size, progress) as done,
        _temporary(writes_by, target, within=store is not None) as file,
    ):
        _write(file, [(0, header), *pieces], budget // _SLOTS, timeout, done)
        file.fsync().result()


def _described(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> tuple[Any, list[Piece], int]:
    """Return the header, the bytes of the tensors with their offsets, and the size of the file."""
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise TypeError("metadata has texts alone: names and values are strings")
    facts = []
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"a tensor's name is a string, not {shown(name)}")
        if name == "__metadata__":
            raise ValueError("no tensor can be named __metadata__, which the format has for something else")
        try:
            facts.append((name, *described(tensor)))
        except (TypeError, ValueError) as error:
            raise type(error)(f"tensor {name!r}: {error}") from None
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
def _temporary(store: Store, target: str, *, within: bool) -> Iterator[File]:
    """Lend a new file in the folder of ``target``, which gets that name at the end, or is removed after an error."""
    folder, name = os.path.split(target)
    if name in ("", ".", ".."):
        raise ValueError(f"path names a folder, and not a file: {shown(target)}")
    path = target.removesuffix(name) + f".{secrets.token_hex(16)}.tmp"
    file = store.open(path, "x").result() if within else _made(store, path, target)
    try:
        with file:
            yield file
        if within:
            store.rename(path, target).result()
        else:
            Path(path).replace(target)
            _flush_folder(folder or ".")
    except BaseException:
        with contextlib.suppress(ZerohopError, OSError):
            if within:
                store.unlink(path).result()
            else:
                Path(path).unlink(missing_ok=True)
        raise


def _made(store: Store, path: str, target: str) -> File:
    """Make the file ``path``, with the mode of the one whose place it is to take."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(fd, stat.S_IMODE(os.stat(target).st_mode))  # noqa: PTH116  # as the calls around it
        return store.file_of(fd).result()
    finally:
        os.close(fd)


def _flush_folder(folder: str) -> None:
    """Have the names in a folder outlive a crash of the machine."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
