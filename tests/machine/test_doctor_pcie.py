"""The doctor's family "pcie", each check in its states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from support.doctor import (
    GPU_ADDRESSES,
    NIC_ADDRESSES,
    SWITCH_PORTS,
    check,
    configure,
    guest,
    healthy,
    look,
    process,
    read,
)
from support.sysfs import Sysfs
from zerohop.machine.doctor import State

if TYPE_CHECKING:
    from pathlib import Path

NIC, GPU = NIC_ADDRESSES[0], GPU_ADDRESSES[0]


def device(sysfs: Sysfs, address: str, **facts: object) -> None:
    sysfs.put(f"sys/bus/pci/devices/{address}", **facts)


def grouped(sysfs: Sysfs, address: str, kind: str | None) -> None:
    """Puts a function into an IOMMU group of this type."""
    group = sysfs.put(f"sys/kernel/iommu_groups/{address}", **({"type": kind} if kind is not None else {}))
    (sysfs.root / "sys/bus/pci/devices" / address / "iommu_group").symlink_to(group)


def test_a_nic_with_fewer_lanes(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    device(sysfs, NIC, current_link_width=8)
    found = check("pcie-link", tmp_path)
    assert found.state is State.WARN
    assert found.found == (
        "mlx5_0: 32 GT/s x8 of 32 GT/s x16: it carries 252 Gb/s, and the port 400; the other 5 are fine"
    )
    assert found.fix[0] == f"lspci -vvs {NIC} | grep Lnk"


def test_a_nic_at_a_lower_speed(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    sysfs.put("sys/class/infiniband/mlx5_0/ports/1", rate="100 Gb/sec (4X EDR)")
    device(sysfs, NIC, current_link_speed="16.0 GT/s PCIe")
    found = check("pcie-link", tmp_path)
    assert (found.state, found.found) == (State.WARN, "mlx5_0: 16 GT/s x16 of 32 GT/s x16; the other 5 are fine")


def test_a_nic_in_a_slot_that_offers_less(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    device(sysfs, SWITCH_PORTS[1], max_link_width=8)
    device(sysfs, NIC, current_link_width=8)
    found = check("pcie-link", tmp_path)
    assert "mlx5_0: 32 GT/s x8 of 32 GT/s x16: its slot offers no more than 32 GT/s x8: it carries" in found.found
    assert found.fix == ("# move the card to another slot",)


def test_a_nic_in_a_slot_of_an_older_generation(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    device(sysfs, SWITCH_PORTS[1], max_link_speed="16.0 GT/s PCIe")
    device(sysfs, NIC, current_link_speed="16.0 GT/s PCIe")
    assert "its slot offers no more than 16 GT/s x16" in check("pcie-link", tmp_path).found


def test_a_nic_whose_port_is_faster_than_its_bus(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    device(sysfs, NIC, current_link_speed="16.0 GT/s PCIe", max_link_speed="16.0 GT/s PCIe")
    found = check("pcie-link", tmp_path)
    assert found.found.startswith("mlx5_0: 16 GT/s x16: it carries 252 Gb/s, and the port 400; ")
    assert found.fix == ("# move the card to a slot of a newer generation, or with more lanes",)


def test_an_idle_gpu_may_be_slow_but_keeps_its_lanes(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    device(sysfs, GPU, current_link_speed="2.5 GT/s PCIe")
    assert check("pcie-link", tmp_path).state is State.OK
    device(sysfs, GPU, current_link_width=4)
    found = check("pcie-link", tmp_path)
    assert (found.state, found.found) == (
        State.WARN,
        f"GPU {GPU}: 2.5 GT/s x4 of 32 GT/s x16; the other 5 are fine",
    )


@pytest.mark.parametrize(("lanes", "most"), [(0, 0), (255, 255), (0, 16), (16, 0)])
def test_a_link_that_is_not_shown(tmp_path: Path, lanes: int, most: int) -> None:
    sysfs = Sysfs(tmp_path)
    function = sysfs.pci("0000:00:05.0", "mlx5_core", current_link_width=lanes, max_link_width=most)
    sysfs.rdma("mlx5_0", function)
    found = check("pcie-link", tmp_path)
    assert (found.state, found.found[:37]) == (State.NOT_HERE, "mlx5_0: its PCIe link is not shown (a")


def test_switches_that_redirect(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    for acs in (0x01, 0x10):  # source validation, upstream forwarding: nothing that sends requests up
        configure(sysfs, SWITCH_PORTS[0], acs=acs)
        assert check("pcie-acs", tmp_path).state is State.OK
    for acs in (0x04, 0x08, 0x20, 0x1D):
        configure(sysfs, SWITCH_PORTS[0], acs=acs)
        told = check("pcie-acs", tmp_path).found
        assert told == "0000:17:02.0 redirect what goes between GPU and NIC"
    found = check("pcie-acs", tmp_path)
    assert found.state is State.WARN
    assert found.fix == (
        "setpci -s 0000:17:02.0 ECAP_ACS+0x6.w=0:2c",
        "# until the next boot; for good, on the kernel's command line: pci=disable_acs_redir=0000:17:02.0",
    )


def test_what_is_above_the_switch_does_not_matter(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    for address in ("0000:15:01.0", "0000:16:00.0"):  # its root port, and its upstream port
        configure(sysfs, address, acs=0x1D)
    assert check("pcie-acs", tmp_path).state is State.OK


def test_without_root_the_settings_of_switches_cannot_be_read(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    configure(sysfs, SWITCH_PORTS[1], acs=0x1D, nbytes=64)
    found = check("pcie-acs", tmp_path)
    assert (found.state, found.found) == (
        State.NOT_HERE,
        "only root may read the switches' settings (0000:17:00.0)",
    )
    assert found.fix == ("sudo zerohop doctor --only pcie-acs",)


def test_where_gpu_and_nic_share_no_switch_acs_does_not_matter(tmp_path: Path) -> None:
    healthy(tmp_path)
    only = process(environment={"ZEROHOP_NICS": "mlx5_0"})
    found = check("pcie-acs", tmp_path, only)
    assert (found.state, found.found) == (
        State.OK,
        "the ports of the switches redirect nothing: 0000:17:02.0, 0000:17:00.0",
    )
    system = read(tmp_path)
    one_gpu = replace(system.layout, served=tuple(each for each in system.layout.served if each.name == "NUMA 0"))
    assert look("pcie-acs", replace(system, layout=one_gpu)).found == "no GPU shares a PCIe switch with its NIC"


@pytest.mark.parametrize(
    ("kind", "command_line", "state", "found"),
    [
        ("identity", "", State.OK, "the IOMMU passes its addresses through"),
        ("DMA", "iommu=pt", State.WARN, "the IOMMU translates its addresses (DMA)"),
        ("DMA-FQ", "", State.WARN, "the IOMMU translates its addresses (DMA-FQ)"),
        (None, "quiet iommu=pt", State.OK, "the IOMMU passes its addresses through"),
        (None, "quiet", State.WARN, "behind an IOMMU, of a mode that the kernel does not tell"),
    ],
)
def test_iommu(tmp_path: Path, kind: str | None, command_line: str, state: State, found: str) -> None:
    sysfs = healthy(tmp_path)
    sysfs.put("proc", cmdline=command_line)
    for address in (*NIC_ADDRESSES, *GPU_ADDRESSES):
        grouped(sysfs, address, kind)
    result = check("iommu", tmp_path)
    assert result.state is state
    assert f": {found}" in result.found


def test_how_the_iommu_is_made_to_pass_through(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    grouped(sysfs, GPU, "DMA")
    found = check("iommu", tmp_path)
    assert found.found == f"GPU {GPU}: the IOMMU translates its addresses (DMA); the other 5 are fine"
    assert found.fix == (
        "# add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then:",
        "update-grub",
        "reboot",
    )
    sysfs.put("etc", **{"os-release": "ID=rocky\nID_LIKE=rhel"})
    assert check("iommu", tmp_path).fix == ("grubby --update-kernel=ALL --args=iommu=pt", "reboot")


@pytest.mark.parametrize(
    ("settings", "rate", "found", "fix"),
    [
        ({"read_request": 512}, "400 Gb/sec (4X NDR)", "read requests of 512 bytes", ["CAP_EXP+8.w=5000:7000"]),
        ({"read_request": 256}, "100 Gb/sec (4X EDR)", "read requests of 256 bytes", ["CAP_EXP+8.w=2000:7000"]),
        ({"relaxed_ordering": False}, "100 Gb/sec (4X EDR)", "relaxed ordering off", ["CAP_EXP+8.w=10:10"]),
        (
            {"read_request": 128, "relaxed_ordering": False},
            "400 Gb/sec (4X NDR)",
            "read requests of 128 bytes, relaxed ordering off",
            ["CAP_EXP+8.w=5000:7000", "CAP_EXP+8.w=10:10"],
        ),
    ],
)
def test_requests(tmp_path: Path, settings: dict[str, int], rate: str, found: str, fix: list[str]) -> None:
    sysfs = healthy(tmp_path)
    sysfs.put("sys/class/infiniband/mlx5_0/ports/1", rate=rate)
    configure(sysfs, NIC, **settings)
    result = check("pcie-requests", tmp_path)
    assert (result.state, result.found) == (State.WARN, f"mlx5_0: {found}; the other 2 are fine")
    assert result.fix == tuple(f"setpci -s {NIC} {each}" for each in fix)


def test_a_slow_nic_needs_no_large_requests(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    sysfs.put("sys/class/infiniband/mlx5_0/ports/1", rate="100 Gb/sec (4X EDR)")
    configure(sysfs, NIC, read_request=512)
    assert check("pcie-requests", tmp_path).state is State.OK


def test_requests_that_cannot_be_read(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    configure(sysfs, NIC_ADDRESSES[2], nbytes=64)
    found = check("pcie-requests", tmp_path)
    assert (found.state, found.fix) == (State.NOT_HERE, ("sudo zerohop doctor --only pcie-requests",))
    configure(sysfs, NIC_ADDRESSES[2], read_request=None)
    assert check("pcie-requests", tmp_path).found == (
        "mlx5_0, mlx5_1: read requests of 4096 bytes, relaxed ordering on"
    )


@pytest.mark.parametrize(
    ("setting", "nodes", "state"),
    [(0, 2, State.OK), (1, 2, State.WARN), (2, 2, State.WARN), (1, 1, State.NOT_HERE), (None, 2, State.NOT_HERE)],
)
def test_numa_balancing(tmp_path: Path, setting: int | None, nodes: int, state: State) -> None:
    healthy(tmp_path)
    system = read(tmp_path)
    layout = replace(system.layout, numa_nodes=tuple(range(nodes)))
    found = look("numa-balancing", replace(system, layout=layout, numa_balancing=setting))
    assert found.state is state
    assert found.fix == (("sysctl -w kernel.numa_balancing=0",) if state is State.WARN else ())


def test_software_devices_are_not_on_pci(tmp_path: Path) -> None:
    guest(tmp_path)
    for name in ("iommu", "pcie-requests", "numa-balancing"):
        assert check(name, tmp_path).found == "this machine has no RDMA NIC on PCI"
    assert check("pcie-link", tmp_path).found == "this machine has no RDMA NIC on PCI, and no GPU"


def test_the_link_of_a_gpu_is_looked_at_also_without_a_nic(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.gpu(GPU, below="pci0000:00", numa_node=0)
    link = {"current_link_width": 8, "max_link_width": 16}
    device(sysfs, GPU, current_link_speed="32.0 GT/s PCIe", max_link_speed="32.0 GT/s PCIe", **link)
    found = check("pcie-link", tmp_path)
    assert (found.state, found.found) == (State.WARN, f"GPU {GPU}: 32 GT/s x8 of 32 GT/s x16")
