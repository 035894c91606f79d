"""RDMA devices, their ports, GIDs and P_Keys, on recorded trees."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from support.sysfs import V1, V2, Entry, Port, Sysfs, dual_port_roce, gid_text, hgx_h100, roce_port, soft_roce
from zerohop.machine.nics import Gid, PKey, RdmaPort, has_gid, read_nics, read_rdma_devices

if TYPE_CHECKING:
    from pathlib import Path


def read_port(root: Path, port: Port) -> RdmaPort:
    sysfs = Sysfs(root)
    sysfs.rdma("mlx5_0", sysfs.pci("0000:3b:00.0", "mlx5_core"), port)
    (device,) = read_rdma_devices(root)
    (read,) = device.ports
    return read


def test_an_infiniband_server(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    devices = read_rdma_devices(tmp_path)
    assert [device.name for device in devices] == [f"mlx5_{number}" for number in range(8)]
    assert [device.numa_node for device in devices] == [0] * 4 + [1] * 4
    last = devices[7]
    assert (last.driver, last.pci_address, last.netdevs) == ("mlx5_core", "0000:dc:00.0", ("ibp220s0",))
    (port,) = last.ports
    gid = Gid(0, "fe80:0000:0000:0000:a088:c203:004d:0008", V1, None, None)
    assert port == RdmaPort(
        number=1,
        state="ACTIVE",
        rate="400 Gb/sec (4X NDR)",
        link_layer="InfiniBand",
        physical_state="LinkUp",
        gbps=400.0,
        active_mtu=None,  # the interface's 4092 bytes are those of IP over InfiniBand
        lid=0x18,
        netdevs=("ibp220s0",),
        gids=(gid,),
        pkeys=(PKey(0, 0xFFFF), PKey(1, 0x7FFF)),
    )
    assert port.active
    json.dumps(asdict(last))


def test_whether_an_entry_of_a_table_is_still_there(tmp_path: Path) -> None:
    hgx_h100(tmp_path, roce=True)
    gid = read_rdma_devices(tmp_path)[2].ports[0].gids[3]
    assert has_gid("mlx5_2", 1, gid, tmp_path)
    assert not has_gid("mlx5_2", 1, replace(gid, index=2), tmp_path)
    assert not has_gid("mlx5_2", 2, gid, tmp_path)
    (tmp_path / "sys/class/infiniband/mlx5_2/ports/1/gids/3").unlink()
    assert not has_gid("mlx5_2", 1, gid, tmp_path)


def test_a_roce_port_has_its_table_and_interface(tmp_path: Path) -> None:
    hgx_h100(tmp_path, roce=True)
    port = read_rdma_devices(tmp_path)[2].ports[0]
    assert [(gid.index, gid.type, gid.address) for gid in port.gids] == [
        (0, V1, "fe80::3"),
        (1, V2, "fe80::3"),
        (2, V1, "10.0.2.1"),
        (3, V2, "10.0.2.1"),
    ]
    assert port.gids[3].text == "0000:0000:0000:0000:0000:ffff:0a00:0201"
    assert {(gid.netdev, gid.netdev_up) for gid in port.gids} == {("ens79s0", True)}
    assert (port.netdevs, port.active_mtu, port.lid) == (("ens79s0",), 4096, 0)


def test_a_port_that_is_down(tmp_path: Path) -> None:
    dual_port_roce(tmp_path)
    up, down = (device.ports[0] for device in read_rdma_devices(tmp_path))
    assert (up.active, up.state, up.gbps, up.active_mtu) == (True, "ACTIVE", 100.0, 1024)
    assert (down.active, down.state, down.physical_state) == (False, "DOWN", "Disabled")
    assert {gid.netdev_up for gid in down.gids} == {False}


def test_an_rdma_device_is_found_from_its_interface(tmp_path: Path) -> None:
    dual_port_roce(tmp_path)
    nics = {nic.name: nic for nic in read_nics(tmp_path)}
    assert (nics["ens1f1np1"].rdma, nics["ens1f1np1"].numa_node) == ("mlx5_1", 1)
    assert nics["ens1f1np1"].pci_address == "0000:3b:00.1"


def test_a_software_device_is_not_on_pci(tmp_path: Path) -> None:
    soft_roce(Sysfs(tmp_path), "rxe0", "d0", "10.9.0.1")
    (device,) = read_rdma_devices(tmp_path)
    assert (device.driver, device.pci_address, device.numa_node, device.netdevs) == (None, None, None, ("d0",))
    (port,) = device.ports
    assert (port.gbps, port.active_mtu, port.netdevs) == (2.5, 4096, ("d0",))
    assert [(gid.address, gid.netdev_up) for gid in port.gids] == [("fe80::5", None), ("10.9.0.1", None)]


@pytest.mark.parametrize(
    "facts",
    [{"parent": "eth0", "node_desc": "renamed"}, {"node_desc": "rxe"}, {"node_desc": "Software iWARP stack"}],
)
def test_an_older_kernel_puts_a_software_device_below_the_card_of_its_interface(
    tmp_path: Path, facts: dict[str, str]
) -> None:
    sysfs = Sysfs(tmp_path)
    function = sysfs.pci("0000:3b:00.0", "ixgbe", numa_node=1)
    sysfs.netdev("eth0", function)
    sysfs.rdma("soft0", function, Port(link_layer="Ethernet"), **facts)
    (device,) = read_rdma_devices(tmp_path)
    assert (device.driver, device.pci_address, device.numa_node) == (None, None, None)
    assert device.netdevs == (("eth0",) if "parent" in facts else ())


def test_two_ports_of_one_function_have_their_own_interfaces(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    function = sysfs.pci("0000:05:00.0", "mlx4_core")
    sysfs.netdev("eth2", function, port=0)
    sysfs.netdev("eth3", function, mtu=4200, port=1)
    sysfs.rdma("mlx4_0", function, Port(1, link_layer="Ethernet"), Port(2, link_layer="Ethernet"))
    (device,) = read_rdma_devices(tmp_path)
    assert device.netdevs == ("eth2", "eth3")
    assert [(port.number, port.netdevs, port.active_mtu) for port in device.ports] == [
        (1, ("eth2",), 1024),
        (2, ("eth3",), 4096),
    ]


def test_the_interfaces_of_the_table_go_before_that_of_the_function(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    function = sysfs.pci("0000:3b:00.0", "mlx5_core")
    sysfs.netdev("eth0", function, mtu=1500)
    sysfs.netdev("bond0", mtu=9000)
    entries = (Entry(0, "10.0.0.1", V2, "bond0"), Entry(1, "10.0.7.1", V2, "bond0.7"), Entry(2, "::2", V2, "bond0"))
    sysfs.rdma("mlx5_bond_0", function, Port(link_layer="Ethernet", gids=entries))
    port = read_rdma_devices(tmp_path)[0].ports[0]
    assert (port.netdevs, port.active_mtu) == (("bond0", "bond0.7", "eth0"), 4096)
    assert port.gids[1].netdev_up is None  # this machine does not show bond0.7


def test_ten_comes_after_nine(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    for number in range(12):
        sysfs.rdma(f"mlx5_{number}", sysfs.pci(f"0000:{number:02x}:00.0"), *(Port(port) for port in (1, 2, 10)))
    devices = read_rdma_devices(tmp_path)
    assert [device.name for device in devices] == [f"mlx5_{number}" for number in range(12)]
    assert [port.number for port in devices[0].ports] == [1, 2, 10]


def test_entries_of_the_gid_table_that_are_empty_or_not_readable_are_skipped(tmp_path: Path) -> None:
    used = (Entry(3, "10.0.0.1", V2, "eth0"), Entry(12, "2001:db8::7", V2, None))
    gids = read_port(tmp_path, Port(link_layer="Ethernet", gids=used, gid_entries=16)).gids
    assert [gid.index for gid in gids] == [3, 12]
    assert (gids[1].type, gids[1].netdev) == (V2, None)


def test_a_gid_of_unknown_type(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    folder = sysfs.rdma("mlx5_0", sysfs.pci("0000:3b:00.0"), Port(gids=(Entry(0, "fe80::9"),)))
    (folder / "ports/1/gid_attrs/types/0").unlink()
    (gid,) = read_rdma_devices(tmp_path)[0].ports[0].gids
    assert gid == Gid(0, gid_text("fe80::9"), "", None, None)


def test_pkeys_keep_their_index(tmp_path: Path) -> None:
    port = read_port(tmp_path, Port(pkeys=("0xffff", "0x0000", "0x8001", *["0x0000"] * 9, "0x0002")))
    assert port.pkeys == (PKey(0, 0xFFFF), PKey(2, 0x8001), PKey(12, 2))


@pytest.mark.parametrize(
    ("rate", "gbps"),
    [
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("56 Gb/sec (4X FDR)", 56.0),
        ("800 Gb/sec (4X XDR)", 800.0),
        (None, None),
        ("fast", None),
    ],
)
def test_rates(tmp_path: Path, rate: str | None, gbps: float | None) -> None:
    port = read_port(tmp_path, Port(rate=rate))
    assert (port.rate, port.gbps) == (rate or "unknown", gbps)


@pytest.mark.parametrize(
    ("interface", "roce"),
    [(9000, 4096), (4192, 4096), (4191, 2048), (2144, 2048), (2143, 1024), (1500, 1024), (576, 256), (300, None)],
)
def test_the_mtu_of_a_roce_port_leaves_room_for_the_headers(tmp_path: Path, interface: int, roce: int | None) -> None:
    Sysfs(tmp_path).netdev("eth0", mtu=interface)
    assert read_port(tmp_path, roce_port("eth0", "10.0.0.1")).active_mtu == roce


def test_a_port_that_says_nothing(tmp_path: Path) -> None:
    port = read_port(tmp_path, Port(1, None, None, None, None, None, gid_entries=0, pkeys=()))
    assert port == RdmaPort(1, "unknown", "unknown", "unknown")
    assert not port.active


def test_a_gap_in_the_gid_table_is_passed_over(tmp_path: Path) -> None:
    """Where an interface was removed, the entries behind its own stay."""
    soft_roce(Sysfs(tmp_path), "rxe0", "d0", "10.9.0.1")
    port = tmp_path / "sys/class/infiniband/rxe0/ports/1"
    for index in range(2, 64):
        (port / f"gids/{index}").write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
    (port / "gids/64").write_text("0000:0000:0000:0000:0000:ffff:0a01:0203\n")
    (port / "gid_attrs/types/64").write_text("RoCE v2\n")
    (gid,) = [gid for gid in read_rdma_devices(tmp_path)[0].ports[0].gids if gid.index == 64]
    assert gid.type == "RoCE v2"
