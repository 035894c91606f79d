"""Keeps the peers that have connected by themselves until ``Context.accept`` asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError

if TYPE_CHECKING:
    from zerohop.core.lanes.link import Link
    from zerohop.core.runtime.runtime import Runtime
    from zerohop.errors import ZerohopError


class Arrivals:
    """Holds the queue of a Context's arrivals, in the order in which they came up. No peer can reach this queue.

    Attributes:
        number: the engine's number of the queue.
        closed: False, because the queue ends with its engine.
    """

    closed: Final = False

    def __init__(self, core: Runtime) -> None:
        self._core = core
        self.number: int = core.engine.open_queue()

    @property
    def ended(self) -> ZerohopError | None:
        """Return None: only the end of the Context ends this queue."""
        return None

    def add(self, link: Link) -> None:
        """Let the accept that has waited longest have a link, or the next one that asks."""
        try:
            self._core.engine.add_arrival(self.number, link.native_id)
        except NativeError:  # the Context was closed meanwhile
            pass

    def forget(self, link: Link) -> None:
        """Let nobody have a link that is lost."""
        try:
            self._core.engine.forget_arrival(self.number, link.native_id)
        except NativeError:  # the Context is closed
            pass
