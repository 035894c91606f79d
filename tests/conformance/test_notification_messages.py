"""Messages of notifications: up to 256 bytes arrive with the number, never before the data, and of whole operations."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.buffers import KINDS, Kind
from support.matrix import every_target
from support.patience import PATIENCE_S, times
from support.pattern import pattern
from support.service import Service
from support.world import WORLDS

if TYPE_CHECKING:
    from support.world import World

LENGTHS = (0, 1, 7, 8, 9, 255, 256)
# On both sides of what goes inline, in one slice and in many.
SIZES = (0, 64, 4096, 65_537, 300_001)
PAGE = 512
MANY = 5_000  # more than a lane grants for one queue


def _expect(world: World, value: int, nbytes: int, message: bytes) -> None:
    note = world.there.call(Service.notification)
    assert (note.value, note.nbytes, note.peer, note.message) == (value, nbytes, world.here.id, message)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_alone(world: World) -> None:
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    for value, length in enumerate(LENGTHS):
        message = os.urandom(length)
        connection.notify(value, message=message).result(PATIENCE_S)
        _expect(world, value, 0, message)
        world.here.notify(connection, value, message=message).result(PATIENCE_S)
        _expect(world, value, 0, message)
    connection.notify(7).result(PATIENCE_S)
    _expect(world, 7, 0, b"")
    connection.notify_nowait(8, message=b"any bytes").result(PATIENCE_S)
    _expect(world, 8, 0, b"any bytes")


@pytest.mark.parametrize(("world", "kind"), every_target(KINDS), indirect=["world"])
def test_with_writes_and_reads(world: World, kind: Kind) -> None:
    target = world.target(kind, max(SIZES))
    for value, (nbytes, length) in enumerate(zip(SIZES, LENGTHS[1:], strict=False)):
        message = os.urandom(length)
        source = world.buffer("numpy", nbytes)
        source.fill(0, nbytes, value)
        written = world.here.write(source.memory, target.handle[:nbytes], notify=value, message=message)
        assert written.result(PATIENCE_S) == nbytes
        _expect(world, value, nbytes, message)
        target.expect(0, nbytes, value)
        into = world.buffer("numpy", nbytes)
        read = world.here.read(target.handle[:nbytes], into.memory, notify=value, message=message)
        assert read.result(PATIENCE_S) == nbytes
        _expect(world, value, nbytes, message)
        assert np.array_equal(into.get(0, nbytes), pattern(value, nbytes))
    world.expect_no_notification()


@pytest.mark.parametrize(("world", "kind"), every_target(("numpy", "sim")), indirect=["world"])
def test_with_pages_rows_and_many(world: World, kind: Kind) -> None:
    pages = np.arange(40, dtype=np.int64)
    target, source = world.target(kind, 40 * PAGE), world.buffer("numpy", 40 * PAGE)
    here, memory, handle = world.here, source.memory, target.handle
    rows: dict[str, Any] = {"rows": 40, "row_bytes": PAGE}
    whole = 40 * PAGE
    posts: list[tuple[Any, int]] = [
        (lambda **say: here.write_pages(memory, handle, pages, pages, page_bytes=PAGE, **say), whole),
        (lambda **say: here.read_pages(handle, memory, pages, pages, page_bytes=PAGE, **say), whole),
        (lambda **say: here.write_strided(memory, handle, **rows, **say), whole),
        (lambda **say: here.read_strided(handle, memory, **rows, **say), whole),
        (lambda **say: here.write_many([(memory[:9], handle[:9]), (memory[9:99], handle[9:99])], **say), 99),
        (lambda **say: here.write_nowait(memory, handle, **say), whole),
        (lambda **say: here.read_nowait(handle, memory, **say), whole),
        (lambda **say: here.write_pages_nowait(memory, handle, pages, pages, page_bytes=PAGE, **say), whole),
        (lambda **say: here.read_pages_nowait(handle, memory, pages, pages, page_bytes=PAGE, **say), whole),
        (lambda **say: here.write_strided_nowait(memory, handle, **rows, **say), whole),
        (lambda **say: here.read_strided_nowait(handle, memory, **rows, **say), whole),
    ]
    for value, (post, nbytes) in enumerate(posts):
        message = f"block {value}".encode()
        post(notify=value, message=message).result(PATIENCE_S)
        _expect(world, value, nbytes, message)
    world.expect_no_notification()


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_many_of_several_memories(world: World) -> None:
    """They take several requests, and the message comes once, after all of them."""
    targets = [world.target("numpy", 64), world.target("alloc", 64)]
    sources = [world.buffer("numpy", 64), world.buffer("alloc", 64)]
    pairs = [(source.memory, target.handle) for source, target in zip(sources, targets, strict=True)]
    world.here.write_many(pairs, notify=3, message=b"both").result(PATIENCE_S)
    _expect(world, 3, 128, b"both")
    world.expect_no_notification()


@pytest.mark.parametrize(("world", "kind"), every_target(("numpy", "alloc", "sim")), indirect=["world"])
def test_of_an_operation_that_fails(world: World, kind: Kind) -> None:
    """Nothing is said, and the credit comes back: as many more can fail and succeed as a lane grants."""
    target, readable = world.target(kind, 64, rights="r"), world.target(kind, 64)
    source = world.buffer("numpy", 64)
    for _ in range(times(MANY)):
        failed = world.here.write(source.memory, target.handle, notify=1, message=b"lost")
        assert isinstance(failed.exception(PATIENCE_S), zh.AccessDenied)
    world.expect_no_notification()
    world.here.write(source.memory, readable.handle, notify=2, message=b"there").result(PATIENCE_S)
    _expect(world, 2, 64, b"there")


@pytest.mark.parametrize(("world", "kind"), every_target(("numpy", "alloc", "sim")), indirect=["world"])
def test_more_than_a_lane_has_credits(world: World, kind: Kind) -> None:
    target, source = world.target(kind, 64), world.buffer("numpy", 64)
    total = times(MANY)
    taking = world.there.start(Service.take_notifications, total)
    posted = [world.here.write(source.memory, target.handle, notify=n, message=b"%d" % n) for n in range(total)]
    zh.wait_all(posted, PATIENCE_S)
    assert sorted(taking.result()) == list(range(total))
    world.expect_no_notification()


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_what_is_no_message(world: World) -> None:
    target, source = world.target("numpy", 64), world.buffer("numpy", 64)
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    here: Any = world.here
    with pytest.raises(ValueError, match="256 bytes at most, not 257"):
        here.write(source.memory, target.handle, notify=1, message=bytes(257))
    with pytest.raises(ValueError, match="256 bytes at most"):
        connection.notify(1, message=bytes(300))
    with pytest.raises(ValueError, match="give notify="):
        here.read(target.handle, source.memory, message=b"alone")
    with pytest.raises(ValueError, match="give notify="):
        here.write_many([(source.memory, target.handle)], message=b"alone")
    for wrong, words in (
        (5, "message= takes bytes, .* not int$"),
        ("text", r"message= takes bytes, .* not str. Fix: message=text.encode\(\)$"),
        (["list"], "message= takes bytes, .* not list$"),
    ):
        with pytest.raises(TypeError, match=words):
            here.write(source.memory, target.handle, notify=1, message=wrong)
    target.expect_poison()
    world.expect_no_notification()
