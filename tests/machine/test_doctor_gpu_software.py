"""The doctor's checks of what a process needs to use the GPUs that are there, each in its states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from support.doctor import GPU_ADDRESSES, PAIRS, check, healthy, look, process, read
from zerohop.machine.doctor import State, read_system

if TYPE_CHECKING:
    from pathlib import Path

WHY_NOT = "libcuda.so.1: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("container", "fix"),
    [
        ("", "# install what comes with the driver: libcuda.so.1"),
        ("docker", "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …"),
        ("kubernetes", "# in the pod: runtimeClassName: nvidia, and env NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    ],
)
def test_the_drivers_library_is_missing(tmp_path: Path, container: str, fix: str) -> None:
    healthy(tmp_path)
    system = read(tmp_path, process(gpu_drivers={"cuda": WHY_NOT, "hip": "not asked"}))
    found = look("gpu-library", replace(system, container=container))
    assert (found.state, found.fix) == (State.FAIL, (fix,))
    assert WHY_NOT in found.found


def test_the_drivers_library_is_there(tmp_path: Path) -> None:
    healthy(tmp_path)
    assert check("gpu-library", tmp_path).state is State.OK


@pytest.mark.parametrize("value", [None, "0", "1,0", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-1"])
def test_visible(tmp_path: Path, value: str | None) -> None:
    healthy(tmp_path)
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert check("gpu-visible", tmp_path, process(environment=environment)).state is State.OK


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "99", "none,0"])
def test_none_is_visible(tmp_path: Path, value: str) -> None:
    healthy(tmp_path)
    found = check("gpu-visible", tmp_path, process(environment={"CUDA_VISIBLE_DEVICES": value}))
    assert (found.state, found.fix) == (State.WARN, ("unset CUDA_VISIBLE_DEVICES",))
    assert "no GPU is visible" in found.found


def test_those_after_one_that_does_not_exist_are_hidden(tmp_path: Path) -> None:
    healthy(tmp_path)
    found = check("gpu-visible", tmp_path, process(environment={"CUDA_VISIBLE_DEVICES": "0, 77, 1"}))
    assert found.state is State.WARN
    assert "it and all after it are hidden, 1 visible" in found.found


def test_a_container_has_the_gpus_whose_device_files_it_has(tmp_path: Path) -> None:
    healthy(tmp_path)
    _, *others = PAIRS
    for number in others:
        (tmp_path / f"dev/nvidia{number}").unlink()
    variable = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert "none of the 1 GPUs" in check("gpu-visible", tmp_path, process(environment=variable)).found


def test_without_cuda_core(tmp_path: Path) -> None:
    healthy(tmp_path)
    assert check("copy-kernels", tmp_path).state is State.OK
    found = check("copy-kernels", tmp_path, process(cuda_core=False))
    assert (found.state, found.fix) == (State.WARN, ("pip install 'zerohop[cuda]'",))


def test_without_a_gpu(tmp_path: Path) -> None:
    healthy(tmp_path)
    for address in GPU_ADDRESSES:
        (tmp_path / "sys/bus/pci/devices" / address).unlink()
    assert check("gpu-library", tmp_path).found == "this machine has no GPU"
    for name in ("gpu-visible", "copy-kernels"):
        assert check(name, tmp_path).found == "this machine has no NVIDIA GPU"


def test_this_process() -> None:
    """The facts are those that the native module and Python's import system tell."""
    assert set(read_system().process.gpu_drivers) == {"cuda", "hip"}
