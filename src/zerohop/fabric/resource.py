"""What contexts, endpoints and memory regions have in common: a life that ends once, children first."""

from __future__ import annotations

import os
import weakref
from typing import ClassVar

from zerohop.core.base.resource import Closeable, NotCopyable
from zerohop.errors import Closed

# For a forked child to find them; holds nothing alive.
_roots: weakref.WeakSet[Resource] = weakref.WeakSet()


class Resource(Closeable, NotCopyable):
    """Something that must be closed; a context manager that does."""

    __slots__ = ("__weakref__", "_children", "_closed", "_forked")

    # What it is, in the words of errors.
    _kind: ClassVar[str]

    def __init__(self, parent: Resource | None) -> None:
        self._children: weakref.WeakSet[Resource] = weakref.WeakSet()
        self._closed = False
        self._forked = False
        (_roots if parent is None else parent._children).add(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed, by you or with its parent."""
        return self._closed

    def close(self) -> None:
        """Close what was made from it, then itself; idempotent. It waits for nothing but the device's driver."""
        if self._closed:
            return
        self._closed = True
        for child in list(self._children):
            child.close()
        self._release()

    def _release(self) -> None:
        """Let go of what is native."""

    def _let_be(self) -> None:
        """In a forked child: let go of what is native without ending it, for it is the parent's."""

    def _abandon(self) -> None:
        self._forked = self._closed = True
        for child in list(self._children):
            child._abandon()
        self._let_be()

    def _check_open(self) -> None:
        if self._closed:
            if self._forked:
                raise Closed(f"this {self._kind} was created before fork()", fix="create a new one in the child")
            raise Closed(f"this {self._kind} is closed")

    def __del__(self) -> None:
        # __init__ may not have come far.
        if not getattr(self, "_closed", True):
            self.close()


def _after_fork() -> None:
    for root in list(_roots):
        root._abandon()
    _roots.clear()


os.register_at_fork(after_in_child=_after_fork)
