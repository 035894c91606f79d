"""Memory that is registered, freed and comes back at the same address: old handles never reach the new owner's."""

from __future__ import annotations

import gc
import secrets
import threading
import weakref
from multiprocessing import shared_memory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.addresses import Mapping
from support.buffers import KINDS, Kind
from support.interleaving import Meanwhile, at_each_step
from support.lanes import eventually, eventually_freed
from support.leaks import shared_memory_prefix
from support.native import engine_of
from support.options import Options
from support.patience import PATIENCE_S, times
from support.pattern import POISON, expect_equal, expect_poison, pattern
from support.service import Service
from support.world import PROVIDERS, WORLDS

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer
    from support.world import World

NBYTES = 256 * 1024


@pytest.mark.parametrize("provider", PROVIDERS)
def test_raw_address_reused(open_context: OpenContext, provider: str) -> None:
    """Remote side: the handle of the first registration is refused although its address is registered again."""
    options = Options(providers=(provider,))
    owner, other = open_context(options), open_context(options)
    first = Mapping(NBYTES)
    memory = owner.register((first.address, NBYTES, "host"))
    old = memory.share("rw")
    other.write(pattern(1, NBYTES), old).result(PATIENCE_S)
    expect_equal(first.array(), pattern(1, NBYTES), "the first memory")
    memory.close()
    first.unmap()
    second = Mapping(NBYTES, first.address)
    second.array()[:] = POISON
    with owner.register((second.address, NBYTES, "host")) as again:
        assert again.address == second.address
        new = again.share("rw")
        assert bytes(new) != bytes(old)
        with pytest.raises((zh.AccessDenied, zh.PeerLost)):
            other.write(pattern(2, NBYTES), old).result(PATIENCE_S)
        with pytest.raises((zh.AccessDenied, zh.PeerLost)):
            other.read(old, np.zeros(NBYTES, np.uint8)).result(PATIENCE_S)
        expect_poison(second.array(), "memory at a reused address")
        other.write(pattern(3, NBYTES), new).result(PATIENCE_S)
        expect_equal(second.array(), pattern(3, NBYTES), "the second memory")
    second.unmap()


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_local_address_reused(world: World) -> None:
    """Local side: raw pointers are never cached, so each registration sees the memory that is there now."""
    target = world.target("numpy", NBYTES)
    address: int | None = None
    for seed in range(times(20)):
        mapping = Mapping(NBYTES, address)
        address = mapping.address
        mapping.array()[:] = pattern(seed, NBYTES)
        with world.here.register((address, NBYTES, "host")) as memory:
            world.here.write(memory, target.handle).result(PATIENCE_S)
        mapping.unmap()
        target.expect(0, NBYTES, seed)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_unregistered_arrays_are_seen_as_they_are(world: World) -> None:
    """Arrays given to operations directly, freed and allocated again wherever the allocator likes."""
    target = world.target("numpy", NBYTES)
    for seed in range(50):
        nbytes = NBYTES - seed
        data = pattern(seed, nbytes).copy()
        world.here.write(data, target.handle[:nbytes]).result(PATIENCE_S)
        del data
        back = np.zeros(nbytes, np.uint8)
        world.here.read(target.handle[:nbytes], back).result(PATIENCE_S)
        expect_equal(back, pattern(seed, nbytes), f"turn {seed}")


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_the_cache_keeps_nothing_alive(world: World) -> None:
    """An array that an operation used is freed with its last reference, and its registration with it."""
    target = world.target("numpy", NBYTES)
    data = pattern(1, NBYTES).copy()
    world.here.write(data, target.handle).result(PATIENCE_S)
    world.here.read(target.handle, data).result(PATIENCE_S)
    gone = weakref.ref(data)
    del data
    eventually_freed(gone)


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_a_registration_keeps_its_array_alive(world: World) -> None:
    data = pattern(1, NBYTES).copy()
    alive = weakref.ref(data)
    memory = world.here.register(data)
    del data
    gc.collect()
    assert alive() is not None
    target = world.target("numpy", NBYTES)
    world.here.write(memory, target.handle).result(PATIENCE_S)
    target.expect(0, NBYTES, 1)
    memory.close()
    del memory
    eventually_freed(alive)


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_an_operation_keeps_its_array_alive(world: World) -> None:
    """An array that nobody else refers to is read to the end."""
    nbytes = 8 * 1024 * 1024 + 3
    target = world.target("numpy", nbytes)
    operations = [world.here.write(pattern(seed, nbytes), target.handle) for seed in range(4)]
    gc.collect()
    garbage = [np.full(nbytes, 0xEE, np.uint8) for _ in range(4)]
    for operation in operations:
        assert operation.result(PATIENCE_S) == nbytes
    world.here.write(pattern(9, nbytes), target.handle).result(PATIENCE_S)
    target.expect(0, nbytes, 9)
    assert len(garbage) == 4


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_a_view_that_nobody_else_has(world: World) -> None:
    """Of a bytearray: its registration lasts as long as the Memory, which is all that keeps the view."""
    target = world.target("numpy", 100)
    data = bytearray(pattern(1, 1000).tobytes())
    memory = world.here.register(memoryview(data)[:100])
    gc.collect()
    world.here.write(memory, target.handle).result(PATIENCE_S)
    target.expect(0, 100, 1)
    with pytest.raises(BufferError):
        data.append(1)
    memory.close()
    del memory

    def resizable() -> bool:
        gc.collect()
        try:
            data.append(1)
        except BufferError:
            return False
        return True

    # What wrote it may be about to let go of it.
    eventually(resizable, "the view is held")


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_an_array_that_becomes_read_only_and_writable_again(world: World) -> None:
    """The Memories of before go on, and those of then are what it is by then."""
    target = world.target("numpy", NBYTES)
    data = pattern(1, NBYTES).copy()
    memories = [world.here.register(data)]
    for writable in (False, True):
        data.flags.writeable = writable
        memories.append(world.here.register(data))
        assert memories[-1].rights == ("rw" if writable else "r")
    for memory in memories:
        world.here.write(memory, target.handle).result(PATIENCE_S)
        target.expect(0, NBYTES, 1)
        memory.close()
    world.here.write(data, target.handle).result(PATIENCE_S)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_an_array_of_allocated_memory_that_is_closed(world: World) -> None:
    """While it is written from: the transfer ends well, and nothing of it is left then."""
    here = world.here
    target = world.target("numpy", NBYTES)
    here.write(pattern(2, NBYTES), target.handle).result(PATIENCE_S)
    before = here.statistics()
    memory = here.alloc(NBYTES)
    array = memory.numpy()
    array[:] = pattern(1, NBYTES)
    other = here.register(array)
    operation = here.write(array, target.handle)
    memory.close()
    assert operation.result(PATIENCE_S) == NBYTES
    target.expect(0, NBYTES, 1)
    array[:] = pattern(3, NBYTES)
    here.write(other, target.handle).result(PATIENCE_S)
    target.expect(0, NBYTES, 3)
    other.close()
    del memory, array, operation, other
    gc.collect()

    def nothing_left() -> bool:
        now = here.statistics()
        return (now.registrations, now.pinned) == (before.registrations, before.pinned)

    eventually(nothing_left, "nothing of it is left")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_allocated_freed_and_allocated_again(world: World, kind: Kind) -> None:
    """At the target, 30 times; every handle of a time before is refused, whatever lies at its address by now."""
    into = np.zeros(4096, np.uint8)
    old: list[zh.RemoteBuffer] = []
    for seed in range(times(30)):
        target = world.target(kind, 64 * 1024)
        world.here.write(pattern(seed, 4096), target.handle[:4096]).result(PATIENCE_S)
        for handle in old[-3:]:
            with pytest.raises(zh.AccessDenied) as caught:
                world.here.write(pattern(999, 4096), handle[:4096]).result(PATIENCE_S)
            assert caught.value.peer == world.there.identity.id
            with pytest.raises(zh.AccessDenied):
                world.here.read(handle[:4096], into).result(PATIENCE_S)
        target.settle(0, 4096, seed)
        target.expect_poison()
        old.append(target.handle)
        world.close_buffers()
    assert not into.any()


def test_a_closed_context_lets_go_of_what_it_was_given(open_context: OpenContext) -> None:
    """Whether or not somebody still holds the Memory."""
    context = open_context(Options())
    array, resizable = np.zeros(64, np.uint8), bytearray(64)
    memories = [context.register(array), context.register(resizable)]
    gone = weakref.ref(array)
    del array
    context.close()
    resizable.append(1)
    gc.collect()
    assert gone() is None
    assert all("closed" in repr(memory) for memory in memories)
    memories[0].close()


@pytest.mark.parametrize("state", ["open", "closed", "not seen to"])
@pytest.mark.parametrize(("provider", "kind"), [("shm", "alloc"), ("p2p", "sim")])
def test_a_closed_context_keeps_what_a_peer_may_still_write_to(
    open_context: OpenContext, start_peer: StartPeer, provider: str, kind: Kind, state: str
) -> None:
    """A peer that has mapped it and is stopped; the owner's allocator would give it to somebody else."""
    options = Options(providers=(provider,))
    context, peer = open_context(options), start_peer(options)
    shared = shared_memory.SharedMemory(shared_memory_prefix() + secrets.token_hex(8), create=True, size=NBYTES)
    array = np.ndarray(NBYTES, np.uint8, buffer=shared.buf)
    memory, there = context.register(array), weakref.ref(array)
    del array
    theirs = peer.call(Service.new, kind, NBYTES, 0)
    peer.call(Service.write, bytes(memory.share("rw")), theirs, 0, NBYTES)
    peer.stop()
    go_on = threading.Event()
    if state == "closed":
        memory.close(timeout=0.05)
    elif state == "not seen to":
        # The control thread is held up, so that nobody sees the peer lost.
        context._core.control.call(go_on.wait, PATIENCE_S)
    context.close(timeout=0.1)
    go_on.set()
    context._core.control._thread.join(PATIENCE_S)
    del memory
    gc.collect()
    assert there() is not None
    peer.kill()
    peer.reap()
    open_context(options)
    assert there() is None
    shared.close()
    shared.unlink()


class OnDevice:
    """Memory of a simulated device that another library has allocated, as far as our register can tell."""

    def __init__(self, context: zh.Context, nbytes: int) -> None:
        self._region = engine_of(context).alloc(nbytes, context._core.devices.index_of("sim:0"))
        self.address = self._region.address
        self.__cuda_array_interface__: dict[str, Any] = {
            "data": (self.address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
        }

    def free(self) -> None:
        assert self._region.close()


class TestDeviceMemory:
    """What others allocate on a device is known by the id that the driver gave it."""

    def test_what_was_freed_does_not_stay_registered(self, open_context: OpenContext) -> None:
        context = open_context(Options())
        held = OnDevice(context, 4096)
        memory = context.register(held)
        # A pointer that is freed too early is the user's error; the Memory stays as it is until it is closed.
        dangling = OnDevice(context, 8192)
        freed = context.register((dangling.address, 8192, "sim:0"))
        dangling.free()
        for i in range(200):
            other = OnDevice(context, 4096 * (3 + i))  # none is as long as one before
            context.register(other).close()
            other.free()
            assert context.statistics().registrations < 30
        assert context.register(held)._registration is memory._registration
        assert not freed._registration.closed
        memory.close()
        freed.close()
        held.free()

    def test_two_threads_that_find_an_address_again(self, open_context: OpenContext) -> None:
        """Both get the registration of what is there now."""
        context = open_context(Options())
        found: list[zh.Memory] = []

        def attempt(step: int) -> Meanwhile:
            before = OnDevice(context, 4096)
            context.register(before).close()
            before.free()
            array = OnDevice(context, 4096)
            assert array.address == before.address
            tried = Meanwhile(
                lambda: found.append(context.register(array)), lambda: found.append(context.register(array)), step
            )
            assert not tried.errors
            found.append(context.register(array))
            assert len({id(memory._registration) for memory in found}) == 1
            assert not found[0]._registration.closed
            while found:
                found.pop().close()
            assert context.statistics().registrations == 1
            array.free()
            return tried

        at_each_step(attempt)
