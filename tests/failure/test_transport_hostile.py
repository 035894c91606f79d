"""Peers of Transports that say what no Transport says: they get an error or lose the Connection, and pairs go on."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

import zerohop as zh
from support.leaks import SETTLE_S
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.raw_control import RawControl
from support.strangers import SERVICE, STRANGER, Pair, answer_to, ask, expect_refused, raw_peer, said
from zerohop._native import Reason, Status
from zerohop.core.control import wire
from zerohop.core.peers.service import Refusal
from zerohop.core.transfers.op_group import QUEUE_SHIFT
from zerohop.transport import pairing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.fixtures import OpenContext
    from zerohop.core.peers.peer_link import PeerLink

DEADLINE_S = 0.2


@pytest.fixture(params=["shm", "tcp"])
def pair(open_context: OpenContext, request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(open_context, request.param)
    yield made
    made.expect_use()
    made.close()


class TestWhatIsNoMessage:
    """Refused by name; the Connection goes on, because another service may be meant by another version."""

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\0",
            b"\xc1",
            b"garbage",
            bytes(range(256)) * 4,
            bytes(64 << 10),
            b"\x91" * 5000,
            msgspec.msgpack.encode({}),
            msgspec.msgpack.encode({"type": "reserve"}),
            msgspec.msgpack.encode({"type": "conquer", "to": bytes(16), "me": bytes(16)}),
            msgspec.msgpack.encode({"type": "reserve", "to": "0" * 16, "me": bytes(16)}),
            said("reserve", bytes(15), bytes(16)),
            said("reserve", bytes(16), bytes(17)),
            said("reserve", bytes(16), b""),
            said("join", bytes(16), bytes(16)),
            said("join", bytes(16), bytes(16), queue=None),
            said("join", bytes(16), bytes(16), queue=1.5),
            said("leave", bytes(16), bytes(16))[:-1],
            said("leave", bytes(16), bytes(16)) + b"\0",
        ],
        ids=range(19),
    )
    def test_garbage(self, pair: Pair, body: bytes) -> None:
        with raw_peer(pair.there.context) as client:
            expect_refused(ask(client, body), Status.UNSUPPORTED, "not what a Transport says")
            expect_refused(ask(client, body, number=2), Status.UNSUPPORTED, "not what a Transport says")

    @pytest.mark.parametrize("queue", [0, -1, 1 << 16, 1 << 63])
    def test_a_queue_that_there_cannot_be(self, pair: Pair, queue: int) -> None:
        """Of a peer that has reserved: it may still join as it should."""
        with zh.Transport(ctx=pair.there.context) as free, raw_peer(free.context) as client:
            free.bind()
            to = free._pairing.id
            assert ask(client, said("reserve", to, STRANGER)).status == Status.OK.value
            answer = ask(client, said("join", to, STRANGER, queue=queue), number=2)
            expect_refused(answer, Status.UNSUPPORTED, "not what a Transport says")
            assert not free.connected()
            assert ask(client, said("join", to, STRANGER, queue=1), number=3).status == Status.OK.value
            assert free.connected()

    @pytest.mark.parametrize("service", ["", "Transport", "group", "transport\0", "x" * 256])
    def test_a_service_that_there_is_not(self, pair: Pair, service: str) -> None:
        with raw_peer(pair.there.context) as client:
            answer = ask(client, said("reserve", pair.there._pairing.id, STRANGER), service=service)
            expect_refused(answer, Status.UNSUPPORTED, "nothing of that kind")

    @pytest.mark.parametrize(
        "message",
        [
            wire.Call(number=1, service="x" * 257, body=b""),
            wire.Call(number=1, service=SERVICE, body=bytes((64 << 10) + 1)),
            wire.Call(number=-1, service=SERVICE, body=b""),
            wire.Answer(number=1, status=0, body=bytes((64 << 10) + 1)),
            wire.Answer(number=1, status=256),
            wire.Answer(number=1, status=Status.ACCESS_DENIED.value, text="x" * (wire.MAX_LONG_TEXT + 1)),
        ],
        ids=["service", "body", "number", "answer's body", "status", "text"],
    )
    def test_more_than_a_message_may_have(self, pair: Pair, message: wire.Message) -> None:
        with raw_peer(pair.there.context) as client:
            client.send(message)
            assert client.hung_up()

    def test_before_setup(self, pair: Pair) -> None:
        with contextlib.closing(RawControl(pair.there.context.url, unix=False)) as client:
            client.shake_hands()
            client.send(wire.Call(number=1, service=SERVICE, body=said("reserve", pair.there._pairing.id, STRANGER)))
            assert client.hung_up()


class TestStrangers:
    """Who is no part of a pair, and knows the ids of both: these are in their URLs."""

    @pytest.mark.parametrize("what", ["reserve", "join", "leave"])
    def test_of_a_transport_that_is_not_there(self, pair: Pair, what: str) -> None:
        with raw_peer(pair.there.context) as client:
            body = said(what, os.urandom(16), STRANGER, **({"queue": 1} if what == "join" else {}))
            answer = ask(client, body)
            expect_refused(answer, Status.PEER_LOST, "no such Transport any more")
            assert answer.reason == Reason.PEER_CLOSED.value

    def test_a_pair_that_is_taken(self, pair: Pair) -> None:
        with raw_peer(pair.there.context) as client:
            to = pair.there._pairing.id
            answer = ask(client, said("reserve", to, STRANGER))
            expect_refused(answer, Status.ACCESS_DENIED, "connected to another")
            answer = ask(client, said("join", to, STRANGER, queue=1), number=2)
            expect_refused(answer, Status.ACCESS_DENIED, "not reserved before")

    def test_one_that_was_not_reserved(self, pair: Pair) -> None:
        with zh.Transport(ctx=pair.there.context) as free, raw_peer(free.context) as client:
            free.bind()
            answer = ask(client, said("join", free._pairing.id, STRANGER, queue=1))
            expect_refused(answer, Status.ACCESS_DENIED, "not reserved before")
            assert not free.connected()

    @pytest.mark.parametrize("me", ["the peer", "a stranger", "itself"])
    def test_they_end_no_pair(self, pair: Pair, me: str) -> None:
        ids = {"the peer": pair.here._pairing.id, "a stranger": STRANGER, "itself": pair.there._pairing.id}
        with raw_peer(pair.there.context) as client:
            ask(client, said("leave", pair.there._pairing.id, ids[me]))
            assert pair.there.connected()
            pair.expect_use()

    def test_a_transport_of_a_third_context_ends_no_pair(self, pair: Pair, open_context: OpenContext) -> None:
        """With an honest Connection, over which it says that it is the other one."""
        third = open_context(Options(providers=pair.there.context._core.providers))
        connection = third.connect(pair.there.context.url).result(PATIENCE_S)
        third._core.control.call(pairing.leave, connection._link, pair.there._pairing.id, pair.here._pairing.id)
        # Answered in order: after this the other has been heard.
        with zh.Transport(ctx=third) as stranger, pytest.raises(zh.AccessDenied, match="connected to another"):
            stranger.connect(pair.there.bind()).result(PATIENCE_S)
        pair.expect_use()

    def test_they_join_in_nobodys_place(self, pair: Pair) -> None:
        """What one peer has reserved is not joined, and not given up, by another that says that it is the first."""
        with zh.Transport(ctx=pair.there.context) as free:
            free.bind()
            to = free._pairing.id
            with raw_peer(free.context) as first, raw_peer(free.context) as second:
                assert ask(first, said("reserve", to, STRANGER)).status == Status.OK.value
                answer = ask(second, said("reserve", to, STRANGER))
                expect_refused(answer, Status.ACCESS_DENIED, "about to be")
                answer = ask(second, said("join", to, STRANGER, queue=1), number=2)
                expect_refused(answer, Status.ACCESS_DENIED, "not reserved before")
                ask(second, said("leave", to, STRANGER), number=3)
                assert not free.connected()
                assert ask(first, said("join", to, STRANGER, queue=1), number=2).status == Status.OK.value
                assert free.connected()
                answer = ask(second, said("join", to, STRANGER, queue=1), number=4)
                expect_refused(answer, Status.ACCESS_DENIED, "not reserved before")

    def test_they_join_in_place_of_whom_it_connects_to(self, pair: Pair, open_context: OpenContext) -> None:
        """One that is just connecting takes no other Context for the one in the URL that it was given."""
        other = open_context(Options(providers=pair.there.context._core.providers))
        with zh.Transport(ctx=pair.there.context) as free, zh.Transport(ctx=other) as wanted:
            free.bind()
            url = wanted.bind()
            with _answering_late(other) as go_on, raw_peer(free.context) as client:
                pending = free.connect(url)
                answer = ask(client, said("reserve", free._pairing.id, wanted._pairing.id))
                expect_refused(answer, Status.ACCESS_DENIED, "about to be")
                go_on()
                pending.result(PATIENCE_S)
                assert free.peer == other.id

    @pytest.mark.parametrize("other_comes", [False, True])
    def test_what_was_reserved_lapses(self, pair: Pair, monkeypatch: pytest.MonkeyPatch, other_comes: bool) -> None:
        """For another Transport that comes; without one, a slow peer may still join."""
        monkeypatch.setattr(pairing, "RESERVED_S", 0.0)
        with zh.Transport(ctx=pair.there.context) as free, raw_peer(free.context) as client:
            free.bind()
            to = free._pairing.id
            assert ask(client, said("reserve", to, STRANGER)).status == Status.OK.value
            if not other_comes:
                assert ask(client, said("join", to, STRANGER, queue=1), number=2).status == Status.OK.value
                return
            with zh.Transport(ctx=pair.here.context) as other:
                other.connect(free.bind()).result(PATIENCE_S)
                answer = ask(client, said("join", to, STRANGER, queue=1), number=2)
                expect_refused(answer, Status.ACCESS_DENIED, "not reserved before")
                assert free.peer == pair.here.context.id

    def test_what_was_reserved_in_anothers_name_lapses(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        """For that other one, which comes from a Context of its own; ids stand in URLs."""
        monkeypatch.setattr(pairing, "RESERVED_S", 0.0)
        with (
            zh.Transport(ctx=pair.there.context) as free,
            zh.Transport(ctx=pair.here.context) as other,
            raw_peer(free.context) as client,
        ):
            url = free.bind()
            answer = ask(client, said("reserve", free._pairing.id, other._pairing.id))
            assert answer.status == Status.OK.value
            other.connect(url).result(PATIENCE_S)
            assert free.peer == pair.here.context.id

    def test_what_was_reserved_lapses_for_other_contexts_first(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A peer that reserves under one id after another keeps nobody away for longer than with one."""
        now = [1000.0]
        monkeypatch.setattr(pairing, "time", SimpleNamespace(monotonic=lambda: now[0]))
        with (
            zh.Transport(ctx=pair.there.context) as free,
            zh.Transport(ctx=pair.here.context) as other,
            raw_peer(free.context) as client,
        ):
            url, to = free.bind(), free._pairing.id
            assert ask(client, said("reserve", to, STRANGER)).status == Status.OK.value
            now[0] += 1.5 * pairing.RESERVED_S
            expect_refused(ask(client, said("reserve", to, b"2" * 16), number=2), Status.ACCESS_DENIED, "about to be")
            other.connect(url).result(PATIENCE_S)
            assert free.peer == pair.here.context.id

    def test_what_was_reserved_is_not_renewed(self, pair: Pair) -> None:
        """A peer that asks again and again keeps others away no longer than one that asks once."""
        with zh.Transport(ctx=pair.there.context) as free, raw_peer(free.context) as client:
            free.bind()
            ends = []
            for number in (1, 2):
                answer = ask(client, said("reserve", free._pairing.id, STRANGER), number=number)
                assert answer.status == Status.OK.value
                assert free._pairing._reserved is not None
                ends.append(free._pairing._reserved.until)
            assert ends[0] == ends[1]

    def test_what_was_reserved_is_free_when_they_are_gone(self, pair: Pair) -> None:
        with zh.Transport(ctx=pair.there.context) as free:
            free.bind()
            with raw_peer(free.context) as client:
                assert ask(client, said("reserve", free._pairing.id, STRANGER)).status == Status.OK.value
                other = zh.Transport(ctx=pair.here.context)
                with other, pytest.raises(zh.AccessDenied, match="about to be"):
                    other.connect(free.bind()).result(PATIENCE_S)
            with zh.Transport(ctx=pair.here.context) as other:
                _connect_soon(other, free.bind())

    @pytest.mark.parametrize(
        "queue", ["of a pair", "of one that is free", "of arrivals", "that there is not", "of none"]
    )
    def test_their_notifications(self, pair: Pair, open_context: OpenContext, queue: str) -> None:
        """Which are for nobody: no Transport takes them for its peer's, and the Context's own are as they were."""
        third = open_context(Options(providers=pair.there.context._core.providers))
        with zh.Transport(ctx=pair.there.context) as free:
            numbers = {
                "of a pair": pair.there._group.number,
                "of one that is free": free._group.number,
                "of arrivals": pair.there.context._core.arrivals.number,
                "that there is not": 60_000,
                "of none": 0xFFFF,
            }
            connection = third.connect(pair.there.context.url).result(PATIENCE_S)
            assert connection._link.endpoint is not None
            deadline = time.monotonic_ns() + int(PATIENCE_S * 1e9)
            # More than a lane has credit for: what is dropped gives it back.
            for number in range(10_000):
                value = numbers[queue] << QUEUE_SHIFT | number
                posted = third._core.engine.post_notify(connection._link.endpoint, value, deadline)
                assert isinstance(posted, int) or posted.wait(deadline, 0)
            connection.notify(7).result(PATIENCE_S)
            note = pair.there.context.notification(PATIENCE_S).result()
            assert note[:2] == (7, 0)
            for transport in (pair.there, free):
                with pytest.raises(zh.DeadlineExceeded):
                    transport.wait_for_write(0.01).result(PATIENCE_S)
            arrived = [_accepted(pair.there.context) for _ in range(3)]
            assert arrived.count(third.id) == 1
            assert arrived[-1] is None


def _accepted(context: zh.Context) -> str | None:
    """Return the id of the next peer that has connected by itself; None if there is none."""
    try:
        return context.accept(timeout=0.01).result(PATIENCE_S).peer
    except zh.DeadlineExceeded:
        return None


@contextlib.contextmanager
def _answering_late(context: zh.Context) -> Iterator[Callable[[], None]]:
    """Its Calls are read when the given function is called, and at the end."""
    entered, gate = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        gate.wait(PATIENCE_S)

    context._core.control.call(hold)
    assert entered.wait(PATIENCE_S)
    try:
        yield gate.set
    finally:
        gate.set()


def _connect_soon(transport: zh.Transport, url: str) -> None:
    """Once the other side has noticed that a third one is gone, for which there is no event here."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        try:
            transport.connect(url).result(PATIENCE_S)
        except zh.AccessDenied:
            assert time.monotonic() < deadline, "it still waits for one that is gone"
            time.sleep(0.01)
        else:
            return


class TestAnswers:
    """Of a peer that a Transport connects to."""

    @pytest.mark.parametrize(
        "answer",
        [b"", b"\xc1", b"garbage", bytes(64 << 10), *map(msgspec.msgpack.encode, (0, -1, 1 << 16, 1 << 63, "1", None))],
        ids=range(10),
    )
    def test_garbage(self, pair: Pair, open_context: OpenContext, answer: bytes) -> None:
        liar = open_context(Options(providers=pair.here.context._core.providers))
        liar._core.services[SERVICE] = lambda *_: answer
        with zh.Transport(ctx=pair.here.context) as transport:
            for _ in range(2):
                with pytest.raises(zh.ProtocolError, match="malformed"):
                    transport.connect(f"{liar.url}&transport={STRANGER.hex()}").result(PATIENCE_S)
            assert not transport.connected()
            self._expect_free(transport, pair)

    def test_a_refusal_after_the_first_answer(self, pair: Pair, open_context: OpenContext) -> None:
        liar = open_context(Options(providers=pair.here.context._core.providers))
        heard: list[bytes] = []

        def service(_link: PeerLink, body: bytes) -> bytes:
            heard.append(body)
            if len(heard) == 1:
                return msgspec.msgpack.encode(1)
            raise Refusal(Status.ACCESS_DENIED, "changed its mind")

        liar._core.services[SERVICE] = service
        with zh.Transport(ctx=pair.here.context) as transport:
            with pytest.raises(zh.AccessDenied, match="changed its mind"):
                transport.connect(f"{liar.url}&transport={STRANGER.hex()}").result(PATIENCE_S)
            self._expect_free(transport, pair)

    @pytest.mark.parametrize("answers", [0, 2])
    def test_none_or_two(self, pair: Pair, open_context: OpenContext, answers: int) -> None:
        """Nobody waits for more than one, and for none no longer than the deadline is."""
        liar = open_context(Options(providers=pair.here.context._core.providers))
        with zh.Transport(ctx=pair.here.context) as transport, zh.Transport(ctx=liar) as other:
            url = other.bind()
            liar.connect(pair.here.context.url).result(PATIENCE_S)
            with _changed_answers(liar, pair.here.context, lambda answer: [answer] * answers):
                pending = transport.connect(url, timeout=PATIENCE_S if answers else DEADLINE_S)
                if answers:
                    pending.result(PATIENCE_S)
                    into = transport.register(np.zeros(8, np.uint8))
                    other.write(pattern(1, 8), into.share("rw"), notify=3).result(PATIENCE_S)
                    assert transport.wait_for_write(PATIENCE_S).result().value == 3
                else:
                    assert isinstance(pending.exception(PATIENCE_S), zh.DeadlineExceeded)
            if not answers:
                # Ordinary again.
                _connect_soon(transport, url)

    @pytest.mark.parametrize("status", [Status.PENDING.value, Status.CLOSED.value, Status.NO_MEMORY.value, 99, 255])
    def test_a_status_that_no_answer_has(self, pair: Pair, open_context: OpenContext, status: int) -> None:
        """The session ends, and with it whatever was asked."""
        liar = open_context(Options(providers=pair.here.context._core.providers))
        with zh.Transport(ctx=pair.here.context) as transport, zh.Transport(ctx=liar) as other:
            url = other.bind()
            liar.connect(pair.here.context.url).result(PATIENCE_S)
            lies = _changed_answers(liar, pair.here.context, lambda answer: [wire.Answer(answer.number, status)])
            with lies, pytest.raises(zh.ProtocolError, match=f"malformed.*status {status}"):
                transport.connect(url).result(PATIENCE_S)
            _connect_soon(transport, url)

    @pytest.mark.parametrize("reason", [0, 200, 255])
    def test_a_reason_that_there_is_not(self, pair: Pair, open_context: OpenContext, reason: int) -> None:
        liar = open_context(Options(providers=pair.here.context._core.providers))
        with zh.Transport(ctx=pair.here.context) as transport, zh.Transport(ctx=liar) as other:
            url = other.bind()
            liar.connect(pair.here.context.url).result(PATIENCE_S)
            refused = Status.ACCESS_DENIED.value

            def lie(answer: wire.Answer) -> list[wire.Answer]:
                return [wire.Answer(answer.number, refused, reason, "for no reason")]

            lies = _changed_answers(liar, pair.here.context, lie)
            with lies, pytest.raises(zh.AccessDenied, match="for no reason"):
                transport.connect(url).result(PATIENCE_S)

    def test_never_asked_for(self, pair: Pair) -> None:
        """Dropped, whatever it says."""
        with raw_peer(pair.there.context) as client:
            client.send_together(
                wire.Answer(number=number, status=status, body=b"unasked")
                for number in (0, 1, (1 << 63) - 1)
                for status in (0, Status.ACCESS_DENIED.value, 99, 255)
            )
            expect_refused(ask(client, b""), Status.UNSUPPORTED, "not what a Transport says")

    def _expect_free(self, transport: zh.Transport, pair: Pair) -> None:
        """What it has failed to join does not keep it."""
        with zh.Transport(ctx=pair.there.context) as other:
            transport.connect(other.bind()).result(PATIENCE_S)
            assert transport.connected()


@contextlib.contextmanager
def _changed_answers(
    liar: zh.Context, victim: zh.Context, change: Callable[[wire.Answer], list[wire.Answer]]
) -> Iterator[None]:
    """What one Context answers another's Calls is replaced, for as long as this lasts."""
    session: Any = liar._core.connected[victim.id].session
    post = session._rpc._channel.post

    class Changed:
        def post(self, message: wire.Message) -> None:
            for each in change(message) if isinstance(message, wire.Answer) else [message]:
                post(each)

    honest, session._rpc._channel = session._rpc._channel, Changed()
    try:
        yield
    finally:
        session._rpc._channel = honest


class TestTooMany:
    def test_calls_that_nobody_reads_the_answers_of(self, pair: Pair) -> None:
        """What cannot be sent is bounded: the peer is hung up on, and nobody else waits for it."""
        with raw_peer(pair.there.context) as client:
            call = wire.encode(wire.Call(number=1, service="x" * 256, body=b""))
            piece = call * (1024 * 1024 // len(call))
            client.socket.settimeout(PATIENCE_S)
            # What the kernel holds for both ends comes on top of the limit.
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                client.socket.sendall(piece * 64)
            pair.expect_use()

    def test_calls_that_are_answered(self, pair: Pair) -> None:
        """Many at once, each answered once and in order."""
        count = 5000
        with raw_peer(pair.there.context) as client:
            client.send_together(wire.Call(number=number, service="none", body=b"") for number in range(count))
            for number in range(count):
                answer = answer_to(client, number)
                assert answer is not None
                assert answer.status == Status.UNSUPPORTED.value

    def test_calls_of_this_side(self, pair: Pair, open_context: OpenContext) -> None:
        """To a peer that answers none: they are limited in number, and end with their deadlines."""
        liar = open_context(Options(providers=pair.here.context._core.providers))
        session: Any = pair.here.context.connect(liar.url).result(PATIENCE_S)._link.session
        liar.connect(pair.here.context.url).result(PATIENCE_S)
        assert session is not None
        calls = session._rpc
        with _changed_answers(liar, pair.here.context, lambda _: []):
            transports = [zh.Transport(ctx=pair.here.context) for _ in range(20)]
            pending = [one.connect(f"{liar.url}&transport={STRANGER.hex()}", timeout=DEADLINE_S) for one in transports]
            for one in pending:
                assert isinstance(one.exception(PATIENCE_S), zh.DeadlineExceeded)
        for transport in transports:
            transport.close()
        deadline = time.monotonic() + SETTLE_S
        while calls._pending:
            assert time.monotonic() < deadline, "it still waits for answers that nobody wants"
            time.sleep(0.005)  # they end on the control thread, which tells nobody
