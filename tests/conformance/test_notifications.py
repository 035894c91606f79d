"""Notifications and flush: what arrives, from whom, and never before the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.buffers import KINDS, Kind
from support.loads import Stream
from support.matrix import each_way, every_target
from support.options import Options
from support.patience import PATIENCE_S, times
from support.pattern import pattern
from support.service import Service
from support.world import PROVIDERS, WORLDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext
    from support.transports import Link
    from support.world import World

# On both sides of 64 KiB, 256 KiB and 1 MiB, small ones in between so that large ones are overtaken if they can be.
SIZES = (8, 65, 4097, 8, 65_537, 64, 262_145, 8, 4096, 1_048_577, 16, 8)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_notify_alone(world: World) -> None:
    target = world.target("numpy", 64)
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    for value in (0, 1, 0x8000_0000, 0xFFFF_FFFF):
        world.here.notify(connection, value).result(PATIENCE_S)
        world.expect_notification(value, 0)
        world.here.notify(target.handle, value).result(PATIENCE_S)
        world.expect_notification(value, 0)
        connection.notify(value).result(PATIENCE_S)
        world.expect_notification(value, 0)
    target.expect_poison()
    world.expect_no_notification()


@pytest.mark.parametrize("value", [-1, 1 << 32, 1 << 64])
@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_values_beyond_32_bits(world: World, value: int) -> None:
    source = world.buffer("numpy", 64)
    target = world.target("numpy", 64)
    with pytest.raises((ValueError, OverflowError)):
        world.here.write(source.memory, target.handle, notify=value)
    with pytest.raises((ValueError, OverflowError)):
        world.here.notify(target.handle, value)
    world.expect_no_notification()
    target.expect_poison()


@pytest.mark.parametrize("value", [True, False, np.True_, 1.0, "1"], ids=repr)
@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_values_that_are_no_integers(world: World, link: Link, value: Any) -> None:
    """Whether the path is known, so that the native part posts, or not."""
    here, connection = world.here, world.here.connect(world.there.identity.url).result(PATIENCE_S)
    memory, target = world.buffer("numpy", 64).memory, world.target("numpy", 64)
    handle, pair, places = target.handle, [(memory, target.handle)], ([0], [0], [8])
    calls: list[Callable[[], object]] = [
        lambda: here.write(memory, handle, notify=value),
        lambda: here.write_nowait(memory, handle, notify=value),
        lambda: here.read(handle, memory, notify=value),
        lambda: here.write_many(pair, notify=value),
        lambda: here.write_many([*pair, (np.zeros(64, np.uint8), handle)], notify=value),
        lambda: here.read_many([(handle, memory)], notify=value),
        lambda: here.write_pages(memory, handle, [0], [0], page_bytes=8, notify=value),
        lambda: here.read_pages(handle, memory, [0], [0], page_bytes=8, notify=value),
        lambda: here.write_list(memory, handle, *places, notify=value),
        lambda: here.read_list(handle, memory, *places, notify=value),
        lambda: here.write_strided(memory, handle, rows=1, row_bytes=8, notify=value),
        lambda: here.notify(handle, value),
        lambda: here.notify(connection, value),
        lambda: connection.notify(value),
        lambda: link.here.write(memory, handle, notify=value),
        lambda: link.here.write_many(pair, notify=value),
    ]
    for _ in ("on first use", "over a path that is known"):
        for call in calls:
            with pytest.raises(TypeError, match=r"^(notify|value) must be an int, not \w+$"):
                call()
        here.flush().result(PATIENCE_S)
        target.expect_poison()
        here.read(handle, memory).result(PATIENCE_S)
    world.expect_no_notification()
    link.expect_none()


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_the_peer_named_is_the_one_to_answer(world: World) -> None:
    """`note.peer` is a Connection that leads back."""
    world.there.call(Service.notify, world.here.url, 5)
    note = world.here.notification(PATIENCE_S).result()
    assert (note.value, note.nbytes, note.peer.peer) == (5, 0, world.there.identity.id)
    note.peer.notify(6).result(PATIENCE_S)
    world.expect_notification(6, 0)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_nothing_there(world: World) -> None:
    with pytest.raises(zh.WouldBlock):
        world.here.notification_nowait()
    with pytest.raises(zh.DeadlineExceeded):
        world.here.notification(0.01).result()


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_what_a_wait_says_of_itself(world: World) -> None:
    waiting, late = world.here.notification(PATIENCE_S), world.here.notification(0.01)
    assert str(waiting.explain()) == "notification, waiting"
    assert waiting.cancel()
    assert str(waiting.explain()) == "notification, cancelled"
    error = late.exception()
    assert str(late.explain()) == f"notification, failed: {error}"
    taking = world.here.notification(PATIENCE_S)
    world.there.call(Service.notify, world.here.url, 5)
    taking.result()
    assert str(taking.explain()) == "notification, received"


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_every_notification_arrives_once(world: World) -> None:
    """20,000 of them, posted as fast as the lane takes them, while the other side takes them in one by one."""
    total = times(20_000)
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    taking = world.there.start(Service.take_notifications, total)
    posted = [connection.notify(value) for value in range(total)]
    assert sorted(taking.result()) == list(range(total))
    zh.wait_all(posted, PATIENCE_S)
    world.expect_no_notification()


def _receive(world: World, target_kind: Kind, total: int) -> None:
    """The peer writes, this side checks first and last bytes as soon as it is told."""
    plan = Stream(total, SIZES)
    into = world.buffer(target_kind, plan.slots * plan.slot_bytes)
    sending = world.there.start(Service.stream, bytes(into.memory.share("rw")), "numpy", plan)
    back = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    early: set[int] = set()
    checked = acknowledged = 0
    for _ in range(total):
        note = world.here.notification(PATIENCE_S).result()
        start, stop = plan.place(note.value)
        assert note.nbytes == stop - start
        stamp = note.value.to_bytes(8, "little")
        assert into.get(stop - 8, 8).tobytes() == stamp, f"notification {note.value} came before its data"
        assert into.get(start, 8).tobytes() == stamp
        early.add(note.value)
        while checked in early:
            early.remove(checked)
            checked += 1
        while acknowledged < (total if checked == total else checked - plan.step + 1):
            acknowledged = min(acknowledged + plan.step, total)
            back.notify(acknowledged).result(PATIENCE_S)
    assert sending.result() == total
    assert not early


class TestNeverBeforeItsData:
    @pytest.mark.parametrize(("world", "target_kind"), every_target(KINDS), indirect=["world"])
    def test_2_000_times(self, world: World, target_kind: Kind) -> None:
        _receive(world, target_kind, times(2_000))

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize(("world", "target_kind"), each_way(), indirect=["world"])
    def test_100_000_times(self, world: World, target_kind: Kind) -> None:
        _receive(world, target_kind, 100_000)


@pytest.mark.parametrize(("world", "target_kind"), every_target(KINDS), indirect=["world"])
def test_flush(world: World, target_kind: Kind) -> None:
    """What was posted before the flush is visible when it returns, whether or not anybody waited for it."""
    nbytes = 400_001
    source = world.buffer("numpy", nbytes)
    target = world.target(target_kind, nbytes)
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    flushes: list[Callable[[], zh.Operation[int]]] = [
        connection.flush,
        lambda: world.here.flush(connection),
        world.here.flush,
    ]
    for seed, flush in enumerate(flushes):
        source.fill(0, nbytes, seed)
        writes = [
            world.here.write(source.memory[start : start + 40_000], target.handle[start : start + 40_000])
            for start in range(0, 400_000, 40_000)
        ]
        writes.append(world.here.write(source.memory[400_000:], target.handle[400_000:]))
        flush().result(PATIENCE_S)
        target.expect(0, nbytes, seed)
        zh.wait_all(writes, PATIENCE_S)


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("kind", ["host", "sim:0"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_flush_covers_first_use(open_context: OpenContext, provider: str, kind: str, connected: bool) -> None:
    """Also what still connects, or asks for the peer's memory, when the flush is posted."""
    nbytes = 100_001
    options = Options(providers=(provider,))
    for seed in range(5):
        first, second = open_context(options), open_context(options)
        target = second.alloc(nbytes, device=kind)
        data = pattern(seed, nbytes)
        handle = target.share("rw")
        connection = first.connect(second.url).result(PATIENCE_S) if connected else None
        first.write(data, handle)
        first.flush(connection).result(PATIENCE_S)
        assert target.read_bytes() == data.tobytes()
        first.close()
        second.close()


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_flush_of_nothing(world: World) -> None:
    world.here.flush().result(PATIENCE_S)
