"""The public names: what `zerohop` exports, that each is documented, and what importing it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import zerohop as zh


def test_all_is_what_there_is() -> None:
    public = {name for name, value in vars(zh).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert public | {"__version__"} == set(zh.__all__)
    assert list(zh.__all__) == sorted(zh.__all__)


@pytest.mark.parametrize("name", [name for name in zh.__all__ if name != "__version__"])
def test_every_name_is_documented(name: str) -> None:
    value = getattr(zh, name)
    assert value.__doc__
    assert len(value.__doc__) > 20
    if not inspect.isclass(value):
        return
    for member, attribute in vars(value).items():
        if not member.startswith("_") and (inspect.isfunction(attribute) or isinstance(attribute, property)):
            assert attribute.__doc__, f"{name}.{member} says nothing"


def test_import_brings_in_nothing_heavy() -> None:
    """asyncio and its like come with the first Context; the time itself is a row of the benchmark."""
    heavy = {"asyncio", "concurrent.futures", "importlib.metadata", "logging", "ssl", "torch", "zerohop.machine"}
    code = (
        f"import sys, numpy; before = set(sys.modules); import zerohop; print(*(set(sys.modules) - before) & {heavy})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_errors_are_told_apart_by_origin() -> None:
    assert issubclass(zh.DeadlineExceeded, TimeoutError)
    assert issubclass(zh.PeerLost, ConnectionError)
    for name in zh.__all__:
        value = getattr(zh, name)
        if inspect.isclass(value) and issubclass(value, Exception) and not issubclass(value, Warning):
            assert issubclass(value, zh.ZerohopError)
