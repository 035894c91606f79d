"""A NIC's port goes down under a lane: who gives the lane up, and who does not.

Over NICs that are faked (support/fake_nics.py).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from support.fake_nics import NBYTES, change_ports, end_of, lane_of, numbers, of, write_over
from support.lanes import eventually
from support.patience import PATIENCE_S
from support.pattern import pattern
from zerohop.core.control import wire
from zerohop.core.lanes import port_watch
from zerohop.core.peers.peer_death import EngineEvents

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fake_nics import Heard, Pair


@pytest.fixture
def port_changes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the ports of which a Context has taken notice, from now on."""
    noticed: list[int] = []
    port_changed = EngineEvents._port_changed

    def noticing(self: EngineEvents, number: int) -> None:
        port_changed(self, number)
        noticed.append(number)

    monkeypatch.setattr(EngineEvents, "_port_changed", noticing)
    return noticed


@pytest.fixture
def patient_nics(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the test takes, they may yet give up by themselves."""
    monkeypatch.setattr(port_watch, "no_answer_s", lambda _: 3600.0)


@pytest.fixture
def hasty_nics(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would have given up at once."""
    monkeypatch.setattr(port_watch, "no_answer_s", lambda _: 0.01)


@pytest.mark.parametrize("side", ["the one that dialled", "the other"])
def test_an_idle_lane_is_replaced_before_anybody_uses_it(nic_pair: Callable[..., Pair], side: str) -> None:
    both = nic_pair()
    connection, other = both.connect()
    source, target = both.here.register(pattern(8, NBYTES)), both.there.alloc(NBYTES)
    handle = target.share("rw")
    write_over(both.here, source, handle)
    change_ports(both.nics if side == "the one that dialled" else both.their_nics, "fake0", alive=False)
    eventually(lambda: 0 not in numbers(connection) == numbers(other) != [], "the lane is not replaced")
    assert lane_of(connection, "verbs").rails == (1,)
    assert write_over(both.here, source, handle).startswith("verbs (rdma)")
    assert connection.notify(1).result(PATIENCE_S) == 0


@pytest.mark.usefixtures("patient_nics")
@pytest.mark.parametrize("busy", ["the one whose port it is", "the other"])
def test_a_lane_is_left_to_those_who_use_it(
    nic_pair: Callable[..., Pair], heard: Heard, port_changes: list[int], busy: str
) -> None:
    """A port may be back before the NICs give up."""
    both = nic_pair()
    connection, other = both.connect()
    asks = busy == "the other"
    end_of(other if asks else connection).busy = True
    change_ports(both.nics, "fake0", alive=False)
    eventually(lambda: bool(port_changes), "nobody noticed")
    if asks:
        eventually(lambda: bool(of(wire.LaneQuiet, heard.received)), "the peer is not asked")
        assert both.there._core.control.wait(asyncio.sleep, 0, timeout=PATIENCE_S)
    assert [message.answer for message in of(wire.LaneQuiet, heard.sent)] == ([False] if asks else [])
    assert numbers(connection) == numbers(other) == [0]
    change_ports(both.nics, "fake0", alive=True)
    assert connection.notify(1).result(PATIENCE_S) == 0
    assert numbers(connection) == numbers(other) == [0]


@pytest.mark.usefixtures("hasty_nics")
@pytest.mark.parametrize("others", [True, False], ids=["another way", "no other way"])
def test_a_nic_that_does_not_give_up(nic_pair: Callable[..., Pair], others: bool) -> None:
    """What it was given fails all the same, when it has had its time."""
    both = nic_pair() if others else nic_pair(nics=1, only=True)
    connection, _ = both.connect()
    end_of(connection).busy = True
    change_ports(both.nics, "fake0", alive=False)
    eventually(lambda: 0 not in numbers(connection), "the lane stays")


@pytest.mark.usefixtures("hasty_nics")
def test_a_nic_that_is_given_something_later(nic_pair: Callable[..., Pair]) -> None:
    """While its port is down already, and there is no other way."""
    both = nic_pair(nics=1, only=True)
    connection, _ = both.connect()
    assert connection._link.session is not None
    timers = connection._link.session.lanes.ports._timers
    change_ports(both.nics, "fake0", alive=False)
    eventually(lambda: bool(timers), "nobody noticed")
    first = [*timers.values()]
    eventually(lambda: bool(timers) and [*timers.values()] != first, "nobody looks again")
    end_of(connection).busy = True
    eventually(lambda: 0 not in numbers(connection), "the lane stays")


@pytest.mark.usefixtures("patient_nics")
def test_a_port_that_comes_back_in_time(nic_pair: Callable[..., Pair]) -> None:
    both = nic_pair()
    connection, other = both.connect()
    assert connection._link.session is not None
    ports = connection._link.session.lanes.ports
    end_of(connection).busy = True
    change_ports(both.nics, "fake0", alive=False)
    eventually(lambda: bool(ports._timers), "nobody noticed")
    (timer,) = ports._timers.values()
    change_ports(both.nics, "fake0", alive=True)
    eventually(lambda: not ports._timers, "nobody noticed that it is back")
    assert timer.cancelled()
    assert numbers(connection) == numbers(other) == [0]


@pytest.mark.usefixtures("patient_nics")
@pytest.mark.parametrize("meanwhile", ["the port is back", "it is used again"])
def test_an_answer_that_comes_late_ends_no_lane(
    nic_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, heard: Heard, meanwhile: str
) -> None:
    both = nic_pair()
    connection, other = both.connect()
    quiet = port_watch.LanePorts.on_lane_quiet
    late: list[wire.LaneQuiet] = []

    def holding(self: port_watch.LanePorts, message: wire.LaneQuiet) -> None:
        if message.answer:
            late.append(message)
        else:
            quiet(self, message)

    monkeypatch.setattr(port_watch.LanePorts, "on_lane_quiet", holding)
    change_ports(both.nics, "fake0", alive=False)
    eventually(lambda: bool(late), "the peer is not asked, or does not answer")
    if meanwhile == "the port is back":
        change_ports(both.nics, "fake0", alive=True)
    else:
        end_of(connection).busy = True
    assert connection._link.session is not None
    both.here._core.control.call(quiet, connection._link.session.lanes.ports, late[0])
    assert both.here._core.control.wait(asyncio.sleep, 0, timeout=PATIENCE_S)
    assert numbers(connection) == numbers(other) == [0]
    assert not of(wire.LaneDown, heard.sent)


def test_whoever_asks_about_a_lane_without_ports_is_not_believed(nic_pair: Callable[..., Pair]) -> None:
    both = nic_pair()
    both.nics.swallows = True
    connection, other = both.connect()
    assert connection.provider == "tcp"
    session: Any = connection._link.session
    assert session is not None
    for number in (0, 2):  # one that is no more, and the one that is
        both.here._core.control.call(session._channel.post, wire.LaneQuiet(number=number))
    eventually(lambda: not other.alive, "the peer answers")
    assert "without ports" in str(other._link.lost)


def test_a_lane_stays_where_it_is_the_only_way(
    nic_pair: Callable[..., Pair], heard: Heard, port_changes: list[int]
) -> None:
    both = nic_pair(nics=1, only=True)
    connection, _ = both.connect()
    change_ports(both.nics, "fake0", alive=False)
    eventually(lambda: bool(port_changes), "nobody noticed")
    assert not of(wire.LaneQuiet, heard.sent)
    assert numbers(connection) == [0]
