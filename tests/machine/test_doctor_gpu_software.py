"""The doctor's checks of what a process needs to use the GPUs that are there, each in its states."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from support.doctor import GPU_ADDRESSES, NVIDIA, PAIRS, check, healthy, look, process, read
from zerohop.machine.doctor import Check, State, read_system
from zerohop.machine.doctor.process import Compiler, find_compiler

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


@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_visible_ones_of_amd(tmp_path: Path, variable: str) -> None:
    """Two GPUs, each counted by its place on the bus."""
    healthy(tmp_path)
    gpu, other = (replace(each, kind="hip") for each in read(tmp_path).gpus[:2])
    seen: dict[str, Check] = {}
    for value in ("1", "0,2"):
        system = replace(read(tmp_path, process(environment={variable: value})), gpus=(gpu, other))
        seen[value] = look("gpu-visible", system)
    assert seen["1"].state is State.OK
    assert (seen["0,2"].state, seen["0,2"].fix) == (State.WARN, (f"unset {variable}",))
    assert f"{variable}: '2' in '0,2' is none of the 2 GPUs here" in seen["0,2"].found
    assert "1 visible" in seen["0,2"].found


@pytest.mark.parametrize(
    ("cuda", "extra"), [((12, 4), "zerohop[cuda12]"), ((13, 0), "zerohop[cuda]"), (None, "zerohop[cuda]")]
)
def test_without_a_compiler_of_kernels(tmp_path: Path, cuda: tuple[int, int] | None, extra: str) -> None:
    """The packages alone are not enough; the fix brings NVRTC of the driver's own CUDA."""
    healthy(tmp_path)
    assert check("copy-kernels", tmp_path).state is State.OK
    missing = Compiler(None, "cuda-core is installed, and finds no NVRTC (libnvrtc.so)")
    found = check("copy-kernels", tmp_path, process(compiler=missing, nvidia=replace(NVIDIA, cuda=cuda)))
    assert (found.state, found.fix) == (State.WARN, (f"pip install '{extra}'",))
    assert "finds no NVRTC (libnvrtc.so): page lists are copied page by page" in found.found


def test_a_compiler_that_is_newer_than_the_driver(tmp_path: Path) -> None:
    healthy(tmp_path)
    found = check("copy-kernels", tmp_path, process(compiler=Compiler((13, 0))))
    assert (found.state, found.fix[0]) == (State.WARN, "pip install 'zerohop[cuda12]'")
    assert "NVRTC 13.0 makes kernels that this driver, of CUDA 12.4, refuses" in found.found
    same = replace(NVIDIA, cuda=(13, 0))
    for compiler in (Compiler((13, 2)), Compiler((12, 9))):
        assert check("copy-kernels", tmp_path, process(compiler=compiler, nvidia=same)).state is State.OK


class TestImport:
    """Why memory of another process's GPU can or cannot be imported."""

    def test_from_every_gpu(self, tmp_path: Path) -> None:
        healthy(tmp_path)
        found = check("gpu-import", tmp_path)
        assert (found.state, found.fix) == (State.OK, ())
        assert found.found == "NVIDIA: this process may use all 3 GPUs of this machine"
        for value in ("2,0,1", "GPU-1,GPU-2,GPU-3"):
            process_of = process(environment={"CUDA_VISIBLE_DEVICES": value})
            assert check("gpu-import", tmp_path, process_of).state is State.OK

    @pytest.mark.parametrize(("value", "shown"), [("0", 1), ("", 0), ("1,77,0", 1), ("GPU-1,0", 2)])
    def test_a_variable_hides_gpus(self, tmp_path: Path, value: str, shown: int) -> None:
        healthy(tmp_path)
        found = check("gpu-import", tmp_path, process(environment={"CUDA_VISIBLE_DEVICES": value}))
        assert (found.state, found.fix[0]) == (State.WARN, "unset CUDA_VISIBLE_DEVICES")
        assert f"'{value}' shows {shown} of 3 GPUs: memory of the others cannot be imported" in found.found

    def test_the_drivers_library_is_missing(self, tmp_path: Path) -> None:
        healthy(tmp_path)
        found = check("gpu-import", tmp_path, process(gpu_drivers={"cuda": WHY_NOT, "hip": "not asked"}))
        assert (found.state, found.fix) == (State.FAIL, ("# install what comes with the driver: libcuda.so.1",))
        assert f"nothing can be imported: {WHY_NOT}" in found.found

    def test_a_container_has_some_of_the_gpus(self, tmp_path: Path) -> None:
        healthy(tmp_path)
        (tmp_path / "dev/nvidia4").unlink()
        found = look("gpu-import", replace(read(tmp_path), container="docker"))
        assert found.state is State.WARN
        assert found.fix == ("docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …",)
        assert "the container has 2 of the host's 3 GPUs: memory of the others cannot be imported" in found.found

    def test_gpus_that_are_divided(self, tmp_path: Path) -> None:
        healthy(tmp_path)
        first, *others = NVIDIA.gpus
        divided = replace(NVIDIA, gpus=(replace(first, mig=True), *others))
        found = check("gpu-import", tmp_path, process(nvidia=divided))
        assert (found.state, found.fix) == (State.WARN, (f"nvidia-smi -i {first.pci_address} -mig 0",))
        assert "no instance imports memory of another" in found.found

    def test_of_amd(self, tmp_path: Path) -> None:
        healthy(tmp_path)
        gpu = replace(read(tmp_path).gpus[0], kind="hip")
        system = replace(read(tmp_path, process(environment={"HIP_VISIBLE_DEVICES": "0"})), gpus=(gpu,))
        assert look("gpu-import", system).found == "AMD: this process may use the GPU of this machine"
        hidden = replace(read(tmp_path, process(environment={"ROCR_VISIBLE_DEVICES": "7"})), gpus=(gpu,))
        assert look("gpu-import", hidden).fix[0] == "unset ROCR_VISIBLE_DEVICES"


class TestFindCompiler:
    """What the packages say, whether they are installed here or not."""

    @pytest.fixture
    def nvrtc(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        modules = {name: ModuleType(name) for name in ("cuda", "cuda.core", "cuda.bindings", "cuda.bindings.nvrtc")}
        for name, module in modules.items():
            module.__spec__ = ModuleSpec(name, None)
            monkeypatch.setitem(sys.modules, name, module)
        modules["cuda.bindings"].nvrtc = modules["cuda.bindings.nvrtc"]  # type: ignore[attr-defined]
        return modules["cuda.bindings.nvrtc"]

    def test_it_is_there(self, nvrtc: ModuleType) -> None:
        nvrtc.nvrtcVersion = lambda: (0, 13, 2)  # type: ignore[attr-defined]
        assert find_compiler() == Compiler((13, 2))

    def test_the_library_is_missing(self, nvrtc: ModuleType) -> None:
        def fail() -> None:
            raise RuntimeError("Failure finding libnvrtc.so\n  where it was looked for")

        nvrtc.nvrtcVersion = fail  # type: ignore[attr-defined]
        assert find_compiler().version is None
        assert find_compiler().why_not == "cuda-core is installed, and finds no NVRTC (Failure finding libnvrtc.so)"

    def test_it_fails(self, nvrtc: ModuleType) -> None:
        nvrtc.nvrtcVersion = lambda: (5, 0, 0)  # type: ignore[attr-defined]
        assert find_compiler() == Compiler(None, "NVRTC answers with 5")

    def test_no_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
        assert find_compiler() == Compiler(None, "cuda-core is not installed")


def test_without_a_gpu(tmp_path: Path) -> None:
    healthy(tmp_path)
    for address in GPU_ADDRESSES:
        (tmp_path / "sys/bus/pci/devices" / address).unlink()
    assert check("gpu-library", tmp_path).found == "this machine has no GPU"
    assert check("gpu-visible", tmp_path).found == "this machine has no GPU"
    assert check("copy-kernels", tmp_path).found == "this machine has no NVIDIA GPU"


def test_this_process() -> None:
    """The facts are those that the native module and Python's import system tell."""
    assert set(read_system().process.gpu_drivers) == {"cuda", "hip"}
