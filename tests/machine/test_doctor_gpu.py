"""The doctor's family "gpu", each check in its states."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from support.doctor import GPU_ADDRESSES, IBVERBS, NICS, PAIRS, RELEASE, check, healthy, look, process, read
from support.sysfs import Sysfs, infiniband_port, soft_roce
from zerohop.machine.doctor import State
from zerohop.machine.doctor.process import Library

if TYPE_CHECKING:
    from pathlib import Path

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct  8 03:22:07 UTC 2024"
P2P = ("CONFIG_HSA_AMD_P2P", "CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY")


def without_peermem(root: Path, version: str | None) -> Sysfs:
    """The healthy server without nvidia_peermem, and with this text of the NVIDIA driver's version."""
    sysfs = healthy(root)
    sysfs.put("proc", modules="ib_uverbs 1 0 - Live")
    if version is not None:
        sysfs.put("proc/driver/nvidia", version=version)
    return sysfs


def amd(root: Path, *, nic: str = "mlx5_core", memory: int | None = None, bar: int = 1 << 38) -> Sysfs:
    """One MI300X and one NIC."""
    sysfs = Sysfs(root)
    sysfs.put("proc/sys/kernel", osrelease=RELEASE)
    facts = {"vendor": "0x1002", "device": "0x74a1", "class": "0x120000", "resource": f"0x0 {bar - 1:#x} 0x0"}
    if memory is not None:
        facts["mem_info_vram_total"] = str(memory)
    sysfs.pci("0000:05:00.0", "amdgpu", **facts)
    sysfs.put("dev", kfd="")
    sysfs.rdma("mlx5_0", sysfs.pci("0000:06:00.0", nic), infiniband_port(1))
    return sysfs


def configured(sysfs: Sysfs, *options: str) -> None:
    """Publishes the kernel's configuration with these options."""
    lines = [f"{name}=y" if name in options else f"# {name} is not set" for name in P2P]
    sysfs.put("boot", **{f"config-{RELEASE}": "\n".join(lines)})


def test_a_gpu_without_its_driver(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    driver = tmp_path / "sys/bus/pci/devices" / GPU_ADDRESSES[1] / "driver"
    driver.unlink()
    found = check("gpu-driver", tmp_path)
    assert found.state is State.FAIL
    assert found.found.startswith(
        f"{GPU_ADDRESSES[1]}: NVIDIA H100 80GB HBM3: no driver of its own serves it (bound: none)"
    )
    assert found.fix == ("modprobe nvidia",)
    driver.symlink_to(sysfs.put("sys/bus/pci/drivers/vfio-pci"))
    assert check("gpu-driver", tmp_path).state is State.OK


@pytest.mark.parametrize(
    ("container", "found", "fix"),
    [
        ("docker", "its device files are not in this container", "docker run --gpus all …"),
        ("kubernetes", "its device files are not", "# in the pod: resources: limits: {nvidia.com/gpu: 1}"),
        ("", "it has no device files", "nvidia-modprobe -u -c 0"),
    ],
)
def test_a_gpu_without_device_files(tmp_path: Path, container: str, found: str, fix: str) -> None:
    healthy(tmp_path)
    for number in PAIRS:
        (tmp_path / f"dev/nvidia{number}").unlink()
    result = look("gpu-driver", replace(read(tmp_path), container=container))
    assert result.state is State.FAIL
    assert f": {found}" in result.found
    assert result.fix == (fix,)


def test_an_amd_gpu_and_its_device_file(tmp_path: Path) -> None:
    amd(tmp_path)
    assert check("gpu-driver", tmp_path).found == "0000:05:00.0: AMD device 0x74a1, amdgpu"
    (tmp_path / "dev/kfd").unlink()
    found = look("gpu-driver", replace(read(tmp_path), container="docker"))
    assert found.fix == ("docker run --device=/dev/kfd --device=/dev/dri …",)


@pytest.mark.parametrize("module", ["nvidia_peermem", "nv_peer_mem"])
def test_nvidia_memory_by_a_module(tmp_path: Path, module: str) -> None:
    sysfs = without_peermem(tmp_path, CLOSED)
    assert check("gpu-direct", tmp_path).state is State.FAIL
    sysfs.put("proc", modules=f"{module} 1 0 - Live")
    found = check("gpu-direct", tmp_path)
    assert (found.state, found.found) == (State.OK, f"NVIDIA: {module} is loaded")


def test_nvidia_memory_that_the_rdma_drivers_know(tmp_path: Path) -> None:
    without_peermem(tmp_path, CLOSED).put("sys/kernel/mm/memory_peers/nv_mem", version="1.1")
    found = check("gpu-direct", tmp_path)
    assert (found.state, found.found) == (State.OK, "NVIDIA: the RDMA drivers know NVIDIA's memory")


def test_nvidia_memory_by_dma_buf(tmp_path: Path) -> None:
    without_peermem(tmp_path, OPEN)
    found = check("gpu-direct", tmp_path)
    assert (found.state, found.found[:40]) == (State.OK, "NVIDIA: dma-buf: open kernel modules, an")


@pytest.mark.parametrize(
    ("version", "release", "library", "against"),
    [
        (CLOSED, RELEASE, True, "the NVIDIA driver's kernel modules are not the open ones"),
        (None, RELEASE, True, "the NVIDIA driver's kernel modules are not the open ones"),
        (OPEN, "5.11.0", True, "Linux 5.11.0 is older than 5.12"),
        (OPEN, RELEASE, False, "libibverbs cannot register one (rdma-core before 34)"),
    ],
)
def test_nvidia_memory_that_no_nic_may_have(
    tmp_path: Path, version: str | None, release: str, library: bool, against: str
) -> None:
    without_peermem(tmp_path, version).put("proc/sys/kernel", osrelease=release)
    found = check("gpu-direct", tmp_path, process(ibverbs=Library(IBVERBS, dma_buf=library)))
    assert found.state is State.FAIL
    assert found.found == f"NVIDIA: nvidia_peermem is not loaded, and there is no dma-buf: {against}"
    assert found.fix[:2] == (
        "modprobe nvidia_peermem",
        "echo nvidia_peermem >/etc/modules-load.d/nvidia-peermem.conf",
    )
    assert "'Invalid argument'" in found.fix[2]


def test_nvidia_memory_beside_a_nic_whose_driver_takes_no_dma_buf(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.put("proc/sys/kernel", osrelease=RELEASE)
    sysfs.put("proc/driver/nvidia", version=OPEN)
    sysfs.gpu("0000:05:00.0", below="pci0000:00", numa_node=0)
    sysfs.rdma("mlx4_0", sysfs.pci("0000:06:00.0", "mlx4_core"), infiniband_port(1))
    assert check("gpu-direct", tmp_path).found.endswith("there is no dma-buf: no NIC's driver here can (mlx4)")


def test_in_a_pod_the_operator_loads_peermem(tmp_path: Path) -> None:
    without_peermem(tmp_path, CLOSED)
    found = look("gpu-direct", replace(read(tmp_path), container="kubernetes"))
    assert found.fix[:2] == ("# on the host, not in this container:", "modprobe nvidia_peermem")
    assert found.fix[-1] == "# with NVIDIA's GPU operator: driver.rdma.enabled=true"


def test_amd_memory_that_the_rdma_drivers_know(tmp_path: Path) -> None:
    amd(tmp_path).put("sys/kernel/mm/memory_peers/amdkfd", version="2.0")
    assert check("gpu-direct", tmp_path).found == "AMD: the RDMA drivers know amdgpu's memory (peer memory)"


def test_amd_memory_by_dma_buf(tmp_path: Path) -> None:
    sysfs = amd(tmp_path)
    configured(sysfs, *P2P)
    found = check("gpu-direct", tmp_path)
    assert (found.state, found.found[:56]) == (
        State.OK,
        "AMD: dma-buf: the kernel was built with CONFIG_HSA_AMD_P",
    )
    configured(sysfs, "CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY")
    found = check("gpu-direct", tmp_path)
    assert found.state is State.FAIL
    assert found.found.endswith("there is no dma-buf: the kernel was built without CONFIG_HSA_AMD_P2P")
    assert "amdgpu-dkms" in found.fix[0]


def test_amd_memory_where_the_configuration_cannot_be_read(tmp_path: Path) -> None:
    amd(tmp_path)
    found = check("gpu-direct", tmp_path)
    assert (found.state, found.fix[0][-len(RELEASE) :]) == (State.WARN, RELEASE)
    assert "CONFIG_HSA_AMD_P2P cannot be read here" in found.found


@pytest.mark.parametrize(
    ("bar", "memory", "state", "found"),
    [
        (256 << 20, None, State.WARN, "its PCI window is 256 MiB"),
        (1 << 30, None, State.OK, "its PCI window is 1 GiB"),
        (1 << 38, 192 << 30, State.OK, "its PCI window is 256 GiB"),
        (64 << 30, 192 << 30, State.WARN, "its PCI window is 64 GiB, its memory 192 GiB"),
    ],
)
def test_windows(tmp_path: Path, bar: int, memory: int | None, state: State, found: str) -> None:
    amd(tmp_path, bar=bar, memory=memory)
    result = check("gpu-bar", tmp_path)
    assert (result.state, result.found) == (state, f"0000:05:00.0: {found}")
    assert bool(result.fix) is (state is State.WARN)


def test_a_window_that_cannot_be_read(tmp_path: Path) -> None:
    amd(tmp_path)
    (tmp_path / "sys/bus/pci/devices/0000:05:00.0/resource").unlink()
    assert check("gpu-bar", tmp_path).state is State.NOT_HERE


def test_a_gpu_far_from_every_nic(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    sysfs.put("sys/class/infiniband/mlx5_1/ports/1", state="1: DOWN")
    found = check("gpu-distance", tmp_path)
    assert found.state is State.WARN
    assert found.found == (
        f"GPU1 ({GPU_ADDRESSES[1]}): NODE to mlx5_0:1 (across the host bridges of one NUMA node); the other 2 are fine"
    )
    assert found.fix == ("# mlx5_1 is nearer (PIX) and is not used: see port-state, gid and ZEROHOP_NICS",)
    sysfs.put("sys/class/infiniband/mlx5_0/ports/1", state="1: DOWN")
    assert "SYS to mlx5_4:1 (across NUMA nodes)" in check("gpu-distance", tmp_path).found


def test_a_gpu_without_a_nic_of_its_own(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.nodes("0", "1")
    sysfs.gpu("0000:1b:00.0", below="pci0000:15/0000:15:01.0", numa_node=0)
    sysfs.rdma("mlx5_0", sysfs.pci("0000:9a:00.0", "mlx5_core", below="pci0000:97", numa_node=1), infiniband_port(1))
    found = check("gpu-distance", tmp_path)
    assert (found.state, found.found) == (
        State.WARN,
        "GPU0 (0000:1b:00.0): SYS to mlx5_0:1 (across NUMA nodes)",
    )
    assert found.fix == (
        "# put a NIC below the switch or root port of this GPU; nvidia-smi topo -m shows all distances",
    )
    sysfs.put("proc", cpuinfo="flags\t: fpu hypervisor")
    assert "ask who runs it" in check("gpu-distance", tmp_path).fix[0]


def test_distances_are_told_also_while_no_port_is_active(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    for name in NICS:
        sysfs.put(f"sys/class/infiniband/{name}/ports/1", state="1: DOWN")
    found = check("gpu-distance", tmp_path)
    assert found.state is State.OK
    assert found.found.startswith(f"GPU0 ({GPU_ADDRESSES[0]}): PIX to mlx5_0 (behind the same PCIe switch)")


def test_without_a_gpu_or_a_nic_there_is_no_way_between_them(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    for name in ("gpu-direct", "gpu-bar", "gpu-distance", "pcie-acs"):
        assert check(name, tmp_path).state is State.OK
    shutil.rmtree(tmp_path / "sys/class/infiniband")
    for folder in (tmp_path / "sys/devices").glob("**/infiniband"):
        shutil.rmtree(folder)
    soft_roce(sysfs, "rxe0", "d0", "10.9.0.1")
    for name in ("gpu-direct", "gpu-bar", "gpu-distance", "pcie-acs"):
        assert check(name, tmp_path).found == "no RDMA NIC beside the GPU"
    for address in GPU_ADDRESSES:
        (tmp_path / "sys/bus/pci/devices" / address).unlink()
    for name in ("gpu-driver", "gpu-direct", "gpu-bar", "gpu-distance", "pcie-acs"):
        assert check(name, tmp_path).found == "this machine has no GPU"
