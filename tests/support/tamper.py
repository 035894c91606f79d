"""Handles that say what their owner never said: what a peer sends who takes no notice of its own side's checks."""

from __future__ import annotations

from typing import Any

import msgspec

import zerohop as zh

# Magic and version, before the msgpack array.
_HEAD = 5
# Places in the array; see zerohop.core.memory.remote_buffer._Wire.
URL, OWNER, SHARE, CAPABILITY, NBYTES, DEVICE, RIGHTS, REVOCABLE, KEYS, OFFSET, LENGTH = range(11)


def fields(handle: zh.RemoteBuffer) -> list[Any]:
    """What the handle says, by place."""
    found: list[Any] = msgspec.msgpack.decode(bytes(handle)[_HEAD:])
    assert len(found) == LENGTH + 1
    assert found[NBYTES] >= handle.nbytes == found[LENGTH]
    return found


def forge(handle: zh.RemoteBuffer, changes: dict[int, Any]) -> zh.RemoteBuffer:
    """The handle with other values at those places."""
    said = fields(handle)
    for place, value in changes.items():
        assert said[place] != value, "the lie is the truth"
        said[place] = value
    return zh.RemoteBuffer.from_bytes(bytes(handle)[:_HEAD] + msgspec.msgpack.encode(said))


def flip(raw: bytes, bit: int) -> bytes:
    """The bytes with one bit turned over."""
    changed = bytearray(raw)
    changed[bit // 8 % len(raw)] ^= 1 << bit % 8
    return bytes(changed)
