"""Arrays that are given to write and read as they are, where the peer stands still, the lane is full, or something
comes up in the middle of the call."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.forms import FORMS, WAITING
from support.interleaving import Meanwhile, at_each_step
from support.lanes import eventually, eventually_freed
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.pattern import pattern
from support.raw_arrays import LongWay, memories_of
from support.service import Service
from support.sizes import MIB
from support.world import Target
from zerohop.core.memory.register import known

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

NBYTES = 4096
DEADLINE_S = 0.1
# So long that no deadline can be taken for an end.
NEVER_S = patience(60.0)


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> LongWay:
    return LongWay(monkeypatch)


def _apart(open_context: OpenContext, start_peer: StartPeer, form: str) -> tuple[zh.Context, Peer, Target]:
    """Two processes, of which the other one places the bytes."""
    provider, kind, _ = FORMS[form]
    options = Options(providers=(provider,), timeout=NEVER_S)
    context, peer = open_context(options), start_peer(options)
    return context, peer, Target(peer, kind, MIB)


@pytest.mark.parametrize("form", WAITING)
def test_time_limits(open_context: OpenContext, start_peer: StartPeer, form: str, long_way: LongWay) -> None:
    context, peer, target = _apart(open_context, start_peer, form)
    array = np.zeros(MIB, np.uint8)
    context.write(array, target.handle).result(PATIENCE_S)
    peer.stop()
    with pytest.raises(zh.DeadlineExceeded):
        context.write(array, target.handle, timeout=DEADLINE_S).result(PATIENCE_S)
    with pytest.raises(zh.DeadlineExceeded):
        context.read(target.handle, array, timeout=DEADLINE_S).result(PATIENCE_S)
    assert long_way.calls == 1
    peer.resume()
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            context.write(array, target.handle, timeout=wrong)
    context.write(array, target.handle).result(PATIENCE_S)


@pytest.mark.parametrize("form", WAITING)
def test_an_array_is_kept_until_its_operation_ends(
    open_context: OpenContext, start_peer: StartPeer, form: str, long_way: LongWay
) -> None:
    """Whoever has the Operation keeps the array; the last bytes are those that it had."""
    context, peer, target = _apart(open_context, start_peer, form)
    array = pattern(1, MIB).copy()
    context.write(array, target.handle).result(PATIENCE_S)
    array[:] = pattern(2, MIB)
    peer.stop()
    operation = context.write(array, target.handle)
    assert long_way.calls == 1
    assert memories_of(context, array) == 1
    alive = weakref.ref(array)
    del array
    gc.collect()
    garbage = [np.full(MIB, 0xEE, np.uint8) for _ in range(4)]
    assert alive() is not None
    peer.resume()
    assert operation.result(PATIENCE_S) == MIB
    target.expect(0, MIB, 2)
    eventually_freed(alive)
    assert len(garbage) == 4


@pytest.mark.parametrize("form", WAITING)
def test_an_operation_that_nobody_waits_for(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """Its bytes arrive although neither the array nor the Operation has an owner."""
    context, peer, target = _apart(open_context, start_peer, form)
    array = pattern(1, MIB).copy()
    context.write(array, target.handle).result(PATIENCE_S)
    array[:] = pattern(2, MIB)
    peer.stop()
    context.write(array, target.handle)
    alive = weakref.ref(array)
    del array
    gc.collect()
    garbage = [np.full(MIB, 0xEE, np.uint8) for _ in range(4)]
    peer.resume()
    context.flush().result(PATIENCE_S)
    target.expect(0, MIB, 2)
    eventually_freed(alive)
    assert len(garbage) == 4
    eventually(lambda: context.statistics().pinned == 0, "something is kept")


@pytest.mark.parametrize("form", WAITING)
def test_a_full_lane_is_posted_to_once(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """What the native call could not post goes the long way: each write arrives, and no one twice."""
    context, peer, target = _apart(open_context, start_peer, form)
    array = np.zeros(NBYTES, np.uint8)
    handle = target.handle[:NBYTES]
    context.write(array, handle).result(PATIENCE_S)

    async def fill() -> int:
        peer.stop()
        posted: list[zh.Operation[int]] = []
        for value in range(200_000):
            try:
                context.write_nowait(array, handle, notify=value).done()
            except zh.WouldBlock:
                # On the thread of an event loop these wait without holding it up.
                posted += [context.write(array, handle, notify=value + i) for i in range(10)]
                peer.resume()
                for operation in posted:
                    assert await operation == NBYTES
                return value + 10
        raise AssertionError("the lane is not full")

    count = asyncio.run(fill())
    values = [peer.call(Service.notification).value for _ in range(count)]
    assert sorted(values) == list(range(count))
    peer.call(Service.expect_no_notification)


class TestInTheMiddle:
    """What happens while Python makes the Memory, within the native call."""

    @pytest.fixture
    def pair(self, open_context: OpenContext) -> tuple[zh.Context, zh.Memory, zh.RemoteBuffer]:
        here, there = (open_context(Options(providers=("shm",))) for _ in range(2))
        target = there.alloc(NBYTES)
        return here, target, target.share("rw")

    def test_a_signals_handler_raises(
        self, pair: tuple[zh.Context, zh.Memory, zh.RemoteBuffer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The caller hears of it, and nothing was posted."""
        here, target, handle = pair
        array = np.ones(NBYTES, np.uint8)
        here.write(array, handle).result(PATIENCE_S)
        target.fill(0)

        def interrupted(*arguments: Any) -> zh.Memory | None:
            memory = known(*arguments)
            assert memory is not None
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("zerohop.core.transfers.posting.known", interrupted)
            with pytest.raises(KeyboardInterrupt):
                here.write(array, handle)
        assert not target.numpy().any()
        assert memories_of(here, array) == 0
        here.write(array, handle).result(PATIENCE_S)
        assert target.numpy().all()

    def test_the_context_is_closed(
        self, pair: tuple[zh.Context, zh.Memory, zh.RemoteBuffer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, target, handle = pair
        array = np.ones(NBYTES, np.uint8)
        here.write(array, handle).result(PATIENCE_S)
        target.fill(0)

        def close_then(*arguments: Any) -> zh.Memory | None:
            memory = known(*arguments)
            here.close()
            return memory

        with monkeypatch.context() as patched:
            patched.setattr("zerohop.core.transfers.posting.known", close_then)
            with pytest.raises(zh.Closed):
                here.write(array, handle)
        assert not target.numpy().any()

    def test_another_thread_closes_the_context(self, open_context: OpenContext) -> None:
        """At each step of the write: it is refused, or has ended."""
        there = open_context(Options(providers=("shm",)))
        target = there.alloc(NBYTES)
        handle, array = target.share("rw"), np.ones(NBYTES, np.uint8)

        def attempt(step: int) -> Meanwhile:
            here = open_context(Options(providers=("shm",)))
            here.write(array, handle).result(PATIENCE_S)
            target.fill(0)
            tried = Meanwhile(lambda: here.write(array, handle).result(PATIENCE_S), here.close, step)
            here.close()
            assert all(isinstance(error, zh.Closed) for error in tried.errors)
            assert tried.errors or target.numpy().all()
            return tried

        at_each_step(attempt)

    def test_another_thread_closes_a_memory(self, pair: tuple[zh.Context, zh.Memory, zh.RemoteBuffer]) -> None:
        """Of the same array, at each step of the write: the write does not mind."""
        here, target, handle = pair

        def attempt(step: int) -> Meanwhile:
            array = np.full(NBYTES, step % 251 + 1, np.uint8)
            here.write(array, handle).result(PATIENCE_S)
            target.fill(0)
            memory = here.register(array)
            tried = Meanwhile(lambda: here.write(array, handle).result(PATIENCE_S), memory.close, step)
            memory.close()
            assert not tried.errors
            assert (target.numpy() == step % 251 + 1).all()
            return tried

        at_each_step(attempt)

    def test_another_thread_makes_the_array_read_only(
        self, pair: tuple[zh.Context, zh.Memory, zh.RemoteBuffer]
    ) -> None:
        """A read that has begun goes on, one that has not is refused: the call ends either way."""
        here, target, handle = pair
        target.fill(7)
        array = np.zeros(NBYTES, np.uint8)

        def attempt(step: int) -> Meanwhile:
            array.flags.writeable = True
            array[:] = 0
            here.read(handle, array).result(PATIENCE_S)
            array[:] = 0

            def read() -> None:
                try:
                    here.read(handle, array).result(PATIENCE_S)
                except ValueError:
                    assert not array.any()
                else:
                    assert (array == 7).all()

            return Meanwhile(read, lambda: array.setflags(write=False), step)

        at_each_step(attempt)

    def test_the_transport_is_closed(self, open_context: OpenContext) -> None:
        """At each step of its write: it is refused, or has ended; nothing goes to the peer as the Context's own."""
        here, there = (open_context(Options(providers=("shm",))) for _ in range(2))
        target = there.alloc(NBYTES)
        handle, array = target.share("rw"), np.ones(NBYTES, np.uint8)

        def attempt(step: int) -> Meanwhile:
            one, two = zh.Transport(ctx=here), zh.Transport(ctx=there)
            one.connect(two.bind()).result(PATIENCE_S)
            one.write(array, handle).result(PATIENCE_S)
            target.fill(0)
            tried = Meanwhile(lambda: one.write(array, handle, notify=1).result(PATIENCE_S), one.close, step)
            if tried.errors:
                assert all(isinstance(error, zh.Closed) for error in tried.errors)
            else:
                assert target.numpy().all()
            with pytest.raises(zh.WouldBlock):
                there.notification_nowait()
            one.close()
            two.close()
            return tried

        at_each_step(attempt)
