"""kill -9 of the peer while operations fly: each ends with PeerLost, soon, and nothing else is disturbed.

How soon is measured by `bench/peer_death.py`. Here stands what no slow machine may fail: the engine notices by itself,
and not by the end of a socket or of the process, which the kernel announces when all of the memory has been given back.
"""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import pytest

import zerohop as zh
from support.forms import FORMS
from support.leaks import expect_given_back, holdings
from support.loops import LOOPS, run
from support.matrix import each_once
from support.options import Options
from support.outcomes import when_taken
from support.patience import LAB, PATIENCE_S, patience
from support.pattern import pattern
from support.service import Service
from support.sizes import GIB, MIB
from support.world import PROVIDERS, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

# So long that no deadline can be taken for the peer's death.
NEVER_S = patience(60.0)
# A virtual machine may have to ask its host for each page of the 4 GiB that a peer is to own.
TOUCH_S = 90.0
# Two such peers at once may be more than the machine has memory for.
MUCH_MEMORY = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(2 * TOUCH_S)]
NBYTES = 4 * MIB

Posts = list[zh.Operation[int]]


def _options(provider: str) -> Options:
    return Options(providers=(provider,), timeout=NEVER_S)


def _port(peer: Peer) -> int:
    port = urlsplit(peer.identity.url).port
    assert port is not None
    return port


def _post_everything(context: zh.Context, connection: zh.Connection, handle: zh.RemoteBuffer) -> Posts:
    """One of each kind, then writes until the lane is full."""
    data = pattern(1, NBYTES)
    into = np.zeros(NBYTES, np.uint8)
    posted = [
        connection.recv(np.zeros(64, np.uint8)),
        context.read(handle, into),
        context.fetch_add(handle, 1),
        context.write_pages(data, handle, [1, 0], [0, 1], page_bytes=4096),
        context.write(data[:100], handle[:100], notify=1),
        connection.flush(),
        context.write(data, handle, notify=2),
    ]
    try:
        for _ in range(64):
            posted.append(context.write_nowait(data[:70_000], handle[:70_000]))
    except zh.WouldBlock:
        pass
    return posted


@pytest.mark.parametrize(
    ("form", "touched"),
    [
        *((form, 0) for form in FORMS),
        ("shm-ring", GIB),
        *(pytest.param(form, 4 * GIB, marks=MUCH_MEMORY) for form in FORMS),
    ],
)
def test_everything_pending_ends(
    open_context: OpenContext,
    start_peer: StartPeer,
    record_property: Callable[[str, object], None],
    form: str,
    touched: int,
) -> None:
    """The peer is stopped first, so that what needs it is certainly in flight when it dies."""
    provider, kind, waits = FORMS[form]
    context, peer = open_context(_options(provider)), start_peer(_options(provider))
    target = Target(peer, kind, NBYTES)
    connection = context.connect(peer.identity.url).result(PATIENCE_S)
    context.write(pattern(1, NBYTES), target.handle).result(PATIENCE_S)
    peer.start(Service.touch, touched).result(patience(TOUCH_S))
    peer.stop()
    posted = _post_everything(context, connection, target.handle)
    # Who sees sockets and processes end is held up meanwhile; but nobody else tells that a NIC's peer is gone, as long
    # as nothing is sent to it; and for devices it is the control thread that has new memory pinned.
    held = threading.Event()
    if provider not in ("verbs", "p2p"):
        context._core.control.call(held.wait)
    killed = time.monotonic()
    try:
        peer.kill()
        errors = [operation.exception(PATIENCE_S) for operation in posted]
        record_property("seconds_to_peer_lost", time.monotonic() - killed)
    finally:
        held.set()
    for error in errors:
        assert isinstance(error, zh.PeerLost | None), error
        if error is not None:
            assert error.peer == peer.identity.id
            # What still waited for its memory to be pinned had no provider yet.
            assert error.provider == provider or (provider == "p2p" and not error.provider)
            assert error.reason
    lost = [error for error in errors if error is not None]
    assert errors[0] is not None, "a receive cannot have ended well"
    if waits:
        assert len(lost) == len(posted), "an operation ended well without the peer"
    with pytest.raises(zh.PeerLost):
        posted[0].result()
    assert not connection.alive


def _until_lost(
    context: zh.Context, handle: zh.RemoteBuffer, number: int, ended: dict[int, tuple[float, BaseException]]
) -> None:
    """Operations of one kind without end; when and how it ended."""
    data = pattern(number, NBYTES)
    into = np.zeros(NBYTES, np.uint8)
    pages = np.arange(64)
    posts: list[Callable[[], zh.Operation[int]]] = [
        lambda: context.write(data, handle),
        lambda: context.read(handle, into),
        lambda: context.write_pages(data, handle, pages, pages[::-1], page_bytes=1024),
        lambda: context.write(data[:8], handle[:8], notify=1),
        lambda: context.fetch_add(handle, 1),
    ]
    try:
        while True:
            posts[number]().result(NEVER_S)
    except BaseException as error:
        ended[number] = (time.monotonic(), error)


@pytest.mark.parametrize("form", FORMS)
def test_killed_in_full_flight(
    open_context: OpenContext, start_peer: StartPeer, record_property: Callable[[str, object], None], form: str
) -> None:
    """Five threads, one per kind of operation; meanwhile another peer is talked to, and stays undisturbed."""
    provider, kind, _ = FORMS[form]
    context = open_context(_options(provider))
    doomed, survivor = start_peer(_options(provider)), start_peer(_options(provider))
    target, other = Target(doomed, kind, NBYTES), Target(survivor, kind, NBYTES)
    taking = doomed.start(Service.take_notifications, 1 << 40)
    ended: dict[int, tuple[float, BaseException]] = {}
    threads = [
        threading.Thread(target=_until_lost, args=[context, target.handle, number, ended]) for number in range(5)
    ]
    for thread in threads:
        thread.start()
    for seed in range(20):
        context.write(pattern(seed, 100_000), other.handle[:100_000]).result(PATIENCE_S)
    assert not ended
    killed = time.monotonic()
    doomed.kill()
    for seed in range(20):
        context.write(pattern(seed, 100_000), other.handle[:100_000]).result(PATIENCE_S)
        other.settle(0, 100_000, seed)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(ended) == list(range(5))
    assert [type(error) for _, error in ended.values()] == [zh.PeerLost] * 5
    slowest = max(when for when, _ in ended.values()) - killed
    record_property("seconds_to_peer_lost", slowest)
    context.write(pattern(9, 1000), other.handle[:1000], notify=3).result(PATIENCE_S)
    assert survivor.call(Service.notification).value == 3
    del taking


@pytest.mark.parametrize("form", FORMS)
def test_a_call_that_waits_for_room(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """A post that waits because the lane is full ends too, and so does a wait in `result` without a limit."""
    provider, kind, _ = FORMS[form]
    context, peer = open_context(_options(provider)), start_peer(_options(provider))
    target = Target(peer, kind, NBYTES)
    connection = context.connect(peer.identity.url).result(PATIENCE_S)
    context.write(pattern(1, 8), target.handle[:8]).result(PATIENCE_S)
    peer.stop()
    ended: list[BaseException] = []
    data = pattern(1, 70_000)

    def post_without_end() -> None:
        # Mapped memory takes writes for ever, but its notifications need room.
        posted = [connection.recv(np.zeros(8, np.uint8))]
        try:
            while True:
                posted.append(context.write(data, target.handle[:70_000], notify=1))
                if len(posted) > 500:
                    posted.pop().result()
        except BaseException as error:
            ended.append(error)
        for operation in posted:
            operation.exception(PATIENCE_S)

    def wait_without_end() -> None:
        try:
            connection.recv(np.zeros(8, np.uint8)).result()
        except BaseException as error:
            ended.append(error)

    threads = [threading.Thread(target=work) for work in (post_without_end, wait_without_end)]
    for thread in threads:
        thread.start()
    threads[0].join(0.3)
    assert threads[0].is_alive()
    peer.kill()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [type(error) for error in ended] == [zh.PeerLost] * 2


@pytest.mark.parametrize(("form", "loop"), each_once(FORMS, LOOPS))
def test_awaited(open_context: OpenContext, start_peer: StartPeer, form: str, loop: str) -> None:
    provider, kind, _ = FORMS[form]
    context, peer = open_context(_options(provider)), start_peer(_options(provider))
    target = Target(peer, kind, NBYTES)
    connection = context.connect(peer.identity.url).result(PATIENCE_S)
    context.write(pattern(1, 8), target.handle[:8]).result(PATIENCE_S)

    async def main() -> None:
        peer.stop()
        pending = [connection.recv(np.zeros(8, np.uint8)) for _ in range(10)]
        pending.append(context.read(target.handle, np.zeros(NBYTES, np.uint8)))
        peer.kill()
        with pytest.raises(zh.PeerLost):
            await zh.gather(pending)
        assert all(operation.done() for operation in pending)

    run(loop, main())


@pytest.mark.parametrize("form", FORMS)
def test_what_is_posted_later(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """After an idle peer's death: PeerLost for what uses its handles, its Connection, its address."""
    provider, kind, _ = FORMS[form]
    context, peer = open_context(_options(provider)), start_peer(_options(provider))
    target = Target(peer, kind, NBYTES)
    connection = context.connect(peer.identity.url).result(PATIENCE_S)
    context.write(pattern(1, NBYTES), target.handle).result(PATIENCE_S)
    peer.kill()
    with pytest.raises(zh.PeerLost):
        connection.recv(np.zeros(8, np.uint8)).result(PATIENCE_S)
    later: list[Callable[[], zh.Operation[int]]] = [
        lambda: context.write(pattern(1, NBYTES), target.handle),
        lambda: context.write(pattern(1, 8), target.handle[:8], notify=1),
        lambda: context.read(target.handle, np.zeros(NBYTES, np.uint8)),
        lambda: context.fetch_add(target.handle, 1),
        lambda: context.notify(target.handle, 1),
        lambda: connection.notify(1),
        lambda: connection.send(pattern(1, 8)),
    ]
    for post in later:
        with pytest.raises(zh.PeerLost):
            post().result(PATIENCE_S)
    with pytest.raises(zh.PeerLost):
        context.connect(peer.identity.url).result(PATIENCE_S)
    assert not connection.alive
    assert connection not in list(context.connections)


@pytest.mark.parametrize("form", FORMS)
def test_a_new_peer_at_the_same_address(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """The new one is reached, the old one's handles do not reach it."""
    provider, kind, _ = FORMS[form]
    context = open_context(_options(provider))
    # This process's own: of one that all use, anybody may be given the port while nobody listens there.
    own = str(ipaddress.ip_address("127.0.0.0") + os.getpid() % (1 << 22) + 256)
    peer = start_peer(Options(providers=(provider,), timeout=NEVER_S, listen=f"{own}:0"))
    for turn in range(1 if LAB else 3):
        target = Target(peer, kind, NBYTES)
        context.write(pattern(turn, NBYTES), target.handle, notify=turn).result(PATIENCE_S)
        assert peer.call(Service.notification).value == turn
        target.expect(0, NBYTES, turn)
        port = _port(peer)
        peer.kill()
        peer.reap()
        peer = start_peer(Options(providers=(provider,), timeout=NEVER_S, listen=f"{own}:{port}"))
        assert _port(peer) == port
        fresh = Target(peer, kind, NBYTES)
        with pytest.raises((zh.PeerLost, zh.AccessDenied)):
            context.write(pattern(9, NBYTES), target.handle).result(PATIENCE_S)
        fresh.expect_poison()
        assert context.connect(peer.identity.url).result(PATIENCE_S).peer == peer.identity.id


@pytest.mark.parametrize("provider", PROVIDERS)
def test_killed_while_connecting(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """The listener of a stopped process takes the connection and says nothing; its death ends the wait."""
    context, peer = open_context(_options(provider)), start_peer(_options(provider))
    target = Target(peer, "numpy", 64)
    peer.stop()
    pending = [context.write(pattern(1, 64), target.handle), context.read(target.handle, np.zeros(64, np.uint8))]
    connecting = context.connect(peer.identity.url)
    peer.kill()
    for operation in pending:
        with pytest.raises(zh.PeerLost):
            operation.result(PATIENCE_S)
    with pytest.raises(zh.PeerLost):
        connecting.result(PATIENCE_S)


@pytest.mark.parametrize("form", FORMS)
def test_a_dead_initiator_leaves_nothing_behind(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """Killed in the middle of writing here: its descriptors and mappings go, the memory is usable, closing works."""
    provider, kind, _ = FORMS[form]
    context = open_context(_options(provider))
    owned = context.alloc(NBYTES, device="sim:0" if kind == "sim" else "host")
    handle = bytes(owned.share("rw"))
    # A NIC that was opened at its first use stays open.
    context.write(pattern(1, 8), zh.RemoteBuffer.from_bytes(handle)[:8]).result(PATIENCE_S)
    before = holdings()
    before.threads["zh-sim0"] += kind == "sim"  # a device starts its thread with the first copy
    for turn in range(3):
        peer = start_peer(_options(provider))
        theirs = peer.call(Service.new, "numpy", NBYTES, 0)
        peer.start(Service.write_until_refused, handle, theirs, turn)
        assert context.notification(PATIENCE_S).result().value == turn
        peer.kill()
        peer.reap()
        expect_given_back(before, holdings, "the target")
    owned.write_bytes(0, b"\1" * NBYTES)
    assert owned.read_bytes(NBYTES - 1, 1) == b"\1"
    owned.close()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_nowait_to_the_dead(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """They are told by the second call at the latest, and not put off for ever."""
    context, peer = open_context(_options(provider)), start_peer(_options(provider))
    target = Target(peer, "numpy", 64)
    peer.kill()
    peer.reap()
    calls: list[Callable[[], zh.Operation[int]]] = [
        lambda: context.write_nowait(pattern(1, 64), target.handle),
        lambda: context.fetch_add_nowait(target.handle, 1),
        lambda: context.notify_nowait(target.handle, 1),
    ]
    for call in calls:
        with pytest.raises(zh.PeerLost):
            when_taken(call).result(PATIENCE_S)
