"""Describes the machine for the results; asks programs and files, so that this process uses no GPU."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_ASK_TORCH = "import torch; print(torch.__version__, torch.version.cuda or '')"
_PATIENCE = 60.0


def describe() -> dict[str, Any]:
    """Return `{gpus, driver, cuda, torch, python, zerohop}`; a value is empty if it is not known."""
    gpus, driver = _gpus()
    torch, _, cuda = _words([sys.executable, "-c", _ASK_TORCH]).partition(" ")
    return {
        "gpus": gpus,
        "driver": driver,
        "cuda": cuda,
        "torch": torch,
        "python": platform.python_version(),
        "zerohop": _zerohop(),
    }


def _gpus() -> tuple[list[str], str]:
    lines = _words(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).splitlines()
    pairs = [line.rpartition(",")[::2] for line in lines if "," in line]
    if pairs:
        return [name.strip() for name, _ in pairs], pairs[0][1].strip()
    root = Path("/proc/driver/nvidia")
    try:
        models = [re.search(r"Model:\s*(.+)", file.read_text()) for file in sorted(root.glob("gpus/*/information"))]
        number = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", (root / "version").read_text())
    except OSError:
        return [], ""
    return [model[1].strip() for model in models if model], number[0] if number else ""


def _zerohop() -> str:
    try:
        return importlib.metadata.version("zerohop")
    except importlib.metadata.PackageNotFoundError:
        # A source tree has no metadata.
        return _words([sys.executable, "-c", "import zerohop; print(zerohop.__version__)"])


def _words(command: list[str]) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""
