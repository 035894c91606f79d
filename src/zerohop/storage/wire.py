"""Declares the messages between a RemoteStore and its Server: calls, and their answers.

A message is bytes of a call to the service of a Context. Every field of it comes from a stranger: the decoder checks
types and lengths, and whoever uses a number checks its range.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from zerohop.errors import ProtocolError

SERVICE: Final = "storage"
VERSION: Final = 4
# Ranges of one Move. Their numbers, eight bytes each, and a handle fit into one message of the control channel.
MOST_RANGES: Final = 2048
# Calls of one client that may be under way. A client that keeps to it is never refused.
MOST_CALLS: Final = 256
MOST_FILES: Final = 4096
# Bytes of names in one answer of listdir.
PAGE_BYTES: Final = 48 << 10

# Bytes of the longest path that Linux takes, without the zero at its end.
LONGEST_PATH: Final = 4095
Path: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=LONGEST_PATH)]
_Numbers: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=8 * MOST_RANGES)]
Handle: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=8192)]
_Queue: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
# The number that stands for a file or memory in messages over a lane (native/storage/file_messages.hpp).
LaneNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
_Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Errno: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 12)]
_Word: TypeAlias = Annotated[str, msgspec.Meta(max_length=32)]
# The way that bytes took; empty: none.
_How: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(mapped|peer|shm|p2p|tcp|verbs|)\Z")]


class Hello(msgspec.Struct, tag="hello", array_like=True):
    """Asks a server which one it is; answered by Welcome.

    Attributes:
        version: VERSION of the client.
        answers: the client's queue of notifications for answers over the lane; 0: it asks by Move alone.
    """

    version: int
    answers: _Queue = 0


class Leave(msgspec.Struct, tag="leave", array_like=True):
    """Ends what a Hello began. With the last one the server closes all files of the client.

    Attributes:
        server: the number of the server that was greeted, as another may have followed; 0: whichever is there.
    """

    server: int = 0


class Keep(msgspec.Struct, tag="keep", array_like=True):
    """Has the server make the caller's memory ready for many transfers, until ``Forget``."""

    handle: Handle


class Forget(msgspec.Struct, tag="forget", array_like=True):
    """Ends what a Keep of the same handle began."""

    handle: Handle


class Reach(msgspec.Struct, tag="reach", array_like=True):
    """Asks how requests over the lane name the caller's memory; answered by Reached."""

    handle: Handle


class Open(msgspec.Struct, tag="open", array_like=True):
    """Opens a file; answered by Opened."""

    path: Path
    mode: _Word
    direct: bool | None


class Close(msgspec.Struct, tag="close", array_like=True):
    """Closes a file, whose number is never used again."""

    file: int


class FolderCall(msgspec.Struct, tag="folder", array_like=True):
    """Does one of the calls of names.py.

    Attributes:
        kind: the name of the call.
        paths: its paths.
        after: of listdir, the last name of the answer before.
        numbers: of utime, the nanoseconds of both times; empty: now.
    """

    kind: _Word
    paths: Annotated[list[Path], msgspec.Meta(max_length=2)]
    after: Path = b""
    numbers: Annotated[list[_Int64], msgspec.Meta(max_length=2)] = []


class FileCall(msgspec.Struct, tag="file", array_like=True):
    """Does one of the calls of file_calls.py."""

    kind: _Word
    file: int
    args: Annotated[list[int], msgspec.Meta(max_length=2)]


class Move(msgspec.Struct, tag="move", array_like=True):
    """Moves ranges between a file and the caller's memory; answered by Moved.

    Attributes:
        number: names it in Cancel.
        file: number of the file.
        writes: whether the file is written.
        priority: 0 is high, 1 normal, 2 low.
        handle: bytes of a RemoteBuffer.
        offsets: offsets in the file, eight bytes each, little-endian; so are the next two.
        at: offsets in the memory.
        lengths: lengths.
        seconds: time that the caller allows; 0: no limit.
    """

    number: int
    file: int
    writes: bool
    priority: Annotated[int, msgspec.Meta(ge=0, le=2)]
    handle: Handle
    offsets: _Numbers
    at: _Numbers
    lengths: _Numbers
    seconds: Annotated[float, msgspec.Meta(ge=0)]


class Cancel(msgspec.Struct, tag="cancel", array_like=True):
    """Ends ranges of a Move. Its answer comes as usual, when nothing uses its memory any more.

    Attributes:
        number: that of the Move.
        ranges: numbers of the ranges, as the offsets of Move; empty: all.
    """

    number: int
    ranges: _Numbers


class Welcome(msgspec.Struct, tag="welcome", array_like=True):
    """Describes a server.

    Attributes:
        version: VERSION of the server.
        engine: how it reads and writes files.
        why_no_uring: why it does not use io_uring; empty if it does.
        read_only: whether it changes nothing.
        asks: its queue of notifications for what the client asks over the lane; 0: it takes Moves alone.
        server: a number that no other server of the Context has.
    """

    version: int
    engine: str
    why_no_uring: str
    read_only: bool
    asks: _Queue = 0
    server: int = 0


class Reached(msgspec.Struct, tag="reached", array_like=True):
    """Tells how requests over the lane name memory.

    Attributes:
        lane_number: its number, which stands until it is given back over the lane; None: the server does not reach
            the memory by itself, or there are too many.
        how: as in Moved.
    """

    lane_number: LaneNumber | None = None
    how: _How = ""


class Opened(msgspec.Struct, tag="opened", array_like=True):
    """Tells of a file that was opened.

    Attributes:
        number: the file's number.
        lane_number: its number in messages over the lane, which stands until it is given back there; None: it has none.
    """

    number: int
    lane_number: LaneNumber | None = None


class Value(msgspec.Struct, tag="value", array_like=True):
    """Holds the result of a call that has a number for one, or none."""

    value: int | None = None


class Stat(msgspec.Struct, tag="stat", array_like=True):
    """Holds what the system says of a file, by the names of ``os.stat_result``."""

    facts: dict[_Word, int | float]


class Target(msgspec.Struct, tag="target", array_like=True):
    """Holds the path that a symbolic link has."""

    path: Path


class Names(msgspec.Struct, tag="names", array_like=True):
    """Holds names of a folder in order; ``more``: ask again for those after the last."""

    names: list[Path]
    more: bool


class Moved(msgspec.Struct, tag="moved", array_like=True):
    """Tells how the ranges of a Move have ended.

    Attributes:
        how: ``"mapped"`` or ``"peer"`` if the server reached the memory by itself; else the provider of the lane.
        done: for each range the bytes that were moved, as the offsets of Move; empty: all that was asked for.
        errors: for each range its errno or 0, four bytes each, little-endian; empty: none has failed.
        outcomes: for each range status and reason, a byte each; empty: none has failed.
    """

    how: _How
    done: _Numbers
    errors: _Numbers
    outcomes: _Numbers


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """Tells why a call failed.

    Attributes:
        kind: name of the error's class.
        said: its reason.
        fix: its fix.
        errno: the system's number; 0 if there is none.
        path: the path that it is about; empty: that of the call, or none.
    """

    kind: _Word
    said: str
    fix: str
    errno: _Errno
    path: Path = b""


Request: TypeAlias = Hello | Leave | Keep | Forget | Reach | Open | Close | FolderCall | FileCall | Move | Cancel
Answer: TypeAlias = Welcome | Reached | Opened | Value | Stat | Target | Names | Moved | Failed

encode: Final = msgspec.msgpack.Encoder().encode
_requests: Final = msgspec.msgpack.Decoder(Request)
_answers: Final = msgspec.msgpack.Decoder(Answer)


def request_of(body: bytes) -> Request:
    """Return the request that bytes of a peer hold; raise ProtocolError if they hold none."""
    return _decoded(_requests, body)  # type: ignore[no-any-return]  # a Decoder of Request


def answer_of(body: bytes) -> Answer:
    """Return the answer that bytes of a peer hold; raise ProtocolError if they hold none."""
    return _decoded(_answers, body)  # type: ignore[no-any-return]  # a Decoder of Answer


def _decoded(decoder: msgspec.msgpack.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
        raise ProtocolError(
            "malformed: a message of the storage service", fix="use the same version of zerohop on both sides"
        ) from None
