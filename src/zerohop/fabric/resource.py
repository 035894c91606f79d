"""Declares Resource, the base of contexts, endpoints and memory regions, which are closed once, children first."""

from __future__ import annotations

import os
import weakref
from typing import Any, ClassVar

from zerohop.core.base.resource import Closeable, NotCopyable
from zerohop.errors import Closed

# Contexts that a forked child abandons; weak references, which keep none alive.
_roots: weakref.WeakSet[Resource] = weakref.WeakSet()


class Resource(Closeable, NotCopyable):
    """Closes itself and its children once; a context manager, and the base of objects that must be closed."""

    __slots__ = ("__weakref__", "_children", "_closed", "_forked", "_native", "_released")

    # Name of the class in messages of errors.
    _kind: ClassVar[str]
    # The object of the data plane that is closed with this one; None without one.
    _native: Any

    def __init__(self, parent: Resource | None, native: Any = None) -> None:
        self._native = native
        self._children: weakref.WeakSet[Resource] = weakref.WeakSet()
        self._closed = self._released = False
        self._forked = False
        (_roots if parent is None else parent._children).add(self)

    @property
    def closed(self) -> bool:
        """Tell whether it was closed, by you or with its parent."""
        return self._closed

    def close(self) -> None:
        """Close the objects that were made from it, then itself; idempotent. It waits only for the device's driver."""
        self._closed = True
        if self._released or self._forked:
            return
        # Again from here if a signal's handler has cut short an earlier call.
        for child in list(self._children):
            child.close()
        self._release()
        self._released = True

    def _release(self) -> None:
        """Release the native object."""
        if self._native is not None:
            self._native.close()

    def _forget_native(self) -> None:
        """Forget the native object in a forked child, without ending it: it belongs to the parent process."""
        if self._native is not None:
            self._native.abandon()

    def _abandon(self) -> None:
        self._forked = self._closed = True
        for child in list(self._children):
            child._abandon()
        self._forget_native()

    def _check_open(self) -> None:
        if self._closed:
            if self._forked:
                raise Closed(f"this {self._kind} was created before fork()", fix="create a new one in the child")
            raise Closed(f"this {self._kind} is closed")

    def __del__(self) -> None:
        # __init__ may have failed early.
        if not getattr(self, "_closed", True):
            self.close()


def _after_fork() -> None:
    for root in list(_roots):
        root._abandon()
    _roots.clear()


os.register_at_fork(after_in_child=_after_fork)
