"""The way to what the public API does not show: the engine, for faults that only a simulated device has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zerohop as zh
    from zerohop._native import Engine


def engine_of(context: zh.Context) -> Engine:
    return context._core.engine
