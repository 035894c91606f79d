"""EndpointHandle and RemoteMemory: plain values whose bytes are parsed strictly."""

from __future__ import annotations

import dataclasses
import pickle
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zerohop as zh
from zerohop.fabric import EndpointHandle, RemoteMemory

GID = bytes(10) + b"\xff\xff" + bytes([10, 9, 0, 1])
HANDLE = EndpointHandle(qpn=19, psn=0xABCDEF, port=1, gid=GID, mtu=4096, link_layer="Ethernet", read_credit=16)
INFINIBAND = EndpointHandle(qpn=2, psn=0, port=2, lid=7, mtu=256, link_layer="InfiniBand")
REMOTE = RemoteMemory(0x7F00_0000_1000, 0x1234_5678, 4096)
RAW = {EndpointHandle: bytes(HANDLE), RemoteMemory: bytes(REMOTE)}
KINDS = pytest.mark.parametrize("kind", [EndpointHandle, RemoteMemory])

Kind = type[EndpointHandle] | type[RemoteMemory]
addresses = st.integers(0, (1 << 64) - 1)
handles = st.builds(
    EndpointHandle,
    qpn=st.integers(2, 0xFF_FFFF),
    psn=st.integers(0, 0xFF_FFFF),
    port=st.integers(1, 255),
    lid=st.integers(1, 0xFFFF),
    gid=st.just(b"") | st.binary(min_size=16, max_size=16).filter(any),
    mtu=st.sampled_from([256, 512, 1024, 2048, 4096]),
    link_layer=st.just("InfiniBand"),
    read_credit=st.integers(0, 255),
)


@given(handles)
def test_handle_through_bytes_and_pickle(handle: EndpointHandle) -> None:
    assert EndpointHandle.from_bytes(bytes(handle)) == handle
    assert pickle.loads(pickle.dumps(handle)) == handle
    assert hash(EndpointHandle.from_bytes(memoryview(bytes(handle)))) == hash(handle)


@given(addresses, st.integers(0, (1 << 32) - 1), st.data())
def test_remote_memory_through_bytes_and_pickle(addr: int, rkey: int, data: st.DataObject) -> None:
    remote = RemoteMemory(addr, rkey, data.draw(st.integers(0, (1 << 64) - 1 - addr)))
    assert RemoteMemory.from_bytes(bytes(remote)) == remote
    assert pickle.loads(pickle.dumps(remote)) == remote
    assert hash(RemoteMemory.from_bytes(bytearray(bytes(remote)))) == hash(remote)


def test_fields() -> None:
    assert HANDLE.address == "10.9.0.1"
    assert INFINIBAND.address == ""
    assert EndpointHandle(qpn=2, psn=0, gid=b"\xfe\x80" + bytes(13) + b"\1").address == "fe80::1"
    assert (REMOTE.addr, REMOTE.rkey, REMOTE.length, len(REMOTE)) == (0x7F00_0000_1000, 0x1234_5678, 4096, 4096)


def test_slices() -> None:
    assert REMOTE[100:200] == RemoteMemory(REMOTE.addr + 100, REMOTE.rkey, 100)
    assert REMOTE[4000:5000].length == 96
    assert REMOTE[1:][1:] == REMOTE[2:]
    assert REMOTE[5:3].length == 0
    with pytest.raises(ValueError, match="step"):
        REMOTE[::2]
    with pytest.raises(TypeError):
        REMOTE[3]  # type: ignore[index]


def test_values_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        HANDLE.qpn = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        REMOTE.addr = 3
    with pytest.raises(AttributeError):
        del REMOTE.rkey


@KINDS
def test_every_truncation_and_extension(kind: Kind) -> None:
    raw = RAW[kind]
    for end in range(len(raw)):
        with pytest.raises(zh.ProtocolError):
            kind.from_bytes(raw[:end])
    with pytest.raises(zh.ProtocolError):
        kind.from_bytes(raw + b"\0")


@KINDS
@given(raw=st.binary(max_size=80))
def test_random_bytes(kind: Kind, raw: bytes) -> None:
    with pytest.raises(zh.ProtocolError):
        kind.from_bytes(raw)


@KINDS
@given(tail=st.binary(max_size=40))
def test_right_beginning(kind: Kind, tail: bytes) -> None:
    expect_sound_or_refused(kind, RAW[kind][:5] + tail)


@KINDS
def test_every_flipped_bit(kind: Kind) -> None:
    for bit in range(8 * len(RAW[kind])):
        raw = bytearray(RAW[kind])
        raw[bit // 8] ^= 1 << bit % 8
        expect_sound_or_refused(kind, bytes(raw))


def expect_sound_or_refused(kind: Kind, raw: bytes) -> None:
    try:
        value = kind.from_bytes(raw)
    except zh.ProtocolError:
        return
    # Every accepted form is the one that is written.
    assert bytes(value) == raw
    assert pickle.loads(pickle.dumps(value)) == value
    assert repr(value)


@KINDS
@pytest.mark.parametrize("given", [0, 36, 1 << 50, None, "text", [90, 72], object()])
def test_what_is_not_bytes(kind: Kind, given: Any) -> None:
    words = rf"^data= takes the bytes that bytes\(.*\) gave, .*, not {type(given).__name__}$"
    with pytest.raises(TypeError, match=words):
        kind.from_bytes(given)


@KINDS
def test_another_version_names_both(kind: Kind) -> None:
    raw = bytearray(RAW[kind])
    raw[4] = 9
    with pytest.raises(zh.ProtocolError, match=r"version 9.*version 1"):
        kind.from_bytes(raw)


@KINDS
def test_unpickling_checks(kind: Kind) -> None:
    forged = pickle.dumps(HANDLE if kind is EndpointHandle else REMOTE).replace(RAW[kind], RAW[kind][:4] + b"\7" * 21)
    with pytest.raises((zh.ProtocolError, pickle.UnpicklingError, EOFError)):
        pickle.loads(forged)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("qpn", 1, ValueError),
        ("qpn", 1 << 24, ValueError),
        ("qpn", True, TypeError),
        ("qpn", 5.0, TypeError),
        ("psn", -1, ValueError),
        ("psn", 1 << 24, ValueError),
        ("port", 0, ValueError),
        ("port", 256, ValueError),
        ("lid", 1 << 16, ValueError),
        ("gid", bytes(16), ValueError),
        ("gid", b"\1" * 15, ValueError),
        ("gid", b"", ValueError),
        ("gid", "10.9.0.1", TypeError),
        ("mtu", 1500, ValueError),
        ("mtu", 0, ValueError),
        ("mtu", [1024], ValueError),
        ("link_layer", "Token Ring", ValueError),
        ("link_layer", ["Ethernet"], ValueError),
        ("read_credit", 256, ValueError),
    ],
)
def test_handles_that_no_queue_pair_has(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=name if name != "gid" or value else "GID"):
        dataclasses.replace(HANDLE, **{name: value})


def test_without_gid_there_must_be_a_lid() -> None:
    with pytest.raises(ValueError, match="LID"):
        dataclasses.replace(INFINIBAND, lid=0)


@pytest.mark.parametrize(
    ("offset", "value"),
    [(5, 0), (5, 3), (6, 0), (6, 6), (7, 2), (7, 0)],
    ids=["no link layer", "another link layer", "no MTU", "another MTU", "flag 2", "a GID that is not there"],
)
def test_codes_that_mean_nothing(offset: int, value: int) -> None:
    raw = bytearray(RAW[EndpointHandle])
    raw[offset] = value
    with pytest.raises(zh.ProtocolError):
        EndpointHandle.from_bytes(raw)


@pytest.mark.parametrize(
    ("addr", "rkey", "length", "error"),
    [
        (-1, 0, 0, ValueError),
        (1 << 64, 0, 0, ValueError),
        (0, 1 << 32, 0, ValueError),
        (2, 0, (1 << 64) - 1, ValueError),
        (0, 0, True, TypeError),
        ("0", 0, 0, TypeError),
        (0, 0.0, 0, TypeError),
    ],
)
def test_memory_that_nobody_has(addr: Any, rkey: Any, length: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        RemoteMemory(addr, rkey, length)


def test_memory_that_wraps_around() -> None:
    raw = RAW[RemoteMemory][:5] + struct.pack("!QQI", 1 << 63, (1 << 63) + 1, 0)
    with pytest.raises(zh.ProtocolError):
        RemoteMemory.from_bytes(raw)
