"""Network interfaces, RDMA devices and accelerators, read from an invented sysfs."""

from __future__ import annotations

from pathlib import Path

from support.sysfs import Sysfs
from zerohop.machine.accelerators import read_accelerators, simulated
from zerohop.machine.nics import read_nics, read_rdma_devices


def test_no_devices_at_all(tmp_path: Path) -> None:
    assert read_nics(tmp_path) == ()
    assert read_rdma_devices(tmp_path) == ()
    assert read_accelerators(tmp_path) == ()


def test_nics_physical_virtual_and_loopback(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    function = sysfs.pci("0000:3b:00.0", driver="mlx5_core", numa_node=1)
    sysfs.put("sys/devices/pci0000:00/0000:3b:00.0/infiniband/mlx5_0")
    sysfs.put("sys/class/net/eth1", mtu=9000, operstate="up", speed=400000, type=1)
    sysfs.link("sys/class/net/eth1/device", function)
    sysfs.put("sys/class/net/lo", mtu=65536, operstate="unknown", type=772)
    sysfs.put("sys/class/net/br0", mtu=1500, operstate="down", speed=-1, type=1)
    sysfs.put("sys/class/net/bonding_masters.d")  # no interface: it has no mtu
    physical, loopback, virtual = read_nics(tmp_path)
    assert (physical.name, physical.kind, physical.driver) == ("eth1", "physical", "mlx5_core")
    assert (physical.pci_address, physical.gbps, physical.mtu) == ("0000:3b:00.0", 400.0, 9000)
    assert (physical.numa_node, physical.rdma, physical.state) == (1, "mlx5_0", "up")
    assert (loopback.name, loopback.kind) == ("lo", "loopback")
    assert (virtual.name, virtual.kind, virtual.gbps, virtual.driver) == ("br0", "virtual", None, None)


def test_virtio_nic_has_the_pci_address_of_its_function(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    function = sysfs.pci("0000:00:03.0")
    device = sysfs.put(f"{function.relative_to(tmp_path)}/virtio1")
    sysfs.put("sys/class/net/eth0", mtu=1500, operstate="up", type=1)
    sysfs.link("sys/class/net/eth0/device", device)
    (nic,) = read_nics(tmp_path)
    assert (nic.kind, nic.pci_address, nic.gbps) == ("physical", "0000:00:03.0", None)


def test_nics_of_this_machine_have_a_loopback() -> None:
    loopback = [nic for nic in read_nics(Path("/")) if nic.kind == "loopback"]
    assert [nic.name for nic in loopback] == ["lo"]


def test_rdma_ports(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.put("sys/class/infiniband/rxe0/ports/1", state="4: ACTIVE", rate="2.5 Gb/sec (1X SDR)", link_layer="Ethernet")
    sysfs.put("sys/class/infiniband/rxe0/ports/2", state="1: DOWN")
    (device,) = read_rdma_devices(tmp_path)
    first, second = device.ports
    assert (device.name, device.driver, device.pci_address) == ("rxe0", None, None)
    assert (first.number, first.state, first.rate, first.link_layer) == (1, "ACTIVE", "2.5 Gb/sec (1X SDR)", "Ethernet")
    assert (second.number, second.state, second.rate) == (2, "DOWN", "unknown")


def test_gpu_with_its_driver(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.pci("0000:17:00.0", driver="nvidia", vendor="0x10de", device="0x2335", **{"class": "0x030200"})
    sysfs.put("proc/driver/nvidia/gpus/0000:17:00.0", information="Model: \t\t NVIDIA H200\nIRQ: 1")
    sysfs.pci("0000:00:02.0", driver="bochs", vendor="0x1234", **{"class": "0x030000"})  # some other display
    sysfs.pci("0000:00:1f.0", driver="snd", vendor="0x10de", **{"class": "0x040300"})  # the sound of a graphics card
    (gpu,) = read_accelerators(tmp_path, {"cuda": ""})
    assert (gpu.name, gpu.kind, gpu.model, gpu.usable) == ("0000:17:00.0", "cuda", "NVIDIA H200", True)
    assert (gpu.why, gpu.fix) == ("", "")
    (gpu,) = read_accelerators(tmp_path, {"cuda": "libcuda.so.1: cannot open shared object file"})
    assert not gpu.usable
    assert "libcuda.so.1" in gpu.why
    assert gpu.fix
    (gpu,) = read_accelerators(tmp_path, {})
    assert "no cuda driver" in gpu.why


def test_gpu_without_its_driver_says_what_to_do(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.pci("0000:c1:00.0", vendor="0x1002", device="0x74a1", **{"class": "0x120000"})
    (gpu,) = read_accelerators(tmp_path)
    assert (gpu.kind, gpu.model) == ("hip", "AMD device 0x74a1")
    assert "bound: none" in gpu.why
    assert gpu.fix.endswith("modprobe amdgpu")


def test_simulated_devices_are_never_called_gpus_or_verified() -> None:
    (device,) = simulated(("sim:0",))
    assert device.usable
    assert not device.verified
    assert "simulated" in device.model
