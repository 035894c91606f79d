"""The kernels that copy page lists: compiled once for a device, and kept; or what is missing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from zerohop import kernels

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_without_cuda_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is missing is named, with the command that installs it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.setitem(sys.modules, "cuda.core.experimental", None)
    image, why_not = kernels.image(90)
    assert image is None
    assert "pip install 'zerohop[cuda]'" in why_not


def test_kept_ones_are_not_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "compiled", lambda _source, capability: (f"for {capability}".encode(), ""))
    assert kernels.image(90) == (b"for 90", "")
    monkeypatch.setattr(kernels, "compiled", lambda *_: (None, "compiled again"))
    assert kernels.image(90) == (b"for 90", "")
    assert kernels.image(80) == (None, "compiled again")
