"""Makes results of this side from the answers of a server, and the server's paths from those of this side."""

from __future__ import annotations

import errno
import os
from typing import Any, Final

import numpy as np

from zerohop.errors import CANCELLED, Closed, ProtocolError, from_native
from zerohop.storage import wire
from zerohop.storage.failures import file_ends, of_errno

_STAT_NAMES = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size")
_STAT_TIMES = ("st_atime", "st_mtime", "st_ctime")
_MOST: Final = (1 << 63) - 1
_MOST_UNSIGNED: Final = (1 << 64) - 1
# Calls whose answers are no wire.Value, and those that have a number for a result.
_ANSWERS: Final[dict[str, type[wire.Stat | wire.Target]]] = {"stat": wire.Stat, "readlink": wire.Target}
_WITH_NUMBER: Final = frozenset({"hole_in"})


def encoded(path: str, kind: str) -> bytes:
    """Return a path as messages have it; raise StorageError if it is longer than the system takes."""
    path_bytes = os.fsencode(path)
    if len(path_bytes) > wire.LONGEST_PATH:
        raise of_errno(errno.ENAMETOOLONG, kind, path)
    return path_bytes


def names_of(answer: wire.Names) -> list[str]:
    """Return the names of a folder; raise ProtocolError for one that would lead elsewhere as a path."""
    names = [os.fsdecode(name) for name in answer.names]
    if any("/" in name or "\0" in name or name in ("", ".", "..") for name in names):
        raise ProtocolError("malformed: a name from the storage service that is a path")
    return names


def answer_to(kind: str) -> type[wire.Value | wire.Stat | wire.Target]:
    """Return the class of the answer to a call."""
    return _ANSWERS.get(kind, wire.Value)


def value_of(answer: wire.Value | wire.Stat | wire.Target, kind: str) -> int | str | os.stat_result | None:
    """Return the result of a call as a local Store gives it; raise ProtocolError if that cannot be."""
    if isinstance(answer, wire.Value):
        if answer.value is not None and (kind not in _WITH_NUMBER or not 0 <= answer.value <= _MOST):
            raise ProtocolError("malformed: a number from the storage service")
        return answer.value
    if isinstance(answer, wire.Target):
        if b"\0" in answer.path or not answer.path:
            raise ProtocolError("malformed: the path of a link from the storage service")
        return os.fsdecode(answer.path)
    facts = answer.facts
    try:
        first = [_natural(facts[name], _MOST if name == "st_size" else _MOST_UNSIGNED) for name in _STAT_NAMES]
        return os.stat_result([*first, *(int(facts[name]) for name in _STAT_TIMES)], facts)
    except (LookupError, ValueError, OverflowError):
        raise ProtocolError("malformed: facts of a file from the storage service") from None


def _natural(fact: float, most: int) -> int:
    if not isinstance(fact, int) or not 0 <= fact <= most:
        raise ValueError(fact)
    return fact


def joined(records: np.ndarray[Any, Any], nbytes: int, kind: str, path: str, *, whole: bool) -> int:
    """Return the bytes that were moved in all ranges of an operation; raise the error of the first that failed.

    Args:
        records: a record for each range (completion.py).
        nbytes: bytes that were asked for.
        kind: the operation.
        path: the file.
        whole: whether fewer bytes than that are an error.
    """
    done = int(records["done"].sum())
    failed = np.flatnonzero(records["status"])
    if failed.size:
        first = records[failed[0]]
        if first["result"] < 0:
            raise of_errno(-int(first["result"]), kind, path, bytes_done=done)
        if first["status"] == CANCELLED:  # only close() asks for that
            raise Closed("the Store was closed", operation=kind, bytes_done=done)
        raise from_native(int(first["status"]), int(first["reason"]), operation=kind, bytes_done=done)
    if whole and done < nbytes:
        raise file_ends(path, kind, done)
    return done
