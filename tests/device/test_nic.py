"""Kernels in C++ and in Triton write the requests of a NIC, which is in software."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import patience

ON_GPU = [pytest.param(each, "cuda:0", marks=pytest.mark.cuda) for each in ("thread", "block", "triton")]


@pytest.mark.timeout(patience(120))
@pytest.mark.parametrize(("language", "device"), [("thread", "host"), ("triton", "host"), *ON_GPU])
def test_kernels_write_the_requests_of_a_nic(language: str, device: str) -> None:
    if language == "triton":
        pytest.importorskip("triton", reason="kernels in Triton need it: pip install triton")
    interprets = str(int(device == "host"))
    environment = {**os.environ, "TRITON_INTERPRET": interprets, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "device.nic_main", language, device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(110))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-3000:]
