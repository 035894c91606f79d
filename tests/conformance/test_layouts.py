"""Arrays whose axes lie in another order in memory: no value arrives at the place of another one."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.world import World

pytestmark = pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)


def _torch(make: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: make(pytest.importorskip("torch"))


class OnlyDLPack:
    """Offers what a framework without the buffer protocol offers."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __dlpack__(self, **asked: Any) -> Any:
        return self._inner.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self._inner.__dlpack_device__()


PERMUTED: dict[str, Callable[[], Any]] = {
    "numpy transposed": lambda: np.arange(60.0).reshape(6, 10).T,
    "numpy fortran": lambda: np.arange(60.0).reshape((6, 10), order="F"),
    "buffer": lambda: np.arange(60.0).reshape((6, 10), order="F").data,
    "dlpack": lambda: OnlyDLPack(np.arange(60.0).reshape(6, 10).T),
    "torch t()": _torch(lambda torch: torch.arange(60.0).reshape(6, 10).t()),
    "torch channels last": _torch(lambda torch: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)),
    "torch heads first": _torch(lambda torch: torch.zeros(4, 8, 2, 3).permute(0, 2, 1, 3)),
}


@pytest.mark.parametrize("form", PERMUTED)
def test_refused_unless_taken_as_bytes(world: World, form: str) -> None:
    x = PERMUTED[form]()
    target = world.target("numpy", 1024)
    with pytest.raises(ValueError, match="as_bytes=True"):
        world.here.register(x)
    with pytest.raises(ValueError, match="as_bytes=True"):
        world.here.register([x])
    calls: tuple[Callable[[], object], ...] = (
        lambda: world.here.write(x, target.handle),
        lambda: world.here.read(target.handle, x),
        lambda: world.here.write_many([(x, target.handle)]),
        lambda: world.here.write_pages(x, target.handle, [0], [0], page_bytes=8),
    )
    for call in calls:
        with pytest.raises(ValueError, match="another order in memory"):
            call()
    target.expect_poison()
    with world.here.register(x, as_bytes=True) as memory:
        assert world.here.write(memory, target.handle[: memory.nbytes]).result(PATIENCE_S) == memory.nbytes
        assert target.get(0, memory.nbytes) == memory.read_bytes()
    [memory] = world.here.register([x], as_bytes=True)
    memory.close()


def test_two_arrays_that_lie_alike(world: World) -> None:
    """The values arrive, also for caches that differ only in their number of pages."""
    mine = np.arange(60, dtype=np.int16).reshape(10, 6).T
    theirs = np.zeros((20, 6), np.int16).T
    with zh.Context(providers=[world.provider]) as other, other.register(theirs, as_bytes=True) as target:
        handle = pickle.loads(pickle.dumps(target.share("rw")))
        with world.here.register(mine, as_bytes=True) as source:
            world.here.write(source, handle[: source.nbytes]).result(PATIENCE_S)
            assert (theirs[:, :10] == mine).all()
            assert not theirs[:, 10:].any()
            world.here.write_pages(source, handle, [0, 1], [12, 11], page_bytes=12).result(PATIENCE_S)
            assert (theirs[:, 12] == mine[:, 0]).all()
            assert (theirs[:, 11] == mine[:, 1]).all()


@pytest.mark.parametrize("known", [False, True], ids=["first", "again"])
def test_two_arrays_that_lie_otherwise(world: World, known: bool) -> None:
    """Also where a Memory of mere bytes has a route to the same handle already."""
    theirs = np.zeros((6, 10), np.int16).T
    rows, other_order = np.ones((10, 6), np.int16), np.ones((5, 12), np.int16).T
    with zh.Context(providers=[world.provider]) as other, other.register(theirs, as_bytes=True) as target:
        handle = target.share("rw")
        here = world.here
        with here.register(rows) as mine, here.register(other_order, as_bytes=True) as strange, here.alloc(120) as raw:
            if known:
                here.write(raw, handle).result(PATIENCE_S)
            for wrong in (mine, strange, mine[:], rows):
                for call in (
                    lambda wrong=wrong: here.write(wrong, handle),
                    lambda wrong=wrong: here.read(handle, wrong),
                    lambda wrong=wrong: here.write_many([(wrong, handle)]),
                    lambda wrong=wrong: here.write_pages(wrong, handle, [0], [0], page_bytes=8),
                    lambda wrong=wrong: here.explain(wrong, handle),
                ):
                    with pytest.raises(ValueError, match="scrambled"):
                        call()
            assert not theirs.any()
            here.write(raw, handle).result(PATIENCE_S)
            flat = np.arange(60, dtype=np.int16)
            here.write(flat, handle).result(PATIENCE_S)
            assert theirs.T.ravel().tolist() == flat.tolist()


def test_one_pair_of_many_that_lies_otherwise(world: World) -> None:
    """It is refused before the pair in front of it is posted, of a Context and of a Transport."""
    nbytes = 1 << 20
    columns = np.arange(60, dtype=np.int16).reshape(6, 10).T
    data, into = np.full(nbytes, 7, np.uint8), np.zeros(nbytes, np.uint8)
    with (
        zh.Context(providers=[world.provider]) as other,
        other.alloc(nbytes) as first,
        other.register(np.zeros((10, 6), np.int16)) as rows,
        world.here.register(columns, as_bytes=True) as wrong,
        zh.Transport("cpu", ctx=world.here) as transport,
        zh.Transport("cpu", ctx=other) as partner,
    ):
        plain, handle = first.share("rw"), rows.share("rw")
        partner.connect(transport.bind())
        transport.connect(partner.bind()).result(PATIENCE_S)
        calls: tuple[Callable[[], object], ...] = (
            lambda: world.here.write_many([(data, plain), (wrong, handle)], notify=1),
            lambda: world.here.read_many([(plain, into), (handle, wrong)]),
            lambda: transport.write_many([(data, plain), (wrong, handle)], notify=1),
        )
        for _ in ("on first use", "over routes that are known"):
            for call in calls:
                with pytest.raises(ValueError, match="scrambled"):
                    call()
            world.here.flush().result(PATIENCE_S)
            assert not any(first.read_bytes())
            assert not into.any()
            assert not any(rows.read_bytes())
            for known in (plain, handle):
                world.here.read(known[:1], np.zeros(1, np.uint8)).result(PATIENCE_S)
        with pytest.raises(zh.WouldBlock):
            other.notification_nowait()


def test_messages_do_not_say_how_an_array_lies(world: World) -> None:
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    with world.here.register(np.zeros((6, 10)).T, as_bytes=True) as memory:
        for call in (connection.send, connection.send_nowait, connection.recv):
            for part in (memory, memory[:16]):
                with pytest.raises(ValueError, match=r"message .* Fix: use write or read"):
                    call(part)
    with world.here.register(np.zeros((6, 10)), as_bytes=True) as memory:
        connection.recv(memory).cancel()


@pytest.mark.parametrize("pages", [1, 2])
def test_a_cache_with_one_page(world: World, pages: int) -> None:
    mine = np.arange(24 * pages, dtype=np.int16).reshape(pages, 4, 3, 2).transpose(0, 2, 1, 3)
    theirs = np.zeros((8, 4, 3, 2), np.int16).transpose(0, 2, 1, 3)
    with (
        zh.Context(providers=[world.provider]) as other,
        other.register(theirs, as_bytes=True) as target,
        world.here.register(mine, as_bytes=True) as source,
    ):
        world.here.write(source, target.share("rw")[: source.nbytes]).result(PATIENCE_S)
    assert (theirs[:pages] == mine).all()


def test_rows_go_to_rows_of_another_shape(world: World) -> None:
    theirs = np.zeros((3, 20), np.int32)
    with zh.Context(providers=[world.provider]) as other, other.register(theirs) as target:
        mine = np.arange(60, dtype=np.int32).reshape(6, 10)
        world.here.write(mine, target.share("rw")).result(PATIENCE_S)
        assert (theirs.ravel() == mine.ravel()).all()
