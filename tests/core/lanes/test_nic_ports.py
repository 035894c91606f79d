"""How the NIC ports of two sides are paired, and how a Context keeps its own. No Context needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

import zerohop as zh
from support.fake_nics import FakeEngine
from zerohop.core.control import wire
from zerohop.core.lanes import nic_ports
from zerohop.core.lanes.nic_ports import NicPorts, Port

if TYPE_CHECKING:
    from zerohop._native import Engine


class TestPairing:
    @staticmethod
    def nics(*links: str, subnets: str = "") -> list[wire.Nic]:
        return [
            wire.Nic(
                name=f"n{place}", port=1, link={"E": "Ethernet", "I": "InfiniBand", "-": ""}[link], gbps=25.0 * place
            )
            for place, link in enumerate(links)
        ]

    def test_same_place_and_link_layer(self) -> None:
        mine, theirs = self.nics(*"EIE-"), self.nics(*"EE-EE")
        assert nic_ports.pair(mine, theirs) == [(0, 0)]
        assert nic_ports.pair(self.nics(*"EEE"), self.nics(*"EE")) == [(0, 0), (1, 1)]
        assert nic_ports.pair(self.nics(*"EEE"), self.nics(*"EEE"), {1}, {2}) == [(0, 0)]

    def test_any_other_only_where_there_is_none(self) -> None:
        assert nic_ports.pair(self.nics(*"-E"), self.nics(*"E-")) == [(1, 0)]
        assert nic_ports.pair(self.nics(*"E"), self.nics(*"I")) == []
        assert nic_ports.pair([], self.nics(*"I")) == []
        near = [wire.Nic(name="a", port=1, link="Ethernet", subnet=subnet) for subnet in ("10.0.0", "10.0.1")]
        assert nic_ports.pair(near, near, {0}, {1}) == [(1, 0)]
        far = [*near, wire.Nic(name="c", port=1, link="Ethernet", subnet="10.0.1")]
        assert nic_ports.pair(near[:2], far, {0}, {1}) == [(1, 2)]

    def test_rates_add_up(self) -> None:
        mine, theirs = self.nics(*"EEE"), self.nics(*"EEE")
        assert nic_ports.rate(mine, theirs, nic_ports.pair(mine, theirs)) == 75.0


class TestPorts:
    @staticmethod
    def of(fake: FakeEngine) -> NicPorts:
        return NicPorts(cast("Engine", fake), lambda: fake.ports)

    @staticmethod
    def fake(nics: int = 2) -> FakeEngine:
        # Nothing here asks a real engine.
        return FakeEngine(cast("Engine", None), nics)

    def test_opened_when_it_is_first_needed_and_once(self) -> None:
        fake = self.fake()
        ports = self.of(fake)
        assert not fake.domains
        assert [nic.link for nic in ports.nics()] == ["Ethernet", "Ethernet"]
        assert ports.nics()[0].gbps == 50.0
        assert [domain.device for domain in ports.domains([1, 0])] == ["fake1", "fake0"]
        assert ports.why_not() == ""
        assert "no NIC number 2" in ports.port_down(2)
        assert "no NIC number -1" in ports.port_down(-1)

    def test_what_is_known_of_a_port_does_not_open_it(self) -> None:
        fake = self.fake(1)
        fake.ports = [Port("fake0", 1, {"queue_pairs": 2}, link="InfiniBand", gbytes_per_s=25.0, subnet="fe80")]
        assert self.of(fake).nics() == [wire.Nic(name="fake0", port=1, link="InfiniBand", gbps=25.0, subnet="fe80")]
        assert not fake.domains

    def test_a_port_that_cannot_be_opened_keeps_its_place_and_is_tried_again(self) -> None:
        fake = self.fake()
        fake.broken_ports["fake0"] = "no permission"
        ports = self.of(fake)
        assert [nic.link for nic in ports.nics()] == ["", "Ethernet"]
        assert "fake0 port 1: not supported: no permission" in ports.port_down(0)
        assert ports.why_not() == ""
        fake.broken_ports.clear()
        assert ports.port_down(0) == ""
        assert [nic.link for nic in ports.nics()] == ["Ethernet", "Ethernet"]

    def test_one_that_is_down_is_there_again_when_it_has_come_back(self) -> None:
        fake = self.fake(1)
        ports = self.of(fake)
        ports.nics()
        fake.domains["fake0"].alive = False
        assert ports.nics()[0].link == ""
        assert "is down" in ports.why_not()
        fake.domains["fake0"].alive = True
        assert ports.nics()[0].link == "Ethernet"
        number = fake.domains["fake0"].number
        assert ports.domain(number) is not None
        assert ports.domain(number + 1) is None

    def test_one_whose_device_has_failed_for_good_is_opened_anew_in_its_place(self) -> None:
        fake = self.fake()
        told: list[int] = []
        ports = NicPorts(cast("Engine", fake), lambda: fake.ports, lambda: told.append(len(fake.domains)))
        ports.nics()
        old, other = fake.domains["fake0"], fake.domains["fake1"]
        old.alive, old.lost = False, True
        fake.broken_ports["fake0"] = "it restarts"
        assert "it restarts" in ports.port_down(0)
        assert old.closed
        assert told == [2]
        assert ports.nics()[0].link == ""
        fake.broken_ports.clear()
        assert ports.port_down(0) == ""
        new = fake.domains["fake0"]
        assert new is not old
        assert [domain.number for domain in ports.domains([0, 1])] == [new.number, other.number]
        assert ports.domain(old.number) is None
        assert told == [2]

    def test_without_a_port_it_is_said_why(self) -> None:
        def none() -> list[Port]:
            raise zh.Unsupported("all ports are down", fix="ip link set up")

        ports = NicPorts(cast("Engine", self.fake()), none)
        assert ports.nics() == []
        assert ports.why_not() == "all ports are down (fix: ip link set up)"
        assert self.of(self.fake(0)).why_not()

    def test_what_would_help_is_what_the_driver_says(self) -> None:
        fake = self.fake()
        fake.broken_ports["fake0"] = "Cannot allocate memory"
        fake.short_of_memory = True
        ports = self.of(fake)
        assert "memlock" in ports.port_down(0)
        assert "ulimit -l" in ports.fix()
        fake.broken_ports.clear()
        assert ports.port_down(0) == ""
        assert "port" in ports.fix()

    def test_lanes_that_are_made_after_a_ports_addresses_have_changed_have_the_new_ones(self) -> None:
        fake = self.fake()
        ports = self.of(fake)
        ports.nics()
        domain = fake.domains["fake1"]
        ports.use(ports.choose_again())
        assert not domain.options
        both = [fake.ports[0], fake.ports[1]._replace(options={"queue_pairs": 2, "gid_index": 5})]
        fake.ports = both
        ports.use(ports.choose_again())
        assert domain.options == {"queue_pairs": 2, "gid_index": 5}
        # Where there is none for now, it keeps what it had.
        fake.ports = fake.ports[:1]
        ports.use(ports.choose_again())
        assert domain.options["gid_index"] == 5
        assert [nic.name for nic in ports.nics()] == ["fake0", "fake1"]
        # Nor where the data plane takes none of it.
        fake.ports = [both[0], both[1]._replace(options={"gid_index": 999})]
        ports.use(ports.choose_again())
        assert domain.options["gid_index"] == 5

    def test_closing_closes_what_was_opened(self) -> None:
        fake = self.fake()
        ports = self.of(fake)
        ports.port_down(1)
        ports.close()
        assert fake.domains["fake1"].closed
        assert ports.nics() == []
        ports.close()


@pytest.mark.parametrize("count", [wire.MAX_NICS, wire.MAX_NICS + 5])
def test_no_more_ports_than_a_peer_may_be_told_of(count: int) -> None:
    fake = TestPorts.fake(count)
    assert len(TestPorts.of(fake).nics()) == wire.MAX_NICS
