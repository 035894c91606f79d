"""How Transports go away, and what others that use them at that moment are told."""

from __future__ import annotations

import contextlib
import gc
import math
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.forking import in_child
from support.forms import WAITING
from support.leaks import SETTLE_S
from support.loops import LOOPS, run
from support.options import Options
from support.outcomes import attempt
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.transport_pair import joined_pair
from support.transports import Link, every_call
from support.world import PROVIDERS, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer
    from zerohop._native import Engine

DEADLINE_S = 0.1


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
    assert not context._core.watchers


def test_dropped_with_a_context_of_its_own(start_peer: StartPeer) -> None:
    """Which is closed then, on a thread that waits for nobody."""
    transport = zh.Transport(providers=("shm",), listen="127.0.0.1:0")
    context = transport.context
    del transport
    gc.collect()
    deadline = time.monotonic() + SETTLE_S
    while not context._core.gone:
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
def test_a_timeout_that_is_none(open_context: OpenContext, timeout: Any) -> None:
    """The Transport stays open."""
    with zh.Transport(ctx=open_context(Options())) as transport:
        with pytest.raises((ValueError, TypeError)):
            transport.close(timeout)
        transport.bind()


@pytest.mark.parametrize("how", ["abort", "the peer closes"])
def test_while_others_post(open_context: OpenContext, how: str) -> None:
    """What the control thread has still to post, and threads add to, ends with it, every one; nothing else does."""
    a, b = open_context(Options(providers=("shm",))), open_context(Options(providers=("shm",)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with zh.Transport(ctx=a) as bystander, zh.Transport(ctx=b) as its_peer:
            bystander.connect(its_peer.bind()).result(PATIENCE_S)
            for _ in range(8):
                here, there = zh.Transport(ctx=a), zh.Transport(ctx=b)
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
        here, there = zh.Transport(ctx=context), zh.Transport(ctx=context)
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
@pytest.mark.parametrize("form", WAITING)
def test_while_the_goodbye_is_said(open_context: OpenContext, start_peer: StartPeer, form: str, what: str) -> None:
    """Who looks meanwhile is told the same as afterwards."""
    text = f"this {what} (was|is) closed"
    for _ in range(4):  # the moment in which something else was said is a short one
        pair = joined_pair(open_context, start_peer, form)
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

    def times_full() -> int:
        return context.statistics().engine["lane_full"]

    lazy.here.write(data, target.handle, notify=1).result(PATIENCE_S)
    before = times_full()
    while times_full() == before:
        with contextlib.suppress(zh.DeadlineExceeded):
            lazy.here.write(data, target.handle, notify=1, timeout=DEADLINE_S).result()
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


@pytest.mark.parametrize("form", WAITING)
def test_what_the_peer_announced_is_taken_in_before_the_end(
    open_context: OpenContext, start_peer: StartPeer, form: str
) -> None:
    """The data plane knows that the peer is dead before it has read all that came from there. That this is lost where
    somebody asks in that moment happens once in thousands of times; so this looks at the order alone."""
    pair = joined_pair(open_context, start_peer, form)
    told = pair.context.connect(pair.peer.identity.url).result(PATIENCE_S).recv(bytearray(8))
    held = threading.Event()
    pair.context._core.control.call(held.wait)
    try:
        pair.peer.kill()
        assert isinstance(told.exception(PATIENCE_S), zh.PeerLost)
        recording: Any = Recording(pair.context._core.engine)
        pair.context._core.engine = recording
        assert not pair.link.here.connected()
        assert recording.calls.index("catch_up") < recording.calls.index("end_queue")
    finally:
        held.set()


def _said_of(call: Callable[[], object]) -> str:
    return repr(attempt(call))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_in_a_child(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """After fork every call there says so, ending it there ends nothing here."""
    options = Options(providers=(provider,))
    context, peer = open_context(options), start_peer(options)
    link, target = Link(context, peer), Target(peer, "numpy", 64)
    for call in every_call(link.here, link.url, target.handle):
        said = in_child(partial(_said_of, call))
        assert "fork" in said, said
        assert "Closed" in said, said

    class Untouchable:
        """A thread of the parent may have held a lock of the engine's at the fork."""

        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"the child asks the engine to {name}")

    def end() -> str:
        connected = link.here.connected()
        context._core.engine = Untouchable()  # type: ignore[assignment]
        link.here.abort()
        link.here.close(1)
        return f"{connected}"

    assert in_child(end) == "False"
    link.here.write(pattern(1, 64), target.handle, notify=5).result(PATIENCE_S)
    link.expect_arrival(5, 64)
    link.here.close()
