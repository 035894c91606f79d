"""Arrays that are given to write and read as they are: once registered they are posted natively, with the
checks and the outcomes of a Memory."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import expect_equal, expect_poison, pattern
from support.raw_arrays import Lifetimes, LongWay, memories_of
from support.service import Service
from support.transports import Link
from support.world import WORLDS

if TYPE_CHECKING:
    from support.fixtures import OpenContext
    from support.world import World

NBYTES = 4096


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> LongWay:
    return LongWay(monkeypatch)


@pytest.mark.parametrize("shape", [(NBYTES,), (64, 64)], ids=["flat", "rows"])
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_only_the_first_use_goes_the_long_way(world: World, long_way: LongWay, shape: tuple[int, ...]) -> None:
    target = world.target("numpy", NBYTES)
    array = np.zeros(shape, np.uint8)
    world.here.write(array, target.handle).result(PATIENCE_S)
    assert long_way.calls == 1
    for seed in range(5):
        array.reshape(-1)[:] = pattern(seed, NBYTES)
        assert world.here.write(array, target.handle).result(PATIENCE_S) == NBYTES
        target.expect(0, NBYTES, seed)
        array[:] = 0
        operation = world.here.read(target.handle, array)
        assert operation.result(PATIENCE_S) == NBYTES
        assert operation.explain().provider == world.provider
        expect_equal(array.reshape(-1), pattern(seed, NBYTES), "read into an array")
    assert long_way.calls == 1


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_notifications(world: World, long_way: LongWay) -> None:
    target = world.target("numpy", NBYTES)
    array = pattern(1, NBYTES).copy()
    world.here.write(array, target.handle).result(PATIENCE_S)
    for value in (0, 7, (1 << 32) - 1):
        world.here.write(array, target.handle, notify=value).result(PATIENCE_S)
        world.expect_notification(value, NBYTES)
        world.here.read(target.handle, array, notify=value).result(PATIENCE_S)
        world.expect_notification(value, NBYTES)
    assert long_way.calls == 1
    for wrong in (-1, 1 << 32):
        with pytest.raises(ValueError, match="32 bits"):
            world.here.write(array, target.handle, notify=wrong)
    world.here.write(array, target.handle, notify=2, message=b"text").result(PATIENCE_S)
    assert world.there.call(Service.notification).message == b"text"
    world.expect_no_notification()


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_each_memory_is_dropped_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After calls that were posted, and after calls that were refused."""
    target = world.target("numpy", NBYTES)
    array = pattern(1, NBYTES).copy()
    world.here.write(array, target.handle).result(PATIENCE_S)
    lifetimes = Lifetimes(monkeypatch)
    for _ in range(10):
        world.here.write(array, target.handle).result(PATIENCE_S)
        world.here.read(target.handle, array).result(PATIENCE_S)
        with pytest.raises(ValueError, match="slice one of them"):
            world.here.write(array, target.handle[1:])
    gc.collect()
    assert lifetimes.made == lifetimes.dropped > 30
    assert memories_of(world.here, array) == 0


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_arrays_that_take_the_place_of_others(world: World) -> None:
    """An id, or an address, that comes back is another array's, of other length."""
    target = world.target("numpy", NBYTES)
    ids: list[int] = []
    for seed in range(60):
        nbytes = NBYTES - seed % 7
        array = np.zeros(nbytes, np.uint8)
        ids.append(id(array))
        for turn in range(2):
            array[:] = pattern(2 * seed + turn, nbytes)
            assert world.here.write(array, target.handle[:nbytes]).result(PATIENCE_S) == nbytes
            assert target.get(0, nbytes) == array.tobytes()
        del array
    assert len(set(ids)) < len(ids), "the test means nothing where no id ever comes back"


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_an_array_that_gets_other_memory(world: World) -> None:
    """As by unpickling into it, which NumPy does whoever refers to the array."""
    target = world.target("numpy", 4 * NBYTES)
    array = np.zeros(NBYTES, np.uint8)
    for seed, nbytes in enumerate((NBYTES, 4 * NBYTES, NBYTES // 2, NBYTES // 2)):
        state: Any = (1, (nbytes,), np.dtype(np.uint8), False, pattern(seed, nbytes).tobytes())
        array.__setstate__(state)
        for turn in range(3):
            assert world.here.write(array, target.handle[:nbytes]).result(PATIENCE_S) == nbytes
            assert target.get(0, nbytes) == pattern(seed + turn, nbytes).tobytes()
            array[:] = pattern(seed + turn + 1, nbytes)


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_an_array_that_gets_another_shape(world: World) -> None:
    """Its values must not arrive in another order than they have."""
    target = world.target("numpy", NBYTES)
    array = np.zeros(NBYTES, np.uint8)
    with zh.Context(providers=[world.provider]) as owner:
        permuted = owner.register(np.zeros((64, 64), np.uint8, order="F"), as_bytes=True).share("rw")
        for _ in range(2):
            world.here.write(array, permuted).result(PATIENCE_S)
            world.here.write(array, target.handle).result(PATIENCE_S)
        array.resize((64, 64), refcheck=False)
        with pytest.raises(ValueError, match="the values lie in another order"):
            world.here.write(array, permuted)
        with pytest.raises(ValueError, match="the values lie in another order"):
            world.here.read(permuted, array)
        world.here.write(array, target.handle).result(PATIENCE_S)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_read_only_arrays(world: World, long_way: LongWay) -> None:
    """They are written from natively, and never read into, whether they were read-only at first or not."""
    target = world.target("numpy", NBYTES)
    array = pattern(1, NBYTES).copy()
    world.here.read(target.handle, array).result(PATIENCE_S)
    array[:] = pattern(2, NBYTES)
    array.flags.writeable = False
    for _ in range(3):
        world.here.write(array, target.handle).result(PATIENCE_S)
        target.settle(0, NBYTES, 2)
        with pytest.raises(ValueError, match="read-only"):
            world.here.read(target.handle, array)
        expect_equal(array, pattern(2, NBYTES), "a read-only array")
    # The first read, the first write of the array that is read-only by then, and what is refused.
    assert long_way.calls == 5
    array.flags.writeable = True
    world.here.read(target.handle, array).result(PATIENCE_S)
    expect_poison(array, "what was read at last")


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_lengths(world: World) -> None:
    target = world.target("numpy", NBYTES)
    array = pattern(1, NBYTES).copy()
    world.here.write(array, target.handle).result(PATIENCE_S)
    target.poison()
    for wrong in (target.handle[:-1], target.handle[1:], target.handle[:0]):
        said = rf"{NBYTES} bytes here and {wrong.nbytes} there"
        with pytest.raises(ValueError, match=said):
            world.here.write(array, wrong)
        with pytest.raises(ValueError, match=said):
            world.here.read(wrong, array)
    target.expect_poison()
    for wrong_type in (None, b"", target, "handle"):
        with pytest.raises(TypeError, match="RemoteBuffer"):
            world.here.write(array, wrong_type)  # type: ignore[arg-type]  # it is refused


def test_memory_of_another_context(open_context: OpenContext, long_way: LongWay) -> None:
    """Its Memory is refused; the array itself has a registration in each."""
    here, other, there = (open_context(Options(providers=("shm",))) for _ in range(3))
    target = there.alloc(NBYTES)
    handle, array = target.share("rw"), pattern(1, NBYTES).copy()
    memory = other.register(array)
    for _ in range(3):
        for context in (here, other):
            context.write(array, handle).result(PATIENCE_S)
    assert long_way.calls == 2
    with pytest.raises(ValueError, match="another Context"):
        here.write(memory, handle)
    with pytest.raises(ValueError, match="another Context"):
        here.read(handle, memory)
    expect_equal(target.numpy(), pattern(1, NBYTES), "written by both")


def test_handles_of_several_peers(open_context: OpenContext, long_way: LongWay) -> None:
    """The registration of an array has a route to each of them."""
    here = open_context(Options(providers=("shm",)))
    targets = [open_context(Options(providers=("shm",))).alloc(NBYTES) for _ in range(3)]
    handles = [target.share("rw") for target in targets]
    array = np.zeros(NBYTES, np.uint8)
    for turn in range(4):
        for place, handle in enumerate(handles):
            array[:] = pattern(10 * turn + place, NBYTES)
            here.write(array, handle).result(PATIENCE_S)
        for place, target in enumerate(targets):
            expect_equal(target.numpy(), pattern(10 * turn + place, NBYTES), f"peer {place}")
    assert long_way.calls == len(targets)


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_a_transport_and_a_handle_of_another_peer(world: World, open_context: OpenContext) -> None:
    """Its Context has a route from the array to that peer, which is not the Transport's."""
    link = Link(world.here, world.there)
    target = world.target("numpy", NBYTES)
    other = open_context(Options(providers=(world.provider,))).alloc(NBYTES)
    handle, array = other.share("rw"), pattern(1, NBYTES).copy()
    for _ in range(2):
        world.here.write(array, handle).result(PATIENCE_S)
        link.here.write(array, target.handle).result(PATIENCE_S)
        target.settle(0, NBYTES, 1)
    other.fill(0)
    with pytest.raises(ValueError, match="peer"):
        link.here.write(array, handle)
    with pytest.raises(ValueError, match="peer"):
        link.here.read(array, handle)
    assert not other.numpy().any()
    # The remote range may be longer than the array, but not shorter.
    short, into = pattern(2, 100).copy(), np.zeros(100, np.uint8)
    for _ in range(3):
        assert link.here.write(short, target.handle).result(PATIENCE_S) == 100
        assert target.get(0, 100) == short.tobytes()
        into[:] = 0
        assert link.here.read(into, target.handle).result(PATIENCE_S) == 100
        expect_equal(into, pattern(2, 100), "the begin of the remote range")
        with pytest.raises(ValueError, match="bytes here and"):
            link.here.write(array, target.handle[:100])
    link.close()


def test_a_closed_context(open_context: OpenContext, long_way: LongWay) -> None:
    here, there = (open_context(Options(providers=("shm",))) for _ in range(2))
    handle, array = there.alloc(NBYTES).share("rw"), np.zeros(NBYTES, np.uint8)
    for _ in range(2):
        here.write(array, handle).result(PATIENCE_S)
    assert long_way.calls == 1
    here.close()
    with pytest.raises(zh.Closed):
        here.write(array, handle)
    with pytest.raises(zh.Closed):
        here.read(handle, array)


def test_a_closed_memory(open_context: OpenContext) -> None:
    """Of an array that is given again as it is; and the array of a Memory that allocated it."""
    here, there = (open_context(Options(providers=("shm",))) for _ in range(2))
    target = there.alloc(NBYTES)
    handle, array = target.share("rw"), pattern(1, NBYTES).copy()
    for seed in range(3):
        with here.register(array) as memory:
            here.write(array, handle).result(PATIENCE_S)
        with pytest.raises(zh.Closed):
            here.write(memory, handle)
        array[:] = pattern(seed, NBYTES)
        here.write(array, handle).result(PATIENCE_S)
        expect_equal(target.numpy(), pattern(seed, NBYTES), "of an array whose Memory was closed")


def test_a_handle_that_was_revoked(open_context: OpenContext) -> None:
    """And one whose owner is gone: what the long way says."""
    here, there = (open_context(Options(providers=("tcp",))) for _ in range(2))
    memory = there.alloc(NBYTES)
    handle, other, array = memory.share("rw"), memory.share("rw"), np.zeros(NBYTES, np.uint8)
    for _ in range(2):
        here.write(array, handle).result(PATIENCE_S)
        here.write(array, other).result(PATIENCE_S)
    memory.revoke(handle)
    with pytest.raises(zh.AccessDenied):
        here.write(array, handle).result(PATIENCE_S)
    here.write(array, other).result(PATIENCE_S)
    there.close()
    with pytest.raises(zh.PeerLost):
        here.write(array, other).result(PATIENCE_S)
