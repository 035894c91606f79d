"""What NVIDIA's management library tells, and what info and the doctor make of it. The library is one in software."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.doctor import healthy, look, process, read
from support.patience import patience
from zerohop.cli import info
from zerohop.cli.console import make_console
from zerohop.core.lanes.gpu_links import link_between
from zerohop.machine import Accelerator, inspect, nvml
from zerohop.machine.doctor import Check, State
from zerohop.machine.nvml import GpuPair, Nvidia, NvidiaGpu, read_nvidia

SOURCE = Path(__file__).parent / "fake_nvml" / "nvml.cpp"
ASK = "import dataclasses, json; from zerohop.machine.nvml import *; print(json.dumps("
FIRST, SECOND, THIRD, FOURTH = (f"0000:{bus:02x}:00.0" for bus in range(0x1A, 0x1E))
LIBRARY_GONE = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that it is in."""
    folder = tmp_path_factory.mktemp("nvml")
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++20", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], check=True, timeout=patience(60))
    return folder


def ask(library: Path, words: str, expression: str) -> Any:
    """What an expression is in a process that finds the library, which tells what the words say."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": words}
    command = [sys.executable, "-c", f"{ASK}{expression}))"]
    done = subprocess.run(command, env=environment, check=True, timeout=patience(60), capture_output=True, text=True)
    return json.loads(done.stdout)


def told(library: Path, words: str) -> Nvidia:
    found = ask(library, words, "dataclasses.asdict(read_nvidia())")
    gpus = tuple(NvidiaGpu(**gpu) for gpu in found.pop("gpus"))
    pairs = tuple(GpuPair(**pair) for pair in found.pop("pairs"))
    cuda = tuple(found.pop("cuda") or ()) or None
    return Nvidia(**found, cuda=cuda, gpus=gpus, pairs=pairs)


class TestTheLibrary:
    def test_two_gpus(self, library: Path) -> None:
        assert told(library, "") == Nvidia(
            "",
            driver="580.95.05",
            cuda=(13, 0),
            gpus=(NvidiaGpu(FIRST, mig=False, fabric=""), NvidiaGpu(SECOND, mig=False, fabric="")),
            pairs=(GpuPair(FIRST, SECOND, "nvlink", ""),),
        )

    def test_four_in_two_halves(self, library: Path) -> None:
        pairs = told(library, "gpus=4 apart").pairs
        assert len(pairs) == 6
        assert [(pair.a, pair.b) for pair in pairs if pair.link == "nvlink"] == [(FIRST, SECOND), (THIRD, FOURTH)]
        assert {pair.why for pair in pairs if not pair.link} == {"they hang on different root complexes"}

    def test_over_pcie(self, library: Path) -> None:
        assert [pair.link for pair in told(library, "gpus=3").pairs] == ["nvlink", "pcie", "pcie"]

    def test_what_can_be_wrong(self, library: Path) -> None:
        found = told(library, "mig fabric old")
        assert (found.gpus[0].mig, found.gpus[1].mig) == (True, False)
        assert (found.gpus[0].fabric, found.gpus[1].fabric) == ("not started", "")
        assert found.cuda == (11, 4)

    def test_an_older_one(self, library: Path) -> None:
        found = told(library, "bare")
        assert found.pairs == ()
        assert found.gpus[0] == NvidiaGpu(FIRST, mig=False, fabric="")

    def test_one_that_does_not_start(self, library: Path) -> None:
        assert told(library, "mismatch") == Nvidia("libnvidia-ml.so.1: Driver/library version mismatch", mismatch=True)
        assert told(library, "none") == Nvidia("libnvidia-ml.so.1: Driver Not Loaded")

    def test_links_of_a_path(self, library: Path) -> None:
        for words, answer in (("", True), ("bare", None), ("none", None)):
            assert ask(library, words, "over_nvlink('GPU-00', 'GPU-01')") is answer
        assert ask(library, "", "over_nvlink('GPU-01', 'GPU-02')") is False

    def test_a_pair_is_looked_up_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []

        def answer(_library: object, function: str, *_arguments: object) -> bool:
            asked.append(function)
            return True

        monkeypatch.setattr(nvml, "_open", lambda: (object(), "", 0))
        monkeypatch.setattr(nvml, "_ask", answer)
        pair = "GPU-of-this-test-0", "GPU-of-this-test-1"
        first = nvml.over_nvlink(*pair)
        looked = len(asked)
        assert looked > 0
        assert nvml.over_nvlink(*pair) is first
        assert len(asked) == looked

    def test_links_without_it(self) -> None:
        assert link_between("GPU-0", "GPU-0") == "same device"
        assert link_between("GPU-0", "") == "pcie"
        assert link_between("sim:0", "") == "sim"


def judged(tmp_path: Path, name: str, nvidia: Nvidia | None, *, container: str = "", virtual: bool = False) -> Check:
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    healthy(root)
    system = read(root, process(nvidia=nvidia))
    kernel = replace(system.kernel, virtual=virtual)
    return look(name, replace(system, container=container, kernel=kernel))


class TestTheDoctor:
    @pytest.mark.parametrize("name", ["gpu-versions", "gpu-fabric", "gpu-peers"])
    def test_all_is_well(self, tmp_path: Path, library: Path, name: str) -> None:
        found = judged(tmp_path, name, told(library, ""))
        assert found.state is State.OK

    def test_words(self, tmp_path: Path, library: Path) -> None:
        assert judged(tmp_path, "gpu-versions", told(library, "")).found == "NVIDIA 580.95.05, CUDA 13.0"
        peers = {
            "gpus=2": "2 GPUs, each to each by NVLink",
            "gpus=3": "3 GPUs: 1 pairs by NVLink, 2 over PCIe",
        }
        for words, text in peers.items():
            assert judged(tmp_path, "gpu-peers", told(library, words)).found == text

    @pytest.mark.parametrize(("container", "fix"), [("", "reboot"), ("docker", "# start the container again")])
    def test_an_updated_driver(self, tmp_path: Path, library: Path, container: str, fix: str) -> None:
        found = judged(tmp_path, "gpu-versions", told(library, "mismatch"), container=container)
        assert (found.state, found.fix) == (State.FAIL, (fix,))
        assert "its old modules are still loaded" in found.found

    def test_an_old_driver(self, tmp_path: Path, library: Path) -> None:
        found = judged(tmp_path, "gpu-versions", told(library, "old"))
        assert (found.state, found.found) == (State.FAIL, "NVIDIA 470.82, CUDA 11.4: zerohop needs CUDA 12")

    def test_a_fabric_that_is_not_ready(self, tmp_path: Path, library: Path) -> None:
        found = judged(tmp_path, "gpu-fabric", told(library, "fabric"), container="docker")
        assert (found.state, found.found) == (State.FAIL, f"not ready: {FIRST} (not started)")
        assert found.fix[:2] == (
            "# on the host, not in this container:",
            "systemctl enable --now nvidia-fabricmanager",
        )

    @pytest.mark.parametrize(("virtual", "word"), [(False, "nvidia-smi topo"), (True, "ask who runs it")])
    def test_gpus_that_are_apart(self, tmp_path: Path, library: Path, virtual: bool, word: str) -> None:
        found = judged(tmp_path, "gpu-peers", told(library, "gpus=4 apart"), virtual=virtual)
        assert found.state is State.WARN
        assert found.found.endswith("(4): they hang on different root complexes")
        assert word in found.fix[0]

    def test_peers_that_are_switched_off(self, tmp_path: Path) -> None:
        gpus = tuple(NvidiaGpu(address, mig=False, fabric="") for address in (FIRST, SECOND))
        off = GpuPair(FIRST, SECOND, "", "it is disabled in the driver's settings")
        found = judged(tmp_path, "gpu-peers", Nvidia("", driver="580", gpus=gpus, pairs=(off,)))
        assert (found.state, found.found) == (State.WARN, f"{FIRST} and {SECOND}: {off.why}")
        assert found.fix[0].startswith("grep -r NVreg /etc/modprobe.d")

    def test_a_divided_gpu(self, tmp_path: Path, library: Path) -> None:
        found = judged(tmp_path, "gpu-peers", told(library, "mig"))
        assert (found.state, found.fix) == (State.WARN, (f"nvidia-smi -i {FIRST} -mig 0",))

    def test_one_gpu(self, tmp_path: Path, library: Path) -> None:
        assert judged(tmp_path, "gpu-peers", told(library, "gpus=1")).state is State.NOT_HERE
        assert judged(tmp_path, "gpu-peers", told(library, "bare")).found == "the driver does not tell"

    @pytest.mark.parametrize("name", ["gpu-versions", "gpu-fabric", "gpu-peers"])
    def test_nobody_to_ask(self, tmp_path: Path, name: str) -> None:
        found = judged(tmp_path, name, Nvidia(LIBRARY_GONE))
        assert (found.state, found.fix) == (State.NOT_HERE, ())
        assert LIBRARY_GONE in found.found
        contained = judged(tmp_path, name, Nvidia(LIBRARY_GONE), container="docker")
        assert contained.fix == ("docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …",)


class TestInfo:
    def shown(self, nvidia: Nvidia, visible: str | None, *, open_modules: bool | None = None) -> str:
        addresses = [gpu.pci_address for gpu in nvidia.gpus] or [FIRST]
        cards = tuple(
            Accelerator(address, "cuda", "H200", usable=True, why="", fix="", verified=True, pci_address=address)
            for address in addresses
        )
        told = {"nvidia": nvidia, "cuda_visible_devices": visible, "nvidia_open_modules": open_modules}
        machine = replace(inspect(), accelerators=cards, **told)  # type: ignore[arg-type]
        json.dumps(machine.to_json())
        console = make_console()
        with console.capture() as capture:
            info.show(machine, console)
        return " ".join(capture.get().split())

    def test_the_driver_and_links(self, library: Path) -> None:
        shown = self.shown(told(library, "gpus=4 apart"), "0,1")
        assert "GPU driver NVIDIA 580.95.05, CUDA 13.0 CUDA_VISIBLE_DEVICES=0,1" in shown
        assert f"reaches by nvlink: {SECOND} does not reach (they hang on different root complexes): {THIRD}" in shown

    def test_how_memory_goes_to_nics(self, library: Path) -> None:
        assert "GPU memory goes to NICs as dma-buf" in self.shown(told(library, ""), None, open_modules=True)
        assert "with nvidia_peermem only" in self.shown(told(library, ""), None, open_modules=False)

    def test_without_the_library(self) -> None:
        shown = self.shown(Nvidia(LIBRARY_GONE), None)
        assert "GPU driver unknown: libnvidia-ml.so.1: cannot open" in shown
        assert "zerohop doctor says more" in shown

    def test_this_machine(self) -> None:
        """Whatever it has, it is told."""
        assert isinstance(read_nvidia(), Nvidia)
