"""Declares RemoteBuffer, the plain value by which a peer reaches a Memory."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec

from zerohop.core.base.peer_text import printable
from zerohop.core.base.plain_bytes import plain_bytes
from zerohop.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

# Four letters, which the version of the format follows.
_MAGIC: Final = b"ZHRB"
_VERSION: Final = 1
_GIVEN_BY: Final = "bytes(handle)"
# A handle has a few hundred bytes; longer input is refused.
MAX_BYTES: Final = 4096
_RIGHTS: Final[dict[int, Literal["r", "w", "rw"]]] = {1: "r", 2: "w", 3: "rw"}
_DEVICE: Final = re.compile(r"host|[a-z]{1,16}:[0-9]{1,4}")
_SHARE_BYTES: Final = 8
# The key of Share.keys that says how the elements of an array lie.
LAYOUT: Final = "layout"


class Share(NamedTuple):
    """Describes a share as its owner sees it; all slices of one handle have the same Share."""

    url: str
    owner: str
    share_id: int
    capability: bytes
    nbytes: int
    device: str
    rights: int
    revocable: bool
    # What providers need beside the share's name, {"shm": b"m"} if peers may map the memory; the layout of an array.
    keys: dict[str, bytes]

    @property
    def mappable(self) -> bool:
        """Tell whether a process on the owner's host may map the memory."""
        return self.keys.get("shm") == b"m"


class _Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    url: Annotated[str, msgspec.Meta(max_length=1024)]
    owner: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    share_id: Annotated[int, msgspec.Meta(ge=0)]
    capability: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    nbytes: Annotated[int, msgspec.Meta(ge=0)]
    device: Annotated[str, msgspec.Meta(max_length=32)]
    rights: Annotated[int, msgspec.Meta(ge=1, le=3)]
    revocable: bool
    keys: Annotated[dict[str, bytes], msgspec.Meta(max_length=8)]
    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(ge=0)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Wire)


class RemoteBuffer:
    """Names a range of another Context's memory, and gives the right to reach it.

    It is a frozen value: hashable, comparable, picklable, and a few hundred bytes as ``bytes(handle)``. Every process
    that has it can use it until the owner revokes it, closes the Memory or exits, so treat it like a password. Slices
    (``handle[a:b]``, in bytes, clipped like any Python slice) are RemoteBuffers of the same share.

    The path decides how a handle is revoked. Over tcp, verbs and the shm ring the owner enforces it. A process on the
    owner's host that has mapped the memory (``revocation == "by agreement"``) unmaps it when it is asked to;
    ``Memory.revoke`` raises an error if one does not.

    Attributes:
        nbytes: length in bytes.
    """

    __slots__ = ("_key", "_offset", "_share", "nbytes")

    _key: bytes
    _offset: int
    _share: Share
    nbytes: int

    def __init__(self, share: Share, offset: int, nbytes: int, key: bytes | None = None) -> None:
        set_field = object.__setattr__
        set_field(self, "_share", share)
        set_field(self, "_offset", offset)
        set_field(self, "nbytes", nbytes)
        if key is None:
            # Routes are looked up by this key. All slices have the same bytes object, whose hash is computed once.
            key = bytes.fromhex(share.owner) + share.share_id.to_bytes(_SHARE_BYTES, "big") + share.capability
        set_field(self, "_key", key)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a RemoteBuffer is a value; {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a RemoteBuffer is a value; {name} cannot be deleted")

    @property
    def device(self) -> str:
        """Return the name of the device that has the memory: ``"host"``, ``"sim:0"``, ..."""
        return self._share.device

    @property
    def rights(self) -> Literal["r", "w", "rw"]:
        """Return the rights that this handle gives."""
        return _RIGHTS[self._share.rights]

    @property
    def owner(self) -> str:
        """Return the id of the Context that shared the memory."""
        return self._share.owner

    @property
    def url(self) -> str:
        """Return the URL of the owner."""
        return self._share.url

    @property
    def revocable(self) -> bool:
        """Tell whether the owner may revoke the handle without closing the Memory."""
        return self._share.revocable

    @property
    def revocation(self) -> Literal["enforced", "by agreement"]:
        """Return ``"by agreement"`` if processes on the owner's host may map the memory, else ``"enforced"``."""
        return "by agreement" if self._share.mappable else "enforced"

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, key: slice) -> RemoteBuffer:
        start, stop = byte_range(key, self.nbytes)
        return RemoteBuffer(self._share, self._offset + start, stop - start, self._key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemoteBuffer):
            return NotImplemented
        return (self._key, self._offset, self.nbytes) == (other._key, other._offset, other.nbytes)

    def __hash__(self) -> int:
        return hash((self._key, self._offset, self.nbytes))

    def __repr__(self) -> str:
        return f"RemoteBuffer({self.nbytes} bytes of {self.device} at {self.owner[:12]}, {self.rights!r})"

    def __bytes__(self) -> bytes:
        share = self._share
        body = _Wire(
            share.url,
            bytes.fromhex(share.owner),
            share.share_id,
            share.capability,
            share.nbytes,
            share.device,
            share.rights,
            share.revocable,
            share.keys,
            self._offset,
            self.nbytes,
        )
        return _MAGIC + bytes([_VERSION]) + _encoder.encode(body)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling goes through the bytes, so that unpickling makes the checks of from_bytes.
        return RemoteBuffer.from_bytes, (bytes(self),)

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> RemoteBuffer:
        """Return the handle that ``bytes(handle)`` wrote. Executes nothing and connects to nothing.

        Raises:
            TypeError: the argument is not bytes, nor another object with the buffer protocol.
            ProtocolError: the bytes are no handle, or come from another version of zerohop.
        """
        raw = plain_bytes("data", data, _GIVEN_BY)
        if len(raw) > MAX_BYTES:
            raise _malformed(f"{len(raw)} bytes are more than the {MAX_BYTES} that a handle may have")
        if raw[:4] != _MAGIC or len(raw) < 5:
            raise _malformed("these bytes do not begin like one")
        if raw[4] != _VERSION:
            raise ProtocolError(
                f"the RemoteBuffer is of version {raw[4]}, this side reads version {_VERSION}",
                fix="install the same version of zerohop on both sides",
            )
        try:
            wire = _decoder.decode(raw[5:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
            raise _malformed(printable(str(error))) from None
        _check(wire)
        share = Share(
            wire.url,
            wire.owner.hex(),
            wire.share_id,
            wire.capability,
            wire.nbytes,
            wire.device,
            wire.rights,
            wire.revocable,
            wire.keys,
        )
        return RemoteBuffer(share, wire.offset, wire.length)


def byte_range(key: object, nbytes: int) -> tuple[int, int]:
    """Return start and stop of a slice of ``nbytes`` bytes, clipped as Python clips slices.

    Raises:
        TypeError: the key is not a slice.
        ValueError: the slice has a step other than 1.
    """
    if not isinstance(key, slice):
        raise TypeError(f"bytes are taken with a slice such as [0:64], not with {type(key).__name__}")
    start, stop, step = key.indices(nbytes)
    if step != 1:
        raise ValueError("a slice of bytes has no step")
    return start, max(start, stop)


def _check(wire: _Wire) -> None:
    """Raise ProtocolError for values that no owner writes into a handle."""
    from zerohop.core.control.address import parse

    if wire.nbytes >= 1 << 63 or wire.offset > wire.nbytes or wire.length > wire.nbytes - wire.offset:
        raise _malformed("its range does not lie within the shared memory")
    if not _DEVICE.fullmatch(wire.device):
        raise _malformed("the device's name is none")
    if any(len(name) > 32 or len(key) > 256 for name, key in wire.keys.items()):
        raise _malformed("one of its keys is too long")
    try:
        address = parse(wire.url)
    except ValueError as error:
        raise _malformed(str(error)) from None
    if address.context != wire.owner.hex():
        raise _malformed("its URL is not that of its owner")


def _malformed(why: str) -> ProtocolError:
    return ProtocolError(f"malformed RemoteBuffer: {why}", fix=f"pass on exactly what {_GIVEN_BY} gave")


# Parts of a RemoteBuffer that the rest of the core needs and users do not. An attrgetter makes no Python frame.
key_of: Final[Callable[[RemoteBuffer], bytes]] = attrgetter("_key")
share_of: Final[Callable[[RemoteBuffer], Share]] = attrgetter("_share")
start_of: Final[Callable[[RemoteBuffer], int]] = attrgetter("_offset")
