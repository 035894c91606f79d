"""What two Contexts say to each other: typed messages, framed by a length, decoded without executing anything.

A frame is a 4-byte big-endian length and a msgpack map with the message's type. Decoding is strict: an unknown type, a
wrong field type, a value out of range or trailing bytes give ProtocolError. Descriptors travel beside a frame on Unix
sockets; ``nfds`` says how many belong to it.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, Literal, TypeVar, Union

import msgspec

from .errors import ProtocolError

# Raised with every change of a message; different versions refuse each other.
VERSION: Final = 1
MAX_FRAME: Final = 1 << 20
# Before the peer has proved who it is.
MAX_FRAME_UNAUTHENTICATED: Final = 64 << 10
MAX_FDS: Final = 8
HEADER: Final = struct.Struct(">I")

ShortText = Annotated[str, msgspec.Meta(max_length=256)]
LongText = Annotated[str, msgspec.Meta(max_length=2048)]
ContextId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
HostId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
Bytes16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
SocketPath = Annotated[bytes, msgspec.Meta(max_length=107)]
LaneAddress = Annotated[bytes, msgspec.Meta(max_length=4096)]
U63 = Annotated[int, msgspec.Meta(ge=0)]
# msgpack itself bounds it from above.
U64 = Annotated[int, msgspec.Meta(ge=0)]
FdCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_FDS)]
Names = Annotated[list[ShortText], msgspec.Meta(max_length=16)]


class Hello(msgspec.Struct, tag="hello"):
    """First of the side that connects. Its first three fields are the same in every version."""

    version: int
    magic: Literal["zerohop"]
    context: ContextId
    host: HostId
    pid: U63
    name: ShortText
    purpose: Literal["control", "lane", "locate"]
    nonce: Bytes32
    has_secret: bool
    token: Annotated[bytes, msgspec.Meta(max_length=16)] = b""


class Challenge(msgspec.Struct, tag="challenge"):
    """Answer to Hello."""

    context: ContextId
    host: HostId
    nonce: Bytes32


class Prove(msgspec.Struct, tag="prove"):
    """The connecting side knows the secret."""

    proof: Bytes32


class Accept(msgspec.Struct, tag="accept"):
    """The listening side does too. After it, a lane's socket belongs to the data plane."""

    proof: Bytes32


class Location(msgspec.Struct, tag="location"):
    """In place of Accept to who wants to know no more than where this side is: its Unix socket, if on the same host."""

    proof: Bytes32
    socket_path: SocketPath = b""


class Refuse(msgspec.Struct, tag="refuse"):
    """The listening side will not go on. The same in every version."""

    version: int
    code: ShortText
    text: LongText


class Setup(msgspec.Struct, tag="setup"):
    """First of both sides after the handshake; with presence page and doorbell on one host."""

    providers: Names
    url: LongText
    name: ShortText
    nfds: FdCount = 0


class Lane(msgspec.Struct, tag="lane"):
    """This side's end of a lane, for the other to connect to."""

    provider: ShortText
    address: LaneAddress
    nfds: FdCount = 0


class LaneInvite(msgspec.Struct, tag="lane_invite"):
    """Please open a lane by connecting to my listener with this token, which works once."""

    provider: ShortText
    token: Bytes16


class LaneReady(msgspec.Struct, tag="lane_ready"):
    """This side has connected its end; the other may use the lane."""

    provider: ShortText


class LaneFailed(msgspec.Struct, tag="lane_failed"):
    """This side could not make its end."""

    provider: ShortText
    text: LongText


class MapRequest(msgspec.Struct, tag="map"):
    """May I map the memory behind this share?"""

    request: U63
    share: U64
    capability: Bytes16


class MapReply(msgspec.Struct, tag="mapped"):
    """With one descriptor when ``status`` is OK; else the status and reason of native/engine/status.hpp."""

    request: U63
    status: Annotated[int, msgspec.Meta(ge=0, le=255)]
    reason: Annotated[int, msgspec.Meta(ge=0, le=255)]
    text: LongText = ""
    offset: U63 = 0
    nbytes: U63 = 0
    rights: Annotated[int, msgspec.Meta(ge=0, le=3)] = 0
    nfds: FdCount = 0


class Unmap(msgspec.Struct, tag="unmap"):
    """Please give back what you mapped of this share; it is revoked."""

    share: U64


class Unmapped(msgspec.Struct, tag="unmapped"):
    """Given back, asked or not."""

    share: U64


class Bye(msgspec.Struct, tag="bye"):
    """This side closes the Connection, in words."""

    text: LongText


Message = Union[  # noqa: UP007 - evaluated by msgspec at run time, on Python 3.10 too
    Hello,
    Challenge,
    Prove,
    Accept,
    Location,
    Refuse,
    Setup,
    Lane,
    LaneInvite,
    LaneReady,
    LaneFailed,
    MapRequest,
    MapReply,
    Unmap,
    Unmapped,
    Bye,
]


T = TypeVar("T", bound=msgspec.Struct)


class _Greeting(msgspec.Struct, tag="hello"):
    """What every version's Hello begins with."""

    version: int


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_greeting = msgspec.msgpack.Decoder(_Greeting)


def encode(message: Message) -> bytes:
    """The frame of a message, length included."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a {type(message).__name__} of {len(body)} bytes is longer than a frame may be")
    return HEADER.pack(len(body)) + body


def body_length(header: bytes, limit: int) -> int:
    """Length of the body that follows the header.

    Raises:
        ProtocolError: more than ``limit`` bytes, as any other protocol's first bytes would announce.
    """
    length: int = HEADER.unpack(header)[0]
    if length > limit:
        raise ProtocolError(
            f"malformed: not the zerohop protocol, or a frame of {length} bytes where {limit} is the limit"
        )
    return length


def decode(body: bytes) -> Message:
    """The message of a frame's body.

    Raises:
        ProtocolError: it is none.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ProtocolError(f"malformed message: {error}", fix="use the same version on both sides") from None


def decode_hello(body: bytes) -> Hello:
    """The first message of a side that connects, with its version checked before anything else is looked at.

    Raises:
        OtherVersion: both versions are named.
        ProtocolError: no Hello.
    """
    try:
        version = _greeting.decode(body).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
        raise ProtocolError("malformed: what arrived first is not the zerohop protocol") from None
    check_version(version)
    message = decode(body)
    assert isinstance(message, Hello)  # the tag was
    return message


class OtherVersion(ProtocolError):
    """The peer speaks another version of the protocol."""


def check_version(version: int) -> None:
    """Raise OtherVersion, naming both, when the peer's protocol version is not ours."""
    if version != VERSION:
        raise OtherVersion(
            f"the peer speaks version {version} of the zerohop protocol, this side version {VERSION}",
            fix="install the same version of zerohop on both sides",
        )
