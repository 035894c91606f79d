"""Several lanes in one Connection: which are opened, and how one is replaced.

Over NICs that are faked (support/fake_nics.py): what is tested is what the two control planes say to each other.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.fake_nics import NBYTES, change_ports, end_of, lane_of, lose_device, numbers, of, write_over
from support.lanes import eventually
from support.options import Options
from support.outcomes import when_taken
from support.patience import PATIENCE_S
from support.pattern import pattern
from zerohop.core.control import wire
from zerohop.core.lanes import lanes, path_choice
from zerohop.core.lanes.lane import Lane, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fake_nics import Heard, Pair
    from support.fixtures import OpenContext
    from zerohop.core.transfers.connection import Connection


def expect_lanes(connection: Connection, other: Connection, *numbered: list[int]) -> None:
    """These at both ends: the one that was dialled counts one as up a moment after it has said that it is ready."""
    eventually(lambda: numbers(connection) == numbers(other) in numbered, "the two ends have other lanes")


class TestOpening:
    def test_messages_go_over_nics_where_both_have_them(self, nic_pair: Callable[..., Pair], heard: Heard) -> None:
        both = nic_pair()
        connection, other = both.connect()
        assert connection.provider == other.provider == "verbs"
        assert numbers(connection) == numbers(other) == [0]
        into = np.zeros(100, np.uint8)
        receive = other.recv(into)
        assert connection.send(pattern(1, 100)).result(PATIENCE_S) == receive.result(PATIENCE_S) == 100
        opened, answered = of(wire.Lane, heard.sent)
        assert (opened.number, opened.messages, opened.rails) == (0, True, [(0, 0), (1, 1)])
        assert (answered.number, answered.messages, answered.rails) == (0, True, [])
        assert [message.number for message in of(wire.LaneReady, heard.sent)] == [0, 0]

    def test_over_a_nic_that_was_not_named(self, nic_pair: Callable[..., Pair]) -> None:
        """Of whoever claims so, nothing else is believed either."""
        both = nic_pair()
        connection, other = both.connect()
        session: Any = connection._link.session
        forged = wire.Lane(number=2, provider="verbs", address=b"", rails=[(2, 0)])
        both.here._core.control.call(session._channel.post, forged)
        eventually(lambda: other._link.lost is not None, "the peer takes a lane over a NIC that it does not know")
        assert not other.alive
        assert "has not named" in str(other._link.lost)

    def test_direct_and_explained(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        with both.here.register(pattern(2, NBYTES)) as source, both.there.alloc(NBYTES) as target:
            handle = target.share("rw")
            assert write_over(both.here, source, handle).startswith("verbs (rdma) host→host direct")
            assert target.read_bytes() == pattern(2, NBYTES).tobytes()
            # Asked for once: by both rails, and as what it was shared as.
            assert [(device, own) for _, device, own in both.their_nics.reached] == [("fake0", True), ("fake1", True)]
            write_over(both.here, source, handle[:NBYTES])
            assert len(both.their_nics.reached) == 2
            explanation = both.here.explain(source, handle)
            assert explanation.rails == (("fake0 port 1", "fake0 port 1"), ("fake1 port 1", "fake1 port 1"))
            rejected = dict(explanation.rejected)
            assert "staged" in rejected["verbs (stream)"]
            assert "staged" in rejected["tcp (stream)"]

    def test_without_a_port_that_opens_the_next_provider_is_taken(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        both.nics.broken_ports = {
            "fake0": "no permission for /dev/infiniband/uverbs0",
            "fake1": "it is held by another",
        }
        connection, other = both.connect()
        assert connection.provider == other.provider == "tcp"
        with both.here.register(pattern(2, NBYTES)) as source, both.there.alloc(NBYTES) as target:
            rejected = dict(both.here.explain(source, target.share("w")).rejected)
        assert "no permission" in rejected["verbs (rdma)"]
        assert "held by another" in connection._link.missing["verbs"]
        assert "the peer has no NIC" in other._link.missing["verbs"]

    def test_a_switch_that_drops_everything_is_found_out_before_anybody_relies_on_it(
        self, nic_pair: Callable[..., Pair]
    ) -> None:
        both = nic_pair()
        both.nics.swallows = True
        connection, other = both.connect()
        assert connection.provider == other.provider == "tcp"
        assert numbers(connection) == numbers(other) == [2]
        with both.here.register(pattern(2, NBYTES)) as source, both.there.alloc(NBYTES) as target:
            explanation = both.here.explain(source, target.share("w"))
        assert explanation.provider == "tcp"
        assert "nothing comes through between fake0 port 1, fake1 port 1" in dict(explanation.rejected)["verbs (rdma)"]

    def test_without_any_provider_the_reason_is_that_of_the_lane(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair(only=True)
        both.nics.swallows = True
        with pytest.raises(zh.PeerLost, match="nothing comes through"):
            both.connect()

    def test_ports_that_are_down_at_the_other_end_are_left_out(
        self, nic_pair: Callable[..., Pair], heard: Heard
    ) -> None:
        both = nic_pair()
        # Opened, and gone since the peer was told of it.
        both.there._core.nic_ports.nics()
        setup_of = both.there._core.nic_ports.nics()
        both.there._core.nic_ports.nics = lambda: setup_of  # type: ignore[method-assign]
        both.their_nics.domains["fake0"].alive = False
        connection, other = both.connect()
        assert connection.provider == "verbs"
        assert [lane.rails for lane in of(wire.Lane, heard.sent)] == [[(0, 0), (1, 1)], [(1, 1)], []]
        assert [failed.down for failed in of(wire.LaneFailed, heard.sent)] == [[0]]
        assert numbers(connection) == numbers(other) == [2]
        assert lane_of(connection, "verbs").rails == (1,)

    def test_on_demand_and_once_for_all_who_wait(self, nic_pair: Callable[..., Pair], heard: Heard) -> None:
        """A device's memory would be staged over shm: the first of many transfers has a lane opened."""
        both = nic_pair(None)
        connection, other = both.connect()
        assert connection.provider == other.provider == "shm"
        memories = [both.here.alloc(NBYTES, "sim:0") for _ in range(8)]
        target = both.there.alloc(NBYTES)
        handle = target.share("rw")
        writes = [both.here.write(memory, handle) for memory in memories]
        for write in writes:
            write.result(PATIENCE_S)
            assert str(write.explain()).startswith("verbs (rdma) sim:0→host direct")
        expect_lanes(connection, other, [0, 2])
        assert [lane.number for lane in of(wire.Lane, heard.sent)] == [0, 0, 2, 2]
        # Messages stay where they were.
        assert connection.provider == other.provider == "shm"
        assert len(connection.statistics()) > 0

    def test_the_side_that_was_dialled_opens_odd_ones(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair(None)
        connection, other = both.connect()
        source, target = both.there.alloc(NBYTES, "sim:0"), both.here.alloc(NBYTES)
        assert write_over(both.there, source, target.share("rw")).startswith("verbs (rdma)")
        expect_lanes(connection, other, [0, 1])
        # The lane serves both.
        assert write_over(both.here, both.here.alloc(NBYTES, "sim:0"), both.there.alloc(NBYTES).share("rw"))
        assert numbers(connection) == [0, 1]

    def test_when_both_open_one_at_once_there_is_one(self, nic_pair: Callable[..., Pair]) -> None:
        for _ in range(5):
            both = nic_pair(None)
            connection, other = both.connect()
            targets = both.here.alloc(NBYTES), both.there.alloc(NBYTES)
            sources = both.here.alloc(NBYTES, "sim:0"), both.there.alloc(NBYTES, "sim:0")
            writes = [
                both.here.write(sources[0], targets[1].share("rw")),
                both.there.write(sources[1], targets[0].share("rw")),
            ]
            for write in writes:
                write.result(PATIENCE_S)
            expect_lanes(connection, other, [0, 1], [0, 2])

    def test_a_lane_of_tcp_beside_one_of_shm(self, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing faked but the cost by which it is chosen."""
        monkeypatch.setattr(path_choice, "lane_cost", lambda limits: None)
        monkeypatch.setitem(path_choice._USUAL, ("tcp", "stream"), path_choice.Cost(0.1, 1000.0))
        here, there = open_context(Options()), open_context(Options())
        connection = here.connect(there.url).result(PATIENCE_S)
        memory = there.register(np.zeros(NBYTES, np.uint8))
        source = here.register(pattern(3, NBYTES))
        assert write_over(here, source, memory.share("rw")).startswith("tcp (stream)")
        assert memory.read_bytes() == pattern(3, NBYTES).tobytes()
        assert [lane.provider for lane in connection._link.lanes.values()] == ["shm", "tcp"]
        assert connection.provider == "shm"
        assert connection.flush().result(PATIENCE_S) == 0
        connection.notify(7).result(PATIENCE_S)
        assert there.notification(PATIENCE_S).result().value == 7


class TestReplacing:
    def test_what_waits_goes_over_the_next_one_in_order(self, nic_pair: Callable[..., Pair], heard: Heard) -> None:
        both = nic_pair()
        connection, other = both.connect()
        end = end_of(connection)
        end.holds_on = True
        end.reset()
        eventually(lambda: connection._link.message_lane is None, "nobody noticed")
        into = [np.zeros(100, np.uint8) for _ in range(10)]
        sends = [connection.send(pattern(seed, 100)) for seed in range(10)]
        with pytest.raises(zh.WouldBlock):
            connection.send_nowait(pattern(77, 100))
        with pytest.raises(zh.WouldBlock):
            connection.notify_nowait(77)
        assert connection.alive
        assert not any(send.done() for send in sends)
        # Nothing is opened while there is something left of the old one.
        time.sleep(0.05)
        assert not of(wire.LaneDown, heard.sent)
        assert max(lane.number for lane in of(wire.Lane, heard.sent)) == 0
        end.holds_on = False
        eventually(lambda: numbers(other) == [2], "the lane is not replaced")
        receives = [other.recv(each) for each in into]
        for operation in (*sends, *receives):
            assert operation.result(PATIENCE_S) == 100
        for seed, received in enumerate(into):
            assert received.tobytes() == pattern(seed, 100).tobytes()
        assert connection.provider == other.provider == "verbs"
        assert numbers(connection) == numbers(other) == [2]
        # Each side says once that nothing is left, and both before the next one is opened.
        said = [
            (type(each).__name__, each.number) for each in heard.sent if isinstance(each, wire.Lane | wire.LaneDown)
        ]
        assert said[2:] == [("LaneDown", 0), ("LaneDown", 0), ("Lane", 2), ("Lane", 2)]
        assert not connection._link.session.lanes.draining  # type: ignore[union-attr]

    @pytest.mark.parametrize("side", ["the one that dialled", "the other"])
    def test_whichever_side_notices(self, nic_pair: Callable[..., Pair], side: str) -> None:
        both = nic_pair()
        connection, other = both.connect()
        sender, receiver = (connection, other) if side == "the one that dialled" else (other, connection)
        # Not an event, but the next post tells of it.
        end_of(sender).broken = True
        into = np.zeros(100, np.uint8)
        sent = sender.send(pattern(4, 100))
        eventually(lambda: numbers(receiver) == [2], "the lane is not replaced")
        assert receiver.recv(into).result(PATIENCE_S) == sent.result(PATIENCE_S) == 100
        assert into.tobytes() == pattern(4, 100).tobytes()

    def test_transfers_that_were_refused_are_posted_on_the_next_one(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        connection, _ = both.connect()
        source, target = both.here.register(pattern(5, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        write_over(both.here, source, handle)
        reached = len(both.their_nics.reached)
        for _ in range(3):
            target.fill(0)
            number = lane_of(connection, "verbs").number
            end_of(connection).broken = True
            assert write_over(both.here, source, handle).startswith("verbs (rdma)")
            assert target.read_bytes() == pattern(5, NBYTES).tobytes()
            assert lane_of(connection, "verbs").number > number
        # The keys are those of the NICs, and of no lane.
        assert len(both.their_nics.reached) == reached

    def test_on_an_event_loop(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        connection, other = both.connect()
        source, target = both.here.register(pattern(6, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        write_over(both.here, source, handle)

        async def work() -> None:
            end_of(connection).broken = True
            send = connection.send(pattern(1, 10))
            await asyncio.gather(both.here.write(source, handle), connection.notify(3))
            await both.here.notify(handle, 4)
            assert {(await both.there.notification(PATIENCE_S)).value for _ in range(2)} == {3, 4}
            assert await other.recv(np.zeros(10, np.uint8), timeout=PATIENCE_S) == await send == 10
            await both.here.flush()

        asyncio.run(work())

    def test_nowait_tells_when_it_can_go_on(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        connection, _ = both.connect()
        source, target = both.here.register(pattern(6, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        write_over(both.here, source, handle)
        end_of(connection).broken = True
        with pytest.raises(zh.WouldBlock):
            both.here.write_nowait(source, handle)
        when_taken(lambda: both.here.write_nowait(source, handle)).result(PATIENCE_S)
        when_taken(lambda: connection.notify_nowait(5)).result(PATIENCE_S)

    def test_on_other_ports_where_one_is_down(self, nic_pair: Callable[..., Pair], heard: Heard) -> None:
        """Keys belong to the NICs that they were asked for."""
        both = nic_pair()
        connection, _ = both.connect()
        source, target = both.here.register(pattern(7, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        write_over(both.here, source, handle)
        change_ports(both.nics, "fake0", alive=False)
        end_of(connection).reset()
        assert write_over(both.here, source, handle).startswith("verbs (rdma)")
        assert lane_of(connection, "verbs").rails == (1,)
        assert [request.rails for request in of(wire.ImportRequest, heard.sent)] == [[0, 1], [1]]
        eventually(lambda: both.here.statistics().mapped == 1, "the keys of before are kept")

    @pytest.mark.parametrize("side", ["here", "there"])
    def test_on_a_device_that_was_lost_and_opened_anew(
        self, nic_pair: Callable[..., Pair], heard: Heard, side: str
    ) -> None:
        """Memory is registered with it again; and where it was lost at the owner's end, the peer asks for new keys."""
        both = nic_pair(nics=1)
        connection, _ = both.connect()
        source, target = both.here.register(pattern(9, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        write_over(both.here, source, handle)
        nics = both.nics if side == "here" else both.their_nics
        lost, end = nics.domains["fake0"], end_of(connection)
        lose_device(nics, "fake0")
        if side == "there":
            # Its native end would learn of it by what it sends.
            end.reset()
        eventually(lambda: lost.closed, "nobody opens the device again")
        eventually(
            lambda: write_over(both.here, source, handle).startswith("verbs (rdma)"), "nobody comes back to the device"
        )
        new = nics.domains["fake0"]
        assert new.number != lost.number
        if side == "here":
            assert {lost.number, new.number} == set(source._registration.local_keys)
        else:
            assert [request.rails for request in of(wire.ImportRequest, heard.sent)] == [[0], [0]]
            assert len(nics.reached) == 2

    def test_over_tcp_where_no_port_is_left_and_back(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        connection, other = both.connect()
        source, target = both.here.register(pattern(8, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        write_over(both.here, source, handle)
        change_ports(both.nics, "fake0", "fake1", alive=False)
        end_of(connection).reset()
        taken = both.here.write(source, handle)
        taken.result(PATIENCE_S)
        assert str(taken.explain()).startswith("tcp (stream)")
        assert "fake0 port 1: the port or its device is down" in taken._path.explanation.details()  # type: ignore[union-attr]
        eventually(lambda: connection.provider == other.provider == "tcp", "messages have no lane")
        change_ports(both.nics, "fake0", "fake1", alive=True)
        eventually(lambda: not connection._link.failed.failing(), "nobody was told that the ports are back")
        assert write_over(both.here, source, handle).startswith("verbs (rdma)")

    @pytest.mark.parametrize("side", ["the one that dialled", "the other"])
    def test_none_can_be_had_for_now(self, nic_pair: Callable[..., Pair], side: str) -> None:
        """Who waits is told why and what to do, the Connection stays, and the next use tries again."""
        both = nic_pair(only=True)
        connection, other = both.connect()
        user = connection if side == "the one that dialled" else other
        change_ports(both.nics, "fake0", "fake1", alive=False)
        end_of(connection).reset()
        eventually(lambda: user._link.message_lane is None, "nobody noticed")
        for _ in range(3):
            with pytest.raises(zh.PeerLost, match="fake0 port 1: the port or its device is down") as caught:
                user.notify(1).result(PATIENCE_S)
            assert "port" in caught.value.fix
            assert "tcp" in caught.value.fix
        source, target = (
            (both.here if user is connection else both.there).register(pattern(1, NBYTES)),
            both.there.alloc(NBYTES),
        )
        if user is connection:
            with pytest.raises(zh.PeerLost, match="the port or its device is down"):
                both.here.write(source, target.share("rw")).result(PATIENCE_S)
        assert connection.alive
        assert other.alive
        for device in ("fake0", "fake1"):
            both.nics.domains[device].alive = True
        assert user.notify(2).result(PATIENCE_S) == 0
        receiver = both.there if user is connection else both.here
        assert receiver.notification(PATIENCE_S).result().value == 2
        if user is connection:
            write_over(both.here, source, target.share("rw"))

    def test_an_answer_to_what_was_asked_before_is_none(
        self, nic_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The side that does not open the lane waits for what is tried after it has asked."""
        both = nic_pair(only=True)
        connection, other = both.connect()
        asked: list[tuple[lanes.Lanes, wire.LaneWanted]] = []
        wanted = lanes.Lanes.on_lane_wanted
        monkeypatch.setattr(lanes.Lanes, "on_lane_wanted", lambda self, message: asked.append((self, message)))
        change_ports(both.nics, "fake0", "fake1", alive=False)
        end_of(connection).reset()
        eventually(lambda: other._link.message_lane is None, "nobody noticed")
        operation = other.notify(2)
        eventually(lambda: bool(asked), "the peer is not asked")
        session: Any = connection._link.session
        both.here._core.control.call(session._channel.post, wire.LaneMissing(text="before", wanted=0))
        change_ports(both.nics, "fake0", "fake1", alive=True)
        both.here._core.control.call(wanted, *asked[0])
        assert operation.result(PATIENCE_S) == 0
        assert both.here.notification(PATIENCE_S).result().value == 2

    def test_nowait_is_told_too(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair(only=True)
        connection, _ = both.connect()
        change_ports(both.nics, "fake0", "fake1", alive=False)
        end_of(connection).reset()
        eventually(lambda: connection._link.message_lane is None, "nobody noticed")
        told = when_taken(lambda: connection.notify_nowait(1))
        with pytest.raises(zh.PeerLost, match="the port or its device is down"):
            told.result(PATIENCE_S)

    def test_one_that_breaks_before_both_count_it_as_up(
        self, nic_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The side that opens it hears of that between its own LaneReady and the peer's: it is up, then down."""
        from zerohop.core.lanes.lane_setup import LaneSetup

        both = nic_pair()
        ready = LaneSetup.on_lane_ready
        broken: list[Lane] = []

        def breaking(self: LaneSetup, message: wire.LaneReady) -> None:
            lane = self._lanes.all.get(message.number)
            if lane is not None and lane.mine and not broken:
                broken.append(lane)
                lane.endpoint.reset()  # type: ignore[attr-defined]
                self._lanes.take_down_dead()
                assert lane.state is State.OPENING
            ready(self, message)

        monkeypatch.setattr(LaneSetup, "on_lane_ready", breaking)
        connection, other = both.connect()
        eventually(lambda: numbers(connection) == numbers(other) == [2], "the lane is not replaced")
        assert connection.notify(3).result(PATIENCE_S) == 0
        assert len(broken) == 1

    def test_a_flush_waits_until_nothing_is_left_of_it(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        connection, other = both.connect()
        theirs = end_of(other)
        theirs.holds_on = True
        end_of(connection).reset()
        eventually(lambda: not connection._link.lanes, "nobody noticed")
        flush = connection.flush()
        time.sleep(0.05)
        assert not flush.done()
        theirs.holds_on = False
        assert flush.result(PATIENCE_S) == 0

    def test_closing_while_it_is_replaced(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        connection, other = both.connect()
        end_of(other).holds_on = True
        end_of(connection).reset()
        eventually(lambda: not connection._link.lanes and not other._link.lanes, "nobody noticed")
        waiting = connection.notify(1)
        connection.close()
        with pytest.raises(zh.ZerohopError):
            waiting.result(PATIENCE_S)
        eventually(lambda: not other.alive, "the peer was not told")


def test_a_lane_is_named_in_words(nic_pair: Callable[..., Pair]) -> None:
    connection, _ = nic_pair().connect()
    assert repr(lane_of(connection, "verbs")) == "<Lane 0 over verbs, up>"
    assert lane_of(connection, "verbs").state is State.UP


@pytest.mark.parametrize("warn", [True, False])
def test_both_sides_warn_of_a_lane_or_neither(
    nic_pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture, warn: bool
) -> None:
    both = nic_pair()
    connection, other = both.connect()
    session: Any = connection._link.session
    lane = lane_of(connection, "verbs")
    both.here._core.control.call(lambda: session.lanes.go_down(lane, "the Context is closed", warn=warn))
    eventually(lambda: numbers(connection) == numbers(other) == [2], "the lane is not replaced")
    warnings = [record.getMessage() for record in caplog.records if "went down" in record.getMessage()]
    assert len(warnings) == (2 if warn else 0), warnings
