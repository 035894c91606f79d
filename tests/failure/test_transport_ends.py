"""How a Transport ends, by whatever breaks it: all that is pending ends with it, and every later call says why."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.forms import FORMS, WAITING
from support.leaks import SETTLE_S
from support.loops import LOOPS, run
from support.matrix import each_once
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from support.transport_pair import NBYTES, Pair, expect_broken, joined_pair
from support.transports import Link
from support.world import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer

DEADLINE_S = 0.1
# However late a busy machine lets anybody go on, it is long before any other deadline.
GRACE_S = PATIENCE_S


def _post_everything(pair: Pair) -> list[zh.Operation[Any]]:
    """One of each kind; the peer stands still."""
    here, handle = pair.link.here, pair.target.handle
    data, into = pattern(1, NBYTES), np.zeros(NBYTES, np.uint8)
    posts: list[Callable[[], zh.Operation[Any]]] = [
        here.wait_for_write,
        lambda: here.read(into, handle),
        lambda: here.write(data, handle, notify=2),
        lambda: here.write(data[:8], handle, notify=3),
        lambda: here.write_many([(data[:8], handle), (data[8:16], handle[8:])], notify=4),
        lambda: here.write_many([(data[:8], handle), (into[:8], handle)], notify=5),
        here.flush,
        here.wait_for_write,
    ]
    return [post() for post in posts]


@pytest.mark.parametrize(("form", "how"), each_once(FORMS, ["close", "abort", "the Context closes"]))
def test_everything_pending_ends(open_context: OpenContext, start_peer: StartPeer, form: str, how: str) -> None:
    pair = joined_pair(open_context, start_peer, form)
    pair.peer.stop()
    posted = _post_everything(pair)
    ends: dict[str, Callable[[], None]] = {
        "close": lambda: pair.link.here.close(DEADLINE_S),
        "abort": pair.link.here.abort,
        "the Context closes": lambda: pair.context.close(DEADLINE_S),
    }
    ends[how]()
    errors = [operation.exception(PATIENCE_S) for operation in posted]
    for error in errors:
        # What is mapped is written by the call.
        assert isinstance(error, zh.Closed | None), error
    waits = [errors[0], errors[-1]]
    if FORMS[form].waits:
        waits = errors
    for error in waits:
        assert error is not None
        assert ("closed" if "close" in how else "aborted") in str(error)
    if how != "the Context closes":
        expect_broken(pair, zh.Closed, "closed" if how == "close" else "aborted")
    pair.peer.resume()


@pytest.mark.parametrize("form", FORMS)
def test_the_peer_is_killed(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """Whoever has heard of it finds the Transport broken, also while the control thread is held up."""
    pair = joined_pair(open_context, start_peer, form)
    pair.peer.stop()
    posted = _post_everything(pair)
    told = pair.context.connect(pair.peer.identity.url).result(PATIENCE_S).recv(bytearray(8))
    over_nics = FORMS[form].provider == "verbs"  # a lane ends there before it is known that the peer has
    held = threading.Event()
    if not over_nics:
        pair.context._core.control.call(held.wait)
    try:
        pair.peer.kill()
        assert isinstance(told.exception(PATIENCE_S), zh.PeerLost)
        deadline = time.monotonic() + SETTLE_S
        while over_nics and pair.link.here.connected():
            assert time.monotonic() < deadline, "nobody told the Transport"
            time.sleep(0.005)  # `connected` has no event
        for transfer in (pair.link.here.write, pair.link.here.read):
            with pytest.raises(zh.PeerLost):
                transfer(np.zeros(8, np.uint8), pair.target.handle).result(PATIENCE_S)
        expect_broken(pair, zh.PeerLost, "peer")
        errors = [operation.exception(PATIENCE_S) for operation in posted]
    finally:
        held.set()
    for error in errors:
        assert isinstance(error, zh.PeerLost | None), error
    assert errors[0] is not None
    assert errors[-1] is not None
    if FORMS[form].waits:
        assert None not in errors


@pytest.mark.parametrize(
    ("form", "how"), each_once(FORMS, ["its Transport closes", "its Transport is aborted", "its Context closes"])
)
def test_the_peer_closes(open_context: OpenContext, start_peer: StartPeer, form: str, how: str) -> None:
    """A wait that is under way ends, and what comes later says so; a write that was announced before is not lost."""
    pair = joined_pair(open_context, start_peer, form)
    into = pair.context.alloc(64)
    source = pair.peer.call(Service.new, "numpy", 64, 0)
    handle = bytes(into.share("rw"))
    for value in range(3):
        pair.peer.call(Service.transport_write, pair.link.there, handle, source, 0, 64, value)
    if how == "its Transport closes":
        pair.peer.call(Service.close_transport, pair.link.there)
    elif how == "its Transport is aborted":
        pair.peer.call(Service.abort_transport, pair.link.there)
    else:
        pair.peer.call(Service.close, PATIENCE_S)
    assert [pair.link.here.wait_for_write(PATIENCE_S).result().value for _ in range(3)] == [0, 1, 2]
    with pytest.raises(zh.PeerLost):
        pair.link.here.wait_for_write(PATIENCE_S).result()
    expect_broken(pair, zh.PeerLost, "closed")
    into.close()


@pytest.mark.parametrize(("form", "loop"), each_once(WAITING, LOOPS))
def test_awaited(open_context: OpenContext, start_peer: StartPeer, form: str, loop: str) -> None:
    pair = joined_pair(open_context, start_peer, form)

    async def main() -> None:
        pair.peer.stop()
        posted = _post_everything(pair)
        pair.link.here.abort()
        for operation in posted:
            with pytest.raises(zh.Closed, match="aborted"):
                await operation

    run(loop, main())
    pair.peer.resume()


@pytest.mark.parametrize("form", WAITING)
def test_threads_that_wait(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """Blocked in `result`, in a call that waits for room, and in `wait_for_write`: all of them are let go."""
    pair = joined_pair(open_context, start_peer, form)
    here, handle = pair.link.here, pair.target.handle
    data = pattern(1, 70_000)
    pair.peer.stop()
    ended: list[BaseException] = []
    started = threading.Barrier(4)

    def write_without_end() -> None:
        posted = []
        while True:
            posted.append(here.write(data, handle, notify=1))
            if len(posted) > 500:
                posted.pop().result()

    def until_it_ends(work: Callable[[], object]) -> None:
        started.wait()
        try:
            work()
        except BaseException as error:
            ended.append(error)

    works: list[Callable[[], object]] = [
        write_without_end,
        lambda: here.wait_for_write().result(),
        lambda: here.read(np.zeros(NBYTES, np.uint8), handle).result(),
    ]
    threads = [threading.Thread(target=until_it_ends, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    started.wait()
    threads[0].join(0.2)
    assert all(thread.is_alive() for thread in threads)
    here.abort()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [type(error) for error in ended] == [zh.Closed] * 3
    pair.peer.resume()


@pytest.mark.parametrize("form", FORMS)
def test_others_go_on(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """Of two Transports to one peer, and of a Context's own operations, only what is the Transport's own ends."""
    pair = joined_pair(open_context, start_peer, form)
    other = Link(pair.context, pair.peer)
    connection = pair.context.connect(pair.peer.identity.url).result(PATIENCE_S)
    pair.peer.stop()
    data = [pattern(seed, NBYTES // 4) for seed in range(3)]
    handle = pair.target.handle
    mine = pair.link.here.write(data[0], handle[: NBYTES // 4], notify=1)
    theirs = [
        other.here.write(data[1], handle[NBYTES // 4 : NBYTES // 2], notify=2),
        pair.context.write(data[2], handle[NBYTES // 2 : 3 * NBYTES // 4]),
        connection.flush(),
    ]
    waiting = other.here.wait_for_write(0.01)
    pair.link.here.abort()
    assert isinstance(mine.exception(PATIENCE_S), zh.Closed | None)
    assert isinstance(waiting.exception(PATIENCE_S), zh.DeadlineExceeded)
    pair.peer.resume()
    assert [operation.result(PATIENCE_S) for operation in theirs] == [NBYTES // 4] * 2 + [0]
    other.expect_arrival(2, NBYTES // 4)
    pair.target.expect(NBYTES // 4, NBYTES // 4, 1)
    pair.target.expect(NBYTES // 2, NBYTES // 4, 2)
    other.here.close()


@pytest.mark.parametrize("form", FORMS)
def test_32_times_64_mib_with_a_zero_deadline(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """All of them end at once, whatever still arrives of them arrives before what is written next, which is whole."""
    provider, kind, _ = FORMS[form]
    nbytes = 64 * MIB
    options = Options(providers=(provider,))
    context, peer = open_context(options), start_peer(options)
    link, target = Link(context, peer), Target(peer, kind, nbytes)
    block = context.alloc(nbytes)
    block.write_bytes(0, pattern(1, nbytes).tobytes())
    link.here.write(block, target.handle, notify=1).result(PATIENCE_S)
    link.expect_arrival(1, nbytes)
    posted = [link.here.write(block, target.handle, timeout=0) for _ in range(32)]
    for operation in posted:
        assert isinstance(operation.exception(PATIENCE_S), zh.DeadlineExceeded | None)
    # Into which nothing that came late may write: from memory of its own, into another range.
    with context.alloc(MIB) as good:
        good.write_bytes(0, pattern(2, MIB).tobytes())
        fresh = Target(peer, kind, MIB)
        assert link.here.write(good, fresh.handle, notify=2).result(PATIENCE_S) == MIB
        link.expect_arrival(2, MIB)
        fresh.expect(0, MIB, 2)
    link.expect_none()
    target.expect(0, nbytes, 1)
    block.close()


@pytest.mark.parametrize("form", WAITING)
def test_a_peer_that_vanished(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """It says nothing any more, as one whose cable was pulled: a deadline of 100 ms is met, and the Transport lives."""
    pair = joined_pair(open_context, start_peer, form)
    here, handle = pair.link.here, pair.target.handle
    data, into = pattern(1, NBYTES), np.zeros(NBYTES, np.uint8)
    pair.peer.stop()
    posts: list[Callable[[], zh.Operation[Any]]] = [
        lambda: here.write(data, handle, timeout=DEADLINE_S),
        lambda: here.write(data[:8], handle, notify=1, timeout=DEADLINE_S),
        lambda: here.read(into, handle, timeout=DEADLINE_S),
        lambda: here.write_many([(data[:8], handle)], timeout=DEADLINE_S),
        lambda: here.flush(timeout=DEADLINE_S),
        lambda: here.wait_for_write(DEADLINE_S),
    ]
    for post in posts:
        started = time.monotonic()
        with pytest.raises(zh.DeadlineExceeded):
            post().result()
        assert DEADLINE_S <= time.monotonic() - started < DEADLINE_S + GRACE_S
    pair.peer.resume()
    assert here.write(data, handle).result(PATIENCE_S) == NBYTES


@pytest.mark.parametrize(("form", "how"), each_once(WAITING, ["the array is deleted", "and the Transport too"]))
def test_an_array_deleted_while_its_write_flies(
    open_context: OpenContext, start_peer: StartPeer, form: str, how: str
) -> None:
    """It lives until nothing can touch it, and no longer; every byte of it arrives."""
    pair = joined_pair(open_context, start_peer, form)
    data = pattern(7, NBYTES)
    alive = weakref.ref(data)
    pair.peer.stop()
    operation = pair.link.here.write(data, pair.target.handle)
    del data
    gc.collect()
    assert alive() is not None
    if how == "and the Transport too":
        pair.link.here.abort()
        assert isinstance(operation.exception(PATIENCE_S), zh.Closed)
        del operation
        gc.collect()
        assert alive() is not None, "its bytes may be on their way"
        pair.peer.resume()
    else:
        pair.peer.resume()
        assert operation.result(PATIENCE_S) == NBYTES
        pair.target.expect(0, NBYTES, 7)
        del operation
    deadline = time.monotonic() + SETTLE_S
    while alive() is not None:
        assert time.monotonic() < deadline, "still kept"
        pair.context.flush().result(PATIENCE_S)
        gc.collect()
