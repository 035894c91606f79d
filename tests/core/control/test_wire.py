"""Messages survive the trip, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zerohop as zh
from zerohop.core.control import wire

ID = "0123456789abcdef" * 2
LONGEST_BODY = 64 << 10
MESSAGES: list[wire.Message] = [
    wire.Hello(
        version=wire.VERSION,
        magic="zerohop",
        context=ID,
        host=ID,
        pid=7,
        name="me",
        purpose="lane",
        nonce=bytes(32),
        has_secret=True,
        encryption="control",
        tls=True,
        token=b"t" * 16,
    ),
    wire.Challenge(context=ID, host=ID, nonce=bytes(32)),
    wire.Prove(proof=bytes(32)),
    wire.Accept(proof=bytes(32)),
    wire.Location(proof=bytes(32), socket_path=b"/tmp/zerohop-0-x/s"),
    wire.Refuse(version=1, code="secret", text="wrong secret"),
    wire.Setup(
        providers=["shm"],
        url="zerohop://h:1/",
        name="",
        nics=[wire.Nic(name="mlx5_0", port=1, link="InfiniBand", gbps=50.0, subnet="fe80"), wire.Nic(name="x", port=2)],
        nfds=2,
    ),
    wire.Lane(number=0, provider="shm", address=b"ring", messages=True, nfds=1),
    wire.Lane(number=3, provider="verbs", address=b"queue pairs", rails=[(0, 0), (15, 2)]),
    wire.LaneInvite(number=2, tokens=[bytes(16)]),
    wire.LaneReady(number=2),
    wire.LaneFailed(number=7, text="out of memory", down=[0, 15]),
    wire.LaneDown(number=7, text="no answer"),
    wire.LaneWanted(text="there is something to send"),
    wire.LaneQuiet(number=4, answer=True),
    wire.LaneMissing(text="the port is down"),
    wire.ImportRequest(request=1, provider="shm", wanted=[wire.Wanted((1 << 64) - 1, bytes(16))]),
    wire.ImportRequest(request=1, provider="verbs", wanted=[wire.Wanted(1, bytes(16))] * 2, rails=[1, 0]),
    wire.Allocation(number=1, provider="shm", nbytes=4096, writable=True, offset=1, nfds=1),
    wire.Allocation(
        number=2,
        provider="p2p",
        nbytes=4096,
        writable=False,
        exported=wire.Exported("cuda-ipc", "GPU", 1, 1 << 47, 0, [(4096, b"handle")]),
        more=True,
    ),
    wire.AllocationPart(number=2, pieces=[(4096, b"")], nfds=1),
    wire.ImportReply(
        request=1,
        answers=[
            wire.Imported(status=0, offset=1, nbytes=2, rights=3, allocation=1),
            wire.Imported(status=0, nbytes=2, rights=3, address=(1 << 64) - 1, keys=[0, (1 << 32) - 1], atomics=True),
        ],
    ),
    wire.Release(provider="verbs", shares=[5]),
    wire.Released(provider="shm", shares=[5, 6], allocations=[1]),
    wire.Call(number=(1 << 63) - 1, service="transport", body=b""),
    wire.Call(number=0, service="", body=bytes(range(256))),
    wire.Answer(number=0, status=0, body=b"here"),
    wire.Answer(number=(1 << 63) - 1, status=255, reason=255, text="it is taken"),
    wire.Bye(text="done"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: wire.Message) -> None:
    frame = wire.encode(message)
    length = wire.body_length(frame[: wire.HEADER.size], wire.MAX_FRAME)
    assert length == len(frame) - wire.HEADER.size
    assert wire.decode(frame[wire.HEADER.size :]) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_truncation_and_extension_is_refused(message: wire.Message) -> None:
    body = wire.encode(message)[wire.HEADER.size :]
    for end in range(len(body)):
        with pytest.raises(zh.ProtocolError):
            wire.decode(body[:end])
    with pytest.raises(zh.ProtocolError):
        wire.decode(body + b"\0")


@given(st.binary(max_size=200))
def test_random_bytes_are_no_message(body: bytes) -> None:
    with pytest.raises(zh.ProtocolError):
        wire.decode(body)
    with pytest.raises(zh.ProtocolError):
        wire.decode_hello(body)


@given(st.sampled_from(MESSAGES), st.data())
def test_mutated_messages_decode_or_are_refused(message: wire.Message, data: st.DataObject) -> None:
    body = bytearray(wire.encode(message)[wire.HEADER.size :])
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] = data.draw(st.integers(0, 255))
    try:
        decoded = wire.decode(bytes(body))
    except zh.ProtocolError:
        return
    assert wire.decode(wire.encode(decoded)[wire.HEADER.size :]) == decoded


@pytest.mark.parametrize("header", [b"GET ", b"\xff" * 4, b"\0\x10\0\1"])
def test_other_protocols_announce_too_much(header: bytes) -> None:
    with pytest.raises(zh.ProtocolError, match="malformed"):
        wire.body_length(header, wire.MAX_FRAME)


def test_the_limit_before_authentication() -> None:
    header = wire.HEADER.pack(wire.MAX_FRAME_UNAUTHENTICATED + 1)
    assert wire.body_length(header, wire.MAX_FRAME)
    with pytest.raises(zh.ProtocolError):
        wire.body_length(header, wire.MAX_FRAME_UNAUTHENTICATED)


def test_another_version_is_named_before_anything_else_is_read() -> None:
    body = msgspec.msgpack.encode({"type": "hello", "version": 99, "of": "another world"})
    with pytest.raises(wire.OtherVersion, match=rf"version 99 .* version {wire.VERSION}"):
        wire.decode_hello(body)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("context", "short"),
        ("context", ID.upper()),
        ("host", ID + "0"),
        ("nonce", b"short"),
        ("purpose", "fun"),
        ("magic", "zerohope"),
        ("token", b"x" * 17),
        ("name", "x" * 257),
        ("pid", -1),
    ],
)
def test_values_out_of_range(field: str, value: object) -> None:
    hello = msgspec.to_builtins(MESSAGES[0], builtin_types=(bytes,)) | {field: value}
    with pytest.raises(zh.ProtocolError):
        wire.decode_hello(msgspec.msgpack.encode(hello))


def test_a_message_too_long_is_not_sent() -> None:
    with pytest.raises(zh.ProtocolError, match="longer"):
        wire.encode(wire.Lane(number=0, provider="shm", address=bytes(wire.MAX_FRAME)))


@pytest.mark.parametrize(
    "message",
    [
        wire.Setup(providers=[], url="", name="", nics=[wire.Nic(name="x", port=1)] * (wire.MAX_NICS + 1)),
        wire.Setup(providers=[], url="", name="", nics=[wire.Nic(name="x", port=0)]),
        wire.Setup(providers=[], url="", name="", nics=[wire.Nic(name="x", port=1, gbps=-1.0)]),
        wire.Setup(providers=[], url="", name="", nics=[wire.Nic(name="x", port=1, gbps=float("nan"))]),
        wire.Setup(providers=["x"] * 17, url="", name=""),
        wire.Lane(number=-1, provider="verbs", address=b""),
        wire.Lane(number=1 << 32, provider="verbs", address=b""),
        wire.Lane(number=0, provider="verbs", address=bytes(4097)),
        wire.Lane(number=0, provider="verbs", address=b"", rails=[(0, wire.MAX_NICS)]),
        wire.Lane(number=0, provider="verbs", address=b"", rails=[(-1, 0)]),
        wire.Lane(number=0, provider="verbs", address=b"", rails=[(0, 0)] * (wire.MAX_NICS + 1)),
        wire.LaneFailed(number=0, text="", down=[wire.MAX_NICS]),
        wire.ImportRequest(request=0, provider="verbs", wanted=[]),
        wire.ImportRequest(request=0, provider="verbs", wanted=[wire.Wanted(0, bytes(16))] * (wire.MAX_SHARES + 1)),
        wire.ImportRequest(request=0, provider="verbs", wanted=[wire.Wanted(-1, bytes(16))]),
        wire.ImportRequest(request=0, provider="verbs", wanted=[wire.Wanted(0, bytes(15))]),
        wire.ImportRequest(request=0, provider="verbs", wanted=[wire.Wanted(0, bytes(16))], rails=[0] * 17),
        wire.Allocation(number=-1, provider="shm", nbytes=1, writable=True),
        wire.Allocation(number=0, provider="shm", nbytes=-1, writable=True),
        wire.Allocation(number=0, provider="shm", nbytes=1, writable=True, offset=-1),
        wire.Allocation(number=0, provider="shm", nbytes=1, writable=True, nfds=wire.MAX_FDS + 1),
        wire.AllocationPart(number=0, pieces=[(1, b"")] * (wire.MAX_FDS + 1)),
        wire.ImportReply(request=0, answers=[wire.Imported(0)] * (wire.MAX_SHARES + 1)),
        wire.ImportReply(request=0, answers=[wire.Imported(256)]),
        wire.ImportReply(request=0, answers=[wire.Imported(0, rights=4)]),
        wire.ImportReply(request=0, answers=[wire.Imported(0, offset=-1)]),
        wire.ImportReply(request=0, answers=[wire.Imported(0, keys=[1 << 32])]),
        wire.ImportReply(request=0, answers=[wire.Imported(0, keys=[0] * 17)]),
        wire.Released(provider="x" * 257, shares=[0]),
        wire.Released(provider="", shares=[-1]),
        wire.Released(provider="", shares=[0] * (wire.MAX_SHARES + 1)),
        wire.Released(provider="", shares=[], allocations=[0] * (wire.MAX_SHARES + 1)),
        wire.Call(number=-1, service="", body=b""),
        wire.Call(number=0, service="x" * 257, body=b""),
        wire.Call(number=0, service="", body=bytes(LONGEST_BODY + 1)),
        wire.Answer(number=-1, status=0),
        wire.Answer(number=0, status=-1),
        wire.Answer(number=0, status=256),
        wire.Answer(number=0, status=0, reason=256),
        wire.Answer(number=0, status=0, text="x" * (wire.MAX_LONG_TEXT + 1)),
        wire.Answer(number=0, status=0, body=bytes(LONGEST_BODY + 1)),
    ],
    ids=lambda message: str(message)[:200],
)
def test_limits_of_every_field(message: wire.Message) -> None:
    with pytest.raises(zh.ProtocolError, match="malformed"):
        wire.decode(wire.encode(message)[wire.HEADER.size :])


@pytest.mark.parametrize(
    "message",
    [
        wire.Call(number=1, service="x" * 256, body=bytes(LONGEST_BODY)),
        wire.Answer(number=1, status=0, text="x" * wire.MAX_LONG_TEXT, body=bytes(LONGEST_BODY)),
    ],
    ids=["Call", "Answer"],
)
def test_what_services_say_may_be_as_long_as_it_may_be(message: wire.Message) -> None:
    """And fits into a frame, whatever is in it."""
    frame = wire.encode(message)
    assert wire.body_length(frame[: wire.HEADER.size], wire.MAX_FRAME) == len(frame) - wire.HEADER.size
    assert wire.decode(frame[wire.HEADER.size :]) == message


@pytest.mark.parametrize(("field", "value"), [("number", "1"), ("number", 1.5), ("service", b"x"), ("body", "text")])
def test_a_call_of_other_types(field: str, value: object) -> None:
    call = msgspec.to_builtins(wire.Call(number=1, service="x", body=b""), builtin_types=(bytes,)) | {field: value}
    with pytest.raises(zh.ProtocolError, match="malformed"):
        wire.decode(msgspec.msgpack.encode(call))


def test_calls_have_a_version_of_their_own() -> None:
    """Version 4 had none: who speaks it is refused by name before it could be sent one."""
    assert wire.VERSION >= 5
    with pytest.raises(wire.OtherVersion, match=rf"version 4 .* version {wire.VERSION}"):
        wire.check_version(4)


FORGED = "x\n2026-01-01 00:00:00 ERROR zerohop: forged \x1b[31m\u202e\u2028\x9b"


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_texts_stay_in_their_line(message: wire.Message) -> None:
    """Whatever a peer puts into a text, its log line, error and terminal stay ours; a name of ours is refused."""
    for name in message.__struct_fields__:
        if not isinstance(getattr(message, name), str):
            continue
        frame = wire.encode(msgspec.structs.replace(message, **{name: FORGED}))
        try:
            shown = getattr(wire.decode(frame[wire.HEADER.size :]), name)
            assert "forged" in shown
        except zh.ProtocolError as error:
            shown = str(error)
        assert shown.isprintable()
        assert len(shown) <= wire.MAX_LONG_TEXT


def test_names_within_a_message() -> None:
    for inside in (
        wire.Setup(providers=[FORGED], url="", name=""),
        wire.Setup(providers=[], url="", name="", nics=[wire.Nic(name=FORGED, port=1)]),
        wire.Setup(providers=[], url="", name="", nics=[wire.Nic(name="x", port=1, link=FORGED)]),
        wire.Allocation(1, "p2p", 8, True, exported=wire.Exported(FORGED, "sim:0", 1, 2, 3, [])),
        wire.Allocation(1, "p2p", 8, True, exported=wire.Exported("ipc", FORGED, 1, 2, 3, [])),
    ):
        with pytest.raises(zh.ProtocolError) as caught:
            wire.decode(wire.encode(inside)[wire.HEADER.size :])
        assert str(caught.value).isprintable()


def test_an_id_ends_where_it_ends() -> None:
    with pytest.raises(zh.ProtocolError):
        wire.decode(wire.encode(wire.Challenge(context=f"{ID}\n", host=ID, nonce=bytes(32)))[wire.HEADER.size :])
