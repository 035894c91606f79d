"""Declares Completion, the result of one transfer of a Ring, and RingFlags."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import Reason, Status
from zerohop.errors import CANCELLED, PeerLost, ZerohopError, copy_of, from_native
from zerohop.storage.failures import REOPEN, of_errno, server_closed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import CancelledError

# The records that native code gives (native/storage/sinks.hpp).
RECORD: Final = np.dtype(
    {
        "names": ["userdata", "result", "done", "status", "reason", "index"],
        "formats": ["i8", "i8", "i8", "u1", "u1", "u4"],
        "offsets": [0, 8, 16, 24, 25, 28],
        "itemsize": 32,
    }
)


@dataclass(slots=True)
class Completion:
    """Tells how one transfer of a Ring has ended.

    Attributes:
        index: what ``prepare`` returned.
        userdata: the number that was given with it.
        result: the bytes that it moved, from its start on; less than asked for if the file ended.
        error: the error if it failed, else None; ``concurrent.futures.CancelledError`` after ``Ring.cancel``.
    """

    index: int
    userdata: int
    result: int
    error: ZerohopError | CancelledError | None


class RingFlags(enum.Flag):
    """Changes how transfers of a Ring behave.

    Attributes:
        NONE: as documented.
        FORBID_HOLES: a read of a range with a hole, bytes that were never written, fails with ENODATA, and nothing is
            read. Otherwise holes read as zeros. Whether there is one is found out when the transfer is added.
    """

    NONE = 0
    FORBID_HOLES = 1


# Numbers of reasons from here on are those of ToldErrors; native reasons are smaller.
_FIRST_TOLD: Final = 128
_LAST_TOLD: Final = 255


class ToldErrors:
    """Numbers errors that say more than a status and a reason do; a record has the number as its reason.

    Attributes:
        by_number: the errors. One that no number was left for is not among them.
    """

    def __init__(self) -> None:
        self.by_number: dict[int, ZerohopError] = {}
        self._numbers: dict[tuple[object, ...], int] = {}

    def number_of(self, error: ZerohopError) -> int:
        """Return the number of an error; that of ``Reason.NONE`` if none is left. On one thread."""
        key = type(error), error.reason, error.fix
        number = self._numbers.get(key)
        if number is None:
            number = _FIRST_TOLD + len(self._numbers)
            if number > _LAST_TOLD:
                return Reason.NONE.value
            self.by_number[number] = copy_of(error)
            self._numbers[key] = number
        return number


def completions(records: np.ndarray[Any, Any], told: Mapping[int, ZerohopError]) -> list[Completion]:
    """Return the Completions of native records; ``told`` has the errors whose numbers stand for reasons."""
    return [
        Completion(
            int(each["index"]),
            int(each["userdata"]),
            max(0, int(each["result"])),
            _error_of(each, told) if each["status"] else None,
        )
        for each in records
    ]


def _error_of(record: Any, told: Mapping[int, ZerohopError]) -> ZerohopError | CancelledError:
    result, done = int(record["result"]), int(record["done"])
    if record["status"] == CANCELLED:
        # Imported here because concurrent.futures imports logging, which nothing else needs.
        from concurrent.futures import CancelledError

        return CancelledError("the transfer was cancelled")
    if result < 0:
        return of_errno(-result, "transfer", "", bytes_done=done)
    if record["status"] == Status.PEER_LOST.value and record["reason"] == Reason.OWNER_CLOSED.value:
        return server_closed("transfer", done)
    if known := told.get(int(record["reason"])):
        error = copy_of(known)
        error.operation, error.bytes_done = "transfer", done
        return error
    error = from_native(int(record["status"]), int(record["reason"]), operation="transfer", bytes_done=done)
    if isinstance(error, PeerLost):  # a server
        error.fix = REOPEN
    return error
