"""`zerohop demo`: it verifies, it ends in time, and a flipped byte anywhere makes it fail."""

from __future__ import annotations

import errno
import json
import re
import resource
from typing import TYPE_CHECKING

import pytest

from cli.command import zerohop
from cli.minilm import LAYERS, shapes, write_model
from support.patience import patience
from zerohop.cli import demo
from zerohop.integrations.safetensors import read_layout

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "small.safetensors", vocabulary=500)


def test_eight_steps_and_a_sweep() -> None:
    run = zerohop("demo")
    assert run.returncode == 0, run.stdout + run.stderr
    for step in range(1, 9):
        assert f"Step {step} of 8" in run.stdout
    assert "access by the CPU: none (---s)" in run.stdout
    assert "notified: value 42, 1048576 bytes" in run.stdout
    assert "Everything verified" in run.stdout
    rows = [line for line in run.stdout.splitlines() if "sim:0→sim:0 staged" in line]
    for provider in ("shm", "tcp"):
        assert sum(provider in row for row in rows) >= 6
    assert "simulated" in run.stdout
    assert "MISMATCH" not in run.stdout


@pytest.mark.parametrize("fault", ["flip", "flip-sweep"])
def test_a_flipped_byte_fails_and_is_named(fault: str) -> None:
    run = zerohop("demo", "--inject-fault", fault)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "fault injected" in run.stdout
    assert re.search(r"MISMATCH.* byte \d+ differs: expected 0x[0-9a-f]{2} at \d+, found 0x[0-9a-f]{2}", run.stdout)
    assert "Everything verified" not in run.stdout
    assert ("Size sweep" in run.stdout) is (fault == "flip-sweep")


def test_model_is_pulled_and_verified(model: Path) -> None:
    run = zerohop("demo", "--input", model)
    assert run.returncode == 0, run.stdout + run.stderr
    for step in range(1, 9):
        assert f"Step {step} of 8" in run.stdout
    assert "104 of 104 tensors have the publisher's BLAKE2b" in run.stdout
    assert re.search(r"pulled 104 tensors: .* GB/s", run.stdout)


def test_a_flipped_byte_of_a_model_fails_and_names_the_tensor(model: Path) -> None:
    run = zerohop("demo", "--input", model, "--inject-fault", "flip")
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(r"MISMATCH: tensor encoder\.layer\.\d\.\S+ \(\d+ bytes\): byte \d+ differs", run.stdout)
    assert "Everything verified" not in run.stdout


def test_no_tensors_and_empty_tensors_are_fine(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.safetensors"
    nothing.write_bytes((2).to_bytes(8, "little") + b"{}")
    assert zerohop("demo", "--input", nothing).returncode == 0
    header = json.dumps({"x": {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}}).encode()
    empty = tmp_path / "empty.safetensors"
    empty.write_bytes(len(header).to_bytes(8, "little") + header)
    run = zerohop("demo", "--input", empty)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 of 1 tensors" in run.stdout


def test_a_broken_file_is_refused(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(model.read_bytes()[:-1])
    run = zerohop("demo", "--input", broken)
    assert run.returncode == 2
    assert "the file has" in run.stderr
    assert f"{broken} is not a safetensors file" in run.stderr


def test_memory_that_is_short_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A MemoryError has no words of its own; here it is that of `ulimit -v`."""

    def fill_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(demo, "_exchange", fill_memory)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 30, 1 << 30))
    assert demo.run(model=None, timeout=patience(30)) == 2
    assert capsys.readouterr().err == (
        "failed: out of memory (RLIMIT_AS is 1073741824). Fix: raise the limit: ulimit -v unlimited\n"
    )


def test_a_lack_of_descriptors_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where it shows in a call of Python's own, as of a file that the demo reads."""

    def open_a_file(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "/proc/self/maps")

    monkeypatch.setattr(demo, "_exchange", open_a_file)
    assert demo.run(model=None, timeout=patience(30)) == 2
    assert re.fullmatch(
        r"failed: out of file descriptors \(RLIMIT_NOFILE is \d+\)\. Fix: raise the limit: ulimit -n 65536\n",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize("most", [9, 14, 24])
def test_few_descriptors(most: int) -> None:
    run = zerohop("demo", preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))
    assert run.returncode == 2
    assert "ulimit -n" in run.stderr


@pytest.mark.parametrize("encoding", ["utf-16", "ascii"])
def test_an_encoding_of_the_terminal(encoding: str) -> None:
    """The two processes speak in one of their own."""
    run = zerohop("demo", "--inject-fault", "flip", PYTHONIOENCODING=f"{encoding}:replace", encoding=encoding)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "MISMATCH" in run.stdout


@pytest.mark.parametrize("seconds", ["inf", "1e10"])
def test_a_timeout_that_is_longer_than_the_system_waits(seconds: str) -> None:
    run = zerohop("demo", "--timeout", seconds)
    assert run.returncode == 0, run.stderr


def test_the_timeout_ends_it() -> None:
    run = zerohop("demo", "--timeout", 0.1)
    assert run.returncode == 2
    assert "failed:" in run.stderr


def test_the_generated_model_has_the_shapes_of_the_real_one() -> None:
    table = shapes()
    assert len(table) == 104
    assert table["embeddings.word_embeddings.weight"] == ("F32", [30522, 384])
    assert table["encoder.layer.5.output.dense.weight"] == ("F32", [384, 1536])
    assert sum(name.startswith("encoder.layer.") for name in table) == 16 * LAYERS


@pytest.mark.slow
def test_full_size_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "full.safetensors")
    assert read_layout(path).data_nbytes == 90_856_960
    run = zerohop("demo", "--input", path)
    assert run.returncode == 0, run.stdout + run.stderr
