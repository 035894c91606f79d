"""Prepares what a ``_nowait`` call lacks, such as a connection or the peer's memory. The call itself does not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from zerohop._native import NativeError
from zerohop.core.base.tables import oldest
from zerohop.core.runtime.operation import Failed
from zerohop.errors import WouldBlock, ZerohopError, copy_of, from_native

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.core.runtime.operation import Operation
    from zerohop.core.runtime.runtime import Runtime

# Number of failed first uses that are remembered until the next call reports them.
_MAX_UNTOLD: Final = 4096


def first_use(
    core: Runtime, kind: str, nbytes: int, key: object, prepare: Callable[[], Coroutine[Any, Any, object]]
) -> Operation[int]:
    """Begin ``prepare`` for a nowait call whose connection or mapping is not there yet, and raise WouldBlock.

    If a preparation failed, the next call returns the failure, once; the call after that tries again.
    """
    preparing = core.preparing
    failure = preparing.get(key)
    if failure is not None:
        preparing.pop(key, None)
        return Failed(core, kind, None, nbytes, failure)
    if key not in preparing:
        try:
            preparing[key] = None
            core.control.spawn(_prepare, preparing, key, prepare)
        except BaseException:  # of a signal's handler: the next call begins anew, and does not wait for this
            preparing.pop(key, None)
            raise
    raise WouldBlock("first use: asking the peer for what this needs", operation=kind, fix="try again soon")


async def _prepare(
    preparing: dict[object, Exception | None], key: object, prepare: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    failure: Exception | None = None
    try:
        await prepare()
    except ZerohopError as error:
        failure = copy_of(error)
    except NativeError as error:
        failure = from_native(*error.args)
    except Exception as error:  # noqa: BLE001 - whatever it is: the next call must not wait for ever
        failure = error
    preparing.pop(key, None)
    if failure is not None:
        preparing[key] = failure
        # The oldest failure is dropped, because perhaps no caller ever uses its handle again.
        if len(preparing) > _MAX_UNTOLD:
            for key in oldest(preparing, 1):
                preparing.pop(key, None)
