"""Loads copy kernels onto the GPUs of a Context."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from zerohop.core.base import closed_engine, threads
from zerohop.core.base.flag import Flag
from zerohop.core.base.log import logger
from zerohop.core.kernels import load
from zerohop.errors import ZerohopError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import Engine

# Seconds that `wait` gives the kernels, which is more than compiling takes.
_PATIENCE_S: Final = 2.0
_NOT_YET: Final = (
    "the driver has not loaded the copy kernels yet, which it does only when nothing is queued on any stream of the GPU"
)


class CopyKernels:
    """Loads the kernels of each GPU once, on a new thread, when memory of the GPU is first registered.

    The driver loads them only when nothing is queued on any stream of the GPU. A stream may be waiting for work of this
    very process, so callers wait only briefly, and page lists are copied page by page until the kernels are there.
    """

    def __init__(self, engine: Engine, late: Callable[[], None]) -> None:
        """Load nothing yet; ``late`` is called, by any thread, if kernels come after ``wait`` has given up."""
        self._engine = engine
        self._late = late
        self._lock = threading.Lock()
        self._devices: dict[int, _Loading] = {}

    @property
    def why_not(self) -> str:
        """Return why a GPU copies page by page; empty if none does, or nobody has asked for kernels."""
        told = [each for each in list(self._devices.values()) if each.given_up or each.ended.is_set()]
        return next((each.why_not for each in told if each.why_not), "")

    def begin(self, index: int) -> None:
        """Begin to load the kernels of a device, unless that has begun. Return at once."""
        if index not in self._devices:
            self._begun(index)

    def wait(self, index: int) -> None:
        """Wait for a device's kernels for as long as compiling takes; log a warning, once, if there are none."""
        loading = self._begun(index)
        if not loading.given_up:
            loading.ended.wait(_PATIENCE_S)
        with self._lock:
            loading.given_up = loading.given_up or not loading.ended.is_set()
            say, loading.warned = bool(loading.why_not) and not loading.warned, True
        if say:
            logger.warning("page lists on %s are copied page by page: %s", loading.device["name"], loading.why_not)

    def join(self, timeout: float) -> None:
        """Wait until all loading has ended, ``timeout`` seconds at most."""
        deadline = time.monotonic() + timeout
        for loading in list(self._devices.values()):
            loading.ended.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Release the engine."""
        self._engine = closed_engine.ENGINE

    def _begun(self, index: int) -> _Loading:
        with self._lock:
            loading = self._devices.get(index)
            if loading is not None:
                return loading
            loading = _Loading(self._engine.devices()[index])
            if loading.device["kind"] == "sim":
                loading.end("")  # a simulated device needs no kernels
            else:
                work = threads.Thread(self._load, loading, name="zerohop-kernels")
                try:
                    work.begin()
                except ZerohopError as error:
                    loading.end(f"they cannot be loaded: {error}")
            self._devices[index] = loading
            return loading

    def _load(self, loading: _Loading) -> None:
        try:
            why_not = load(self._engine, loading.device)
        except Exception as error:  # noqa: BLE001 - whatever it is, page lists go without
            why_not = f"they cannot be loaded: {error}"
        with self._lock:
            loading.end(why_not)
            late = loading.given_up
        if late:
            self._late()


class _Loading:
    """Holds the state of one device's kernels."""

    __slots__ = ("device", "ended", "given_up", "warned", "why_not")

    def __init__(self, device: dict[str, Any]) -> None:
        self.device = device
        self.why_not = _NOT_YET
        self.ended = Flag()
        # Whether a wait has ended without the kernels.
        self.given_up = False
        # Whether the first wait has ended, with a warning if there are no kernels.
        self.warned = False

    def end(self, why_not: str) -> None:
        self.why_not = why_not
        self.ended.set()
