"""RemoteBuffer is a value: it travels as bytes, slices like one, and parsing it is strict and harmless."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zerohop as zh
from zerohop.core.memory.remote_buffer import MAX_BYTES, RemoteBuffer, Share, byte_range

OWNER = "0123456789abcdef" * 2
SHARE = Share(
    url=f"zerohop://127.0.0.1:5000/{OWNER}?host={OWNER}&unix=/tmp/x/s",
    owner=OWNER,
    share_id=(7 << 32) | 3,
    capability=bytes(range(16)),
    nbytes=1000,
    device="sim:0",
    rights=3,
    revocable=True,
    keys={"shm": b"m"},
)
HANDLE = RemoteBuffer(SHARE, 0, 1000)
RAW = bytes(HANDLE)


def test_what_it_tells() -> None:
    assert (HANDLE.nbytes, HANDLE.device, HANDLE.rights, HANDLE.owner, HANDLE.url) == (
        1000,
        "sim:0",
        "rw",
        OWNER,
        SHARE.url,
    )
    assert HANDLE.revocable
    assert HANDLE.revocation == "by agreement"
    assert RemoteBuffer(SHARE._replace(keys={}), 0, 1000).revocation == "enforced"
    assert "sim:0" in repr(HANDLE)
    assert SHARE.capability.hex() not in repr(HANDLE)


def test_pickles_name_no_file_of_ours() -> None:
    """They name the public module, which every version can read; those that named the file are read as well."""
    now = pickle.dumps(HANDLE, protocol=2)
    assert b"czerohop\nRemoteBuffer\n" in now
    before = now.replace(b"czerohop\n", b"czerohop.remote_buffer\n")
    assert pickle.loads(before) == HANDLE


def test_travels() -> None:
    for again in (
        RemoteBuffer.from_bytes(RAW),
        RemoteBuffer.from_bytes(bytearray(RAW)),
        RemoteBuffer.from_bytes(memoryview(RAW)),
        pickle.loads(pickle.dumps(HANDLE)),
        copy.deepcopy(HANDLE),
    ):
        assert again == HANDLE
        assert hash(again) == hash(HANDLE)
        assert bytes(again) == RAW
        assert again._share == SHARE
    assert len(RAW) < 300
    part = HANDLE[100:200]
    assert RemoteBuffer.from_bytes(bytes(part)) == part


def test_slices() -> None:
    part = HANDLE[100:200]
    assert (part.nbytes, part._offset) == (100, 100)
    assert (part[10:20].nbytes, part[10:20]._offset) == (10, 110)
    assert part[-10:]._offset == 190
    assert HANDLE[990:5000].nbytes == 10
    assert HANDLE[600:500].nbytes == 0
    assert HANDLE[:] == HANDLE
    assert HANDLE[1:] != HANDLE
    assert HANDLE != "something else"


@given(st.integers(0, 50), st.slices(60))
def test_byte_range_is_pythons(nbytes: int, key: slice) -> None:
    if key.indices(nbytes)[2] != 1:
        with pytest.raises(ValueError, match="step"):
            byte_range(key, nbytes)
        return
    start, stop = byte_range(key, nbytes)
    assert bytes(range(nbytes))[start:stop] == bytes(range(nbytes))[key]


@pytest.mark.parametrize("key", [0, None, "a", (0, 1), 1.5])
def test_what_is_no_slice(key: Any) -> None:
    with pytest.raises(TypeError):
        HANDLE[key]


@pytest.mark.parametrize("name", ["nbytes", "_offset", "_share", "new"])
def test_it_cannot_be_changed(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(HANDLE, name, 5)
    with pytest.raises(AttributeError):
        delattr(HANDLE, name)


@given(st.binary(max_size=400))
def test_random_bytes(raw: bytes) -> None:
    with pytest.raises(zh.ProtocolError):
        RemoteBuffer.from_bytes(raw)
    with pytest.raises(zh.ProtocolError):
        RemoteBuffer.from_bytes(RAW[:5] + raw)


def test_every_truncation_and_extension() -> None:
    for end in range(len(RAW)):
        with pytest.raises(zh.ProtocolError):
            RemoteBuffer.from_bytes(RAW[:end])
    with pytest.raises(zh.ProtocolError):
        RemoteBuffer.from_bytes(RAW + b"\0")
    with pytest.raises(zh.ProtocolError, match=str(MAX_BYTES)):
        RemoteBuffer.from_bytes(RAW + bytes(MAX_BYTES))


@given(st.integers(0, len(RAW) - 1), st.integers(0, 255))
def test_every_flipped_byte_parses_to_something_sound_or_is_refused(position: int, value: int) -> None:
    raw = bytearray(RAW)
    raw[position] = value
    try:
        handle = RemoteBuffer.from_bytes(raw)
    except zh.ProtocolError:
        return
    assert 0 <= handle._offset <= handle._offset + handle.nbytes <= handle._share.nbytes
    assert handle.rights in ("r", "w", "rw")
    assert RemoteBuffer.from_bytes(bytes(handle)) == handle


@pytest.mark.parametrize("given", [0, 5, 1 << 50, None, "text", [90, 72], object()])
def test_what_is_not_bytes(given: Any) -> None:
    """A number is no length: it would be as many zeros."""
    words = rf"^data= takes the bytes that bytes\(handle\) gave, .*, not {type(given).__name__}$"
    with pytest.raises(TypeError, match=words):
        RemoteBuffer.from_bytes(given)


def test_another_version_names_both() -> None:
    raw = bytearray(RAW)
    raw[4] = 9
    with pytest.raises(zh.ProtocolError, match=r"version 9.*version 1"):
        RemoteBuffer.from_bytes(raw)


# Position of each field in the array that is on the wire.
URL, OWNER_AT, SHARE_ID, CAPABILITY, NBYTES, DEVICE, RIGHTS, REVOCABLE, KEYS, OFFSET, LENGTH = range(11)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (URL, "http://evil/"),
        (URL, SHARE.url.replace(OWNER, "f" * 32, 1)),
        (URL, f"zerohop:///{OWNER}?unix=/{'x' * 200}"),
        (OWNER_AT, b"short"),
        (SHARE_ID, -1),
        (CAPABILITY, b""),
        (NBYTES, 999),
        (NBYTES, 1 << 63),
        (DEVICE, "../../etc"),
        (DEVICE, ""),
        (RIGHTS, 0),
        (RIGHTS, 4),
        (REVOCABLE, 1),
        (KEYS, {"x" * 33: b""}),
        (KEYS, {"x": bytes(257)}),
        (KEYS, {str(i): b"" for i in range(9)}),
        (OFFSET, 1),
        (OFFSET, (1 << 64) - 1),
        (LENGTH, 1001),
    ],
)
def test_values_that_no_owner_writes(field: int, value: object) -> None:
    fields = msgspec.msgpack.decode(RAW[5:])
    fields[field] = value
    with pytest.raises(zh.ProtocolError):
        RemoteBuffer.from_bytes(RAW[:5] + msgspec.msgpack.encode(fields))


def test_neither_more_nor_fewer_fields() -> None:
    fields = msgspec.msgpack.decode(RAW[5:])
    others: list[object] = [fields[:-1], [*fields, 0], {}, fields[0], None]
    for changed in others:
        with pytest.raises(zh.ProtocolError):
            RemoteBuffer.from_bytes(RAW[:5] + msgspec.msgpack.encode(changed))
