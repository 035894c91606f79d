"""The functions for kernels compile for GPUs, without one, and their waits and signals are the instructions that they
are meant to be."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import patience
from zerohop import device

TESTS = Path(__file__).parents[1]
NAMES = re.findall(r"^def (\w+)\(queue", (TESTS / "device" / "kernels.py").read_text("utf-8"), re.MULTILINE)
# In a process of its own: the interpreter is chosen when Triton is imported.
COMPILE = f"""
import json, sys
sys.path.insert(0, {str(TESTS)!r})
import triton
from device import kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
compiled = {{}}
for name in {NAMES!r}:
    function = getattr(kernels, name)
    source = ASTSource(function, {{each: "i64" for each in function.arg_names}}, {{}})
    compiled[name] = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
# Triton makes constants of arguments that are 1.
for name in ("put", "get", "put_signal"):
    for nbytes in (0, 1, 7, 8, 1 << 20):
        function = getattr(kernels, name)
        signature = {{each: "constexpr" if each == "nbytes" else "i64" for each in function.arg_names}}
        source = ASTSource(function, signature, {{(function.arg_names.index("nbytes"),): nbytes}})
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
for name in ("compare_swap", "fetch_add", "signal", "wait_signal", "put"):
    function = getattr(kernels, name)
    source = ASTSource(function, {{each: "u64" for each in function.arg_names}}, {{}})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(json.dumps(compiled))
"""


# scripts/ci_extras.sh puts Triton 3.9 here, which has tl.atomic_load; PyTorch brings an older one.
NEWER = Path(sys.prefix) / "triton-3.9"
MISSING = f"there is no Triton 3.9 beside the one that is installed: pip install --target {NEWER} triton==3.9.0"


@pytest.fixture(params=["installed", "3.9"])
def triton_path(request: pytest.FixtureRequest) -> str:
    """Return a folder for PYTHONPATH that has Triton 3.9, or an empty string for the Triton that is installed."""
    if request.param == "3.9":
        if not NEWER.exists():
            pytest.skip(MISSING)
        return str(NEWER)
    pytest.importorskip("triton", reason="kernels in Triton need it: pip install triton")
    return ""


@pytest.mark.timeout(200)
@pytest.mark.skipif(not NEWER.exists(), reason=MISSING)
def test_in_the_interpreter_of_a_newer_triton() -> None:
    """Run some tests of test_kernels.py, which by itself uses the Triton that is installed."""
    environment = {**os.environ, "PYTHONPATH": str(NEWER)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    tests = str(TESTS / "device" / "test_kernels.py")
    chosen = "triton-host and (TestBytes or TestFifo) and (proxy-shm or peer-shm)"
    done = subprocess.run(
        [*command, tests, "-k", chosen], env=environment, capture_output=True, text=True, timeout=patience(190)
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


@pytest.mark.timeout(120)
def test_in_triton(tmp_path: Path, triton_path: str) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)}
    environment |= {"PYTHONPATH": triton_path} if triton_path else {}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(110))
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout)
    assert sorted(compiled) == sorted(NAMES)
    for name, ptx in compiled.items():
        assert ".target sm_90" in ptx, name
        # Triton lays the shared memory of a function that is not inlined over what its caller has there, such as tiles.
        assert not re.search(r"\bcall\b", ptx), name
    # A read-modify-write of memory of the host would undo what the host writes at the same time.
    acquire = r"ld\.acquire\.sys\.global|ld\.relaxed\.sys\.global[^}]*fence\.acquire\.sys"
    assert re.search(acquire, compiled["wait_signal"])
    assert "%globaltimer" in compiled["wait_signal"]
    # A word of the host and the clock are read by each thread; the threads exchange what they have found.
    for name in ("wait_signal", "flush", "fence"):
        assert re.search(r"(shfl|redux)\.sync", compiled[name]), name
    assert "atom.global.sys.release.exch.b64" in compiled["signal"]
    # An entry is counted before it takes an index, or a flush would not wait for all entries up to its own.
    counted = re.search(r"(atom|red)\.global\.gpu\.relaxed\.add", compiled["put"])
    indexed = re.search(r"atom\.global\.sys\.acq_rel\.add", compiled["put"])
    assert counted
    assert indexed
    assert counted.start() < indexed.start()


CALLS = """
#include "zerohop/device.hpp"
#include "zerohop/device/work_queue.hpp"
namespace zd = zerohop::device;
template <zd::Scope kScope> ZEROHOP_KERNEL_FN void send(const zd::mlx5::WorkQueue* queue, zd::Word* out, zd::Word n) {
    zd::mlx5::Posted posted = zd::mlx5::PostWrite<kScope>(queue, 0x1000, 1, 0x2000, 2, n);
    out[0] = zd::mlx5::UpdateSendDbrRecord<kScope>(queue, posted);
    out[1] = zd::mlx5::RingDoorbell<kScope>(queue, posted);
    out[2] = zd::mlx5::PollCq<kScope>(queue, posted);
    zd::mlx5::UpdateCqDbrRecord(queue);
}
template <zd::Scope kScope> ZEROHOP_KERNEL_FN void all(const zd::Queue* queue, zd::Word* out, zd::Word n) {
    out[0] = zd::put_signal<kScope>(queue, 0, 8, 0, 3, n, 0, 5);
    out[1] = zd::flush<kScope>(queue, 0);
    out[2] = zd::get<kScope>(queue, 0, 8, 0, 2000, n);
    out[3] = zd::fetch_add<kScope>(queue, 0, 16, 7).value;
    out[4] = zd::compare_swap<kScope>(queue, 0, 16, 7, 9).value;
    out[5] = zd::fence<kScope>(queue, 0);
    out[6] = zd::quiet<kScope>(queue);
    out[7] = zd::wait_signal<kScope>(queue, 0, 8, 5);
}
"""
GPU = """#define ZEROHOP_KERNEL_FN __device__
{calls}
extern "C" __global__ void block(const zd::Queue* q, zd::Word* out) {{ all<zd::Scope::block>(q, out, 64); }}
extern "C" __global__ void warp(const zd::Queue* q, zd::Word* out) {{ all<zd::Scope::warp>(q, out, 64); }}
extern "C" __global__ void thread(const zd::Queue* q, zd::Word* out) {{ all<zd::Scope::thread>(q, out, 64); }}
using zd::mlx5::WorkQueue;
extern "C" __global__ void send_warp(const WorkQueue* q, zd::Word* out) {{ send<zd::Scope::warp>(q, out, 64); }}
extern "C" __global__ void send_thread(const WorkQueue* q, zd::Word* out) {{ send<zd::Scope::thread>(q, out, 64); }}
"""


@pytest.mark.parametrize(("architecture", "standard"), [("sm_80", "c++17"), ("sm_90", "c++20")])
def test_by_nvrtc(architecture: str, standard: str) -> None:
    core = pytest.importorskip("cuda.core")
    options = core.ProgramOptions(std=standard, arch=architecture, include_path=[device.include_dir()])
    try:
        code = core.Program(GPU.format(calls=CALLS), "c++", options).compile("cubin").code
    except Exception as error:
        if "nvrtc" in str(error) and "not found" in str(error):
            pytest.skip(f"there is no NVRTC: {error}")
        raise
    assert code


@pytest.mark.timeout(90)
@pytest.mark.parametrize("architecture", ["gfx90a"])
def test_by_hipcc(architecture: str, tmp_path: Path) -> None:
    """For AMD's GPUs the functions are compiled, and never run: not verified on hardware."""
    if shutil.which("hipcc") is None:
        pytest.skip("there is no hipcc: apt-get install hipcc libamdhip64-dev")
    source = tmp_path / "kernels.hip"
    source.write_text(f"#include <hip/hip_runtime.h>\n{GPU.format(calls=CALLS)}", "utf-8")
    command = ["hipcc", f"--offload-arch={architecture}", "-std=c++17", "-O2", "-S", "--cuda-device-only"]
    command += ["-I", device.include_dir(), str(source), "-o", str(tmp_path / "kernels.s")]
    environment = {**os.environ, "HIP_PLATFORM": "amd"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=80)
    assert done.returncode == 0, done.stderr
    code = (tmp_path / "kernels.s").read_text("utf-8")
    assert architecture in code
    assert "atomic_add_x2" in code, "no atomic of 8 bytes"


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_for_the_host(standard: str, tmp_path: Path) -> None:
    source = tmp_path / "host.cpp"
    every = "template void all<zd::Scope::{0}>(const zd::Queue*, zd::Word*, zd::Word);\n"
    scopes = "".join(every.format(scope) for scope in ("block", "warp", "thread"))
    send = "template void send<zd::Scope::{0}>(const zd::mlx5::WorkQueue*, zd::Word*, zd::Word);\n"
    scopes += "".join(send.format(scope) for scope in ("warp", "thread"))
    source.write_text(f"#define ZEROHOP_KERNEL_FN\n{CALLS}{scopes}", "utf-8")
    command = ["c++", f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", device.include_dir()]
    subprocess.run([*command, str(source)], check=True, timeout=patience(60))
