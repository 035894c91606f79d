"""The way to what the public API does not show: the engine, for faults that only a simulated device has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerohop._native import Engine

    import zerohop as zh


def engine_of(context: zh.Context) -> Engine:
    return context._engine
