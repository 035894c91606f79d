"""Objects whose constructor has raised, as Ctrl-C can have it do anywhere: their destructors have nothing to do."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from typing import Any

import pytest

import zerohop


def _with_destructors() -> list[type[Any]]:
    """All classes of the library that have one."""
    names = [module.name for module in pkgutil.walk_packages(zerohop.__path__, "zerohop.")]
    modules = []
    for name in names:
        try:
            modules += [importlib.import_module(name)] if not name.endswith("__main__") else []
        except ModuleNotFoundError as error:  # the library that it is for is not installed here
            if not name.startswith("zerohop.integrations.") or (error.name or "").startswith("zerohop"):
                raise
    found = {each for module in modules for each in vars(module).values() if inspect.isclass(each)}
    ours = {each for each in found if each.__module__.startswith("zerohop.")}
    return sorted(
        (each for each in ours if any("__del__" in vars(base) for base in ours & set(each.__mro__))),
        key=lambda each: each.__qualname__,
    )


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What destructors have raised."""
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: raised.append(told.exc_value))
    return raised


@pytest.mark.parametrize("of", _with_destructors(), ids=lambda of: of.__qualname__)
def test_nothing_is_there_yet(of: Any, unraisable: list[object]) -> None:
    of.__new__(of)
    assert unraisable == []
