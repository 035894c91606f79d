"""The kernels that copy page lists: compiled once for a device, and kept; or what is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from zerohop._native import NativeError, Status
from zerohop.core import kernels
from zerohop.machine.doctor.process import find_compiler

if TYPE_CHECKING:
    from zerohop._native import Engine


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


class Device:
    """Stands in for an engine with one GPU, which takes only one image."""

    def __init__(self, takes: bytes) -> None:
        self.takes = takes
        self.tried: list[bytes] = []

    def capability(self, _index: int) -> int:
        return 90

    def load_kernels(self, _index: int, code: bytes) -> None:
        self.tried.append(code)
        if code != self.takes:
            raise NativeError(Status.UNSUPPORTED.value, 0, "the kernels cannot be loaded: CUDA_ERROR_NO_BINARY_FOR_GPU")

    def load(self, kind: str = "cuda") -> str:
        facts: dict[str, Any] = {"index": 0, "kind": kind, "name": f"{kind}:0"}
        return kernels.load(cast("Engine", self), facts)


class TestLoading:
    @pytest.fixture(autouse=True)
    def compiled(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(kernels, "compiled", lambda *_: (b"good", ""))

    def test_what_is_kept_is_damaged(self, tmp_path: Path) -> None:
        """They are compiled anew, and kept."""
        device = Device(takes=b"good")
        assert device.load() == ""
        (kept,) = (tmp_path / "zerohop").iterdir()
        kept.write_bytes(b"damaged")
        assert device.load() == ""
        assert device.tried == [b"good", b"damaged", b"good"]
        assert kept.read_bytes() == b"good"

    def test_the_driver_takes_none(self) -> None:
        """A reason, and no failure of the transfer that came first."""
        assert "CUDA_ERROR_NO_BINARY_FOR_GPU" in Device(takes=b"of a newer driver").load()

    def test_a_user_without_a_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def homeless() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", homeless)
        assert Device(takes=b"good").load() == ""

    def test_other_devices(self) -> None:
        assert Device(takes=b"").load("sim") == ""
        assert "AMD" in Device(takes=b"").load("hip")


class TestCompiling:
    """Needs no GPU: NVRTC compiles for any."""

    @pytest.fixture(autouse=True)
    def _compiler(self) -> None:
        compiler = find_compiler()
        if compiler.version is None:
            pytest.skip(f"{compiler.why_not}; scripts/setup.sh cuda")

    @pytest.mark.parametrize("capability", [80, 90])
    def test_they_compile(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capability: int) -> None:
        """To an image with the names that native/accel/gpu/copy_kernels.cpp asks the driver for; it is kept on disk."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        image, why_not = kernels.image(capability)
        assert image is not None, why_not
        assert image.startswith(b"\x7fELF")
        for width in (16, 8, 4, 2, 1):
            assert f"\0.text.zh_pages_{width}\0".encode() in image
        assert b"\0.text.zh_ranges\0" in image
        assert b"\0.text.zh_list\0" in image
        (kept,) = (tmp_path / "zerohop").iterdir()
        assert kept.read_bytes() == image

    def test_what_does_not_compile(self) -> None:
        image, why_not = kernels.compiled("this is no C++", 90)
        assert image is None
        assert "NVRTC cannot compile them" in why_not
