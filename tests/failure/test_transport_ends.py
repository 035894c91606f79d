"""How a Transport ends, by whatever breaks it: all that is pending ends with it, and every later call says why."""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import zerohop as zh
from support.forking import in_child
from support.forms import FORMS, WAITING
from support.leaks import SETTLE_S
from support.loops import LOOPS, run
from support.options import Options
from support.outcomes import attempt
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from support.transports import Link, every_call
from support.world import PROVIDERS, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer
    from zerohop._native import Engine

NBYTES = 4 * MIB
DEADLINE_S = 0.1
# How late a deadline may fire on a machine that is busy with something else.
GRACE_S = 2.0
# So long that no deadline can be taken for an end.
NEVER_S = 60.0


class Pair(NamedTuple):
    context: zh.Context
    peer: Peer
    link: Link
    target: Target


def _pair(open_context: OpenContext, start_peer: StartPeer, form: str, timeout: float = NEVER_S) -> Pair:
    """Joined, and every path gone once."""
    provider, kind, _ = FORMS[form]
    options = Options(providers=(provider,), timeout=timeout)
    context, peer = open_context(options), start_peer(options)
    link, target = Link(context, peer), Target(peer, kind, NBYTES)
    link.here.write(pattern(1, NBYTES), target.handle, notify=1).result(PATIENCE_S)
    link.expect_arrival(1, NBYTES)
    link.here.write_many([(pattern(1, 8), target.handle)]).result(PATIENCE_S)
    target.poison()
    return Pair(context, peer, link, target)


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


def _expect_broken(pair: Pair, kind: type[zh.ZerohopError], text: str) -> None:
    """Every call raises at once, nothing is written, and looking at it is harmless."""
    for call in every_call(pair.link.here, pair.link.url, pair.target.handle):
        with pytest.raises(kind, match=text):
            call()
    assert not pair.link.here.connected()
    assert text in repr(pair.link.here)


@pytest.mark.parametrize("how", ["close", "abort", "the Context closes"])
@pytest.mark.parametrize("form", FORMS)
def test_everything_pending_ends(open_context: OpenContext, start_peer: StartPeer, form: str, how: str) -> None:
    pair = _pair(open_context, start_peer, form)
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
        _expect_broken(pair, zh.Closed, "closed" if how == "close" else "aborted")
    pair.peer.resume()


@pytest.mark.parametrize("form", FORMS)
def test_the_peer_is_killed(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """Whoever has heard of it finds the Transport broken, also while the control thread is held up."""
    pair = _pair(open_context, start_peer, form)
    pair.peer.stop()
    posted = _post_everything(pair)
    told = pair.context.connect(pair.peer.identity.url).result(PATIENCE_S).recv(bytearray(8))
    over_nics = FORMS[form].provider == "verbs"  # a lane ends there before it is known that the peer has
    held = threading.Event()
    if not over_nics:
        pair.context._control.call(held.wait)
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
        _expect_broken(pair, zh.PeerLost, "peer")
        errors = [operation.exception(PATIENCE_S) for operation in posted]
    finally:
        held.set()
    for error in errors:
        assert isinstance(error, zh.PeerLost | None), error
    assert errors[0] is not None
    assert errors[-1] is not None
    if FORMS[form].waits:
        assert None not in errors


@pytest.mark.parametrize("how", ["its Transport closes", "its Transport is aborted", "its Context closes"])
@pytest.mark.parametrize("form", FORMS)
def test_the_peer_closes(open_context: OpenContext, start_peer: StartPeer, form: str, how: str) -> None:
    """A wait that is under way ends, and what comes later says so; a write that was announced before is not lost."""
    pair = _pair(open_context, start_peer, form)
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
        pair.peer.call(Service.close, 1.0)
    assert [pair.link.here.wait_for_write(PATIENCE_S).result().value for _ in range(3)] == [0, 1, 2]
    with pytest.raises(zh.PeerLost):
        pair.link.here.wait_for_write(PATIENCE_S).result()
    _expect_broken(pair, zh.PeerLost, "closed")
    into.close()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("form", WAITING)
def test_awaited(open_context: OpenContext, start_peer: StartPeer, form: str, loop: str) -> None:
    pair = _pair(open_context, start_peer, form)

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
    pair = _pair(open_context, start_peer, form)
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
    pair = _pair(open_context, start_peer, form)
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
    pair = _pair(open_context, start_peer, form)
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


@pytest.mark.parametrize("how", ["the array is deleted", "and the Transport too"])
@pytest.mark.parametrize("form", WAITING)
def test_an_array_deleted_while_its_write_flies(
    open_context: OpenContext, start_peer: StartPeer, form: str, how: str
) -> None:
    """It lives until nothing can touch it, and no longer; every byte of it arrives."""
    pair = _pair(open_context, start_peer, form)
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


@pytest.mark.parametrize("provider", PROVIDERS)
def test_dropped(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """A Transport that nobody holds any more ends as by `abort`, and the peer hears of it."""
    options = Options(providers=(provider,))
    context, peer = open_context(options), start_peer(options)
    link = Link(context, peer)
    waiting = link.here.wait_for_write()
    there = link.there
    del link  # no collector has to come by for this
    with pytest.raises(zh.Closed, match="dropped"):
        waiting.result(PATIENCE_S)
    outcome = peer.call(Service.try_wait_for_write, there)
    assert outcome.kind == "PeerLost"
    assert not context._owners


def test_dropped_with_a_context_of_its_own(start_peer: StartPeer) -> None:
    """Which is closed then, on a thread that waits for nobody."""
    transport = zh.Transport(providers=("shm",), listen="127.0.0.1:0")
    context = transport.context
    del transport
    gc.collect()
    deadline = time.monotonic() + SETTLE_S
    while not context._gone:
        assert time.monotonic() < deadline, "the Context is still open"
        time.sleep(0.005)  # there is no event for what nobody waits for


def test_a_context_of_its_own_is_closed(start_peer: StartPeer) -> None:
    with zh.Transport(providers=("shm",), listen="127.0.0.1:0") as transport:
        context = transport.context
        memory = transport.register(np.zeros(8, np.uint8))
    with pytest.raises(zh.Closed):
        context.register(np.zeros(8, np.uint8))
    memory.close()


@pytest.mark.parametrize("loop", LOOPS)
def test_async_with(loop: str) -> None:
    async def main() -> zh.Context:
        async with zh.Transport(providers=("shm",), listen="127.0.0.1:0") as transport:
            transport.bind()
            return transport.context

    context = run(loop, main())
    with pytest.raises(zh.Closed):
        context.alloc(8)


@pytest.mark.parametrize("timeout", [-1, math.nan, "soon", None])
def test_a_timeout_that_is_none(open_context: OpenContext, timeout: object) -> None:
    """The Transport stays open."""
    with zh.Transport(context=open_context(Options())) as transport:
        with pytest.raises((ValueError, TypeError)):
            transport.close(timeout)  # type: ignore[arg-type]
        transport.bind()


@pytest.mark.parametrize("how", ["abort", "the peer closes"])
def test_while_others_post(open_context: OpenContext, how: str) -> None:
    """What the control thread has still to post, and threads add to, ends with it, every one; nothing else does."""
    a, b = open_context(Options(providers=("shm",))), open_context(Options(providers=("shm",)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with zh.Transport(context=a) as bystander, zh.Transport(context=b) as its_peer:
            bystander.connect(its_peer.bind()).result(PATIENCE_S)
            for _ in range(8):
                here, there = zh.Transport(context=a), zh.Transport(context=b)
                here.connect(there.bind()).result(PATIENCE_S)
                wrong: list[BaseException] = []

                def post(here: zh.Transport = here, wrong: list[BaseException] = wrong) -> None:
                    posted: list[zh.Operation[int]] = []
                    try:
                        for _ in range(400):  # while these wait, the control thread has its turn seldom
                            posted.append(here.write_many([], notify=1))
                    except (zh.Closed, zh.PeerLost):
                        pass
                    for each in posted:
                        error = each.exception(PATIENCE_S)
                        if error is not None and not isinstance(error, zh.Closed | zh.PeerLost):
                            wrong.append(error)

                threads = [threading.Thread(target=post, daemon=True) for _ in range(4)]
                for thread in threads:
                    thread.start()
                time.sleep(0.01)  # so that there is much to be posted
                (here.abort if how == "abort" else there.close)()
                for thread in threads:
                    thread.join(PATIENCE_S)
                    assert not thread.is_alive()
                assert not wrong
                with pytest.raises((zh.Closed, zh.PeerLost)):
                    here.wait_for_write(PATIENCE_S).result()
                here.close()
                there.close()
            assert bystander.connected()
    finally:
        sys.setswitchinterval(interval)


def _look_for_writes(here: zh.Transport, begin: threading.Barrier, said: list[BaseException]) -> None:
    begin.wait(PATIENCE_S)
    try:
        while True:
            here.wait_for_write(0)
    except zh.ZerohopError as error:
        said.append(error)


def test_while_others_look_for_writes(open_context: OpenContext) -> None:
    """Whoever is told by the call, and not by its Operation, is told of the end, never of a deadline."""
    context = open_context(Options(providers=("shm",)))
    for _ in range(30):
        here, there = zh.Transport(context=context), zh.Transport(context=context)
        here.connect(there.bind()).result(PATIENCE_S)
        begin, said = threading.Barrier(4), list[BaseException]()
        threads = [threading.Thread(target=_look_for_writes, args=(here, begin, said), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        begin.wait(PATIENCE_S)
        here.abort()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert [type(error) for error in said] == [zh.Closed] * 3
        there.close()


@pytest.mark.parametrize("what", ["Connection", "Context"])
def test_while_the_goodbye_is_said(open_context: OpenContext, start_peer: StartPeer, what: str) -> None:
    """Who looks meanwhile is told the same as afterwards."""
    text = f"this {what} (was|is) closed"
    for _ in range(4):  # the moment in which something else was said is a short one
        pair = _pair(open_context, start_peer, "shm-ring")
        here = pair.link.here
        closed = pair.context if what == "Context" else pair.context.connect(pair.peer.identity.url).result(PATIENCE_S)
        closing = threading.Thread(target=closed.close, daemon=True)
        closing.start()
        while here.connected():
            pass
        for wait_s in (0, PATIENCE_S):
            closing.join(wait_s)
            with pytest.raises(zh.Closed, match=text):
                here.bind()
            with pytest.raises(zh.Closed, match=text):
                here.register(bytearray(8))


def test_untaken_notifications_of_one_that_ended(open_context: OpenContext, start_peer: StartPeer) -> None:
    """Hold up nobody: who wrote them gets the room back, although the other end is not closed and takes none."""
    options = Options(providers=("shm",))
    context, peer = open_context(options), start_peer(options)
    lazy, other = Link(context, peer), Link(context, peer)
    target = Target(peer, "numpy", 64)
    data = pattern(1, 8)

    def write_for_ever() -> None:
        while True:
            lazy.here.write(data, target.handle, notify=1, timeout=DEADLINE_S).result()

    with pytest.raises(zh.DeadlineExceeded):
        write_for_ever()
    lazy.here.close()
    other.here.write(data, target.handle, notify=2).result(PATIENCE_S)
    other.expect_arrival(2, 8)
    lazy.expect_arrival(1, 8)
    other.close()


class Recording:
    """An engine that says in which order it was called."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.engine, name)


def test_what_the_peer_announced_is_taken_in_before_the_end(open_context: OpenContext, start_peer: StartPeer) -> None:
    """The data plane knows that the peer is dead before it has read all that came from there. That this is lost where
    somebody asks in that moment happens once in thousands of times; so this looks at the order alone."""
    pair = _pair(open_context, start_peer, "shm-ring")
    told = pair.context.connect(pair.peer.identity.url).result(PATIENCE_S).recv(bytearray(8))
    held = threading.Event()
    pair.context._control.call(held.wait)
    try:
        pair.peer.kill()
        assert isinstance(told.exception(PATIENCE_S), zh.PeerLost)
        recording: Any = Recording(pair.context._engine)
        pair.context._engine = recording
        assert not pair.link.here.connected()
        assert recording.calls.index("catch_up") < recording.calls.index("end_queue")
    finally:
        held.set()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_in_a_child(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """After fork every call there says so, ending it there ends nothing here."""
    options = Options(providers=(provider,))
    context, peer = open_context(options), start_peer(options)
    link, target = Link(context, peer), Target(peer, "numpy", 64)
    for call in every_call(link.here, link.url, target.handle):
        said = in_child(lambda call=call: repr(attempt(call)))  # type: ignore[misc]
        assert "fork" in said, said
        assert "Closed" in said, said

    class Untouchable:
        """A thread of the parent may have held a lock of the engine's at the fork."""

        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"the child asks the engine to {name}")

    def end() -> str:
        connected = link.here.connected()
        context._engine = Untouchable()  # type: ignore[assignment]
        link.here.abort()
        link.here.close(1)
        return f"{connected}"

    assert in_child(end) == "False"
    link.here.write(pattern(1, 64), target.handle, notify=5).result(PATIENCE_S)
    link.expect_arrival(5, 64)
    link.here.close()
