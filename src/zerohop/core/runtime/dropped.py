"""Warns of operations that were dropped although nobody had waited for their bytes, or had seen that they failed.

A transfer that is dropped goes on. For a write, that is a way to use the library. A read, or any other wait that nobody
waits for, is a mistake: the program goes on with bytes that are not there.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Final

from zerohop.errors import Closed, from_native

if TYPE_CHECKING:
    from zerohop.core.runtime.runtime import Runtime

_READS: Final = ("read", "read_pages", "read_strided", "read_list", "read_many")
# Operations whose only purpose is that somebody waits for them.
_WAITS: Final = (*_READS, "recv", "flush", "notification")
_OURS: Final = __name__.partition(".")[0]


def report(
    core: Runtime, kind: str, error: BaseException | None, *, asked: bool, place: str = "", source: object = None
) -> None:
    """Give a ResourceWarning for an operation whose outcome nobody has taken, if it is one that should be waited for.

    Args:
        core: the core of the Context.
        kind: the name of the operation.
        error: why it failed; None: it has ended well, or has not ended.
        asked: whether somebody has waited for it, perhaps not to its end.
        place: where it was posted, if that is known.
        source: the operation, if it may be kept; tracemalloc then knows where it was made.
    """
    if core.forked:
        return
    if error is None:
        if asked or kind not in _WAITS:
            return
        said = f"a {kind} was dropped, and nobody has waited for it: what it brings may not be there"
        fix = "type `await operation`, `operation.result()` or `zerohop.wait_all(operations)`"
    else:
        # Whoever closes a Context knows that what is in flight ends; but a read's buffer may be used after that.
        if isinstance(error, Closed) and kind not in _READS:
            return
        said, fix = f"a {kind} failed, and nobody has seen it: {error}", "wait for each operation"
    where = f" (posted at {place})" if place else ""
    warnings.warn(f"{said}{where}; {fix}", ResourceWarning, stacklevel=3, source=source)


def report_unseen(core: Runtime, count: int, status: int, reason: int) -> None:
    """Give a ResourceWarning for operations that were dropped in flight and have failed since: their number, and why.

    Their slots are native, so that nothing but the number and the last outcome is known of them.
    """
    if core.forked or not count:
        return
    what = "1 operation that was" if count == 1 else f"{count} operations that were"
    error = from_native(status, reason)
    warnings.warn(
        f"{what} dropped in flight failed later, and nobody has seen it; the last: {error}; wait for each operation",
        ResourceWarning,
        stacklevel=5,
    )


def posting_place() -> str:
    """Return file and line of the innermost caller outside of this library if ``ZEROHOP_LOG=debug``; else nothing."""
    # Imported here because `import zerohop` alone needs no logging.
    from zerohop.core.base.log import is_debugging

    if not is_debugging():
        return ""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _OURS:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
