"""A link goes down in the middle of a transfer: an error in bounded time, or another lane; up again, all is well."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.service import Service
from support.sizes import GIB, MIB
from support.wire import FAR, NEAR, cut
from support.world import Target

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer

# (retry_count + 1) acknowledgements of 4.096 µs × 2^14 that do not come, up to four times each by the specification.
BOUND_S = 7 * 4.096e-6 * 2**14 * 4
# Of an emulated machine, and far from any deadline.
GRACE_S = PATIENCE_S
# So that no deadline can be taken for the loss.
NEVER_S = 100.0
PIECE, PIECES = 8 * MIB, 64
AHEAD = 32  # pieces on their way at once


def _pair(
    open_context: OpenContext, start_peer: StartPeer, providers: tuple[str, ...], nbytes: int
) -> tuple[zh.Context, Target]:
    context = open_context(Options(providers=providers, nics=NEAR, timeout=NEVER_S))
    peer = start_peer(Options(providers=providers, nics=FAR, timeout=NEVER_S))
    target = Target(peer, "numpy", nbytes)
    context.write(np.zeros(8, np.uint8), target.handle[:8]).result(30)
    return context, target


def _path(context: zh.Context, memory: zh.Memory, target: Target) -> str:
    return context.explain(memory[:8], target.handle[:8]).provider


def _works(context: zh.Context, memory: zh.Memory, target: Target) -> bool:
    """Whether a new operation is done; while the link comes up it may still be refused."""
    try:
        return context.write(memory[:8], target.handle[:8]).result(20) == 8
    except (zh.PeerLost, zh.Unsupported):
        return False


@pytest.mark.timeout(300)
def test_while_a_gigabyte_is_moved(open_context: OpenContext, start_peer: StartPeer) -> None:
    context, target = _pair(open_context, start_peer, ("verbs",), GIB)
    memory = context.register(np.full(GIB, 7, np.uint8))
    moving = context.write(memory, target.handle)
    while target.get(MIB, 1) != b"\x07":
        assert not moving.done()
    with cut():
        began = time.monotonic()
        with pytest.raises(zh.PeerLost) as caught:
            moving.result(NEVER_S)
        assert time.monotonic() - began < BOUND_S + GRACE_S
        assert caught.value.provider == "verbs"
        assert caught.value.reason
        # Without another lane, what is new says so instead of hanging.
        with pytest.raises((zh.PeerLost, zh.Unsupported)):
            context.write(memory[:8], target.handle[:8]).result(NEVER_S)
    until = time.monotonic() + 60
    while not _works(context, memory, target):
        assert time.monotonic() < until, "the link is up again, and nothing works"
    assert _path(context, memory, target) == "verbs"
    assert context.write(memory[:MIB], target.handle[:MIB]).result(30) == MIB


@pytest.mark.timeout(300)
def test_another_lane_takes_over(open_context: OpenContext, start_peer: StartPeer) -> None:
    """Operations in flight end, each with its own result; those that begin later go over tcp."""
    context, target = _pair(open_context, start_peer, ("verbs", "tcp"), PIECES * PIECE)
    memory = context.register(np.full(PIECES * PIECE, 7, np.uint8))
    assert _path(context, memory, target) == "verbs"
    moving: list[zh.Operation[int]] = []
    is_down = threading.Event()

    def keep_moving() -> None:
        """However long it takes to take the link down, there is something on its way then."""
        for number in itertools.count():
            if is_down.is_set():
                return
            piece = slice((start := number % PIECES * PIECE), start + PIECE)
            moving.append(context.write(memory[piece], target.handle[piece]))
            if number >= AHEAD:
                moving[number - AHEAD].exception(NEVER_S)

    with ThreadPoolExecutor(1) as others:
        posting = others.submit(keep_moving)
        try:
            eventually(lambda: bool(moving) and moving[0].done(), "nothing is moved")
            with cut():
                is_down.set()
                posting.result(NEVER_S)
                _goes_over_tcp(context, memory, target, moving)
        finally:
            is_down.set()
    _until_back(context, memory, target)
    assert context.write(memory[-PIECE:], target.handle[-PIECE:]).result(NEVER_S) == PIECE
    assert target.get(PIECES * PIECE - 8, 8) == bytes([7]) * 8


def _goes_over_tcp(context: zh.Context, memory: zh.Memory, target: Target, moving: list[zh.Operation[int]]) -> None:
    lost = [error for operation in moving if (error := operation.exception(NEVER_S)) is not None]
    assert lost, "nothing was on its way when the link went down"
    assert all(isinstance(error, zh.PeerLost) for error in lost), lost
    memory.write_bytes(0, bytes([9]) * 8)
    # Connected all the time: the peer is not gone, one of the ways to it is.
    assert context.write(memory[:8], target.handle[:8], notify=5).result(NEVER_S) == 8
    assert target.remote.call(Service.notification).value == 5
    assert target.get(0, 8) == bytes([9]) * 8
    assert _path(context, memory, target) == "tcp"


@pytest.mark.timeout(300)
def test_nobody_notices_who_had_nothing_under_way(open_context: OpenContext, start_peer: StartPeer) -> None:
    """The lane is replaced when its port goes down, and not by the first operation that fails on it."""
    context, target = _pair(open_context, start_peer, ("verbs", "tcp"), MIB)
    memory = context.register(np.full(MIB, 3, np.uint8))
    assert context.write(memory, target.handle).result(30) == MIB
    with cut():
        eventually(lambda: _path(context, memory, target) == "tcp", "nobody takes notice of the port")
        assert context.write(memory, target.handle, notify=7).result(NEVER_S) == MIB
        assert target.remote.call(Service.notification).value == 7
    _until_back(context, memory, target)


def _until_back(context: zh.Context, memory: zh.Memory, target: Target) -> None:
    """Until the link that is up again is used."""
    until = time.monotonic() + 60
    while _path(context, memory, target) != "verbs":
        assert time.monotonic() < until, "the link is up again, and nobody uses it"
        assert _works(context, memory, target)
