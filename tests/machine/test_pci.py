"""Where PCI functions sit, and the distances between them, on recorded trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.sysfs import HGX_GPUS, HGX_NICS, Sysfs, hgx_h100
from zerohop.machine.pci import Distance, PciPlace, distance, numa_nodes, pci_address, place_of, read_place

if TYPE_CHECKING:
    from pathlib import Path


def place(root: Path, address: str) -> PciPlace:
    found = read_place(root, address)
    assert found is not None
    return found


def between(root: Path, one: str, other: str, *, nodes: int = 2) -> Distance:
    there = distance(place(root, one), place(root, other), nodes=nodes)
    assert distance(place(root, other), place(root, one), nodes=nodes) is there
    return there


def test_the_place_is_the_way_from_the_root(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    gpu = place(tmp_path, "0000:1b:00.0")
    assert gpu == PciPlace("0000:1b:00.0", "pci0000:15", ("0000:15:01.0", "0000:16:00.0", "0000:17:02.0"), 0)
    assert gpu.switches == ("0000:16:00.0",)
    assert place(tmp_path, "0000:df:00.0").numa_node == 1


def test_a_bridge_of_the_cards_own_is_no_switch(tmp_path: Path) -> None:
    Sysfs(tmp_path).pci("0000:05:00.0", below="pci0000:00/0000:00:1c.0/0000:04:00.0")
    assert place(tmp_path, "0000:05:00.0").switches == ()


def test_what_is_not_there_has_no_place(tmp_path: Path) -> None:
    assert read_place(tmp_path, "0000:1b:00.0") is None
    sysfs = Sysfs(tmp_path)
    assert place_of(sysfs.put("sys/devices/virtual/net/br0")) is None
    assert place_of(sysfs.put("somewhere/0000:1b:00.0")) is None  # below no host bridge


def test_the_kernel_writes_minus_one_for_no_node(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.pci("0000:00:05.0", numa_node=-1)
    sysfs.pci("0000:00:06.0")
    assert place(tmp_path, "0000:00:05.0").numa_node is None
    assert place(tmp_path, "0000:00:06.0").numa_node is None


def test_what_is_below_a_function_is_where_the_function_is(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    function = sysfs.pci("0000:00:03.0", numa_node=1)
    auxiliary = sysfs.put(f"{function.relative_to(tmp_path)}/ice.roce.0")
    assert place_of(auxiliary) == place(tmp_path, "0000:00:03.0")


def test_behind_a_volume_management_device_and_a_virtual_bus(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.pci("10000:01:00.0", below="pci0000:5d/0000:5d:00.5/pci10000:00/10000:00:02.0")
    sysfs.pci("0001:00:00.0", below="LNXSYSTM:00/VMBUS:00/47505500-0001/pci0001:00")
    nested = place(tmp_path, "10000:01:00.0")
    assert (nested.host_bridge, nested.bridges) == ("pci0000:5d", ("0000:5d:00.5", "10000:00:02.0"))
    assert place(tmp_path, "0001:00:00.0").host_bridge == "pci0001:00"


def test_distances_of_a_gpu_server(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    for number, gpu in enumerate(HGX_GPUS):
        for other, nic in enumerate(HGX_NICS):
            expected = Distance.SYS if number // 4 != other // 4 else Distance.NODE
            assert between(tmp_path, gpu, nic) is (Distance.PIX if number == other else expected)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        # Two ports of a card: nothing but the root port joins them.
        ("0000:3b:00.0 pci0000:3a/0000:3a:00.0", "0000:3b:00.1 pci0000:3a/0000:3a:00.0", "PIX"),
        # One switch, two downstream ports.
        ("0000:18:00.0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0",
         "0000:1b:00.0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0", "PIX"),
        # A second switch below a downstream port of the first, as in a DGX A100.
        ("0000:18:00.0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0",
         "0000:1e:00.0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1c:00.0/0000:1d:00.0", "PXB"),
        # Two switches side by side below a third.
        ("0000:1a:00.0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/0000:19:00.0",
         "0000:1e:00.0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1c:00.0/0000:1d:00.0", "PXB"),
        # Two root ports of one host bridge.
        ("0000:16:00.0 pci0000:15/0000:15:01.0", "0000:17:00.0 pci0000:15/0000:15:02.0", "PHB"),
        # A virtual machine: all on the root bus.
        ("0000:00:05.0 pci0000:00", "0000:00:06.0 pci0000:00", "PHB"),
        # Two host bridges.
        ("0000:16:00.0 pci0000:15/0000:15:01.0", "0000:41:00.0 pci0000:40/0000:40:01.0", "NODE"),
    ],
)  # fmt: skip
def test_each_distance(tmp_path: Path, one: str, other: str, expected: str) -> None:
    sysfs = Sysfs(tmp_path)
    for device in (one, other):
        address, below = device.split()
        sysfs.pci(address, below=below, numa_node=0)
    assert between(tmp_path, one.split()[0], other.split()[0]).name == expected


@pytest.mark.parametrize(
    ("node", "other_node", "nodes", "expected"),
    [
        (0, 0, 2, Distance.NODE),
        (0, 1, 2, Distance.SYS),
        (0, -1, 2, Distance.SYS),  # not known: the worst is assumed
        (-1, -1, 2, Distance.SYS),
        (-1, -1, 1, Distance.NODE),  # there is no other node
        (-1, -1, 0, Distance.NODE),  # a kernel without NUMA
    ],
)
def test_nodes_decide_between_host_bridges(
    tmp_path: Path, node: int, other_node: int, nodes: int, expected: Distance
) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.pci("0000:16:00.0", below="pci0000:15/0000:15:01.0", numa_node=node)
    sysfs.pci("0000:41:00.0", below="pci0000:40/0000:40:01.0", numa_node=other_node)
    assert between(tmp_path, "0000:16:00.0", "0000:41:00.0", nodes=nodes) is expected


def test_distances_are_ordered_and_have_words() -> None:
    assert [far.name for far in sorted(Distance, reverse=True)] == ["SYS", "NODE", "PHB", "PXB", "PIX"]
    assert len({far.words for far in Distance}) == len(Distance)


def test_addresses_in_other_spellings(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    assert pci_address("00000000:1B:00.0") == "0000:1b:00.0"
    assert place(tmp_path, "00000000:DF:00.0 ").address == "0000:df:00.0"
    assert pci_address("10000:01:00.0") == "10000:01:00.0"


@pytest.mark.parametrize("text", ["", "cuda:0", "1b:00.0", "0000:1b:00", "0000:1b:00.8", "0000:1b:00.0/..", "GPU0"])
def test_what_is_no_address_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="is no PCI address; one looks like 0000:18:00"):
        read_place(tmp_path, text)


def test_numa_nodes(tmp_path: Path) -> None:
    assert numa_nodes(tmp_path) == ()
    Sysfs(tmp_path).nodes(*["0"] * 11)
    assert numa_nodes(tmp_path) == tuple(range(11))  # not in the order of the names
