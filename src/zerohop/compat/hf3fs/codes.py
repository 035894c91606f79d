"""Turns errors into C's numbers, and logs their reasons."""

from __future__ import annotations

import errno
import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

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
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


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


def structured(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise TypeError for an argument in the place of a structure that is none of its class."""
    # Annotations are text here, and the names of these classes are those of 3FS.
    places = {name: each.annotation for name, each in inspect.signature(function).parameters.items()}
    wanted = [
        (position, name, kind)
        for position, (name, kind) in enumerate(places.items())
        if kind in ("hf3fs_ior", "hf3fs_iov", "hf3fs_gpu_ipc_handle_t")
    ]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for position, name, kind in wanted:
            given = args[position] if position < len(args) else kwargs.get(name, kwargs)
            # Where it is missing, the call itself says so.
            if given is not kwargs and kind not in (each.__name__ for each in type(given).__mro__):
                raise TypeError(f"{function.__name__}: {name} must be an {kind}, not {shown(given)}")
        return function(*args, **kwargs)

    return call


def coded(function: Callable[P, int]) -> Callable[P, int]:
    """Make a function return -errno, and log the reason, where it raises. A TypeError is the program's, and stays.

    It checks its structures as with ``structured``.
    """
    function = structured(function)

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
