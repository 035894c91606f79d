"""Transports of whose lane the peer takes nothing: callers that wait for room are let go when the Transport ends."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.forms import FORMS
from support.matrix import each_once
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.pattern import pattern
from support.service import Service
from support.transports import Link
from support.world import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer

# More than any lane has room for, of writes that announce themselves.
MOST = 100_000
# So long that no deadline can be taken for an end.
NEVER_S = patience(60.0)


@pytest.mark.parametrize(
    ("form", "how", "what"), each_once(FORMS, ["abort", "close", "the Context closes"], ["write", "write_many"])
)
def test_a_caller_that_waits_for_room(
    open_context: OpenContext, start_peer: StartPeer, form: str, how: str, what: str
) -> None:
    """At once, with what all that is pending ends with."""
    provider, kind, _ = FORMS[form]
    options = Options(providers=(provider,), timeout=NEVER_S)
    context, peer = open_context(options), start_peer(options)
    link, target = Link(context, peer), Target(peer, kind, 4096)
    here, handle = link.here, target.handle
    source = context.register(pattern(1, 4096))
    posts: dict[str, Callable[[], zh.Operation[int]]] = {
        "write": lambda: here.write(source, handle, notify=1),
        "write_many": lambda: here.write_many([(source[:8], handle), (source[100:108], handle[100:])], notify=1),
    }
    for post in posts.values():
        post().result(PATIENCE_S)
        here.flush().result(PATIENCE_S)
    peer.stop()
    failures: list[BaseException | None] = []

    def work() -> None:
        try:
            for _ in range(MOST):
                # It stays where it is: one that is dropped is given up.
                kept.append(posts[what]())
            failures.append(None)
        except zh.ZerohopError as error:
            failures.append(error)

    kept: list[zh.Operation[int]] = []
    before = context.statistics().engine["lane_full"]
    thread = threading.Thread(target=work)
    thread.start()
    limit = time.monotonic() + PATIENCE_S
    while context.statistics().engine["lane_full"] == before:
        assert time.monotonic() < limit, "there is room without end"
        time.sleep(0.005)  # until it waits, for which there is no event
    assert thread.is_alive()
    ends: dict[str, Callable[[], None]] = {
        "abort": here.abort,
        "close": lambda: here.close(0.1),
        "the Context closes": lambda: context.close(0.5),
    }
    ends[how]()
    thread.join(PATIENCE_S)
    stuck = thread.is_alive()
    peer.resume()
    thread.join()
    assert not stuck, "it still waits for room"
    assert isinstance(failures[0], zh.Closed), failures
    assert "deadline" not in str(failures[0])
    for operation in kept:
        assert isinstance(operation.exception(PATIENCE_S), zh.Closed | None)


@pytest.mark.parametrize("form", FORMS)
def test_one_whose_owner_never_waits_holds_up_no_other(
    open_context: OpenContext, start_peer: StartPeer, form: str
) -> None:
    """Neither another Transport between the same two Contexts, nor the Contexts' own notifications."""
    provider, kind, _ = FORMS[form]
    options = Options(providers=(provider,))
    context, peer = open_context(options), start_peer(options)
    silent, other, target = Link(context, peer), Link(context, peer), Target(peer, kind, 4096)
    source = context.register(pattern(1, 4096))
    full = None
    for _ in range(MOST):
        full = silent.here.write(source[:8], target.handle[:8], notify=1, timeout=patience(0.2))
        if full.exception() is not None:
            break
    assert full is not None
    assert isinstance(full.exception(), zh.DeadlineExceeded)
    for value in range(10):
        other.here.write(source, target.handle, notify=value).result(PATIENCE_S)
        other.expect_arrival(value, 4096)
        context.write(source, target.handle, notify=value).result(PATIENCE_S)
        assert peer.call(Service.notification).value == value
    # It goes on once somebody waits for its own.
    silent.expect_arrival(1, 8)
