"""The Operation without asyncio: waiting, its two kinds of timeouts, cancelling, what it carries when it fails."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import pickle
import select
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.world import PROVIDERS, WORLDS
from zerohop._native import CompletionQueue
from zerohop.core.runtime.deferred import defer

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer
    from support.world import World
    from zerohop.core.runtime.runtime import Runtime
    from zerohop.core.runtime.wait import AsCompleted


def _connection(world: World) -> zh.Connection:
    return world.here.connect(world.there.identity.url).result(PATIENCE_S)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
class TestWaiting:
    def test_done_and_result(self, world: World) -> None:
        target = world.target("numpy", 1000)
        operation = world.here.write(pattern(1, 1000), target.handle)
        assert operation.nbytes == 1000
        assert operation.result(PATIENCE_S) == 1000
        assert operation.done()
        assert operation.exception() is None
        assert operation.result() == operation.result(0) == 1000

    def test_a_wait_that_ends_leaves_the_operation_in_flight(self, world: World) -> None:
        source = world.target("numpy", 16)
        room = np.zeros(16, np.uint8)
        receive = _connection(world).recv(room)
        for timeout in (0, 0.01):
            with pytest.raises(zh.DeadlineExceeded) as caught:
                receive.result(timeout)
            assert isinstance(caught.value, TimeoutError)
            with pytest.raises(zh.DeadlineExceeded):
                receive.exception(timeout)
            assert not receive.done()
        source.fill(0, 16, 1)
        world.there.call(Service.send, world.here.url, source.number, 0, 16)
        assert receive.result(PATIENCE_S) == 16
        assert room.tobytes() == pattern(1, 16).tobytes()

    def test_a_deadline_ends_the_operation(self, world: World) -> None:
        receive = _connection(world).recv(np.zeros(16, np.uint8), timeout=0.02)
        with pytest.raises(zh.DeadlineExceeded) as caught:
            receive.result()
        assert receive.done()
        error = caught.value
        assert (error.operation, error.peer) == ("recv", world.there.identity.id)
        assert error.provider == world.provider
        assert error.bytes_done == 0
        assert error.reason
        assert error.fix
        assert receive.exception() is not None

    def test_errors_travel(self, world: World) -> None:
        """By pickle, with all their fields."""
        readable = world.target("numpy", 64).share("r")
        with pytest.raises(zh.AccessDenied) as caught:
            world.here.write(pattern(1, 64), readable).result(PATIENCE_S)
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is zh.AccessDenied
        assert str(again) == str(caught.value)
        assert again.peer == caught.value.peer == world.there.identity.id

    def test_several_threads_wait_for_one_operation(self, world: World) -> None:
        source = world.target("numpy", 16)
        receive = _connection(world).recv(np.zeros(16, np.uint8))
        received: list[int] = []
        threads = [threading.Thread(target=lambda: received.append(receive.result(PATIENCE_S))) for _ in range(4)]
        for thread in threads:
            thread.start()
        world.there.call(Service.send, world.here.url, source.number, 0, 16)
        for thread in threads:
            thread.join()
        assert received == [16] * 4

    def test_operations_may_be_dropped(self, world: World) -> None:
        """Nobody has to wait; what was posted happens all the same."""
        nbytes, count = 50_000, 100
        target = world.target("numpy", nbytes * count)
        # Each has a place of its own: writes have no order, and the first of them wait for the path.
        for seed in range(count):
            world.here.write(pattern(seed, nbytes), target.handle[seed * nbytes : (seed + 1) * nbytes])
        world.here.flush().result(PATIENCE_S)
        for seed in range(count):
            target.expect(seed * nbytes, nbytes, seed)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
class TestCancelling:
    def test_pending(self, world: World) -> None:
        receive = _connection(world).recv(np.zeros(16, np.uint8))
        assert receive.cancel()
        assert receive.done()
        with pytest.raises(concurrent.futures.CancelledError):
            receive.result()
        with pytest.raises(concurrent.futures.CancelledError):
            receive.exception()
        assert not receive.cancel()

    def test_done(self, world: World) -> None:
        target = world.target("numpy", 16)
        write = world.here.write(pattern(1, 16), target.handle)
        write.result(PATIENCE_S)
        assert not write.cancel()
        assert write.result() == 16

    def test_from_another_thread(self, world: World) -> None:
        receive = _connection(world).recv(np.zeros(16, np.uint8))
        waiting = threading.Event()
        ended: list[BaseException | None] = []

        def wait() -> None:
            waiting.set()
            try:
                receive.result(PATIENCE_S)
            except concurrent.futures.CancelledError as error:
                ended.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        waiting.wait(PATIENCE_S)
        assert receive.cancel()
        thread.join(PATIENCE_S)
        assert len(ended) == 1

    def test_a_cancelled_receive_takes_no_message(self, world: World) -> None:
        source = world.target("numpy", 16)
        connection = _connection(world)
        abandoned, room = np.zeros(16, np.uint8), np.zeros(16, np.uint8)
        connection.recv(abandoned).cancel()
        expired = connection.recv(abandoned, timeout=0.01)
        with pytest.raises(zh.DeadlineExceeded):
            expired.result()
        source.fill(0, 16, 3)
        receive = connection.recv(room)
        world.there.call(Service.send, world.here.url, source.number, 0, 16)
        assert receive.result(PATIENCE_S) == 16
        assert room.tobytes() == pattern(3, 16).tobytes()
        assert not abandoned.any()


@pytest.mark.parametrize("contexts", [1, 2])
def test_what_ended_in_time_is_given_to_who_is_late(open_context: OpenContext, contexts: int) -> None:
    """as_completed() raises for what has not ended, and not because nobody asked for what has."""
    opened = [open_context(Options()) for _ in range(contexts)]
    queues: dict[Runtime, CompletionQueue] = {each._core: CompletionQueue(each._core.engine) for each in opened}
    connection = opened[-1].connect(opened[-1].url).result(PATIENCE_S)
    receive = connection.recv(np.zeros(8, np.uint8))
    assert receive._arm(queues[opened[-1]._core], 7)
    connection.send(bytes(8)).result(PATIENCE_S)
    assert select.select([queues[opened[-1]._core].fd], [], [], PATIENCE_S)[0]
    late: AsCompleted[int] = zh.as_completed([], timeout=0)
    assert late._tokens(queues) == [(opened[-1]._core, 7)]
    with pytest.raises(zh.DeadlineExceeded):
        late._tokens(queues)
    for queue in queues.values():
        queue.close()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_result_of_what_was_put_off(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """It is not the number of bytes, also where the operation has ended before it is asked for."""
    options = Options(providers=(provider,))
    context, peer = open_context(options), start_peer(options)
    operation = context.connect(peer.identity.url)
    eventually(operation.done, "it does not connect")
    assert isinstance(operation.result(), zh.Connection)


def test_the_error_of_what_was_put_off_names_the_peer(open_context: OpenContext) -> None:
    """Whoever raised it may not have known; the operation does."""

    async def work() -> int:
        raise zh.PeerLost("gone")

    operation: zh.Operation[int] = defer(open_context(Options())._core, "write", 8, 0, work, None, peer="somebody")
    error = operation.exception(PATIENCE_S)
    assert isinstance(error, zh.PeerLost)
    assert (error.peer, error.operation) == ("somebody", "write")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_default_deadline_is_the_contexts(open_context: OpenContext, provider: str) -> None:
    options = Options(providers=(provider,), timeout=0.05)
    first, second = open_context(options), open_context(options)
    connection = first.connect(second.url, timeout=PATIENCE_S).result(PATIENCE_S)
    # Nobody receives. A receive itself waits until something comes, as it does for a notification.
    receive = connection.recv(np.zeros(8, np.uint8))
    longer = connection.send(pattern(1, 8), timeout=8 * PATIENCE_S)
    with pytest.raises(zh.DeadlineExceeded) as caught:
        connection.send(pattern(1, 8)).result(PATIENCE_S)
    assert caught.value.operation == "send"
    assert caught.value.reason == "the deadline passed"
    assert not longer.done()
    assert not receive.done()
    assert longer.cancel()
    assert receive.cancel()


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan")])
@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_timeouts_that_make_no_sense(world: World, timeout: object) -> None:
    target = world.target("numpy", 8)
    with pytest.raises((ValueError, TypeError)):
        world.here.write(pattern(1, 8), target.handle, timeout=timeout)  # type: ignore[arg-type]
    target.expect_poison()


def _wait_async(operation: zh.Operation[Any], timeout: float) -> None:
    async def wait() -> None:
        async for each in zh.as_completed([operation], timeout):
            each.result()

    asyncio.run(wait())


# What no clock can count to is as good as infinity.
NO_LIMIT = [math.inf, 1e12, pytest.param(10**400, id="10**400")]
WAITS: dict[str, Callable[[zh.Operation[Any], Any], object]] = {
    "result": lambda operation, timeout: operation.result(timeout),
    "exception": lambda operation, timeout: operation.exception(timeout),
    "wait_all": lambda operation, timeout: zh.wait_all([operation], timeout),
    "as_completed": lambda operation, timeout: [each.result() for each in zh.as_completed([operation], timeout)],
    "async for": _wait_async,
}


@pytest.mark.parametrize("timeout", NO_LIMIT)
@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_waits_without_a_limit(world: World, wait: str, timeout: float) -> None:
    source = world.target("numpy", 16)
    receive = _connection(world).recv(np.zeros(16, np.uint8), timeout=timeout)
    note = world.here.notification(timeout)
    for operation in (receive, note):
        assert not operation.done()
    # The peer has it until it is received, so that the wait has something to wait for.
    sender = threading.Timer(0.05, world.there.call, (Service.send, world.here.url, source.number, 0, 16))
    sender.start()
    WAITS[wait](receive, timeout)
    sender.join()
    assert receive.result(0) == 16
    notifier = threading.Timer(0.05, world.there.call, (Service.notify, world.here.url, 5))
    notifier.start()
    WAITS[wait](note, timeout)
    notifier.join()
    assert note.result(0).value == 5


@pytest.mark.parametrize("timeout", NO_LIMIT)
@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_operations_without_a_limit(world: World, timeout: float) -> None:
    target = world.target("numpy", 64)
    mine = world.buffer("numpy", 64)
    connection = world.here.connect(world.there.identity.url, timeout=timeout).result(PATIENCE_S)
    assert world.here.write(mine.memory, target.handle, timeout=timeout).result(PATIENCE_S) == 64
    assert world.here.write_nowait(mine.memory, target.handle, timeout=timeout).result(PATIENCE_S) == 64
    assert world.here.read(target.handle, mine.memory, timeout=timeout).result(PATIENCE_S) == 64
    assert (
        world.here.write_pages(mine.memory, target.handle, [0], [0], page_bytes=64, timeout=timeout).result(PATIENCE_S)
        == 64
    )
    world.here.fetch_add(target.handle, 0, timeout=timeout).result(PATIENCE_S)
    connection.notify(7, timeout=timeout).result(PATIENCE_S)
    world.expect_notification(7, 0)
    world.here.flush(timeout=timeout).result(PATIENCE_S)
    connection.flush(timeout=timeout).result(PATIENCE_S)
    world.here.explain(mine.memory, target.handle, timeout=timeout)
    with world.here.alloc(64) as memory:
        memory.share("r")
        memory.revoke(timeout=timeout)


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), (math.nan, ValueError), ("soon", TypeError)])
@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_waits_that_make_no_sense(world: World, wait: str, timeout: Any, error: type[Exception]) -> None:
    """What they were to wait for goes on."""
    receive = _connection(world).recv(np.zeros(16, np.uint8))
    note = world.here.notification()
    pending: tuple[zh.Operation[Any], ...] = (receive, note)
    for operation in pending:
        with pytest.raises(error, match="timeout"):
            WAITS[wait](operation, timeout)
        assert not operation.done()
        assert operation.cancel()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_first_use_of_an_address_where_nobody_listens(open_context: OpenContext, provider: str) -> None:
    """PeerLost, for the connection and for whatever was posted before that was known."""
    options = Options(providers=(provider,))
    first, second = open_context(options), open_context(options)
    memory = second.register(np.zeros(8, np.uint8))
    handle = memory.share("rw")
    second.close()
    pending: list[zh.Operation[int]] = [
        first.write(pattern(1, 8), handle),
        first.read(handle, np.zeros(8, np.uint8)),
        first.fetch_add(handle, 1),
        first.notify(handle, 1),
    ]
    for operation in pending:
        with pytest.raises(zh.PeerLost) as caught:
            operation.result(PATIENCE_S)
        assert isinstance(caught.value, ConnectionError)
    with pytest.raises(zh.PeerLost):
        first.connect(handle.url).result(PATIENCE_S)
