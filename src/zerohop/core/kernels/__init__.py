"""Compiles the copy kernels of GPUs at first use, for the device at hand, and keeps them on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zerohop._native import NativeError, Status
from zerohop.core.base.importing import importing
from zerohop.core.base.log import logger
from zerohop.errors import from_native

if TYPE_CHECKING:
    from zerohop._native import Engine

SOURCE: Final = "copy.cu"


def load(engine: Engine, device: dict[str, Any]) -> str:
    """Give a device its copy kernels. Return why it has none; empty if it has them, or needs none.

    Raises:
        NativeError: the engine is closed.
    """
    if device["kind"] == "sim":
        return ""
    if device["kind"] != "cuda":
        return "there are no copy kernels for AMD's devices yet"
    capability = engine.capability(device["index"])
    why_not = ""
    for kept in (True, False):
        code, why_not = image(capability, kept=kept)
        if code is None:
            break
        try:
            engine.load_kernels(device["index"], code)
        except NativeError as error:
            if error.args[0] == Status.CLOSED.value:
                raise
            # The kept file may be damaged, or its compiler newer than the driver supports.
            why_not = from_native(*error.args).reason
        else:
            return ""
    return why_not


def image(capability: int, *, kept: bool = True) -> tuple[bytes | None, str]:
    """Return the kernels as the driver loads them, for a compute capability; or None and the reason.

    Kernels that are not on disk yet are compiled, which takes half a second. Without ``kept`` they always are.
    """
    source = (Path(__file__).parent / SOURCE).read_text(encoding="utf-8")
    path = _path(f"copy-sm{capability}-{hashlib.sha256(source.encode()).hexdigest()[:16]}.cubin")
    if kept and path is not None:
        try:
            return path.read_bytes(), ""
        except OSError:
            pass
    made, why = compiled(source, capability)
    if made is not None and path is not None:
        _keep(path, made)
    return made, why


def _path(name: str) -> Path | None:
    """Return the path of a kept file; None for a user without a home."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base / "zerohop" / name


def compiled(source: str, capability: int) -> tuple[bytes | None, str]:
    """Compile kernels from CUDA C++ for a compute capability; return the image, or None and the reason."""
    try:
        with importing():
            try:
                from cuda.core import Program, ProgramOptions
            except ImportError:
                from cuda.core.experimental import Program, ProgramOptions
    except Exception as error:  # noqa: BLE001 - it loads libraries, and each fails in its own way
        return None, f"cuda-core cannot be loaded ({error}); pip install 'zerohop[cuda]'"
    try:
        options = ProgramOptions(arch=f"sm_{capability}", std="c++17")
        code = Program(source, code_type="c++", options=options).compile("cubin").code
    except Exception as error:  # noqa: BLE001 - NVRTC is loaded here, and may be missing or too old for the device
        return None, f"NVRTC cannot compile them ({str(error).strip()}); see zerohop doctor --only copy-kernels"
    return bytes(code), ""


def _keep(path: Path, data: bytes) -> None:
    """Keep a file on disk, all of it or nothing, because other processes may do the same."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError as error:
        logger.info("the compiled copy kernels are not kept: %s", error)
