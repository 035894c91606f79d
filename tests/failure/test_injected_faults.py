"""A device that fails to allocate, fails a copy, or is lost: named errors, the rest goes on, nothing leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.native import engine_of
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.world import Target

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

NBYTES = 3_000_001

pytestmark = pytest.mark.parametrize("provider", ["shm", "tcp"])


def _pair(open_context: OpenContext, start_peer: StartPeer, provider: str) -> tuple[zh.Context, Peer]:
    options = Options(providers=(provider,))
    return open_context(options), start_peer(options)


def test_allocation(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    context, peer = _pair(open_context, start_peer, provider)
    engine_of(context).sim_inject(0, "alloc", 2)
    for _ in range(2):
        with pytest.raises(zh.RegistrationFailed, match=r"(?i)alloc") as caught:
            context.alloc(NBYTES, device="sim:0")
        assert caught.value.fix
    context.alloc(NBYTES, device="sim:1").close()
    context.alloc(NBYTES, device="sim:0").close()
    peer.call(Service.inject, 0, "alloc", 1)
    failed = peer.call(Service.try_alloc, NBYTES, "sim:0")
    assert failed.kind == "RegistrationFailed"
    assert failed.fix
    assert peer.call(Service.try_alloc, NBYTES, "sim:0").kind == "ok"


def test_copy_here(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """Of the source or of the destination of an operation that starts here."""
    context, peer = _pair(open_context, start_peer, provider)
    target = Target(peer, "numpy", NBYTES)
    with context.alloc(NBYTES, device="sim:0") as mine:
        mine.write_bytes(0, pattern(1, NBYTES).tobytes())
        context.write(mine, target.handle).result(PATIENCE_S)
        target.poison()
        engine_of(context).sim_inject(0, "copy", 1)
        with pytest.raises(zh.DeviceFailed, match=r"(?i)copy") as caught:
            context.write(mine, target.handle, notify=1).result(PATIENCE_S)
        assert caught.value.provider == provider
        peer.call(Service.expect_no_notification)
        engine_of(context).sim_inject(0, "copy", 1)
        with pytest.raises(zh.DeviceFailed, match=r"(?i)copy"):
            context.read(target.handle, mine).result(PATIENCE_S)
        context.write(mine[:8], target.handle[:8]).result(PATIENCE_S)
        mine.write_bytes(0, pattern(2, NBYTES).tobytes())
        context.write(mine, target.handle, notify=2).result(PATIENCE_S)
        target.expect(0, NBYTES, 2)
        assert peer.call(Service.notification).value == 2


def test_copy_there(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """Of the target's device: the initiator is told, the target is not notified, the lane goes on."""
    context, peer = _pair(open_context, start_peer, provider)
    target = Target(peer, "sim", NBYTES)
    context.write(pattern(1, NBYTES), target.handle).result(PATIENCE_S)
    peer.call(Service.inject, 0, "copy", 1)
    with pytest.raises(zh.DeviceFailed, match=r"(?i)copy") as caught:
        context.write(pattern(2, NBYTES), target.handle, notify=1).result(PATIENCE_S)
    assert caught.value.peer == peer.identity.id
    peer.call(Service.expect_no_notification)
    peer.call(Service.inject, 0, "copy", 1)
    with pytest.raises(zh.DeviceFailed, match=r"(?i)copy"):
        context.read(target.handle, np.zeros(NBYTES, np.uint8)).result(PATIENCE_S)
    context.write(pattern(3, NBYTES), target.handle, notify=2).result(PATIENCE_S)
    assert peer.call(Service.notification).value == 2
    target.expect(0, NBYTES, 3)


def test_one_copy_of_many(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """Of operations in flight together, as many fail as copies do, and the others are whole."""
    context, peer = _pair(open_context, start_peer, provider)
    count, slot = 20, 50_000
    target = Target(peer, "numpy", count * slot)
    with context.alloc(count * slot, device="sim:0") as mine:
        mine.write_bytes(0, pattern(1, count * slot).tobytes())
        ranges = [slice(k * slot, (k + 1) * slot) for k in range(count)]
        context.write(mine, target.handle).result(PATIENCE_S)
        target.poison()
        engine_of(context).sim_inject(0, "copy", 1)
        posted = [context.write(mine[r], target.handle[r]) for r in ranges]
        errors = [operation.exception(PATIENCE_S) for operation in posted]
        failed = [k for k, error in enumerate(errors) if error is not None]
        # One copy may stage several small writes.
        assert 0 < len(failed) < count
        assert all(isinstance(errors[k], zh.DeviceFailed) for k in failed)
        whole = np.frombuffer(mine.read_bytes(0, count * slot), np.uint8)
        for k in set(range(count)) - set(failed):
            assert target.get(k * slot, slot) == whole[ranges[k]].tobytes()


@pytest.mark.parametrize("where", ["here", "there"])
def test_lost_device(open_context: OpenContext, start_peer: StartPeer, provider: str, where: str) -> None:
    """Operations on it fail from then on, with its loss as the reason; the other device and host memory go on."""
    context, peer = _pair(open_context, start_peer, provider)
    lost, other = Target(peer, "sim", NBYTES), Target(peer, "numpy", NBYTES)
    mine = context.alloc(NBYTES, device="sim:0")
    second = context.alloc(NBYTES, device="sim:1")
    context.write(mine, other.handle).result(PATIENCE_S)
    context.write(second, lost.handle).result(PATIENCE_S)
    if where == "here":
        engine_of(context).sim_inject(0, "lost", 1)
        pending = [context.write(mine, other.handle), context.read(other.handle, mine)]
    else:
        peer.call(Service.inject, 0, "lost", 1)
        pending = [context.write(second, lost.handle), context.read(lost.handle, second)]
    for operation in pending:
        with pytest.raises(zh.DeviceFailed, match=r"(?i)lost"):
            operation.result(PATIENCE_S)
    second.write_bytes(0, pattern(4, NBYTES).tobytes())
    context.write(second, other.handle, notify=4).result(PATIENCE_S)
    assert peer.call(Service.notification).value == 4
    other.expect(0, NBYTES, 4)
    if where == "here":
        with pytest.raises((zh.RegistrationFailed, zh.DeviceFailed)):
            context.alloc(NBYTES, device="sim:0")
    mine.close()
    second.close()


def test_slow_device(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """Copies that outlast the deadline: the operation ends at it, the memory goes back once the copies are done."""
    context, peer = _pair(open_context, start_peer, provider)
    target = Target(peer, "numpy", NBYTES)
    mine = context.alloc(NBYTES, device="sim:0")
    context.write(mine, target.handle).result(PATIENCE_S)

    def ended_at_its_deadline(seconds: float) -> bool:
        engine_of(context).sim_delay(0, int(seconds * 1e9), 0)
        error = context.write(mine, target.handle, timeout=0.05).exception()
        assert isinstance(error, zh.DeadlineExceeded | None)
        return error is not None

    # Whoever stands still for longer than that finds the copies done before anybody has looked at the deadline.
    assert any(ended_at_its_deadline(seconds) for seconds in (0.15, 1, 5))
    mine.close()
    engine_of(context).sim_delay(0, 0, 0)
    with context.alloc(NBYTES, device="sim:0") as again:
        again.write_bytes(0, pattern(6, NBYTES).tobytes())
        context.write(again, target.handle).result(PATIENCE_S)
        target.expect(0, NBYTES, 6)
