"""Chooses the providers of a Context that opens, and names what kept it from opening, in the library's own errors."""

from __future__ import annotations

import errno
import mmap
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, providers
from zerohop.config import reach
from zerohop.errors import (
    NO_MEMORY,
    NOT_ALLOWED,
    OUT_OF_DESCRIPTORS,
    DeadlineExceeded,
    Unsupported,
    ZerohopError,
    from_native,
    named,
    of_sandbox,
    out_of_memory,
    too_many_threads,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.config.settings import Settings

# More than the largest extension module takes that opening a Context loads.
_MODULE_BYTES: Final = 16 << 20
# A provider that does not work says why in words, which end with those of errno.
_NO_DESCRIPTORS: Final = tuple(map(os.strerror, (errno.EMFILE, errno.ENFILE)))


def usable_providers(settings: Settings) -> tuple[str, ...]:
    """Return the providers that this Context may use.

    Raises:
        Unsupported, LimitReached: one that was asked for does not work.
    """
    probed = probed_providers(settings)
    if settings.providers is None:
        return tuple(name for name, (usable, _, _) in probed.items() if usable)
    others = " or ".join(name for name, (usable, _, _) in probed.items() if usable)
    for name in settings.providers:
        usable, reason, fix = probed.get(name, (False, "this build does not have it", f"use {others}"))
        if not usable:
            raise error_of_provider(name, reason, fix)
    return settings.providers


def probed_providers(settings: Settings) -> dict[str, tuple[bool, str, str]]:
    """Return for each provider of this build whether a Context with these settings can use it, why not, and the fix."""
    probed = {name: (usable, reason, fix) for name, usable, reason, fix in providers()}
    if settings.sim_devices:
        probed["p2p"] = True, "", ""
    return probed


def error_of_import(error: ImportError | OSError) -> BaseException:
    """Return the error to raise for a module that cannot be loaded.

    Python takes a file that it may not look at for one that is not there. So the calls of an import are made again.
    """
    if gone := reach.why_gone():
        return Unsupported(gone, fix=reach.FIX, operation="open")
    here = Path(__file__)
    calls: dict[str, Callable[[], object]] = {
        "stat": here.stat,
        "openat": here.read_bytes,
        "getdents64": partial(os.listdir, here.parent),
        "mmap": partial(mmap.mmap, -1, _MODULE_BYTES),
    }
    for call, make in calls.items():
        try:
            make()
        except OSError as refused:
            if refused.errno == errno.ENOMEM:
                return out_of_memory(MemoryError(str(error)))
            return of_sandbox(refused, call, operation="open") or error
    return error


def error_of_provider(name: str, reason: str, fix: str) -> ZerohopError:
    """Return the error to raise for a provider that was asked for and does not work."""
    if reason.endswith(_NO_DESCRIPTORS):
        return from_native(NO_MEMORY, OUT_OF_DESCRIPTORS, reason, provider=name, operation="open")
    return Unsupported(reason, fix=fix, provider=name)


def error_of_engine(error: BaseException) -> BaseException:
    """Return the error to raise for one of the engine, which starts native threads and makes descriptors."""
    if isinstance(error, NativeError) and error.args[1] == NOT_ALLOWED:  # it names the call
        return _of_native(error)
    if isinstance(error, NativeError):
        try:
            # Imported here because a Context that opens needs none of it.
            from zerohop.machine.host import why_no_context
        except (ImportError, OSError):  # the system refuses what an import needs, too
            return _of_native(error)
        why, fix = why_no_context()
        return Unsupported(why, fix=fix, operation="open") if why else _of_native(error)
    if isinstance(error, OSError):  # a native thread could not be started
        return of_sandbox(error, "clone", operation="open") or too_many_threads("open")
    return error


def error_of_parts(error: BaseException, seconds: float) -> BaseException:
    """Return the error to raise for one of the parts over the engine; they had ``seconds`` to begin."""
    if isinstance(error, NativeError):
        return _of_native(error)
    if isinstance(error, ZerohopError):
        error.operation = error.operation or "open"
        return error
    if isinstance(error, TimeoutError):
        return DeadlineExceeded(
            f"the Context's own thread had no turn for {seconds:.0f} s: others hold Python's lock",
            fix="open the Context before that work begins, or have it give the lock up now and then",
            operation="open",
        )
    found = named(error)
    if isinstance(found, ZerohopError):
        found.operation = "open"
    elif isinstance(found, OSError):
        return Unsupported(f"the system refuses what a Context needs: {found.strerror or found}", operation="open")
    return found


def _of_native(error: NativeError) -> BaseException:
    return from_native(*error.args, operation="open")
