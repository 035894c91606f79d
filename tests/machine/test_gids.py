"""The rule by which a port's GID is chosen, part by part."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from support.sysfs import V1, V2, dual_port_roce, gid_text, hgx_h100, soft_roce
from support.sysfs import Sysfs as Tree
from zerohop.machine.gids import choose_gid, needs_grh
from zerohop.machine.nics import Gid, RdmaPort, read_rdma_devices

if TYPE_CHECKING:
    from pathlib import Path


def gid(index: int, address: str, kind: str = V2, netdev: str | None = "eth0", up: bool | None = True) -> Gid:
    return Gid(index, gid_text(address), kind, netdev, up)


def port(*gids: Gid, link_layer: str = "Ethernet", netdevs: tuple[str, ...] = ()) -> RdmaPort:
    return RdmaPort(1, "ACTIVE", "100 Gb/sec (4X EDR)", link_layer, netdevs=netdevs, gids=gids)


def chosen(*gids: Gid) -> int:
    found = choose_gid(port(*gids)).gid
    assert found is not None
    shuffled = list(gids)
    random.Random(7).shuffle(shuffled)
    assert choose_gid(port(*shuffled)).gid == found, "the order of the entries must not matter"
    return found.index


def test_infiniband_takes_the_ports_own(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    for device in read_rdma_devices(tmp_path):
        choice = choose_gid(device.ports[0])
        assert choice.gid is not None
        assert (choice.gid.index, choice.fix) == (0, "")
        assert "InfiniBand" in choice.why
    others = port(gid(1, "10.0.0.1"), gid(0, "fe80::1", V1), link_layer="InfiniBand")
    assert choose_gid(others).gid == others.gids[1]


def test_infiniband_without_entry_0() -> None:
    choice = choose_gid(port(gid(1, "fe80::1", V1), link_layer="InfiniBand"))
    assert choice.gid is None
    assert "no entry 0" in choice.why
    assert "ibstat" in choice.fix


def test_roce_servers_get_their_ipv4_address(tmp_path: Path) -> None:
    hgx_h100(tmp_path, roce=True)
    for number, device in enumerate(read_rdma_devices(tmp_path)):
        choice = choose_gid(device.ports[0])
        assert choice.gid is not None
        assert (choice.gid.index, choice.gid.address) == (3, f"10.0.{number}.1")
        assert choice.why == f"GID 3: RoCE v2 10.0.{number}.1 (IPv4) on {device.netdevs[0]}"


def test_soft_roce_on_an_interface_without_carrier_state(tmp_path: Path) -> None:
    soft_roce(Tree(tmp_path), "rxe0", "d0", "10.9.0.1")
    choice = choose_gid(read_rdma_devices(tmp_path)[0].ports[0])
    assert choice.gid is not None
    assert choice.gid.index == 1
    assert choice.why.endswith("on d0 (state not known)")


def test_version_1_is_never_taken() -> None:
    assert chosen(gid(0, "10.0.0.1", V1), gid(1, "fe80::1", V2)) == 1


def test_ipv4_before_global_before_link_local() -> None:
    link_local, unique, world, ipv4 = "fe80::1", "fd00::1", "2001:db8::1", "10.0.0.1"
    assert chosen(gid(0, link_local), gid(1, world), gid(2, ipv4)) == 2
    assert chosen(gid(0, link_local), gid(1, world)) == 1
    assert chosen(gid(0, link_local), gid(1, unique)) == 1
    assert chosen(gid(4, link_local)) == 4


def test_the_kind_of_address_weighs_more_than_the_interface() -> None:
    assert chosen(gid(0, "2001:db8::1", up=True), gid(5, "10.0.0.1", up=None)) == 5


def test_up_before_not_known_and_the_lowest_index_last() -> None:
    assert chosen(gid(1, "10.0.0.1", up=None), gid(3, "10.0.0.2", up=True)) == 3
    assert chosen(gid(7, "10.0.0.1"), gid(3, "10.0.0.2")) == 3
    assert chosen(gid(7, "10.0.0.1", up=None), gid(3, "10.0.0.2", up=None)) == 3


def test_an_interface_that_is_down_is_of_no_use() -> None:
    assert chosen(gid(3, "10.0.0.1", netdev="eth0.7", up=False), gid(5, "fe80::1", up=None)) == 5
    choice = choose_gid(port(gid(0, "fe80::1", V1, up=False), gid(3, "10.0.0.1", netdev="eth0.7", up=False)))
    assert choice.gid is None
    assert choice.why.endswith("down: eth0.7")
    assert choice.fix == "ip link set eth0.7 up"


def test_no_version_2_says_what_there_is() -> None:
    choice = choose_gid(port(gid(0, "fe80::1", V1), netdevs=("ens1f0",)))
    assert choice.gid is None
    assert "no RoCE v2 entry: 0: IB/RoCE v1 fe80::1 (link-local IPv6) on eth0" in choice.why
    assert "dev ens1f0" in choice.fix


def test_an_empty_table_and_another_link_layer() -> None:
    empty = choose_gid(port(netdevs=("ens1f0",)))
    assert (empty.gid, empty.why) == (None, "its GID table is empty")
    assert empty.fix.endswith("dev ens1f0")
    efa = choose_gid(port(gid(0, "fe80::1", ""), link_layer="Unknown"))
    assert efa.gid is None
    assert "link layer is Unknown" in efa.why
    assert efa.fix


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_an_index_that_is_asked_for_is_taken_as_it_is(tmp_path: Path, index: int) -> None:
    dual_port_roce(tmp_path)
    for device in read_rdma_devices(tmp_path):  # of version 1, of an interface that is down: as it was asked for
        table = device.ports[0]
        if index < len(table.gids):
            choice = choose_gid(table, index)
            assert choice.gid == table.gids[index]
            assert "asked for" in choice.why


@pytest.mark.parametrize("index", [4, 255, -1])
def test_an_index_that_is_not_there_names_the_table(tmp_path: Path, index: int) -> None:
    dual_port_roce(tmp_path)
    with pytest.raises(ValueError, match=f"no entry {index}; it has 0: IB/RoCE v1 fe80::1.*3: RoCE v2 192.168.7.21"):
        choose_gid(read_rdma_devices(tmp_path)[0].ports[0], index)
    with pytest.raises(ValueError, match="it has nothing"):
        choose_gid(port(link_layer="InfiniBand"), index)


def test_the_global_routing_header() -> None:
    ethernet, infiniband = port(), port(link_layer="InfiniBand")
    here, there, elsewhere = gid(0, "fe80::1"), gid_text("fe80::2"), gid_text("fec0:0:0:7::2")
    assert needs_grh(ethernet, here, there)
    assert not needs_grh(infiniband, here, there)
    assert needs_grh(infiniband, here, elsewhere)
    assert needs_grh(infiniband, here, there, asked=True)
