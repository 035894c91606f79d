"""Which RDMA ports serve a GPU or the host's memory, in which order, and why the others do not."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from support.sysfs import HGX_GPUS, Port, Sysfs, dual_port_roce, hgx_h100, infiniband_port, roce_port, soft_roce
from zerohop.config.nic_filter import parse_nic_filter
from zerohop.machine.nics import read_rdma_devices
from zerohop.machine.pci import Distance
from zerohop.machine.topology import NicSelection, choose_nics, process_numa_node

if TYPE_CHECKING:
    from pathlib import Path


def choose(
    root: Path, near: str | None = None, numa: int | None = None, nics: str | None = None, gid_index: int | None = None
) -> NicSelection:
    """Chooses, and proves that the order of the devices given makes no difference."""
    wanted = parse_nic_filter(nics) if nics is not None else parse_nic_filter("*")
    devices = list(read_rdma_devices(root))
    selections = []
    for _ in range(2):
        selections.append(
            choose_nics(devices, near, numa, wanted.include, wanted.exclude, gid_index=gid_index, root=root)
        )
        random.Random(3).shuffle(devices)
    assert selections[0] == selections[1]
    return selections[0]


def names(selection: NicSelection) -> list[str]:
    return [choice.name for choice in selection.chosen]


def ports(*numbers: int) -> list[str]:
    return [f"mlx5_{number}:1" for number in numbers]


def card(sysfs: Sysfs, name: str, below: str, *, rate: str = "400 Gb/sec (4X NDR)", numa_node: int = 0) -> None:
    """An InfiniBand card on a bus of its own, below the root port that is named last."""
    bus = 0x80 + int(name.partition("_")[2])
    function = sysfs.pci(f"0000:{bus:02x}:00.0", "mlx5_core", below=below, numa_node=numa_node)
    sysfs.rdma(name, function, Port(rate=rate, gids=infiniband_port(1).gids))


@pytest.mark.parametrize("roce", [False, True], ids=["infiniband", "roce"])
def test_each_gpu_of_a_server_gets_the_nic_behind_its_switch(tmp_path: Path, roce: bool) -> None:
    hgx_h100(tmp_path, roce=roce)
    for number, gpu in enumerate(HGX_GPUS):
        selection = choose(tmp_path, gpu)
        same = [other for other in range(8) if other // 4 == number // 4 and other != number]
        others = [other for other in range(8) if other // 4 != number // 4]
        assert names(selection) == ports(number, *same, *others)
        assert (selection.rejected, selection.unmatched, selection.why, selection.fix) == ((), (), "", "")
        first, second, *_, last = selection.chosen
        assert (first.distance, second.distance, last.distance) == (Distance.PIX, Distance.NODE, Distance.SYS)
        assert (first.gbit_per_s, first.numa_node, first.gid.index) == (400.0, number // 4, 3 if roce else 0)
        assert first.why.startswith(
            f"PIX to {gpu} (behind the same PCIe switch), 400 Gb/s, NUMA node {number // 4}, GID"
        )


def test_the_address_may_be_written_as_the_management_library_does(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    assert names(choose(tmp_path, "00000000:DF:00.0"))[0] == "mlx5_7:1"


def test_the_memory_of_the_host_takes_the_nics_of_the_node(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    assert names(choose(tmp_path)) == ports(*range(8))
    assert names(choose(tmp_path, numa=0)) == ports(*range(8))
    selection = choose(tmp_path, numa=1)
    assert names(selection) == ports(4, 5, 6, 7, 0, 1, 2, 3)
    assert {choice.distance for choice in selection.chosen} == {None}
    assert selection.chosen[0].why.startswith("400 Gb/s, NUMA node 1, GID 0")


def test_a_near_slow_nic_goes_before_a_far_fast_one(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.nodes("0", "1")
    sysfs.gpu("0000:1b:00.0", below="pci0000:15/0000:15:01.0", numa_node=0)
    card(sysfs, "mlx5_0", "pci0000:15/0000:15:02.0", rate="100 Gb/sec (4X EDR)")
    card(sysfs, "mlx5_1", "pci0000:40/0000:40:01.0", rate="800 Gb/sec (4X XDR)")
    assert names(choose(tmp_path, "0000:1b:00.0")) == ports(0, 1)
    assert names(choose(tmp_path)) == ports(1, 0)


def test_of_equally_near_ones_the_faster_then_the_node_then_the_name(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.nodes("0", "1")
    card(sysfs, "mlx5_1", "pci0000:40/0000:40:01.0", numa_node=1)
    card(sysfs, "mlx5_2", "pci0000:40/0000:40:02.0", numa_node=0)
    card(sysfs, "mlx5_3", "pci0000:40/0000:40:03.0", numa_node=-1)
    card(sysfs, "mlx5_4", "pci0000:40/0000:40:04.0", numa_node=1, rate="800 Gb/sec (4X XDR)")
    card(sysfs, "mlx5_10", "pci0000:40/0000:40:05.0", numa_node=0)
    card(sysfs, "mlx5_11", "pci0000:40/0000:40:06.0", numa_node=0, rate="unknown")
    assert names(choose(tmp_path, numa=0)) == ports(4, 2, 10, 3, 1, 11)
    assert names(choose(tmp_path, numa=1)) == ports(4, 1, 3, 2, 10, 11)
    assert names(choose(tmp_path)) == ports(4, 1, 2, 3, 10, 11)
    assert choose(tmp_path).chosen[-1].why.startswith("speed not known, NUMA node 0")


def test_without_a_node_a_gpus_own_is_preferred(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.nodes("0", "1")
    sysfs.gpu("0000:1b:00.0", below="pci0000:15/0000:15:01.0", numa_node=1)
    card(sysfs, "mlx5_0", "pci0000:15/0000:15:02.0", numa_node=0)
    card(sysfs, "mlx5_1", "pci0000:15/0000:15:03.0", numa_node=1)
    assert names(choose(tmp_path, "0000:1b:00.0")) == ports(1, 0)
    assert names(choose(tmp_path, "0000:1b:00.0", numa=0)) == ports(0, 1)


def test_an_address_that_is_not_there_leaves_the_order_without_distances(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    selection = choose(tmp_path, "0000:aa:00.0", numa=1)
    assert names(selection)[0] == "mlx5_4:1"
    assert selection.chosen[0].distance is None
    assert "this machine has no PCI device 0000:aa:00.0" in selection.chosen[0].why
    with pytest.raises(ValueError, match="is no PCI address"):
        choose(tmp_path, "cuda:0")


def test_a_software_device_comes_last(tmp_path: Path) -> None:
    sysfs = dual_port_roce(tmp_path)
    soft_roce(sysfs, "a_rxe0", "d0", "10.9.0.1")
    sysfs.gpu("0000:1b:00.0", below="pci0000:15/0000:15:01.0", numa_node=0)
    selection = choose(tmp_path, "0000:1b:00.0")
    assert names(selection) == ["mlx5_0:1", "a_rxe0:1"]
    assert [choice.distance for choice in selection.chosen] == [Distance.SYS, None]
    assert "a_rxe0 is not on PCI" in selection.chosen[1].why


def test_a_port_that_is_down_is_rejected(tmp_path: Path) -> None:
    dual_port_roce(tmp_path)
    selection = choose(tmp_path)
    assert names(selection) == ["mlx5_0:1"]
    (rejected,) = selection.rejected
    assert rejected.name == "mlx5_1:1"
    assert rejected.why == "the port is DOWN (physical state Disabled)"
    assert rejected.fix == "ip link set ens1f1np1 up"


@pytest.mark.parametrize(
    ("port", "why", "fix"),
    [
        (Port(state="2: INIT"), "the port is INIT (physical state LinkUp)", "subnet manager"),
        (Port(state="1: DOWN", phys_state="2: Polling"), "the port is DOWN (physical state Polling)", "cable"),
        (Port(state="5: ACTIVE_DEFER", link_layer="Ethernet"), "the port is ACTIVE_DEFER", "cable"),
        (replace(roce_port("eth0", None), state="1: DOWN", phys_state="2: Polling"), "the port is DOWN", "cable"),
        (Port(state=None), "the port is unknown", "subnet manager"),
        (Port(link_layer="Ethernet"), "no usable GID: its GID table is empty", "ip address add"),
    ],
    ids=["no subnet manager", "no cable", "deferred", "no cable on Ethernet", "unknown", "no GID"],
)
def test_why_a_port_is_rejected(tmp_path: Path, port: Port, why: str, fix: str) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.rdma("mlx5_0", sysfs.pci("0000:3b:00.0", "mlx5_core"), port)
    selection = choose(tmp_path)
    (rejected,) = selection.rejected
    assert rejected.why.startswith(why)
    assert fix in rejected.fix
    assert selection.why == f"no RDMA port can be used: mlx5_0:1: {rejected.why}"
    assert selection.fix == rejected.fix


def test_the_two_ports_of_a_device_are_judged_each(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    gids = infiniband_port(1).gids
    down = Port(2, state="1: DOWN", phys_state="2: Polling")
    sysfs.rdma("mlx4_0", sysfs.pci("0000:05:00.0", "mlx4_core"), Port(1, gids=gids), down, Port(3, gids=gids))
    selection = choose(tmp_path)
    assert names(selection) == ["mlx4_0:1", "mlx4_0:3"]
    assert [port.name for port in selection.rejected] == ["mlx4_0:2"]
    assert names(choose(tmp_path, nics="mlx4_0:3")) == ["mlx4_0:3"]
    assert names(choose(tmp_path, nics="^mlx4_0:3")) == ["mlx4_0:1"]


@pytest.mark.parametrize(
    ("nics", "left"),
    [
        ("mlx5_3,mlx5_1", (1, 3)),
        ("^mlx5_2,mlx5_3", (0, 1, 4, 5, 6, 7)),
        ("mlx5_[4-7]", (4, 5, 6, 7)),
        ("^mlx5_[!0]", (0,)),
        ("mlx5_*:1", tuple(range(8))),
    ],
)
def test_filters(tmp_path: Path, nics: str, left: tuple[int, ...]) -> None:
    hgx_h100(tmp_path)
    selection = choose(tmp_path, nics=nics)
    assert names(selection) == ports(*left)
    assert [port.name for port in selection.rejected] == [port for port in ports(*range(8)) if port not in ports(*left)]
    for rejected in selection.rejected:
        assert rejected.why.startswith("left out by the filter")
        assert rejected.fix == ""


def test_including_and_excluding_at_once(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    devices = read_rdma_devices(tmp_path)
    selection = choose_nics(devices, include=("mlx5_[0-3]",), exclude=("mlx5_2",), root=tmp_path)
    assert names(selection) == ports(0, 1, 3)
    assert selection.rejected[0].why == "left out by the filter: mlx5_2 is excluded"


def test_a_name_that_this_machine_does_not_have_is_told(tmp_path: Path) -> None:
    dual_port_roce(tmp_path)
    assert choose(tmp_path, nics="mlx5_0,mlx5_9").unmatched == ("mlx5_9",)
    assert choose(tmp_path, nics="^mlx5_9").unmatched == ("mlx5_9",)
    none = choose(tmp_path, nics="mlx5_9")
    assert none.chosen == ()
    assert none.why == (
        "the filter leaves no RDMA port; mlx5_9 means no port of this machine; there are mlx5_0:1, mlx5_1:1"
    )
    assert "ZEROHOP_NICS" in none.fix


def test_what_a_filter_leaves_is_what_an_empty_choice_speaks_of(tmp_path: Path) -> None:
    dual_port_roce(tmp_path)
    none = choose(tmp_path, nics="mlx5_1")
    assert none.why == "no RDMA port can be used: mlx5_1:1: the port is DOWN (physical state Disabled)"
    assert none.fix == "ip link set ens1f1np1 up"
    everything_out = choose(tmp_path, nics="^*")
    assert everything_out.why == "the filter leaves no RDMA port; there are mlx5_0:1, mlx5_1:1"


def test_a_machine_without_nics(tmp_path: Path) -> None:
    for near in (None, "0000:1b:00.0"):
        selection = choose_nics((), near, root=tmp_path)
        assert (selection.chosen, selection.rejected) == ((), ())
        assert selection.why == "this machine has no RDMA device"
        assert "tcp" in selection.fix


def test_a_gid_index_that_is_asked_for(tmp_path: Path) -> None:
    sysfs = dual_port_roce(tmp_path)
    soft_roce(sysfs, "rxe0", "d0", "10.9.0.1")
    selection = choose(tmp_path, gid_index=2)
    assert [(choice.name, choice.gid.index) for choice in selection.chosen] == [("mlx5_0:1", 2)]
    rejected = {port.name: port for port in selection.rejected}
    assert "no entry 2; it has 0: RoCE v2 fe80::5" in rejected["rxe0:1"].why
    assert rejected["rxe0:1"].fix
    assert "DOWN" in rejected["mlx5_1:1"].why


def test_the_node_of_a_process(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    assert process_numa_node(tmp_path, cpus=(0, 55, 112)) == 0
    assert process_numa_node(tmp_path, cpus=(168,)) == 1
    assert process_numa_node(tmp_path, cpus=(55, 56)) is None
    assert process_numa_node(tmp_path, cpus=(500,)) is None
    assert process_numa_node(tmp_path / "nothing", cpus=(0,)) is None


def test_a_node_of_memory_alone_holds_no_process(tmp_path: Path) -> None:
    Sysfs(tmp_path).nodes("0-7", "")
    assert process_numa_node(tmp_path, cpus=range(8)) == 0


def test_the_node_of_this_process_goes_by_where_it_may_run(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    Sysfs(tmp_path).nodes("9000-9001", ",".join(map(str, mine)))
    assert process_numa_node(tmp_path) == 1
