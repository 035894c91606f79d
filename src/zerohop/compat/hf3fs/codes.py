"""Turns errors into C's numbers, and logs their reasons."""

from __future__ import annotations

import errno
import functools
from typing import TYPE_CHECKING, Any, ParamSpec

from zerohop.compat.hf3fs import log
from zerohop.errors import (
    AccessDenied,
    Closed,
    DeadlineExceeded,
    LimitReached,
    RegistrationFailed,
    Unsupported,
    ZerohopError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")


def code_of(error: BaseException) -> int:
    """Return the errno of an error."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    table: tuple[tuple[Any, int], ...] = (
        (DeadlineExceeded, errno.ETIMEDOUT),
        (Unsupported, errno.ENOTSUP),
        (AccessDenied, errno.EACCES),
        ((RegistrationFailed, LimitReached, MemoryError), errno.ENOMEM),
        # An argument that makes no sense, or was destroyed.
        ((ValueError, Closed), errno.EINVAL),
    )
    return next((number for kinds, number in table if isinstance(error, kinds)), errno.EIO)


def coded(function: Callable[P, int]) -> Callable[P, int]:
    """Make a function return -errno, and log the reason, where it raises. A TypeError is the program's, and stays."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> int:
        log.begin()
        try:
            return function(*args, **kwargs)
        except (ZerohopError, OSError, ValueError, MemoryError) as error:
            number = code_of(error)
            # A full ring is no news.
            level = log.logger.debug if number == errno.EAGAIN else log.logger.warning
            # As text, because a kept log record would keep the error's traceback alive.
            level("%s: %s: %s", function.__name__.lstrip("_"), errno.errorcode.get(number, number), str(error))
            return -number

    return call
