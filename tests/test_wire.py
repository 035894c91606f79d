"""Messages survive the trip, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zerohop as zh
from zerohop import wire

ID = "0123456789abcdef" * 2
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
        token=b"t" * 16,
    ),
    wire.Challenge(context=ID, host=ID, nonce=bytes(32)),
    wire.Prove(proof=bytes(32)),
    wire.Accept(proof=bytes(32)),
    wire.Location(proof=bytes(32), socket_path=b"/tmp/zerohop-0-x/s"),
    wire.Refuse(version=1, code="secret", text="wrong secret"),
    wire.Setup(providers=["shm"], url="zerohop://h:1/", name="", nfds=2),
    wire.Lane(provider="shm", address=b"ring", nfds=1),
    wire.LaneInvite(provider="tcp", token=bytes(16)),
    wire.LaneReady(provider="tcp"),
    wire.LaneFailed(provider="shm", text="out of memory"),
    wire.MapRequest(request=1, share=(1 << 64) - 1, capability=bytes(16)),
    wire.MapReply(request=1, status=0, reason=0, offset=1, nbytes=2, rights=3, nfds=1),
    wire.Unmap(share=5),
    wire.Unmapped(share=5),
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
    with pytest.raises(wire.OtherVersion, match=r"version 99 .* version 1"):
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
        wire.encode(wire.Lane(provider="shm", address=bytes(wire.MAX_FRAME)))
