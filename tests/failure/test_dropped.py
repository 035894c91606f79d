"""Operations that are dropped: a read that nobody has waited for, and a failure that nobody has seen, warn."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.world import Target
from zerohop._native import NativeError, Reason, Status
from zerohop.core.transfers import message_lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

    Stopped: TypeAlias = tuple[zh.Context, Target, zh.Connection]

NBYTES = 1 << 20
HERE = __file__


OPTIONS = Options(providers=("tcp",))


@pytest.fixture
def peer(start_peer: StartPeer) -> Peer:
    return start_peer(OPTIONS)


@pytest.fixture
def stopped(open_context: OpenContext, peer: Peer) -> Iterator[Stopped]:
    """A peer that answers nothing for now, so that whatever is posted stays in flight."""
    context = open_context(OPTIONS)
    target = Target(peer, "numpy", NBYTES)
    context.write(np.zeros(NBYTES, np.uint8), target.handle).result(PATIENCE_S)
    connection = context.connect(peer.identity.url).result(PATIENCE_S)
    peer.stop()
    yield context, target, connection
    # Before the peer goes: what is in flight is this side's own to end. What has failed by now is the test's.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context.close(0.1)


def _warned(act: Callable[[], object], *, later: bool = False) -> list[warnings.WarningMessage]:
    """What `act` warns of; `later`: what the control thread does."""
    gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
        gc.collect()
        if later:
            eventually(lambda: bool(caught), "nothing was said")
    assert all(each.category is ResourceWarning for each in caught), [str(each.message) for each in caught]
    return caught


INTO = np.zeros(NBYTES, np.uint8)
PAGES = [0, 1]
WAITS: dict[str, Callable[[zh.Context, zh.RemoteBuffer, zh.Connection], zh.Operation[Any]]] = {
    "read": lambda context, handle, _: context.read(handle, INTO),
    "read_pages": lambda context, handle, _: context.read_pages(handle, INTO, PAGES, PAGES, page_bytes=4096),
    "recv": lambda _context, _handle, connection: connection.recv(INTO),
    "flush": lambda context, handle, connection: (context.write(INTO, handle), connection.flush())[1],
    "notification": lambda context, _handle, _connection: context.notification(),
}
OTHERS: dict[str, Callable[[zh.Context, zh.RemoteBuffer, zh.Connection], zh.Operation[Any]]] = {
    "write": lambda context, handle, _: context.write(INTO, handle),
    "write_pages": lambda context, handle, _: context.write_pages(INTO, handle, PAGES, PAGES, page_bytes=4096),
    "fetch_add": lambda context, handle, _: context.fetch_add(handle, 1),
    "notify": lambda _context, _handle, connection: connection.notify(1),
    "send": lambda _context, _handle, connection: connection.send(INTO[:64]),
}


@pytest.mark.parametrize("kind", WAITS)
def test_as_a_statement(stopped: Stopped, kind: str) -> None:
    """It returned at once, and the program would go on with bytes that are not there."""
    context, target, connection = stopped

    def act() -> None:
        WAITS[kind](context, target.handle, connection)

    [warned] = _warned(act)
    assert f"a {kind} was dropped, and nobody has waited for it" in str(warned.message)
    assert "operation.result()" in str(warned.message)
    assert warned.filename == HERE, "it names the line that dropped it"


@pytest.mark.parametrize("kind", OTHERS)
def test_what_nobody_need_wait_for(stopped: Stopped, kind: str) -> None:
    context, target, connection = stopped
    assert not _warned(lambda: OTHERS[kind](context, target.handle, connection))


@pytest.mark.parametrize("kind", WAITS)
def test_a_wait_that_was_given_up(stopped: Stopped, kind: str) -> None:
    """Whoever got DeadlineExceeded, or has cancelled it, knows that it has not ended."""
    context, target, connection = stopped

    def give_up() -> None:
        operation = WAITS[kind](context, target.handle, connection)
        with pytest.raises(zh.DeadlineExceeded):
            operation.result(0.001)

    def cancel() -> None:
        WAITS[kind](context, target.handle, connection).cancel()

    assert not _warned(give_up)
    assert not _warned(cancel)


@pytest.mark.parametrize("kind", [*sorted({*WAITS, *OTHERS} - {"notification"})])
def test_a_failure_that_nobody_saw(peer: Peer, stopped: Stopped, kind: str) -> None:
    context, target, connection = stopped
    held = [{**WAITS, **OTHERS}[kind](context, target.handle, connection)]
    peer.kill()
    eventually(held[0].done, "it outlives its peer")
    [warned] = _warned(held.clear)
    assert f"a {kind} failed, and nobody has seen it: " in str(warned.message)
    assert peer.identity.id[:12] in str(warned.message)
    assert warned.filename == HERE


def test_a_flush_that_finds_its_lane_down(monkeypatch: pytest.MonkeyPatch, peer: Peer, stopped: Stopped) -> None:
    """The native side has noticed the loss of the peer, and the control thread has not."""
    context, _, _ = stopped

    async def refused(*_: object) -> int:
        raise NativeError(Status.PEER_LOST.value, Reason.STREAM_CLOSED.value, "")

    monkeypatch.setattr(message_lane, "defer_post", refused)
    with pytest.raises(zh.PeerLost) as caught:
        context.flush().result(PATIENCE_S)
    assert caught.value.peer == peer.identity.id
    assert caught.value.operation == "flush"


@pytest.mark.parametrize("see", ["result", "exception", "explain", "wait_all"])
def test_a_failure_that_somebody_saw(peer: Peer, stopped: Stopped, see: str) -> None:
    context, target, connection = stopped
    held = [WAITS["read"](context, target.handle, connection)]
    peer.kill()
    eventually(held[0].done, "it outlives its peer")
    if see == "exception":
        assert isinstance(held[0].exception(PATIENCE_S), zh.PeerLost)
    elif see == "explain":
        assert "failed" in str(held[0].explain())
    else:
        with pytest.raises(zh.PeerLost):
            zh.wait_all(held, PATIENCE_S) if see == "wait_all" else held[0].result(PATIENCE_S)
    assert not _warned(held.clear)


def test_what_your_own_close_ends(open_context: OpenContext, stopped: Stopped) -> None:
    """You know of it; a read's buffer may be used all the same."""
    context, target, connection = stopped
    writes = [OTHERS["write"](context, target.handle, connection), WAITS["recv"](context, target.handle, connection)]
    reads = [WAITS["read"](context, target.handle, connection)]
    context.close(0.1)
    assert not _warned(writes.clear)
    [warned] = _warned(reads.clear)
    assert "a read failed, and nobody has seen it: " in str(warned.message)


@pytest.mark.parametrize("kind", OTHERS)
def test_one_that_was_dropped_in_flight_and_fails_later(peer: Peer, stopped: Stopped, kind: str) -> None:
    """Its Context says so when it is closed, once for all of them."""
    context, target, connection = stopped
    for _ in range(2):
        OTHERS[kind](context, target.handle, connection)
    peer.kill()
    eventually(lambda: context.statistics().engine["operations_pending"] == 0, "they outlive their peer")
    [warned] = _warned(context.close)
    assert "2 operations that were dropped in flight failed later, and nobody has seen it" in str(warned.message)
    assert "stream closed" in str(warned.message) or "died" in str(warned.message)
    assert warned.filename == HERE, "it names the line that closed the Context"


def test_what_was_dropped_in_flight_and_ends_well_or_by_your_own_hand(open_context: OpenContext, peer: Peer) -> None:
    context, target = open_context(OPTIONS), Target(peer, "numpy", NBYTES)
    context.write(INTO, target.handle).result(PATIENCE_S)
    context.write(INTO, target.handle)
    context.flush().result(PATIENCE_S)
    peer.stop()
    OTHERS["write"](context, target.handle, context.connections[0]).cancel()
    OTHERS["write"](context, target.handle, context.connections[0])
    assert not _warned(lambda: context.close(0.1))


def test_a_first_use_that_fails(open_context: OpenContext) -> None:
    """The control thread posts it, and drops it when it has ended."""
    context, other = open_context(Options()), open_context(Options())
    gone = other.alloc(64)
    handle = gone.share("rw")
    gone.close()

    [warned] = _warned(lambda: context.write(bytes(64), handle), later=True)
    assert "a write failed, and nobody has seen it: " in str(warned.message)
    assert "unknown share" in str(warned.message) or "revoked" in str(warned.message)


def test_where_a_first_use_was_posted() -> None:
    """tracemalloc knows it, and so does the library with ZEROHOP_LOG=debug."""
    program = """
import time, tracemalloc, zerohop as zh
context, other = zh.Context(), zh.Context()
tracemalloc.start(20)  # now, because it makes the imports of the first Context take seconds
memory = other.alloc(64)
handle = memory.share("r")
memory.close()
context.read(handle, bytearray(64))
while context._core.deferred:
    time.sleep(0.001)
context.close()
other.close()
"""
    environment = {**os.environ, "ZEROHOP_LOG": "debug"}
    command = [sys.executable, "-W", "always", "-c", program]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "(posted at <string>:8)" in ran.stderr
    assert 'File "<string>", lineno 8' in ran.stderr


def test_a_first_use_that_nobody_waits_for(open_context: OpenContext) -> None:
    context, other = open_context(Options()), open_context(Options())
    handle, into = other.alloc(64).share("rw"), np.zeros(64, np.uint8)

    [warned] = _warned(lambda: context.read(handle, into), later=True)
    assert "a read was dropped" in str(warned.message)


def test_an_error_of_it(stopped: Stopped) -> None:
    """A program that makes an error of the warning learns of it, and goes on."""
    context, target, connection = stopped
    caught: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda raised: caught.append(raised.exc_value)
    try:
        WAITS["read"](context, target.handle, connection)
    finally:
        sys.unraisablehook = before
    [error] = caught
    assert isinstance(error, ResourceWarning)


def test_a_gather_as_a_statement(stopped: Stopped) -> None:
    context, target, connection = stopped
    held = [OTHERS["write"](context, target.handle, connection)]
    [warned] = _warned(lambda: zh.gather(held))
    assert "gather() of 1 operations was not waited for" in str(warned.message)
    assert warned.filename == HERE
    assert not _warned(lambda: zh.gather(held).done())
    assert not _warned(lambda: zh.gather([]))


@pytest.mark.parametrize("fails", [False, True], ids=["in flight", "failed"])
def test_one_that_is_dropped_by_an_error_leaves_the_error(stopped: Stopped, fails: bool) -> None:
    _, _, connection = stopped

    def act() -> None:
        made = [connection.send(bytes(10), timeout=0.05 if fails else None)]
        if fails:
            eventually(made[0].done, "it does not fail")
        for _ in (None, made.pop()):  # which is freed while the error passes
            raise KeyError("mine")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(KeyError, match="mine"):
            act()
