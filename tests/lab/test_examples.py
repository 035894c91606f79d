"""The examples, as a user runs them: what they print, and that a wrong byte is noticed."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
# Starting Python takes half a minute here when others work, too.
TIMEOUT = 240
pytestmark = pytest.mark.timeout(TIMEOUT + 20)

STEPS = """\
=== Simple GPU Data Interchange Example ===
Transferring 1024 bytes with value 42

Step 1: Initializing RDMA context...
  Found N RDMA device(s)
Step 2: Getting RDMA devices...
  Found N active device port(s)
Step 3: Creating device contexts...
  Device contexts created
Step 4: Creating RDMA endpoints...
  Endpoints created (QPN: send=N, recv=N)
Step 5: Connecting endpoints...
  Endpoints connected
Step 6: Allocating and registering GPU buffers...
  Buffers allocated and registered
Step 7: Posting an RDMA write for data interchange...
Success! All 1024 bytes verified with value 42
  Transfer completed
Step 8: Cleaning up resources...
  Resources cleaned up

=== Example completed successfully! ===
"""


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)


@pytest.mark.parametrize("device", ["sim", pytest.param("host", marks=pytest.mark.slow)])
def test_gpu_data_interchange(device: str) -> None:
    """The eight steps print what those of the example print that they come from, and in parentheses what is ours."""
    ran = run("gpu_data_interchange.py", "--device", device)
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = [line for line in ran.stdout.splitlines(keepends=True) if not line.startswith("  (")]
    assert re.sub(r"(Found |send=|recv=)\d+", r"\1N", "".join(lines)) == STEPS
    assert ("sim:0 and sim:1, simulated GPUs" in ran.stdout) == (device == "sim")
    assert "posted on the queue pair by the CPU" in ran.stdout


@pytest.mark.parametrize("processes", ["1", "2"])
def test_gpu_data_interchange_by_kernels(processes: str) -> None:
    """The output is that of the example that the steps come from. Kernels are threads of the host here."""
    ran = run("gpu_data_interchange.py", "--on-gpu", "--processes", processes)
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = [line for line in ran.stdout.splitlines(keepends=True) if not line.startswith("  (")]
    wanted = STEPS.replace("Posting an RDMA write", "Launching GPU kernel")
    wanted = wanted.replace("Transfer completed", "Kernel execution completed")
    assert re.sub(r"(Found |send=|recv=)\d+", r"\1N", "".join(lines)) == wanted
    assert ("in two processes" in ran.stdout) == (processes == "2")


def test_kernels_notice_a_wrong_byte() -> None:
    ran = run("gpu_data_interchange.py", "--on-gpu", "--corrupt")
    assert (ran.returncode, ran.stderr) == (1, "Error: 1 bytes are wrong, the first at 512: 43\n")
    assert "Success" not in ran.stdout


@pytest.mark.parametrize("device", ["sim", pytest.param("host", marks=pytest.mark.slow)])
def test_a_wrong_byte_is_noticed(device: str) -> None:
    ran = run("gpu_data_interchange.py", "--device", device, "--corrupt")
    assert ran.returncode == 1
    assert ran.stderr == "Error: 1 bytes are wrong, the first at 512: 43\n"
    assert "Success" not in ran.stdout
    assert "successfully" not in ran.stdout


def test_local_operations() -> None:
    ran = run("local_rdma_ops.py", "--bytes", "20000")
    assert (ran.returncode, ran.stderr) == (0, "")
    verified = re.findall(r"^  (.+?) +verified$", ran.stdout, re.MULTILINE)
    assert verified == [
        "send and receive",
        "write",
        "inline write",
        "write with immediate",
        "read",
        "gathering write",
        "chain of 16 writes",
        "atomics",
    ]
    assert ran.stdout.endswith("All operations verified\n")


def expect_rows(output: str, queue_pairs: int) -> None:
    assert f"{queue_pairs} queue pairs on rxe0:1" in output
    rows = [line.split() for line in output.splitlines() if line.endswith("   yes")]
    assert [int(row[0]) for row in rows] == [8, 4096, 65536, 1 << 20]
    assert all(float(number) >= 0 for row in rows for number in row[1:5])
    assert all(float(row[1]) > 1 for row in rows)
    assert output.endswith("All bytes verified on both sides\n")


@pytest.mark.slow
def test_distributed_operations_by_itself() -> None:
    ran = run("dist_rdma_ops.py", "--iterations", "5", "--nic", "rxe0")
    assert (ran.returncode, ran.stderr) == (0, "")
    expect_rows(ran.stdout, 2)


def test_distributed_operations_between_two() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    script = [sys.executable, str(EXAMPLES / "dist_rdma_ops.py"), "--queue-pairs", "3", "--nic", "rxe0"]
    with subprocess.Popen([*script, "--listen", where], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as listener:
        try:
            ran = subprocess.run(
                [*script, "--connect", where, "--iterations", "5"], capture_output=True, text=True, timeout=TIMEOUT
            )
            assert (ran.returncode, ran.stderr) == (0, "")
            expect_rows(ran.stdout, 3)
            assert listener.wait(TIMEOUT) == 0
        finally:
            listener.kill()
