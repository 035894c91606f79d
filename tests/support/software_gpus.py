"""GPUs in software, below the driver's interface: tests/native/fake_cuda, in place of libcuda."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# How many there are, as text; "" on real GPUs, and where there are none.
IN_SOFTWARE = os.environ.get("FAKE_CUDA_DEVICES", "")


def hide_bindings() -> None:
    """NVIDIA's Python packages call what that library does not have, which ends the process: here and in processes that
    are started from here they are not found. What they compile would not run either."""
    folder = str(Path(__file__).parent / "no_bindings")
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
