"""A full lane: WouldBlock for calls that must not wait, waiting for the others, never an error."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.forms import FORMS, WAITING
from support.loops import LOOPS, run
from support.options import Options
from support.outcomes import when_taken
from support.patience import PATIENCE_S, patience
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from support.world import PROVIDERS, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

NBYTES = MIB + 1
# More than any lane may hold.
MANY = 200_000
DEADLINE_S = 0.1
# So long that no deadline can be taken for room.
NEVER_S = patience(60.0)


def _full(context: zh.Context, target: Target, *, notified: bool) -> tuple[list[zh.Operation[int]], zh.WouldBlock]:
    """Posts until the lane takes no more."""
    data = pattern(1, 4096)
    posted: list[zh.Operation[int]] = []
    for value in range(MANY):
        try:
            posted.append(context.write_nowait(data, target.handle[:4096], notify=value if notified else None))
        except zh.WouldBlock as error:
            return posted, error
    raise AssertionError(f"{MANY} operations, and the lane is not full")


def _notify_until_full(notify: Callable[[int], zh.Operation[int]], posted: list[zh.Operation[int]]) -> None:
    """Posts until the lane takes no more: what was staged at the target may have made room in the meantime."""
    for _ in range(MANY):
        posted.append(notify(6))


def _pair(open_context: OpenContext, start_peer: StartPeer, form: str) -> tuple[zh.Context, Peer, Target]:
    provider, kind, _ = FORMS[form]
    options = Options(providers=(provider,), timeout=NEVER_S)
    context, peer = open_context(options), start_peer(options)
    target = Target(peer, kind, NBYTES)
    context.write(pattern(9, NBYTES), target.handle).result(PATIENCE_S)
    return context, peer, target


@pytest.mark.parametrize("form", WAITING)
def test_nowait(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """The reason is named, nothing of the refused call is posted, and all that was accepted ends well."""
    context, peer, target = _pair(open_context, start_peer, form)
    peer.stop()
    posted, error = _full(context, target, notified=False)
    assert posted
    assert error.provider == FORMS[form].provider
    assert error.peer == peer.identity.id
    assert error.reason
    connection = context.connect(peer.identity.url).result(PATIENCE_S)
    into = np.zeros(NBYTES, np.uint8)
    others: dict[str, Callable[[], object]] = {
        "read": lambda: context.read_nowait(target.handle, into),
        "write_pages": lambda: context.write_pages_nowait(into, target.handle, [0], [1], page_bytes=4096),
        "read_pages": lambda: context.read_pages_nowait(target.handle, into, [0], [1], page_bytes=4096),
        "fetch_add": lambda: context.fetch_add_nowait(target.handle, 1),
        "compare_swap": lambda: context.compare_swap_nowait(target.handle, 0, 1),
        "send": lambda: connection.send_nowait(into[:8]),
    }
    for kind, post in others.items():
        with pytest.raises(zh.WouldBlock) as refused:
            post()
        assert (refused.value.operation, refused.value.peer) == (kind, peer.identity.id)
    peer.resume()
    assert zh.wait_all(posted, PATIENCE_S) == [4096] * len(posted)
    target.expect(0, 4096, 1)
    context.write_nowait(pattern(2, 8), target.handle[:8]).result(PATIENCE_S)
    target.expect(0, 8, 2)


@pytest.mark.parametrize("form", FORMS)
def test_notifications_that_are_not_taken(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """The target polls but its application takes no notification: those fill up too, on every form."""
    context, peer, target = _pair(open_context, start_peer, form)
    connection = context.connect(peer.identity.url).result(PATIENCE_S)
    posted: list[zh.Operation[int]] = []
    while accepted := _full(context, target, notified=True)[0]:
        posted += accepted
    assert posted
    for notify in (connection.notify_nowait, lambda value: context.notify_nowait(target.handle, value)):
        with pytest.raises(zh.WouldBlock):
            _notify_until_full(notify, posted)
    # The posted writes go to the same place, and writes have no order.
    zh.wait_all(posted, PATIENCE_S)
    # Others' needs are not those of notifications.
    context.write(pattern(3, NBYTES), target.handle).result(PATIENCE_S)
    target.expect(0, NBYTES, 3)
    assert len(peer.call(Service.take_notifications, len(posted))) == len(posted)
    connection.notify(5).result(PATIENCE_S)
    assert peer.call(Service.notification).value == 5


@pytest.mark.parametrize("form", WAITING)
def test_calls_that_wait(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    """A post to a full lane returns when there is room again, in the order of a thread's own posts."""
    context, peer, target = _pair(open_context, start_peer, form)
    peer.stop()
    posted, _ = _full(context, target, notified=False)
    returned = threading.Event()
    late: list[zh.Operation[int]] = []

    def post() -> None:
        late.append(context.write(pattern(4, NBYTES), target.handle))
        returned.set()

    thread = threading.Thread(target=post)
    thread.start()
    assert not returned.wait(0.2)
    peer.resume()
    assert returned.wait(PATIENCE_S)
    thread.join()
    zh.wait_all(posted + late, PATIENCE_S)
    context.write(pattern(5, NBYTES), target.handle).result(PATIENCE_S)
    target.expect(0, NBYTES, 5)


@pytest.mark.parametrize("form", WAITING)
def test_a_call_that_waits_has_a_deadline(open_context: OpenContext, start_peer: StartPeer, form: str) -> None:
    context, peer, target = _pair(open_context, start_peer, form)
    peer.stop()
    posted, _ = _full(context, target, notified=False)
    started = time.monotonic()
    with pytest.raises(zh.DeadlineExceeded):
        context.write(pattern(4, 64), target.handle[:64], timeout=DEADLINE_S).result()
    # However late a busy machine lets anybody go on, it is long before any other deadline.
    assert DEADLINE_S <= time.monotonic() - started < PATIENCE_S
    peer.resume()
    zh.wait_all(posted, PATIENCE_S)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("form", WAITING)
def test_back_pressure_in_a_coroutine(open_context: OpenContext, start_peer: StartPeer, form: str, loop: str) -> None:
    """The idiom: post until WouldBlock, await the oldest, go on; the loop never stands still."""
    context, peer, target = _pair(open_context, start_peer, form)
    chunk = 65_537
    # Or it might be as fast as this side.
    peer.stop()

    async def main() -> int:
        data = pattern(1, chunk)
        flying: list[zh.Operation[int]] = []
        blocked = 0
        for _ in range(3000):
            while True:
                try:
                    flying.append(context.write_nowait(data, target.handle[:chunk]))
                except zh.WouldBlock:
                    if not blocked:
                        peer.resume()
                    blocked += 1
                    assert flying, "the lane is full of nothing"
                    await flying.pop(0)
                    await asyncio.sleep(0)
                else:
                    break
        await zh.gather(flying)
        return blocked

    assert run(loop, main()) > 0
    target.expect(0, chunk, 1)


POSTS: dict[str, Callable[[zh.Context, zh.RemoteBuffer], zh.Operation[int]]] = {
    "write": lambda context, handle: context.write_nowait(pattern(1, 64), handle),
    "read": lambda context, handle: context.read_nowait(handle, np.zeros(64, np.uint8)),
    "write_pages": lambda context, handle: context.write_pages_nowait(pattern(1, 64), handle, [0], [1], page_bytes=8),
    "read_pages": lambda context, handle: context.read_pages_nowait(handle, bytearray(64), [0], [1], page_bytes=8),
    "fetch_add": lambda context, handle: context.fetch_add_nowait(handle, 1),
    "compare_swap": lambda context, handle: context.compare_swap_nowait(handle, 7, 1),
    "notify": lambda context, handle: context.notify_nowait(handle, 1),
}
VALUES = {"write": 64, "read": 64, "write_pages": 8, "read_pages": 8}


@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_nowait_before_there_is_a_connection(
    open_context: OpenContext, start_peer: StartPeer, provider: str, post: str
) -> None:
    """The first use is either taken, and ends well, or WouldBlock; in time it is taken."""
    options = Options(providers=(provider,))
    context, peer = open_context(options), start_peer(options)
    target = Target(peer, "numpy", 64)
    target.fill(0, 64, 5)
    operation = when_taken(lambda: POSTS[post](context, target.handle))
    expected = VALUES.get(post, 0 if post == "notify" else int.from_bytes(pattern(5, 64)[:8].tobytes(), sys.byteorder))
    assert operation.result(PATIENCE_S) == expected
