"""Closed, out of bounds, without the right, of an old generation, revoked: refused, and the target untouched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.world import PROVIDERS, WORLDS, WORLDS_AND_KINDS, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.buffers import Kind
    from support.fixtures import OpenContext
    from support.world import World

pytestmark = pytest.mark.unprivileged

Calls = dict[str, "Callable[[zh.Context, object, zh.RemoteBuffer], zh.Operation[int]]"]

# Every operation that reaches into the memory behind a handle of 4096 bytes.
CALLS: Calls = {
    "write": lambda context, mine, handle: context.write(mine, handle),
    "write notified": lambda context, mine, handle: context.write(mine, handle, notify=1),
    "read": lambda context, mine, handle: context.read(handle, mine),
    "write_pages": lambda context, mine, handle: context.write_pages(mine, handle, [0, 1], [3, 2], page_bytes=1024),
    "read_pages": lambda context, mine, handle: context.read_pages(handle, mine, [0, 1], [3, 2], page_bytes=1024),
    "fetch_add": lambda context, mine, handle: context.fetch_add(handle, 1),
    "compare_swap": lambda context, mine, handle: context.compare_swap(handle, 0xA5A5A5A5A5A5A5A5, 1),
}
NBYTES = 4096


def _expect_refused(world: World, handle: zh.RemoteBuffer, *words: str) -> None:
    """Every operation with this handle ends with AccessDenied, moves nothing and notifies nobody."""
    mine = pattern(7, NBYTES).copy()
    for name, call in CALLS.items():
        with pytest.raises(zh.AccessDenied) as caught:
            call(world.here, mine, handle).result(PATIENCE_S)
        error = caught.value
        assert error.peer == world.there.identity.id, name
        assert error.provider in ("", world.provider), name
        assert error.operation, name
        assert error.reason, name
        for word in words:
            assert word in str(error).lower(), name
    assert mine.tobytes() == pattern(7, NBYTES).tobytes()
    world.expect_no_notification()


@pytest.mark.parametrize(("world", "kind"), WORLDS_AND_KINDS, indirect=["world"])
class TestRefusedByTheTarget:
    def test_revoked(self, world: World, kind: Kind) -> None:
        target = world.target(kind, NBYTES)
        CALLS["write"](world.here, pattern(1, NBYTES), target.handle).result(PATIENCE_S)
        target.poison()
        assert target.revoke(PATIENCE_S).kind == "ok"
        _expect_refused(world, target.handle)
        target.expect_poison()

    def test_revoked_before_its_first_use(self, world: World, kind: Kind) -> None:
        target = world.target(kind, NBYTES)
        assert target.revoke(PATIENCE_S).kind == "ok"
        _expect_refused(world, target.handle)
        target.expect_poison()

    def test_old_generation(self, world: World, kind: Kind) -> None:
        """The place of the old share in the owner's table is taken by a new one of the same memory."""
        target = world.target(kind, NBYTES)
        old = target.handle
        CALLS["write"](world.here, pattern(1, NBYTES), old).result(PATIENCE_S)
        assert target.revoke(PATIENCE_S).kind == "ok"
        target.poison()
        fresh = [target.share() for _ in range(4)]
        _expect_refused(world, old)
        target.expect_poison()
        for seed, handle in enumerate(fresh):
            world.here.write(pattern(seed, NBYTES), handle).result(PATIENCE_S)
            target.settle(0, NBYTES, seed)

    def test_closed_by_its_owner(self, world: World, kind: Kind) -> None:
        target = world.target(kind, NBYTES)
        CALLS["write"](world.here, pattern(1, NBYTES), target.handle).result(PATIENCE_S)
        world.there.call(Service.close_memory, target.number)
        _expect_refused(world, target.handle)
        neighbour = world.target(kind, NBYTES)
        _expect_refused(world, target.handle)
        neighbour.expect_poison()


@pytest.mark.parametrize("kind", ["numpy", "alloc", "sim"])
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_memory_closed_here(world: World, kind: Kind) -> None:
    """Closed for the Memory and for every View of it, as source and as destination; a second close does nothing."""
    mine = world.buffer(kind, NBYTES)
    target = world.target("numpy", NBYTES)
    view = mine.memory[10:20]
    world.here.write(mine.memory, target.handle).result(PATIENCE_S)
    target.poison()
    mine.memory.close()
    mine.memory.close()
    for name, call in CALLS.items():
        if "fetch" not in name and "swap" not in name:
            with pytest.raises(zh.Closed):
                call(world.here, mine.memory, target.handle).result(PATIENCE_S)
    with pytest.raises(zh.Closed):
        world.here.write(view, target.handle[:10]).result(PATIENCE_S)
    with pytest.raises(zh.Closed):
        mine.memory.share("r")
    with pytest.raises(zh.Closed):
        mine.memory.read_bytes(0, 1)
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    with pytest.raises(zh.Closed):
        connection.send(view).result(PATIENCE_S)
    with pytest.raises(zh.Closed):
        connection.recv(view).result(PATIENCE_S)
    target.expect_poison()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_context_closed_here(open_context: OpenContext, provider: str) -> None:
    options = Options(providers=(provider,))
    context, owner = open_context(options), open_context(options)
    owned = np.zeros(NBYTES, np.uint8)
    theirs = owner.register(owned)
    handle = theirs.share("rw")
    memory = context.alloc(NBYTES)
    context.write(memory, handle).result(PATIENCE_S)
    connection = context.connect(owner.url).result(PATIENCE_S)
    context.close()
    for name, call in CALLS.items():
        for mine in (memory, pattern(1, NBYTES).copy()):
            with pytest.raises(zh.Closed) as caught:
                call(context, mine, handle).result(PATIENCE_S)
            assert caught.value.reason, name
    others: list[Callable[[], object]] = [
        lambda: context.alloc(NBYTES),
        lambda: context.register(pattern(1, NBYTES).copy()),
        lambda: context.connect(owner.url).result(PATIENCE_S),
        lambda: context.notification_nowait(),
        lambda: context.notification(1).result(PATIENCE_S),
        lambda: context.flush().result(PATIENCE_S),
        lambda: connection.notify(1).result(PATIENCE_S),
        lambda: connection.send(memory).result(PATIENCE_S),
        lambda: memory.share("r"),
    ]
    for other in others:
        with pytest.raises(zh.Closed):
            other()
    memory.close()
    assert not connection.alive
    assert not owned.any()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_context_closed_by_the_owner(open_context: OpenContext, provider: str) -> None:
    """What the other side closed is lost, not closed."""
    options = Options(providers=(provider,))
    context, owner = open_context(options), open_context(options)
    owned = np.zeros(NBYTES, np.uint8)
    theirs = owner.register(owned)
    handle = theirs.share("rw")
    context.write(np.zeros(NBYTES, np.uint8), handle).result(PATIENCE_S)
    connection = context.connect(owner.url).result(PATIENCE_S)
    pending = connection.recv(np.zeros(8, np.uint8))
    owner.close()
    with pytest.raises(zh.PeerLost):
        pending.result(PATIENCE_S)
    for call in CALLS.values():
        with pytest.raises(zh.PeerLost):
            call(context, pattern(1, NBYTES).copy(), handle).result(PATIENCE_S)
    assert not owned.any()


@pytest.mark.parametrize(("world", "kind"), WORLDS_AND_KINDS, indirect=["world"])
def test_beside_the_range(world: World, kind: Kind) -> None:
    """A share of the middle reaches no byte beside it, by any slice, page or word."""
    nbytes = 3 * NBYTES
    target: Target = world.target(kind, nbytes)
    middle = target.handle[NBYTES : 2 * NBYTES]
    world.here.write(pattern(1, NBYTES), middle[-2 * NBYTES : 2 * NBYTES]).result(PATIENCE_S)
    target.settle(NBYTES, NBYTES, 1)
    mine = np.zeros(NBYTES, np.uint8)
    for page in (4, -1, 1 << 52):
        with pytest.raises((zh.AccessDenied, ValueError)):
            world.here.write_pages(pattern(2, NBYTES), middle, [0], [page], page_bytes=1024).result(PATIENCE_S)
        with pytest.raises((zh.AccessDenied, ValueError)):
            world.here.read_pages(middle, mine, [page], [0], page_bytes=1024).result(PATIENCE_S)
    for offset in (-8, NBYTES, NBYTES - 4, 1 << 60):
        with pytest.raises((zh.AccessDenied, ValueError)):
            world.here.fetch_add(middle, 1, offset=offset).result(PATIENCE_S)
    target.expect_poison()
    assert not mine.any()
