"""Work requests: what is refused before anything is posted."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import zerohop as zh
from fabric.regions import region
from zerohop.fabric import Access, CompareSwap, FetchAdd, Read, Receive, RemoteMemory, Send, Write

REMOTE = RemoteMemory(0x8000, 5, 64)
WORD = RemoteMemory(0x8000, 5, 8)
# What no message may have.
LONG = (1 << 31) + 1


def test_lengths_must_agree() -> None:
    assert Write(region(64), REMOTE).nbytes == 64
    assert Write([region(30), region(34)], REMOTE).nbytes == 64
    assert Write(b"x" * 64, REMOTE, inline=True).nbytes == 64
    for local in (region(63), region(65), [region(64), region(1)], ()):
        with pytest.raises(ValueError, match=r"slice the longer one"):
            Write(local, REMOTE)
        with pytest.raises(ValueError, match=r"slice the longer one"):
            Read(local, REMOTE)


def test_slices_are_ranges_of_their_region() -> None:
    whole = region(64)
    part = whole[8:24][4:]
    assert (part.addr, part.length, part.lkey, part.rkey) == (whole.addr + 12, 12, 11, 22)
    assert part.region is whole
    assert len(part) == 12
    with pytest.raises(ValueError, match="step"):
        whole[::2]


def test_empty_ranges_are_left_out() -> None:
    """To some devices a range of length 0 means one of 2 GiB."""
    request = Write([region(64)[:0], region(64), region(64)[5:5]], REMOTE)
    assert len(request._regions) == 1
    assert Send(()).nbytes == Receive().nbytes == 0


@pytest.mark.parametrize("local", [np.zeros(64, np.uint8), b"x" * 64, bytearray(64)])
def test_memory_must_be_registered(local: Any) -> None:
    for make in (
        lambda: Write(local, REMOTE),
        lambda: Send(local),
        lambda: Read(local, REMOTE),
        lambda: Receive(local),
    ):
        with pytest.raises(TypeError, match="register"):
            make()


@pytest.mark.parametrize("local", [None, 5, "text", [b"x"], [None], {}])
def test_what_is_no_memory(local: Any) -> None:
    for inline in (False, True):
        with pytest.raises(TypeError):
            Send(local, inline=inline)
    with pytest.raises(TypeError):
        Receive(local)


@pytest.mark.parametrize("remote", [None, b"", region(64), (0x8000, 5, 64)])
def test_the_remote_side_is_remote_memory(remote: Any) -> None:
    for make in (
        lambda: Write(region(64), remote),
        lambda: Read(region(64), remote),
        lambda: FetchAdd(region(8), remote, 1),
        lambda: CompareSwap(region(8), remote, 1, 2),
    ):
        with pytest.raises(TypeError, match="RemoteMemory"):
            make()


def test_what_is_written_to_needs_local_write() -> None:
    closed = region(64, Access.REMOTE_READ)
    for make in (
        lambda: Read(closed, REMOTE),
        lambda: Receive(closed),
        lambda: FetchAdd(closed[:8], WORD, 1),
        lambda: CompareSwap(closed[:8], WORD, 1, 2),
    ):
        with pytest.raises(ValueError, match="LOCAL_WRITE"):
            make()
    assert Write(closed, REMOTE).nbytes == 64


@pytest.mark.parametrize("remote", [REMOTE, RemoteMemory(0x8001, 5, 8), RemoteMemory(0x8000, 5, 4)])
def test_atomics_are_on_aligned_words(remote: RemoteMemory) -> None:
    with pytest.raises(ValueError, match="8 bytes at a multiple of 8"):
        FetchAdd(region(remote.length), remote, 1)
    with pytest.raises(ValueError, match="8 bytes at a multiple of 8"):
        CompareSwap(region(remote.length), remote, 0, 1)
    with pytest.raises(ValueError, match="slice"):
        FetchAdd(region(16), WORD, 1)


def test_numbers_have_their_bits() -> None:
    most = (1 << 64) - 1
    assert FetchAdd(region(8), WORD, most, wr_id=most).wr_id == most
    CompareSwap(region(8), WORD, most, most)
    Send((), imm=(1 << 32) - 1)
    for make in (
        lambda: FetchAdd(region(8), WORD, most + 1),
        lambda: FetchAdd(region(8), WORD, -1),
        lambda: CompareSwap(region(8), WORD, -1, 0),
        lambda: CompareSwap(region(8), WORD, 0, most + 1),
        lambda: Send((), imm=1 << 32),
        lambda: Send((), imm=-1),
        lambda: Send((), wr_id=most + 1),
        lambda: Receive(wr_id=-1),
    ):
        with pytest.raises(ValueError, match="must be from 0 to"):
            make()
    for wrong in (
        lambda: FetchAdd(region(8), WORD, 1.0),  # type: ignore[arg-type]
        lambda: Send((), imm=True),
        lambda: Send((), wr_id="1"),  # type: ignore[arg-type]
        lambda: Send((), inline=1),  # type: ignore[arg-type]
        lambda: Send((), signalled=None),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            wrong()


def test_messages_of_more_than_2_gib() -> None:
    with pytest.raises(ValueError, match="2147483648"):
        Send(region(LONG))
    with pytest.raises(ValueError, match="2147483648"):
        Receive([region(1 << 31), region(1)])


def test_inline_is_for_memory_that_the_cpu_can_touch() -> None:
    with pytest.raises(ValueError, match="accelerator"):
        Send(region(64, device="sim:0"), inline=True)
    assert Send(region(64), inline=True).inline


def test_remote_needs_a_right_for_peers() -> None:
    with pytest.raises(ValueError, match="REMOTE_WRITE"):
        region(64).remote()
    shared = region(64, Access.REMOTE_READ)
    assert shared[3:7].remote() == RemoteMemory(shared.addr + 3, 22, 4)
    shared.close()
    with pytest.raises(zh.Closed):
        shared.remote()


def test_regions_stay_in_their_process() -> None:
    for thing in (region(64), region(64)[3:]):
        for leave in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="remote"):
                leave(thing)


def test_representations() -> None:
    assert repr(Write(region(64), REMOTE, wr_id=3)) == "Write(64 bytes, wr_id 3)"
    assert "64 bytes" in repr(region(64))
    assert "Receive(0 bytes" in repr(Receive())
