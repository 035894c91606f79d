"""close(timeout) returns in time in every state that a Context can be in, ends what is in flight, and does nothing
the second time."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.closing import NBYTES, TIMEOUT_S, Pending, Setting, connected, expect_closed, expect_prompt
from support.loops import LOOPS, run
from support.matrix import each_once
from support.native import engine_of
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.world import PROVIDERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer


def _idle(_: Setting) -> Pending:
    return []


def _receiving(setting: Setting) -> Pending:
    connection = setting.context.connect(setting.peer.identity.url).result(PATIENCE_S)
    return [connection.recv(np.zeros(64, np.uint8)) for _ in range(100)]


def _in_full_flight(setting: Setting) -> Pending:
    """Of these, some may have ended well before the close."""
    data, into = pattern(1, NBYTES), np.zeros(NBYTES, np.uint8)
    posts: Pending = []
    for target in (setting.ring, setting.mapped, setting.device):
        posts.append(setting.context.write(data, target.handle))
        posts.append(setting.context.read(target.handle, into))
    return posts


def _stopped(setting: Setting) -> Pending:
    setting.peer.stop()
    data = pattern(1, NBYTES)
    return [
        *_receiving(setting),
        setting.context.write(data, setting.ring.handle),
        setting.context.read(setting.device.handle, np.zeros(NBYTES, np.uint8)),
        setting.context.fetch_add(setting.ring.handle, 1),
        setting.context.flush(),
    ]


def _full(setting: Setting) -> Pending:
    setting.peer.stop()
    posts: Pending = []
    try:
        for value in range(200_000):
            posts.append(setting.context.write_nowait(pattern(1, 64), setting.ring.handle[:64], notify=value))
    except zh.WouldBlock:
        return posts
    raise AssertionError("the lane was never full")


def _dead(setting: Setting) -> Pending:
    setting.peer.kill()
    setting.peer.reap()
    return []


def _dying(setting: Setting) -> Pending:
    """Killed with operations in flight, and nobody has looked yet."""
    posts = _stopped(setting)
    setting.peer.kill()
    return posts


def _connecting(setting: Setting) -> Pending:
    """A further peer that was stopped before anybody connected."""
    setting.peer.stop()
    stranger = Options(providers=("tcp",)).open()
    try:
        handle = stranger.alloc(64).share("rw")
    finally:
        stranger.close()
    return [setting.context.write(pattern(1, 64), handle), setting.context.notify(setting.ring.handle, 1)]


def _slow_device(setting: Setting) -> Pending:
    memory = setting.context.alloc(NBYTES, device="sim:0")
    engine_of(setting.context).sim_delay(0, 100_000_000, 0)
    return [setting.context.write(memory, setting.ring.handle) for _ in range(3)]


def _lost_device(setting: Setting) -> Pending:
    memory = setting.context.alloc(NBYTES, device="sim:0")
    posts = [setting.context.write(memory, setting.ring.handle)]
    engine_of(setting.context).sim_inject(0, "lost", 1)
    return [*posts, setting.context.write(memory, setting.ring.handle)]


STATES: dict[str, Callable[[Setting], Pending]] = {
    "idle": _idle,
    "receiving": _receiving,
    "in full flight": _in_full_flight,
    "peer stopped": _stopped,
    "lane full": _full,
    "peer dead": _dead,
    "peer dying": _dying,
    "connecting": _connecting,
    "slow device": _slow_device,
    "lost device": _lost_device,
}


@pytest.mark.parametrize(("provider", "state"), each_once(PROVIDERS, STATES))
class TestInTime:
    def test_close(self, open_context: OpenContext, start_peer: StartPeer, provider: str, state: str) -> None:
        setting = connected(open_context, start_peer, provider)
        pending = STATES[state](setting)
        expect_prompt(lambda: setting.context.close(timeout=TIMEOUT_S))
        expect_closed(setting.context, pending)
        if state in ("receiving", "peer stopped"):
            ended = [operation.exception() for operation in pending]
            if provider in ("verbs", "p2p"):  # a NIC, or a device, needs nobody at the other side
                ended = [error for error in ended if error is not None]
                assert len(ended) >= 100
            assert all(isinstance(error, zh.Closed) for error in ended)

    def test_with_waiting_threads(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, state: str
    ) -> None:
        """Threads in result(), in notification() and in a post that waits for room all come back with Closed."""
        setting = connected(open_context, start_peer, provider)
        connection = setting.context.connect(setting.peer.identity.url).result(PATIENCE_S)
        ended: list[BaseException | None] = []

        def attempt(action: Callable[[], object]) -> None:
            try:
                action()
                ended.append(None)
            except BaseException as error:
                ended.append(error)

        receive = connection.recv(np.zeros(64, np.uint8))
        waits: list[Callable[[], object]] = [
            lambda: receive.result(),
            lambda: setting.context.notification().result(),
        ]
        threads = [threading.Thread(target=attempt, args=[wait]) for wait in waits]
        for thread in threads:
            thread.start()
        pending = STATES[state](setting)
        if state == "lane full":
            late = threading.Thread(
                target=attempt,
                args=[lambda: setting.context.write(pattern(1, 64), setting.ring.handle[:64], notify=1).result()],
            )
            late.start()
            threads.append(late)
        expect_prompt(lambda: setting.context.close(timeout=TIMEOUT_S))
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a thread still waits for a closed Context"
        assert len(ended) == len(threads)
        for error in ended:
            assert isinstance(error, zh.Closed | zh.PeerLost), error
        expect_closed(setting.context, pending)

    def test_without_any_time(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, state: str
    ) -> None:
        """close(timeout=0) returns as well; what it could not wait for goes in the background."""
        setting = connected(open_context, start_peer, provider)
        pending = STATES[state](setting)
        expect_prompt(lambda: setting.context.close(timeout=0), 0)
        expect_closed(setting.context, pending)


@pytest.mark.parametrize(("provider", "loop"), each_once(PROVIDERS, LOOPS))
def test_with_waiting_coroutines(open_context: OpenContext, start_peer: StartPeer, provider: str, loop: str) -> None:
    setting = connected(open_context, start_peer, provider)
    connection = setting.context.connect(setting.peer.identity.url).result(PATIENCE_S)

    async def receive() -> int:
        return await connection.recv(np.zeros(64, np.uint8))

    async def notified() -> int:
        return (await setting.context.notification()).value

    async def each() -> int:
        async for note in setting.context.notifications():
            return note.value
        return -1

    async def main() -> None:
        tasks = [asyncio.ensure_future(work) for work in (receive(), notified(), each())]
        await asyncio.sleep(0.01)  # until all of them have suspended, of which there is no event
        setting.context.close(timeout=TIMEOUT_S)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        # `async for` may simply end.
        assert all(isinstance(outcome, zh.Closed) for outcome in outcomes[:2]), outcomes
        assert isinstance(outcomes[2], zh.Closed) or outcomes[2] == -1

    run(loop, main())


@pytest.mark.parametrize("provider", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("what", "words"), [("Context", "the peer closed its Context"), ("Connection", "the peer closed its end")]
)
def test_what_the_peer_of_one_that_closes_is_told(
    open_context: OpenContext, provider: str, what: str, words: str
) -> None:
    """It waits, and hears by the lane that the peer has left in good order: that is no connection that broke."""
    context, peer = (open_context(Options(providers=(provider,))) for _ in range(2))
    connection = context.connect(peer.url).result(PATIENCE_S)
    waiting = [connection.recv(np.zeros(8, np.uint8)) for _ in range(3)]
    there = peer.accept().result(PATIENCE_S)
    (peer if what == "Context" else there).close()
    for operation in waiting:
        with pytest.raises(zh.PeerLost, match=words) as caught:
            operation.result(PATIENCE_S)
        assert caught.value.fix
    with pytest.raises(zh.PeerLost) as later:
        connection.send(b"x").result(PATIENCE_S)
    if what == "Context":
        assert words in later.value.reason
        assert later.value.fix == "ask the owner for a new handle, once it is there again"
