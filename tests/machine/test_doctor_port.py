"""The doctor's family "port", each check in its states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from support.doctor import NETDEVS, NICS, check, facts, healthy, process
from support.sysfs import Port, Sysfs, dual_port_roce, infiniband_port, roce_port
from zerohop.machine.doctor import State

if TYPE_CHECKING:
    from pathlib import Path


def one(root: Path, *ports: Port) -> None:
    """A machine with one card, mlx5_0, with these ports."""
    sysfs = Sysfs(root)
    sysfs.rdma("mlx5_0", sysfs.pci("0000:3b:00.0", "mlx5_core"), *ports)


@pytest.mark.parametrize(
    ("port", "found", "fix"),
    [
        (Port(state="1: DOWN", phys_state="2: Polling"), "DOWN, Polling", "# look at the cable and at the other end"),
        (Port(state="2: INIT"), "INIT, LinkUp", "# the link is up but no subnet manager has made it active"),
        (
            replace(roce_port("eth0", None), state="1: DOWN", phys_state="3: Disabled"),
            "DOWN, Disabled",
            "ip link set eth0 up",
        ),
    ],
)
def test_a_port_that_is_not_active(tmp_path: Path, port: Port, found: str, fix: str) -> None:
    one(tmp_path, port)
    result = check("port-state", tmp_path)
    assert (result.state, result.found) == (State.FAIL, f"mlx5_0:1: {found}")
    assert result.fix[0].startswith(fix)
    for name in ("link-speed", "mtu", "gid", "pkey"):
        assert check(name, tmp_path).found == "no port is active: see port-state"


def test_a_second_port_that_is_down_is_a_warning(tmp_path: Path) -> None:
    dual_port_roce(tmp_path)
    found = check("port-state", tmp_path)
    assert (found.state, found.found) == (State.WARN, "mlx5_1:1: DOWN, Disabled; the other 1 is fine")
    assert found.fix == ("ip link set ens1f1np1 up",)


def test_a_port_that_the_filter_leaves_out_is_not_looked_at(tmp_path: Path) -> None:
    dual_port_roce(tmp_path)
    found = check("port-state", tmp_path, process(environment={"ZEROHOP_NICS": "^mlx5_1"}))
    assert (found.state, found.found) == (State.OK, "mlx5_0:1: ACTIVE, LinkUp")
    found = check("port-state", tmp_path, process(environment={"ZEROHOP_NICS": "mlx5_1"}))
    assert (found.state, found.fix) == (State.FAIL, ("ip link set ens1f1np1 up",))
    nothing = process(environment={"ZEROHOP_NICS": "mlx5_9"})
    assert check("port-state", tmp_path, nothing).found == "ZEROHOP_NICS leaves no port"
    assert check("mtu", tmp_path, nothing).found == "ZEROHOP_NICS leaves no port"


def test_a_link_that_lost_lanes(tmp_path: Path) -> None:
    one(tmp_path, replace(infiniband_port(1), rate="100 Gb/sec (1X NDR)"))
    found = check("link-speed", tmp_path)
    assert (found.state, found.found) == (State.WARN, "mlx5_0:1: 100 Gb/s over 1 of 4 lanes")
    assert "split cable" in found.fix[0]


def test_a_link_that_is_slower_than_its_card_offers(tmp_path: Path) -> None:
    one(tmp_path, replace(roce_port("eth0", "10.0.0.1"), rate="25 Gb/sec (1X EDR)"))
    found = check("link-speed", tmp_path, process(fastest={"eth0": 100.0}))
    assert (found.state, found.found) == (State.WARN, "mlx5_0:1: 25 Gb/s, and the card offers 100")
    assert found.fix[0] == "ethtool eth0"
    assert check("link-speed", tmp_path, process(fastest={"eth0": 25.0})).state is State.OK
    assert check("link-speed", tmp_path, process(fastest={})).found == "mlx5_0:1: 25 Gb/s"


def test_a_link_that_is_slower_than_those_of_the_same_cards(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    sysfs.put("sys/class/infiniband/mlx5_4/ports/1", rate="200 Gb/sec (4X HDR)")
    found = check("link-speed", tmp_path)
    assert found.state is State.WARN
    assert found.found == "mlx5_4:1: 200 Gb/s, and a card of the same kind here runs at 400; the other 2 are fine"
    assert found.fix[0] == "iblinkinfo"
    sysfs.put("sys/class/infiniband/mlx5_4", board_id="MT_0000000437")
    assert check("link-speed", tmp_path).state is State.OK


def test_a_speed_that_is_not_known(tmp_path: Path) -> None:
    one(tmp_path, replace(infiniband_port(1), rate=None))
    found = check("link-speed", tmp_path)
    assert (found.state, found.found) == (State.NOT_HERE, "mlx5_0:1: its driver does not tell the speed")


@pytest.mark.parametrize(
    ("folder", "counter", "fix"),
    [("counters", "symbol_error", "cable"), ("hw_counters", "out_of_sequence", "flow control")],
)
def test_packets_that_were_damaged_or_lost(tmp_path: Path, folder: str, counter: str, fix: str) -> None:
    sysfs = healthy(tmp_path, roce=True)
    sysfs.put(f"sys/class/infiniband/mlx5_1/ports/1/{folder}", **{counter: 41})
    found = check("link-errors", tmp_path)
    assert found.state is State.WARN
    assert found.found == f"mlx5_1:1: {counter} 41, since its driver was loaded; the other 2 are fine"
    assert fix in found.fix[0]


def test_an_interface_whose_mtu_makes_short_packets(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path, roce=True)
    devices = tuple(facts(name, ports=[]) for name in NICS)  # as sysfs alone shows it
    assert check("mtu", tmp_path, process(verbs=devices)).state is State.OK
    sysfs.put(f"sys/class/net/{NETDEVS[1]}", mtu=1500)
    found = check("mtu", tmp_path, process(verbs=devices))
    assert found.state is State.WARN
    assert found.found == "mlx5_1:1: 1024 bytes, because the MTU of ens64s0 is 1500; the other 2 are fine"
    assert found.fix == (
        "ip link set ens64s0 mtu 4200",
        "# the switches and the other end need at least as much",
    )


def test_the_mtu_that_verbs_tells_counts(tmp_path: Path) -> None:
    one(tmp_path, infiniband_port(1))
    silent = check("mtu", tmp_path, process(verbs=None))
    assert silent.state is State.NOT_HERE
    assert silent.found == "mlx5_0:1: only verbs tells the MTU of InfiniBand: ibv_devinfo -d mlx5_0"
    short = process(verbs=(facts("mlx5_0", ports=[{"number": 1, "state": "ACTIVE", "active_mtu": 2048}]),))
    found = check("mtu", tmp_path, short)
    assert (found.state, found.found) == (State.WARN, "mlx5_0:1: 2048 bytes")
    assert "subnet manager" in found.fix[0]
    healthy(tmp_path / "server")  # whose ports have interfaces, of IP over InfiniBand
    found = check("mtu", tmp_path / "server", short)
    assert (found.found, found.fix[0][:11]) == ("mlx5_0:1: 2048 bytes", "# raise the")
    assert check("mtu", tmp_path, process(verbs=(facts("mlx5_0"),))).state is State.OK
