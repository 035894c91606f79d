"""Kernels that other compilers make of the header, and what CUDA's own checker finds in the functions for kernels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
pytestmark = [pytest.mark.cuda, pytest.mark.timeout(200)]


def run(*command: str) -> str:
    path = filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=190)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize(("way", "package"), [("numba", "numba.cuda"), ("torch", "torch"), ("warp", "cupy")])
@pytest.mark.parametrize("mode", ["peer", "proxy"])
def test_kernels_of_other_compilers(way: str, package: str, mode: str) -> None:
    module = pytest.importorskip(package)
    if way == "numba" and not hasattr(module, "CUSource"):  # the C++ header is linked by it
        pytest.skip("this numba-cuda links no sources: it is too old")
    assert run(sys.executable, "-m", "device.one_process", way, mode).endswith("ok\n")


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("scope", ["block", "warp"])
def test_cuda_finds_no_fault(tool: str, scope: str) -> None:
    checker = shutil.which("compute-sanitizer")
    if checker is None:
        pytest.skip("there is no compute-sanitizer")
    told = run(checker, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "device.one_process", scope)
    assert "ok" in told
    assert "0 errors" in told or "0 hazards" in told


def test_threads_and_warps_write_requests_of_a_nic() -> None:
    pytest.importorskip("cuda.core")
    pytest.importorskip("torch")
    program = TESTS.parent / "bench" / "device" / "work_queue.py"
    told = run(sys.executable, str(program), "--json", "-")
    assert {(row["lanes"], row["way"]) for row in json.loads(told)["rows"]} == {
        (1, "alone"),
        (32, "alone"),
        (32, "together"),
    }
