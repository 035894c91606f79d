"""The copy kernels of GPUs: compiled at first use for the device that is there, and kept on disk."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Final

SOURCE: Final = "copy.cu"
logger = logging.getLogger("zerohop")


def image(capability: int) -> tuple[bytes | None, str]:
    """The kernels as the driver loads them, for a device of that compute capability; or None, and why not.

    Takes about half a second where they were never compiled on this machine.
    """
    source = (Path(__file__).parent / SOURCE).read_text(encoding="utf-8")
    kept = _folder() / f"copy-sm{capability}-{hashlib.sha256(source.encode()).hexdigest()[:16]}.cubin"
    try:
        return kept.read_bytes(), ""
    except OSError:
        pass
    made, why = compiled(source, capability)
    if made is not None:
        _keep(kept, made)
    return made, why


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "zerohop"


def compiled(source: str, capability: int) -> tuple[bytes | None, str]:
    """Kernels in CUDA C++, as the driver loads them for a device of that compute capability; or None, and why not."""
    try:
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
    """On disk, at once or not at all: other processes may be doing the same."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError as error:
        logger.info("the compiled copy kernels are not kept: %s", error)
