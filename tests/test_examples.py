"""The examples of Transports, as a user runs them: what they print, and that a wrong byte is noticed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import patience
from support.software_gpus import IN_SOFTWARE

EXAMPLES = Path(__file__).parent.parent / "examples"
LIMIT_S = patience(60)
ON_ONE = [
    pytest.param(device, marks=[pytest.mark.cuda] if device == "cuda:0" else [])
    for device in ("host", "sim:0", "cuda:0")
]
KINDS = [
    pytest.param(kind, marks=[pytest.mark.cuda] if "cuda" in kind else [])
    for kind in ("host", "cpu", "sim", "sim:0", "sim:2", "cuda", "cuda:0")
]


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    # A program prints to a pipe in blocks, unless this variable of the test's own environment says otherwise.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    # Where there is no NVRTC, that is said of page lists on a GPU.
    said = [line for line in ran.stderr.splitlines(keepends=True) if "are copied page by page: " not in line]
    ran.stderr = "".join(said)
    return ran


class TestPingPong:
    @pytest.mark.parametrize("kind", KINDS)
    def test_between(self, kind: str) -> None:
        ran = run("ping_pong.py", "--device", kind)
        assert (ran.returncode, ran.stderr) == (0, "")
        lines = ran.stdout.splitlines()
        path = "shm" if kind in ("host", "cpu") else "p2p"
        assert re.fullmatch(rf"ping: 8192 bytes written, 8192 announced, {path} \(.*, 8\.0 KiB in .*", lines[0])
        assert re.fullmatch(rf"pong: 8192 bytes written, 8192 announced, {path} \(.*, 8\.0 KiB in .*", lines[1])
        assert lines[2].endswith("every byte verified")
        assert lines[2].count(kind) == 2

    def test_where_nothing_is_said(self) -> None:
        ran = run("ping_pong.py")
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.endswith("every byte verified\n")

    @pytest.mark.parametrize("device", ["host", "sim:0"])
    def test_a_wrong_byte(self, device: str) -> None:
        ran = run("ping_pong.py", "--device", device, "--corrupt")
        assert ran.returncode == 1
        assert ran.stdout.endswith(f"{device} and {device}: BYTES ARE WRONG\n")

    @pytest.mark.parametrize("device", ["abacus:0", "cuda:999"])
    def test_no_such_device(self, device: str) -> None:
        ran = run("ping_pong.py", "--device", device)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert f"cannot use {device}: " in ran.stderr


class TestTensorTransfer:
    @pytest.mark.parametrize("device", ON_ONE)
    def test_to(self, device: str) -> None:
        ran = run("tensor_transfer.py", "--device", device, "--versions", "2")
        assert (ran.returncode, ran.stderr) == (0, "")
        *versions, path = ran.stdout.splitlines()
        assert versions == [f"version {number}: 5 tensors, 2311172 bytes verified" for number in (1, 2)]
        assert f"host→{device}" in path

    def test_wrong_bytes(self) -> None:
        ran = run("tensor_transfer.py", "--versions", "2", "--corrupt")
        assert ran.returncode == 1
        assert ran.stdout.count("WRONG") == 2

    def test_no_such_device(self) -> None:
        ran = run("tensor_transfer.py", "--device", "abacus:0")
        assert (ran.returncode, ran.stdout) == (1, "")
        assert "cannot use abacus:0: 'abacus:0' is no device" in ran.stderr


class TestHf3fsGdr:
    def test_three_ways(self, tmp_path: Path) -> None:
        ran = run("hf3fs_gdr.py", "--folder", str(tmp_path))
        assert (ran.returncode, ran.stderr) == (0, "")
        count, created, *rest = ran.stdout.splitlines()
        assert re.fullmatch(r"GDR available with [1-9]\d* GPUs", count)
        assert re.fullmatch(r"created on (sim|cuda|hip):0, GPU 0: 1048576 bytes", created)
        *own, imported, verified = rest
        assert own == ["wrapped: 524288 bytes", "written: 1048576 bytes"]
        assert re.fullmatch(r"imported by process \d+: 1048576 bytes", imported)
        assert verified == "every byte verified"
        assert (tmp_path / "copy.bin").stat().st_size == 1 << 20

    def test_wrong_bytes(self) -> None:
        ran = run("hf3fs_gdr.py", "--corrupt")
        assert ran.returncode == 1
        assert ran.stdout.endswith("BYTES ARE WRONG\n")

    def test_no_such_gpu(self) -> None:
        ran = run("hf3fs_gdr.py", "--gpu", "99")
        assert ran.returncode == 1
        assert "iovcreate_gpu: No such device" in ran.stderr
        assert "there is no GPU 99; there are " in ran.stderr

    def test_no_such_folder(self, tmp_path: Path) -> None:
        ran = run("hf3fs_gdr.py", "--folder", str(tmp_path / "no"))
        assert ran.returncode == 1
        assert "No such file or directory" in ran.stderr


class TestShmem:
    @pytest.mark.parametrize("mode", ["peer", "proxy"])
    def test_ranks_exchange_blocks(self, mode: str) -> None:
        pytest.importorskip("triton")
        ran = run("shmem.py", "--ranks", "3", "--mode", mode)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.endswith("3 ranks: the ring and all to all, every byte verified by the receivers' kernels\n")
        assert f"peer 2: {mode}, " in ran.stdout

    @pytest.mark.cuda
    @pytest.mark.skipif(bool(IN_SOFTWARE), reason="no kernel runs on GPUs in software")
    @pytest.mark.parametrize("mode", ["peer", "proxy"])
    def test_on_gpus(self, mode: str) -> None:
        ran = run("shmem.py", "--ranks", "2", "--mode", mode, "--device", "cuda")
        assert ran.returncode == 0, ran.stderr
        assert "every byte verified" in ran.stdout

    def test_wrong_numbers(self) -> None:
        ran = run("shmem.py", "--ranks", "1")
        assert ran.returncode == 2
        assert "--ranks is 2 to 64" in ran.stderr
