"""The kernels that copy page lists: compiled once for a device, and kept; or what is missing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from zerohop import kernels
from zerohop.machine.doctor.process import find_compiler

if TYPE_CHECKING:
    from pathlib import Path


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


class TestCompiling:
    """Needs no GPU: NVRTC compiles for any."""

    @pytest.fixture(autouse=True)
    def _compiler(self) -> None:
        compiler = find_compiler()
        if compiler.version is None:
            pytest.skip(f"{compiler.why_not}; scripts/setup.sh cuda")

    @pytest.mark.parametrize("capability", [80, 90])
    def test_they_compile(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capability: int) -> None:
        """To an image with the names that native/accel/gpu/page_indices.cpp asks the driver for; it is kept on disk."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        image, why_not = kernels.image(capability)
        assert image is not None, why_not
        assert image.startswith(b"\x7fELF")
        for width in (16, 8, 4, 2, 1):
            assert f"\0.text.zh_pages_{width}\0".encode() in image
        (kept,) = (tmp_path / "zerohop").iterdir()
        assert kept.read_bytes() == image

    def test_what_does_not_compile(self) -> None:
        image, why_not = kernels.compiled("this is no C++", 90)
        assert image is None
        assert "NVRTC cannot compile them" in why_not
