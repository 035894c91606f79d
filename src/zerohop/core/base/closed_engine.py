"""Stands in for the native engine and for regions once a Context is closed or was left behind by fork().

All native objects are released at once, however long the user keeps the Context, a Memory or an Operation. A late call
raises the native error of a closed engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from zerohop._native import NativeError, Reason, Status

if TYPE_CHECKING:
    from zerohop._native import Engine, Region


def refuse(*_: object) -> NoReturn:
    """Raise the error of a closed engine, whatever is called."""
    raise NativeError(Status.CLOSED.value, Reason.CONTEXT_CLOSED.value, "")


class _Engine:
    def __getattr__(self, name: str) -> Any:
        return refuse


class _Region:
    """Stands for a region that nothing uses; it can be closed again."""

    fd = -1
    pins = 0
    known_to_devices = False
    shareable = False
    read = write = staticmethod(refuse)

    def close(self, _wait: bool = False) -> bool:
        return True

    def deregister(self, _wait: bool = False) -> bool:
        return True


ENGINE: Final = cast("Engine", _Engine())
REGION: Final = cast("Region", _Region())
