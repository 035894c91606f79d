"""The errors of a Ring's results: from native reasons, and from what a server has told in words."""

from __future__ import annotations

import numpy as np

import zerohop as zh
from zerohop._native import Reason, Status
from zerohop.storage.completion import RECORD, ToldErrors, completions


def _record(status: Status, reason: int, done: int = 0) -> np.ndarray:
    record = np.zeros(1, RECORD)
    record["status"], record["reason"], record["done"] = status.value, reason, done
    return record


def test_what_was_told() -> None:
    """Each result has the words and the fix of its own error, and no traceback of another one."""
    told = ToldErrors()
    lost = zh.PeerLost("the server was closed", fix="start it", peer="there")
    limit = zh.LimitReached("no descriptors", fix="ulimit -n", limit="RLIMIT_NOFILE")
    numbers = [told.number_of(error) for error in (lost, limit, zh.PeerLost(lost.reason, fix=lost.fix, peer="there"))]
    assert numbers[0] == numbers[2] != numbers[1]
    assert not {*numbers} & {each.value for each in Reason}
    for number, error in zip(numbers, (lost, limit), strict=False):
        [completion] = completions(_record(Status.PEER_LOST, number, 7), told.by_number)
        found = completion.error
        assert isinstance(found, type(error))
        assert isinstance(found, zh.ZerohopError)
        assert found is not told.by_number[number]
        assert (found.reason, found.fix, found.bytes_done) == (error.reason, error.fix, 7)


def test_more_errors_than_numbers() -> None:
    """The ones for which none is left have the words of their status; none has those of another error."""
    told = ToldErrors()
    found = []
    for number in range(300):
        error = zh.AccessDenied(f"range {number}")
        [completion] = completions(_record(Status.ACCESS_DENIED, told.number_of(error)), told.by_number)
        assert isinstance(completion.error, zh.AccessDenied)
        assert completion.error.reason in (error.reason, "access denied")
        found.append(completion.error.reason)
    assert (found[0], found[-1]) == ("range 0", "access denied")
