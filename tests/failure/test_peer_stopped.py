"""SIGSTOP of the peer: deadlines fire when they should, and what comes late after SIGCONT touches nothing freed."""

from __future__ import annotations

import asyncio
import gc
import math
import mmap
import time
import weakref
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.forms import FORMS, WAITING
from support.lanes import eventually
from support.loops import LOOPS, run
from support.matrix import each_once
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.pattern import POISON, expect_poison, pattern
from support.service import Service
from support.sizes import MIB
from support.world import Target
from zerohop.core.control import handshake
from zerohop.core.peers import attempt, peers, session
from zerohop.core.runtime import served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.fixtures import OpenContext, StartPeer
    from support.pattern import Bytes
    from support.peer import Peer
    from zerohop.core.control import wire

NBYTES = 4 * MIB
DEADLINE_S = 0.1
# However late a busy machine lets anybody go on, it is long before any other deadline.
GRACE_S = PATIENCE_S
NEVER_S = patience(60.0)


def _pair(
    open_context: OpenContext, start_peer: StartPeer, form: str
) -> tuple[zh.Context, Peer, Target, zh.Connection]:
    provider, kind, _ = FORMS[form]
    options = Options(providers=(provider,), timeout=NEVER_S)
    context, peer = open_context(options), start_peer(options)
    target = Target(peer, kind, NBYTES)
    connection = context.connect(peer.identity.url).result(PATIENCE_S)
    context.write(pattern(1, NBYTES), target.handle).result(PATIENCE_S)
    target.poison()
    return context, peer, target, connection


def _expect_deadline(post: Callable[[], zh.Operation[int]]) -> zh.DeadlineExceeded:
    """The operation, posted with a deadline of DEADLINE_S, ends at its deadline, neither before nor much later."""
    started = time.monotonic()
    with pytest.raises(zh.DeadlineExceeded) as caught:
        post().result()
    elapsed = time.monotonic() - started
    assert DEADLINE_S <= elapsed < DEADLINE_S + GRACE_S
    return caught.value


@pytest.mark.parametrize("form", WAITING)
def test_deadlines_where_the_peer_places_the_bytes(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    context, peer, target, connection = _pair(open_context, start_peer, form)
    data, into = pattern(1, NBYTES), np.zeros(NBYTES, np.uint8)
    peer.stop()
    posts: list[Callable[[], zh.Operation[int]]] = [
        lambda: context.write(data[:8], target.handle[:8], timeout=DEADLINE_S),
        lambda: context.write(data, target.handle, timeout=DEADLINE_S),
        lambda: context.write(data, target.handle, notify=1, timeout=DEADLINE_S),
        lambda: context.read(target.handle, into, timeout=DEADLINE_S),
        lambda: context.write_pages(data, target.handle, [0, 1], [1, 0], page_bytes=1000, timeout=DEADLINE_S),
        lambda: context.read_pages(target.handle, into, [0, 1], [1, 0], page_bytes=1000, timeout=DEADLINE_S),
        lambda: context.fetch_add(target.handle, 1, timeout=DEADLINE_S),
        lambda: context.compare_swap(target.handle, 0, 1, timeout=DEADLINE_S),
        lambda: connection.flush(timeout=DEADLINE_S),
        lambda: connection.recv(into, timeout=DEADLINE_S),
    ]
    for post in posts:
        error = _expect_deadline(post)
        assert error.peer == peer.identity.id
    peer.resume()
    context.flush().result(PATIENCE_S)
    context.write(data, target.handle).result(PATIENCE_S)
    target.expect(0, NBYTES, 1)


@pytest.mark.parametrize("late", [False, True], ids=["deadline", "cancelled"])
@pytest.mark.parametrize("form", WAITING)
def test_whether_the_memory_of_what_was_awaited_is_in_use(
    open_context: OpenContext, start_peer: StartPeer, form: str, late: bool
) -> None:
    """Also while the exception of the await is alive, whose frames know the operation."""
    context, peer, target, _ = _pair(open_context, start_peer, form)
    peer.stop()

    async def write() -> None:
        operation = context.write(pattern(1, NBYTES), target.handle, timeout=None if late else DEADLINE_S)
        if late:
            asyncio.get_running_loop().call_later(0.01, operation.cancel)
        try:
            await operation
        except (asyncio.CancelledError, zh.DeadlineExceeded):
            assert operation.memory_in_use
            peer.resume()
            await context.flush()
            eventually(lambda: not operation.memory_in_use, "it is in use for as long as somebody knows of it")
        else:
            pytest.fail("a stopped peer has answered")

    asyncio.run(write())


@pytest.mark.parametrize("late", [False, True], ids=["deadline", "cancelled"])
@pytest.mark.parametrize("form", WAITING)
def test_whether_memory_is_in_use(open_context: OpenContext, start_peer: StartPeer, form: str, late: bool) -> None:
    """The error says it, and the Operation, until a flush has waited for the peer."""
    context, peer, target, connection = _pair(open_context, start_peer, form)
    data, into = pattern(1, NBYTES), np.zeros(NBYTES, np.uint8)
    peer.stop()
    timeout = None if late else DEADLINE_S
    moving = [
        context.write(data, target.handle, timeout=timeout),
        context.read(target.handle, into, timeout=timeout),
        context.write_many([(data[:8], target.handle[8:16]), (into[:8], target.handle[:8])], timeout=timeout),
    ]
    waiting = connection.recv(np.zeros(8, np.uint8), timeout=timeout)  # no message takes its buffer
    operations = [*moving, waiting]
    assert all(operation.memory_in_use for operation in operations)
    if late:
        assert all(operation.cancel() for operation in operations)
        for operation in operations:
            with pytest.raises(CancelledError):
                operation.result()
    else:
        for operation in operations:
            in_use = _expect_error(operation, zh.DeadlineExceeded).memory_in_use
            assert in_use or operation not in moving
    assert all(operation.memory_in_use for operation in moving)
    eventually(lambda: not waiting.memory_in_use, "the buffer of a receive that has ended is not given back")
    peer.resume()
    context.flush().result(PATIENCE_S)
    assert not any(operation.memory_in_use for operation in operations)
    done = context.write(data, target.handle)
    done.result(PATIENCE_S)
    assert not done.memory_in_use


def _expect_error(operation: zh.Operation[int], kind: type[zh.ZerohopError]) -> zh.ZerohopError:
    error = operation.exception(PATIENCE_S)
    assert isinstance(error, kind)
    return error


def test_mapped_memory_needs_no_peer(open_context: OpenContext, start_peer: StartPeer) -> None:
    """Without a notification it is the initiator who moves the bytes, whatever its peer does."""
    context, peer, target, _ = _pair(open_context, start_peer, "shm-mapped")
    into = np.zeros(NBYTES, np.uint8)
    peer.stop()
    context.write(pattern(2, NBYTES), target.handle, timeout=PATIENCE_S).result()
    context.read(target.handle, into, timeout=PATIENCE_S).result()
    assert into.tobytes() == pattern(2, NBYTES).tobytes()
    context.fetch_add(target.handle, 0, timeout=PATIENCE_S).result()
    peer.resume()
    target.expect(0, NBYTES, 2)


@pytest.mark.parametrize("form", FORMS)
def test_notifications_that_nobody_takes(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """A notified write ends at the latest when the room for notifications is used up; those that were accepted
    arrive once the peer runs again, each exactly once, and the lane is as good as new."""
    context, peer, target, connection = _pair(open_context, start_peer, form)
    data = pattern(3, 64)
    peer.stop()
    done: set[int] = set()
    expired = 0
    for value in range(1_000_000):
        try:
            context.write(data, target.handle[:64], notify=value, timeout=DEADLINE_S).result()
        except zh.DeadlineExceeded:
            expired = value
            break
        done.add(value)
    else:
        raise AssertionError("a million notifications, and none of them had to wait")
    peer.resume()
    last = 0xFFFF_FFFF
    connection.flush().result(PATIENCE_S)
    # Where the room was used up, only taking some of them makes any.
    arrived = peer.call(Service.take_notifications, len(done))
    connection.notify(last).result(PATIENCE_S)
    # The one that expired may have been on its way, and may be the last to arrive.
    while not set(arrived) >= done | {last}:
        arrived.append(peer.call(Service.notification).value)
    assert set(arrived) <= done | {last, expired}
    assert len(arrived) == len(set(arrived))
    context.write(data, target.handle[:64], notify=last - 1).result(PATIENCE_S)
    assert peer.call(Service.notification).value in {last - 1, expired}


@pytest.mark.parametrize(("form", "loop"), each_once(WAITING, LOOPS))
def test_deadlines_of_what_is_awaited(open_context: OpenContext, start_peer: StartPeer, form: str, loop: str) -> None:
    """And the loop turns meanwhile."""
    context, peer, target, _ = _pair(open_context, start_peer, form)

    async def main() -> None:
        peer.stop()
        started = time.monotonic()
        operation = context.read(target.handle, np.zeros(NBYTES, np.uint8), timeout=DEADLINE_S)
        with pytest.raises(zh.DeadlineExceeded):
            await operation
        assert DEADLINE_S <= time.monotonic() - started < DEADLINE_S + GRACE_S
        peer.resume()

    run(loop, main())


@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_deadlines_of_a_first_use(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """A peer that was stopped before anybody connected to it."""
    options = Options(providers=(provider,), timeout=NEVER_S)
    context, peer = open_context(options), start_peer(options)
    target = Target(peer, "numpy", 64)
    peer.stop()
    _expect_deadline(lambda: context.write(pattern(1, 64), target.handle, timeout=DEADLINE_S))
    _expect_deadline(lambda: context.read(target.handle, np.zeros(64, np.uint8), timeout=DEADLINE_S))
    connecting = context.connect(peer.identity.url)
    with pytest.raises(zh.DeadlineExceeded):
        connecting.result(0.05)
    peer.resume()
    assert connecting.result(PATIENCE_S).peer == peer.identity.id
    context.write(pattern(2, 64), target.handle).result(PATIENCE_S)
    target.expect(0, 64, 2)


def _mapped_array(nbytes: int) -> Bytes:
    """An array in pages of its own, which go back to the kernel with it: whoever touches them later crashes."""
    array = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    array[:] = POISON
    return array


LATE: dict[str, Callable[[zh.Context, zh.Connection, zh.RemoteBuffer, Bytes], zh.Operation[int]]] = {
    "read": lambda context, _, handle, array: context.read(handle, array, timeout=DEADLINE_S),
    "write": lambda context, _, handle, array: context.write(array, handle, timeout=DEADLINE_S),
    "write notified": lambda context, _, handle, array: context.write(array, handle, notify=1, timeout=DEADLINE_S),
    "read_pages": lambda context, _, handle, array: context.read_pages(
        handle, array, np.arange(512), np.arange(512)[::-1], page_bytes=4096, timeout=DEADLINE_S
    ),
    "write_pages": lambda context, _, handle, array: context.write_pages(
        array, handle, np.arange(512), np.arange(512)[::-1], page_bytes=4096, timeout=DEADLINE_S
    ),
    "recv": lambda _, connection, __, array: connection.recv(array, timeout=DEADLINE_S),
    "send": lambda _, connection, __, array: connection.send(array, timeout=DEADLINE_S),
}


@pytest.mark.parametrize(("form", "late"), each_once(FORMS, LATE))
def test_late_completions_touch_nothing_freed(
    open_context: OpenContext, start_peer: StartPeer, form: str, late: str
) -> None:
    """After its deadline an operation's buffer is given up by its owner. It either stays pinned until nothing can
    touch it any more, or nothing touches it from then on; the pages of a freed one are unmapped, and others take
    their place."""
    context, peer, target, connection = _pair(open_context, start_peer, form)
    peer.stop()
    arrays = [_mapped_array(NBYTES) for _ in range(3)]
    operations = [LATE[late](context, connection, target.handle, array) for array in arrays]
    outcomes = [operation.exception() for operation in operations]
    for outcome in outcomes:
        assert isinstance(outcome, zh.DeadlineExceeded | None), outcome
    if FORMS[form].waits or late == "recv":
        assert None not in outcomes
    given_up = [weakref.ref(array) for array in arrays]
    del operations, outcomes
    arrays.clear()
    gc.collect()
    pinned = sum(reference() is not None for reference in given_up)
    # Whatever was freed is another's now, most likely at the same addresses.
    others = [_mapped_array(NBYTES) for _ in range(3 - pinned)]
    peer.resume()
    context.write(pattern(7, 4096), target.handle[:4096]).result(PATIENCE_S)
    context.flush().result(PATIENCE_S)

    def given_back() -> bool:
        gc.collect()
        return all(reference() is None for reference in given_up)

    eventually(given_back, "a buffer is pinned although the lane has been drained")
    for array in others:
        expect_poison(array, "memory of somebody else")
    context.write(pattern(8, NBYTES), target.handle).result(PATIENCE_S)
    target.expect(0, NBYTES, 8)


@pytest.mark.parametrize("form", FORMS)
def test_the_registered_buffer_of_an_expired_read(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """Closing its Memory while the read may still come is safe, and gives it back in the end."""
    context, peer, target, _ = _pair(open_context, start_peer, form)
    array = _mapped_array(NBYTES)
    memory = context.register(array)
    given_up = weakref.ref(array)
    peer.stop()
    operation = context.read(target.handle, memory, timeout=DEADLINE_S)
    error = operation.exception()
    assert isinstance(error, zh.DeadlineExceeded | None)
    memory.close()
    del array, memory, operation, error
    gc.collect()
    peer.resume()
    context.flush().result(PATIENCE_S)

    def given_back() -> bool:
        gc.collect()
        return given_up() is None

    eventually(given_back, "the buffer is still pinned")


@pytest.mark.parametrize("form", WAITING)
def test_a_cancelled_read_of_a_stopped_peer(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    context, peer, target, _ = _pair(open_context, start_peer, form)
    peer.stop()
    into = np.full(NBYTES, POISON, np.uint8)
    operation = context.read(target.handle, into)
    assert operation.cancel()
    assert operation.done()
    peer.resume()
    context.write(pattern(2, NBYTES), target.handle).result(PATIENCE_S)
    context.read(target.handle, into).result(PATIENCE_S)
    assert into.tobytes() == pattern(2, NBYTES).tobytes()


@pytest.mark.parametrize("form", FORMS)
def test_a_peer_that_pauses_is_not_lost(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """What has time enough ends well after the pause."""
    context, peer, target, connection = _pair(open_context, start_peer, form)
    peer.stop()
    pending = [
        context.write(pattern(3, NBYTES), target.handle, notify=4),
        connection.flush(),
        context.read(target.handle, np.zeros(NBYTES, np.uint8)),
    ]
    with pytest.raises(zh.DeadlineExceeded):
        connection.recv(np.zeros(8, np.uint8), timeout=DEADLINE_S).result()
    peer.resume()
    assert zh.wait_all(pending, PATIENCE_S)[0] == NBYTES
    assert connection.alive
    assert peer.call(Service.notification).value == 4
    target.expect(0, NBYTES, 3)


class TestFirstUse:
    """What the library allows a peer for its answers by itself is shorter here than any deadline, and ends none."""

    @pytest.fixture(autouse=True)
    def impatient(self) -> Iterator[pytest.MonkeyPatch]:
        """To be undone before the peer goes on: on a busy machine it answers later than that."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(handshake, "TIMEOUT_S", 0.1)
            patched.setattr(served, "REPLY_S", 0.1)
            yield patched

    @pytest.mark.parametrize("provider", ["shm", "tcp"])
    def test_connecting_waits_for_the_deadline(
        self, open_context: OpenContext, start_peer: StartPeer, impatient: pytest.MonkeyPatch, provider: str
    ) -> None:
        options = Options(providers=(provider,))
        context, peer = open_context(options), start_peer(options)
        target = Target(peer, "numpy", 64)
        peer.stop()
        patient = context.connect(peer.identity.url, timeout=NEVER_S)
        started = time.monotonic()
        for post in (
            lambda: context.connect(peer.identity.url, timeout=0.4),
            lambda: context.write(pattern(1, 64), target.handle, timeout=0.4),
        ):
            with pytest.raises(zh.DeadlineExceeded, match="timeout="):
                post().result()
        assert 0.8 <= time.monotonic() - started < 0.8 + GRACE_S
        assert not patient.done()
        impatient.undo()
        peer.resume()
        assert patient.result().peer == peer.identity.id
        context.write(pattern(2, 64), target.handle).result(PATIENCE_S)
        target.expect(0, 64, 2)

    def test_a_dial_ends_with_those_who_wait(
        self, open_context: OpenContext, start_peer: StartPeer, impatient: pytest.MonkeyPatch
    ) -> None:
        context, peer = open_context(Options(timeout=NEVER_S)), start_peer(Options())
        peer.stop()
        with pytest.raises(zh.DeadlineExceeded):
            context.connect(peer.identity.url, timeout=0.3).result()
        eventually(lambda: not context._core.peers._dials, "a dial goes on that nobody waits for")
        impatient.undo()
        peer.resume()
        assert context.connect(peer.identity.url).result(PATIENCE_S).peer == peer.identity.id

    def test_the_longest_dial_ends_no_operation(
        self, open_context: OpenContext, start_peer: StartPeer, impatient: pytest.MonkeyPatch
    ) -> None:
        dials: list[attempt.Dial] = []

        class Dial(attempt.Dial):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                dials.append(self)

        impatient.setattr(attempt, "LONGEST_DIAL_S", 0.2)
        impatient.setattr(peers, "Dial", Dial)
        context, peer = open_context(Options(timeout=NEVER_S)), start_peer(Options())
        peer.stop()
        patient, endless = (context.connect(peer.identity.url, timeout=each) for each in (NEVER_S, math.inf))
        eventually(lambda: len(dials) == 3, "the dial is not given up")
        assert not patient.done()
        assert not endless.done()
        impatient.undo()
        peer.resume()
        assert patient.result(PATIENCE_S) is endless.result(PATIENCE_S)

    def test_a_peer_that_is_silent_after_its_handshake(
        self, open_context: OpenContext, impatient: pytest.MonkeyPatch
    ) -> None:
        """As if it had been stopped before it agreed on a lane."""
        handle = session.Session._handle

        def silent(self: session.Session, message: wire.Message, fds: list[int]) -> None:
            if self.initiator:
                handle(self, message, fds)

        context, other = open_context(Options()), open_context(Options())
        with impatient.context() as patched:
            patched.setattr(session.Session, "_handle", silent)
            started = time.monotonic()
            with pytest.raises(zh.DeadlineExceeded):
                context.connect(other.url, timeout=0.4).result()
            assert 0.4 <= time.monotonic() - started < 0.4 + GRACE_S
            both = (context._core, other._core)
            eventually(lambda: not any(each.peers._dials or each.young for each in both), "a half-made Connection")
        impatient.undo()
        assert context.connect(other.url).result(PATIENCE_S).peer == other.id

    def test_mapping_waits_for_the_deadline(
        self, open_context: OpenContext, start_peer: StartPeer, impatient: pytest.MonkeyPatch
    ) -> None:
        context, peer, _, connection = _pair(open_context, start_peer, "shm-mapped")
        other = Target(peer, "alloc", 64)
        peer.stop()
        patient = context.write(pattern(1, 64), other.handle, timeout=NEVER_S)
        started = time.monotonic()
        with pytest.raises(zh.DeadlineExceeded, match="timeout="):
            context.write(pattern(2, 64), other.handle, timeout=0.4).result()
        assert 0.4 <= time.monotonic() - started < 0.4 + GRACE_S
        assert not patient.done()
        impatient.undo()
        peer.resume()
        assert patient.result() == 64
        assert connection.alive
        other.expect(0, 64, 1)

    def test_a_stopped_peer_that_is_killed_is_lost(self, open_context: OpenContext, start_peer: StartPeer) -> None:
        context, peer, _, _ = _pair(open_context, start_peer, "shm-mapped")
        stranger = open_context(Options())
        other = Target(peer, "alloc", 64)
        peer.stop()
        pending = [context.write(pattern(1, 64), other.handle), stranger.write(pattern(1, 64), other.handle)]
        time.sleep(0.2)  # longer than the library's own limits
        assert not any(operation.done() for operation in pending)
        peer.kill()
        for operation in pending:
            assert isinstance(operation.exception(PATIENCE_S), zh.PeerLost)
