"""Streams of a device and operations: which waits for which, on a lane of devices and where bytes are staged."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.service import Service
from support.streams import Stream
from support.world import Target, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext, StartPeer

NBYTES = 100_001
LIMIT_S = PATIENCE_S
DEVICES = 16
PROVIDERS = ("p2p", "tcp")


@pytest.fixture
def world(provider: str, open_context: OpenContext, start_peer: StartPeer) -> Iterator[World]:
    """Of the test alone: a stream that is followed may get a stream of the lane's own."""
    options = Options(providers=(provider,))
    made = World(provider, open_context(options), start_peer(options))
    yield made
    made.close_buffers()


@pytest.fixture
def stream(world: World) -> Iterator[Stream]:
    made = Stream(world.here)
    yield made
    made.native.close()


@pytest.mark.parametrize("provider", PROVIDERS)
class TestAfterAStream:
    def test_write(self, world: World, stream: Stream) -> None:
        """Nothing is written before the stream gets there."""
        source, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
        source.fill(0, NBYTES, 1)
        stream.stand_still()
        operation = world.here.write(source.memory, target.handle, notify=3, stream=stream)
        with pytest.raises(zh.DeadlineExceeded):
            operation.result(timeout=0.05)
        target.expect_poison()
        stream.release()
        assert operation.result(LIMIT_S) == NBYTES
        target.expect(0, NBYTES, 1)
        world.expect_notification(3, NBYTES)

    def test_the_data_is_what_the_stream_has_made(self, world: World, stream: Stream) -> None:
        source, target, made = world.buffer("sim", NBYTES), world.target("sim", NBYTES), world.buffer("sim", NBYTES)
        made.fill(0, NBYTES, 2)
        stream.stand_still()
        stream.native.copy(source.memory.address, made.memory.address, NBYTES)
        operation = world.here.write(source.memory, target.handle, stream=stream)
        stream.release()
        operation.result(LIMIT_S)
        target.expect(0, NBYTES, 2)

    def test_read_and_pages(self, world: World, stream: Stream) -> None:
        into, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
        target.fill(0, NBYTES, 4)
        pages = np.arange(24)
        world.here.read(target.handle, into.memory, stream=stream).result(LIMIT_S)
        into.expect(0, NBYTES, 4)
        into.fill(0, NBYTES, 5)
        context, page = world.here, 4096
        context.write_pages(into.memory, target.handle, pages, pages, page_bytes=page, stream=stream).result(LIMIT_S)
        target.expect(0, 24 * page, 5)
        into.poison(0, NBYTES)
        context.read_pages(target.handle, into.memory, pages, pages, page_bytes=page, stream=stream).result(LIMIT_S)
        into.expect(0, 24 * page, 5)

    def test_index_arrays_may_change_before_the_stream_gets_there(self, world: World, stream: Stream) -> None:
        page = 4096
        source, target = world.buffer("sim", NBYTES), world.target("numpy", NBYTES)
        source.fill(0, NBYTES, 6)
        world.here.write(source.memory[:8], target.handle[:8]).result(LIMIT_S)
        target.poison()
        pages = np.array([0, 1])
        stream.stand_still()
        operation = world.here.write_pages(source.memory, target.handle, pages, pages, page_bytes=page, stream=stream)
        pages[:] = [6, 7]
        stream.release()
        operation.result(LIMIT_S)
        target.settle(0, 2 * page, 6)
        target.expect_poison()

    def test_others_do_not_wait_for_it(self, world: World, stream: Stream) -> None:
        source, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
        stream.stand_still()
        waiting = world.here.write(source.memory, target.handle, stream=stream)
        world.here.write(source.memory, target.handle).result(LIMIT_S)
        assert not waiting.done()
        stream.release()
        waiting.result(LIMIT_S)

    def test_a_deadline(self, world: World, stream: Stream) -> None:
        """It ends the wait; the buffers are the device's until the stream has come there."""
        source, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
        stream.stand_still()
        operation = world.here.write(source.memory, target.handle, stream=stream, timeout=0.05)
        with pytest.raises(zh.DeadlineExceeded):
            operation.result(LIMIT_S)
        stream.release()
        stream.finish()
        world.here.write(source.memory, target.handle).result(LIMIT_S)


def test_many_devices_and_streams(open_context: OpenContext, start_peer: StartPeer) -> None:
    """As many as a large machine has, each with transfers of its own, and behind streams of the user's."""
    options = Options(providers=("p2p",), sim_devices=DEVICES)
    context, peer = open_context(options), start_peer(options)
    target = Target(peer, "alloc", NBYTES)
    for index in range(DEVICES):
        source = context.alloc(NBYTES, f"sim:{index}")
        streams = [Stream(context, index) for _ in range(6)]
        for stream in streams:
            context.write(source, target.handle, stream=stream).result(LIMIT_S)
            stream.native.close()
        context.write(source[:8], target.handle[:8]).result(LIMIT_S)
        context.write(source, target.handle).result(LIMIT_S)


@pytest.mark.parametrize("provider", PROVIDERS)
class TestAStreamThatWaits:
    def test_until_the_end(self, world: World, stream: Stream) -> None:
        source, target, copied = world.buffer("sim", NBYTES), world.target("sim", NBYTES), world.buffer("sim", NBYTES)
        before = Stream(world.here)
        target.fill(0, NBYTES, 6)
        before.stand_still()
        operation = world.here.read(target.handle, source.memory, stream=before)
        operation.wait_on(stream)
        stream.native.copy(copied.memory.address, source.memory.address, NBYTES)
        assert stream.stands_still()
        before.release()
        stream.finish()
        copied.expect(0, NBYTES, 6)
        operation.result(LIMIT_S)
        before.finish()

    def test_the_stream_that_it_began_after(self, world: World, stream: Stream) -> None:
        """Neither waits for the other's wait."""
        source, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
        operations = []
        for _ in range(20):
            operations.append(world.here.write(source.memory, target.handle, stream=stream))
            operations[-1].wait_on(stream)
        stream.finish()
        for operation in operations:
            operation.result(LIMIT_S)

    def test_a_failure_lets_it_go(self, world: World, stream: Stream) -> None:
        source, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
        stream.stand_still()
        operation = world.here.write(source.memory, target.handle, stream=stream, timeout=0.2)
        waiting = Stream(world.here)
        operation.wait_on(waiting)
        with pytest.raises(zh.DeadlineExceeded):
            operation.result(LIMIT_S)
        waiting.finish()
        stream.release()
        stream.finish()

    def test_a_cancellation_lets_it_go(self, world: World, stream: Stream) -> None:
        source, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
        stream.stand_still()
        operation = world.here.write(source.memory, target.handle, stream=stream)
        waiting = Stream(world.here)
        operation.wait_on(waiting)
        assert waiting.stands_still()
        assert operation.cancel()
        waiting.finish()
        stream.release()
        stream.finish()

    def test_one_of_several(self, world: World, stream: Stream) -> None:
        """What is queued behind it does not hold the stream up."""
        source, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
        world.here.write(source.memory, target.handle).result(LIMIT_S)
        operations = [world.here.write(source.memory, target.handle) for _ in range(3)]
        behind = Stream(world.here)
        behind.stand_still()
        late = world.here.write(source.memory, target.handle, stream=behind)
        for operation in operations:
            operation.wait_on(stream)
        stream.finish()
        for operation in operations:
            operation.result(LIMIT_S)
        behind.release()
        late.result(LIMIT_S)
        behind.finish()

    def test_what_has_ended(self, world: World, stream: Stream) -> None:
        source, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
        operation = world.here.write(source.memory, target.handle)
        operation.result(LIMIT_S)
        operation.wait_on(stream)
        stream.finish()

    def test_a_notification(self, world: World, stream: Stream) -> None:
        note = world.here.notification()
        note.wait_on(stream)
        assert stream.stands_still()
        world.there.call(Service.notify, world.here.url, 9)
        stream.finish()
        assert note.result(LIMIT_S).value == 9

    def test_a_notification_that_nobody_keeps(self, world: World, stream: Stream) -> None:
        world.here.notification().wait_on(stream)
        gc.collect()
        assert stream.stands_still()
        world.there.call(Service.notify, world.here.url, 9)
        stream.finish()
        assert world.here.notification().result(LIMIT_S).value == 9

    def test_a_notification_that_does_not_come(self, world: World, stream: Stream) -> None:
        """Its deadline, and its cancellation, let the stream go."""
        note = world.here.notification(timeout=0.2)
        note.wait_on(stream)
        stream.finish()
        with pytest.raises(zh.DeadlineExceeded):
            note.result(LIMIT_S)
        note = world.here.notification()
        note.wait_on(stream)
        assert stream.stands_still()
        assert note.cancel()
        stream.finish()

    def test_a_context_that_is_closed(self, world: World, stream: Stream) -> None:
        note = world.here.notification()
        note.wait_on(stream)
        world.here.close()
        stream.finish()


@pytest.mark.parametrize("provider", PROVIDERS)
class TestRefused:
    def test_while_captured(self, world: World, stream: Stream) -> None:
        source, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
        operation = world.here.write(source.memory, target.handle)
        stream.native.capture(True)
        note = world.here.notification()
        for use in (
            lambda: world.here.write(source.memory, target.handle, stream=stream),
            lambda: world.here.read(target.handle, source.memory, stream=stream),
            lambda: operation.wait_on(stream),
            lambda: note.wait_on(stream),
        ):
            with pytest.raises(zh.Unsupported, match="captured") as caught:
                use()
            assert caught.value.fix
        operation.result(LIMIT_S)
        note.cancel()
        stream.native.capture(False)
        world.here.write(source.memory, target.handle, stream=stream).result(LIMIT_S)

    @pytest.mark.parametrize("thing", ["cuda:0", 1.5, object(), True])
    def test_what_is_no_stream(self, world: World, thing: object) -> None:
        source, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
        with pytest.raises(TypeError, match="__cuda_stream__"):
            world.here.write(source.memory, target.handle, stream=thing)
