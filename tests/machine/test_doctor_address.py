"""The doctor's family "address", each check in its states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from support.doctor import NETDEVS, check, healthy, process, routes
from support.sysfs import V1, Entry, Port, Sysfs, infiniband_port, roce_port
from zerohop.machine.doctor import State

if TYPE_CHECKING:
    from pathlib import Path


def one(root: Path, port: Port, *, state: str = "up") -> Sysfs:
    """A machine with one card, mlx5_0, on the interface eth0."""
    sysfs = Sysfs(root)
    function = sysfs.pci("0000:3b:00.0", "mlx5_core")
    sysfs.netdev("eth0", function, state=state)
    sysfs.rdma("mlx5_0", function, port)
    return sysfs


def rails(root: Path, *networks: str) -> Sysfs:
    """Two cards, mlx5_0 on eth0 with 10.0.0.1 and mlx5_1 on eth1 with 10.0.0.2 or 10.0.1.1, in these networks."""
    sysfs = Sysfs(root)
    for number, network in enumerate(networks):
        function = sysfs.pci(f"0000:3b:00.{number}", "mlx5_core")
        sysfs.netdev(f"eth{number}", function)
        address = "10.0.0.1" if number == 0 else "10.0.0.2" if network.startswith("10.0.0.") else "10.0.1.1"
        sysfs.rdma(f"mlx5_{number}", function, roce_port(f"eth{number}", address))
    routes(sysfs, {f"eth{number}": network for number, network in enumerate(networks)})
    return sysfs


def test_a_usable_gid(tmp_path: Path) -> None:
    one(tmp_path, roce_port("eth0", "10.0.0.1"))
    found = check("gid", tmp_path)
    assert (found.state, found.found) == (State.OK, "mlx5_0:1: GID 3: RoCE v2 10.0.0.1 (IPv4) on eth0")


@pytest.mark.parametrize(
    ("port", "state", "found", "fix"),
    [
        (roce_port("eth0", None), "up", "it reaches no other network", "ip address add ADDRESS/PREFIX dev eth0"),
        (roce_port("eth0", "10.0.0.1"), "down", "an interface that is down: eth0", "ip link set eth0 up"),
        (Port(link_layer="Ethernet"), "up", "its GID table is empty", "# give the interface an address"),
        (
            Port(link_layer="Ethernet", gids=(Entry(0, "10.0.0.1", V1, "eth0"),)),
            "up",
            "no RoCE v2 entry",
            "# give the interface an address",
        ),
    ],
    ids=["link-local", "down", "empty", "v1"],
)
def test_a_gid_that_is_of_little_use(tmp_path: Path, port: Port, state: str, found: str, fix: str) -> None:
    one(tmp_path, port, state=state)
    result = check("gid", tmp_path)
    assert result.state is (State.WARN if "reaches" in found else State.FAIL)
    assert found in result.found
    assert result.fix[0].startswith(fix)


def test_a_gid_index_that_was_asked_for(tmp_path: Path) -> None:
    one(tmp_path, roce_port("eth0", "10.0.0.1"))
    found = check("gid", tmp_path, process(environment={"ZEROHOP_VERBS": "gid_index=2"}))
    assert (found.state, found.found[:18]) == (State.OK, "mlx5_0:1: GID 2: I")
    found = check("gid", tmp_path, process(environment={"ZEROHOP_VERBS": "gid_index=9"}))
    assert found.state is State.FAIL
    assert "has no entry 9; it has 0:" in found.found
    assert "gid_index" in found.fix[0]


def test_one_port_with_a_gid_is_enough(tmp_path: Path) -> None:
    healthy(tmp_path, roce=True).put(f"sys/class/net/{NETDEVS[2]}", operstate="down")
    found = check("gid", tmp_path)
    assert (found.state, found.fix) == (State.WARN, (f"ip link set {NETDEVS[2]} up",))


def test_subnets_are_told(tmp_path: Path) -> None:
    rails(tmp_path, "10.0.0.0/24", "10.0.1.0/24")
    found = check("subnets", tmp_path)
    assert (found.state, found.found) == (
        State.OK,
        "10.0.0.0/24 on eth0, 10.0.1.0/24 on eth1; a peer's address has to be in one of these, or routed",
    )


def test_two_interfaces_in_one_network(tmp_path: Path) -> None:
    sysfs = rails(tmp_path, "10.0.0.0/24", "10.0.0.0/24")
    found = check("subnets", tmp_path)
    assert (found.state, found.found) == (State.WARN, "eth0, eth1 are all in 10.0.0.0/24")
    assert found.fix[0] == "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
    sysfs.put("proc/sys/net/ipv4/conf/all", arp_ignore=1, arp_announce=2, rp_filter=0)
    assert check("subnets", tmp_path).state is State.OK
    sysfs.put("proc/sys/net/ipv4/conf/eth1", arp_ignore=0, arp_announce=0, rp_filter=1)
    assert check("subnets", tmp_path).state is State.WARN


def test_without_an_ipv4_address_there_is_no_subnet(tmp_path: Path) -> None:
    one(tmp_path, roce_port("eth0", None))
    assert check("subnets", tmp_path).found == "no active port has an IPv4 address of RoCE v2"
    one(tmp_path / "1", Port(link_layer="Ethernet"))
    assert check("subnets", tmp_path / "1").state is State.NOT_HERE
    one(tmp_path / "2", roce_port("eth0", "10.0.0.1"))  # no route to it: the address is of another namespace
    assert check("subnets", tmp_path / "2").state is State.NOT_HERE
    found = check("subnets", tmp_path / "2", process(environment={"ZEROHOP_VERBS": "gid_index=9"}))
    assert found.state is State.NOT_HERE


def test_one_port_in_the_partition_is_enough(tmp_path: Path) -> None:
    healthy(tmp_path).put("sys/class/infiniband/mlx5_1/ports/1/pkeys", **{"0": "0x0000"})
    found = check("pkey", tmp_path)
    assert (found.state, found.found) == (
        State.WARN,
        "mlx5_1:1: no entry 0; the table has 1: 0x7fff; the other 2 are fine",
    )


@pytest.mark.parametrize(
    ("keys", "options", "state", "found"),
    [
        (("0xffff",), "", State.OK, "entry 0 is 0xffff, a full member"),
        (("0x7fff",), "", State.WARN, "entry 0 is a limited member of the default partition"),
        (("0x0001",), "", State.WARN, "entry 0 is a limited member of partition 0x0001"),
        (("0x0000", "0x8001"), "", State.FAIL, "no entry 0; the table has 1: 0x8001"),
        (("0x0000", "0x8001"), "pkey_index=1", State.OK, "entry 1 is 0x8001, a full member"),
        ((), "", State.FAIL, "no entry 0; the table has nothing"),
    ],
)
def test_pkeys(tmp_path: Path, keys: tuple[str, ...], options: str, state: State, found: str) -> None:
    one(tmp_path, replace(infiniband_port(1), pkeys=keys))
    result = check("pkey", tmp_path, process(environment={"ZEROHOP_VERBS": options}))
    assert (result.state, result.found) == (state, f"mlx5_0:1: {found}")
    assert bool(result.fix) is (state is not State.OK)
