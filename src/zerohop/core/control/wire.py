"""Defines the messages of two Contexts: typed, framed by a length, decoded without executing anything.

A frame is a 4-byte big-endian length and a msgpack map with the message's type. Decoding is strict: an unknown type, a
wrong field type, a value out of range or trailing bytes give ProtocolError. Descriptors travel beside a frame on Unix
sockets; ``nfds`` says how many belong to it. The file is long because all messages of the wire format stand together.
"""

# ruff: noqa: UP007 - msgspec evaluates the unions at run time, on Python 3.10 too

from __future__ import annotations

import struct
from typing import Annotated, Final, Literal, TypeVar, Union

import msgspec

from zerohop.config.settings import MAX_FLOWS
from zerohop.core.base.peer_text import printable, quoted
from zerohop.errors import ProtocolError

# Every change of a message raises the version. Sides of different versions refuse each other.
VERSION: Final = 12
MAX_FRAME: Final = 1 << 20
# This limit holds until the peer has proved who it is.
MAX_FRAME_UNAUTHENTICATED: Final = 64 << 10
MAX_FDS: Final = 128
# Setup brings all of these, or none.
SETUP_FDS: Final = 2
# Number of shares that one message may name, and of allocations: a request may bring a descriptor for each share.
MAX_SHARES: Final = 128
# Number of NIC ports that one side may offer, and of rails, pairs of connected ports, that a lane may have.
MAX_NICS: Final = 16
HEADER: Final = struct.Struct(">I")

ShortText = Annotated[str, msgspec.Meta(max_length=256)]
# A name that is none of a user's: of a provider, a device, a NIC.
Word = Annotated[str, msgspec.Meta(max_length=256, pattern=r"\A[ -~]*\Z")]
MAX_LONG_TEXT: Final = 2048
LongText = Annotated[str, msgspec.Meta(max_length=MAX_LONG_TEXT)]
ContextId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
HostId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Bytes16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
SocketPath = Annotated[bytes, msgspec.Meta(max_length=107)]
LaneAddress = Annotated[bytes, msgspec.Meta(max_length=4096)]
Body = Annotated[bytes, msgspec.Meta(max_length=64 << 10)]
U63 = Annotated[int, msgspec.Meta(ge=0)]
# msgpack itself has no integers beyond 64 bits.
U64 = Annotated[int, msgspec.Meta(ge=0)]
FdCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_FDS)]
Flows = Annotated[int, msgspec.Meta(ge=1, le=MAX_FLOWS)]
Tokens = Annotated[list[Bytes16], msgspec.Meta(min_length=1, max_length=1 + MAX_FLOWS)]
Names = Annotated[list[Word], msgspec.Meta(max_length=16)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
# Number of a lane in one Connection. The side that dialled opens lanes with even numbers, the other side odd ones.
LaneNumber = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
# Place of a NIC in the list that its side has sent in Setup.
NicIndex = Annotated[int, msgspec.Meta(ge=0, lt=MAX_NICS)]
NicIndices = Annotated[list[NicIndex], msgspec.Meta(max_length=MAX_NICS)]
Code = Annotated[int, msgspec.Meta(ge=0, le=255)]
RightsBits = Annotated[int, msgspec.Meta(ge=0, le=3)]
# The mode that a Context insists on; "none", too, without a secret.
Encryption = Literal["none", "control", "all"]
Pieces = Annotated[list[tuple[U63, Annotated[bytes, msgspec.Meta(max_length=256)]]], msgspec.Meta(max_length=MAX_FDS)]


class Hello(msgspec.Struct, tag="hello"):
    """Opens the handshake, from the side that connects. Its first three fields are the same in every version.

    ``tls``: the side could protect the channel. ``token``, of a lane only: the name of the invitation.
    """

    version: int
    magic: Literal["zerohop"]
    context: ContextId
    host: HostId
    pid: U63
    name: ShortText
    purpose: Literal["control", "lane", "locate"]
    nonce: Bytes32
    has_secret: bool
    encryption: Encryption = "none"
    tls: bool = False
    token: Annotated[bytes, msgspec.Meta(max_length=16)] = b""


class Challenge(msgspec.Struct, tag="challenge"):
    """Answers Hello. After it comes TLS's handshake if both sides insist on it or can."""

    context: ContextId
    host: HostId
    nonce: Bytes32
    encryption: Encryption = "none"
    tls: bool = False


class Prove(msgspec.Struct, tag="prove"):
    """Proves that the connecting side knows the secret."""

    proof: Bytes32


class Accept(msgspec.Struct, tag="accept"):
    """Proves that the listening side knows the secret. After it, a lane's socket belongs to the data plane."""

    proof: Bytes32


class Location(msgspec.Struct, tag="location"):
    """Answers, in place of Accept, a side that only asks for this side's Unix socket; empty on another host."""

    proof: Bytes32
    socket_path: SocketPath = b""


class Refuse(msgspec.Struct, tag="refuse"):
    """Refuses the connection. It is the same in every version."""

    version: int
    code: Word
    text: LongText


class Nic(msgspec.Struct, frozen=True):
    """Describes a NIC port, so that the other side can pair it with one of its own."""

    name: Annotated[str, msgspec.Meta(max_length=256, pattern=r"\A[!-~]*\Z")]
    port: Annotated[int, msgspec.Meta(ge=1, le=255)]
    # "Ethernet" or "InfiniBand"; empty while the port cannot be used. The port keeps its place in the list, so that
    # the places of other ports never change.
    link: Word = ""
    # The rate is in GB/s, not in gigabits.
    gbps: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    # The prefix of the port's GID as text; empty if it is not known.
    subnet: Word = ""


class Setup(msgspec.Struct, tag="setup"):
    """Opens the conversation after the handshake, from both sides; on one host with presence page and doorbell.

    ``tcp_flows``: as many flows as the sender allows a tcp lane to have.
    """

    providers: Names
    url: LongText
    name: ShortText
    nics: Annotated[list[Nic], msgspec.Meta(max_length=MAX_NICS)] = []
    tcp_flows: Flows = 1
    nfds: FdCount = 0


class Lane(msgspec.Struct, tag="lane"):
    """Announces this side's end of a lane, so that the other side can connect to it. The opening side sends it first.

    The other side answers with its own. ``messages``: the lane is for messages and notifications. ``rails``, from the
    opening side only: the pairs of NICs that the lane is to use, first the sender's, then the receiver's.
    """

    number: LaneNumber
    provider: Word
    address: LaneAddress
    messages: bool = False
    rails: Annotated[list[tuple[NicIndex, NicIndex]], msgspec.Meta(max_length=MAX_NICS)] = []
    nfds: FdCount = 0


class LaneInvite(msgspec.Struct, tag="lane_invite"):
    """Asks the peer to connect to this side's listener with each token, which works once, for the lane's sockets.

    A token is a key: the socket carries its name and proofs that are made with it. The first socket is the lane's own;
    if both sides allow several flows, one for each of them follows.
    """

    number: LaneNumber
    tokens: Tokens


class LaneReady(msgspec.Struct, tag="lane_ready"):
    """Reports that this side has connected its end: the other may use the lane."""

    number: LaneNumber


class LaneFailed(msgspec.Struct, tag="lane_failed"):
    """Reports that this side could not make its end of a new lane, and what to do about it there.

    ``down`` are its NICs that caused it.
    """

    number: LaneNumber
    text: LongText
    down: NicIndices = []
    fix: LongText = ""


class LaneDown(msgspec.Struct, tag="lane_down"):
    """Reports that a lane is down, and that nothing on this side can send or receive on it any more.

    ``warn``: it went down for another reason than that a Context is being closed.
    """

    number: LaneNumber
    text: LongText
    warn: bool = True


class LaneQuiet(msgspec.Struct, tag="lane_quiet"):
    """Reports that a port under this lane is down, and that the sender has nothing in flight on the lane.

    A peer that has nothing in flight on it either sends the same with ``answer`` set; otherwise it does not answer.
    """

    number: LaneNumber
    answer: bool = False


class LaneWanted(msgspec.Struct, tag="lane_wanted"):
    """Asks for a lane for messages: this side, which did not dial, has something to send and no lane for it.

    ``number`` counts these requests.
    """

    text: LongText
    number: U63 = 0


class LaneMissing(msgspec.Struct, tag="lane_missing"):
    """Reports that the side that dialled cannot open a lane for messages now; the Connection goes on without one.

    ``wanted``: number of the last LaneWanted that had arrived when the attempt began.
    """

    text: LongText
    wanted: U63 = 0


class Wanted(msgspec.Struct, array_like=True, frozen=True):
    """Names a share, and proves that its owner gave it to somebody."""

    share: U64
    capability: Bytes16


class ImportRequest(msgspec.Struct, tag="import"):
    """Asks for access to the memory behind shares.

    ``provider`` says how: shm maps the memory, p2p lets devices reach it, verbs needs its keys on the NICs ``rails``.
    """

    request: U63
    provider: Word
    wanted: Annotated[list[Wanted], msgspec.Meta(min_length=1, max_length=MAX_SHARES)]
    rails: NicIndices = []


class Exported(msgspec.Struct, frozen=True):
    """Describes how another process maps a range of device memory; native/accel/driver.hpp explains each field.

    A piece is its length and a handle; an empty handle stands for the next descriptor.
    """

    form: Word
    device: Word
    process: U64
    address: U64
    offset: U63
    pieces: Pieces


class Allocation(msgspec.Struct, tag="allocation"):
    """Gives the memory that shares lie in, by a descriptor or as exported, before the answer that refers to it.

    ``number`` is the owner's, and never used twice in a Connection: the receiver keeps the memory until it says in
    Released that it does not. ``extent`` and ``address`` say where it lies at its owner, as shares in a GrantTable do.
    ``offset`` and ``nbytes`` are those of a range of the descriptor's file. ``more`` tells that further pieces follow
    in AllocationPart.
    """

    number: U63
    provider: Word
    nbytes: U63
    writable: bool
    extent: U63 = 0
    address: U64 = 0
    offset: U63 = 0
    exported: Exported | None = None
    more: bool = False
    nfds: FdCount = 0


class GrantTable(msgspec.Struct, tag="grants"):
    """Gives, once and before the first Allocation, the table of shares that the peer may take without asking.

    native/memory/grants.hpp says how.
    """

    nfds: FdCount = 0


class AllocationPart(msgspec.Struct, tag="part"):
    """Continues an Allocation with more pieces of the memory; ``more`` tells that others follow."""

    number: U63
    pieces: Pieces
    more: bool = False
    nfds: FdCount = 0


class Imported(msgspec.Struct, array_like=True):
    """Answers for one share: with a range of an allocation (shm, p2p), or with a key for each rail (verbs).

    ``text`` says how NICs have registered the memory. If ``status`` is not OK, status and reason are those of
    native/base/status.hpp, and ``text`` says what was tried.
    """

    status: Code
    reason: Code = 0
    text: LongText = ""
    nbytes: U63 = 0
    rights: RightsBits = 0
    allocation: U63 = 0
    offset: U63 = 0
    address: U64 = 0
    keys: Annotated[list[U32], msgspec.Meta(max_length=MAX_NICS)] = []
    atomics: bool = False


class ImportReply(msgspec.Struct, tag="imported"):
    """Answers ImportRequest, for each share in its order."""

    request: U63
    answers: Annotated[list[Imported], msgspec.Meta(max_length=MAX_SHARES)]


Shares = Annotated[list[U64], msgspec.Meta(max_length=MAX_SHARES)]


class Release(msgspec.Struct, tag="release"):
    """Asks the peer to give back its imports of shares, which are revoked."""

    provider: Word
    shares: Shares


class Released(msgspec.Struct, tag="released"):
    """Reports that imports of shares were given back, whether or not the peer asked.

    ``allocations``: those that the sender does not keep any more.
    """

    provider: Word
    shares: Shares
    allocations: Annotated[list[U63], msgspec.Meta(max_length=MAX_SHARES)] = []


class Call(msgspec.Struct, tag="call"):
    """Calls a service of the peer by name; only the service reads the body."""

    number: U63
    service: ShortText
    body: Body


class Answer(msgspec.Struct, tag="answer"):
    """Answers a Call; if ``status`` is not OK, with status and reason of native/base/status.hpp, and a text."""

    number: U63
    status: Code
    reason: Code = 0
    text: LongText = ""
    body: Body = b""


class Bye(msgspec.Struct, tag="bye"):
    """Closes the Connection, with the reason as text, and what to do about it in the sender's process."""

    text: LongText
    fix: LongText = ""


_OfHandshake = Union[Hello, Challenge, Prove, Accept, Location, Refuse]
_OfLanes = Union[Lane, LaneInvite, LaneReady, LaneFailed, LaneDown, LaneQuiet, LaneWanted, LaneMissing]
_OfMemory = Union[ImportRequest, GrantTable, Allocation, AllocationPart, ImportReply, Release, Released]
Message = Union[_OfHandshake, Setup, _OfLanes, _OfMemory, Call, Answer, Bye]


T = TypeVar("T", bound=msgspec.Struct)


class _Greeting(msgspec.Struct, tag="hello"):
    """Holds the fields with which every version's Hello begins."""

    version: int


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_greeting = msgspec.msgpack.Decoder(_Greeting)


def encode(message: Message) -> bytes:
    """Return the frame of a message, length included."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a {type(message).__name__} of {len(body)} bytes is longer than a frame may be")
    return HEADER.pack(len(body)) + body


def body_length(header: bytes, limit: int) -> int:
    """Return the length of the body that follows a header.

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
    """Return the message in a frame's body. Its texts are printable: what a terminal would act on is escaped.

    Raises:
        ProtocolError: the body is no message.
    """
    try:
        message = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ProtocolError(
            f"malformed message: {quoted(str(error))}", fix="use the same version on both sides"
        ) from None
    for name in message.__struct_fields__:
        text = getattr(message, name)
        if isinstance(text, str) and not text.isprintable():
            setattr(message, name, printable(text)[:MAX_LONG_TEXT])
    return message


def decode_hello(body: bytes) -> Hello:
    """Return the first message of a side that connects; its version is checked before anything else.

    Raises:
        OtherVersion: the peer has another version; the text names both.
        ProtocolError: the body is no Hello.
    """
    try:
        version = _greeting.decode(body).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
        raise ProtocolError("malformed: what arrived first is not the zerohop protocol") from None
    check_version(version)
    message = decode(body)
    assert isinstance(message, Hello)  # _greeting has checked the tag
    return message


class OtherVersion(ProtocolError):
    """Raised if the peer speaks another version of the protocol."""


def check_version(version: int) -> None:
    """Raise OtherVersion, naming both, when the peer's protocol version is not ours."""
    if version != VERSION:
        raise OtherVersion(
            f"the peer speaks version {version} of the zerohop protocol, this side version {VERSION}",
            fix="install the same version of zerohop on both sides",
        )
