"""Threads that use a pair of memories for the first time at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from support.fixtures import OpenContext
    from zerohop.core.lanes.link import Route

NBYTES = 4096


@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_one_route_is_left(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    """And none that would keep memory that is closed."""
    owner, context = (open_context(Options(providers=(provider,))) for _ in range(2))
    handle = owner.alloc(NBYTES).share("rw")
    context.write(context.alloc(NBYTES), handle).result(PATIENCE_S)  # connects, and imports
    context.flush().result(PATIENCE_S)
    make, both = context._core.routes.make, threading.Barrier(2)
    memory = context.alloc(NBYTES)
    made: list[Route | None] = []

    def at_once(*arguments: object, **named: bool) -> Route | None:
        # Each has found that there is none.
        both.wait(PATIENCE_S)
        made.append(make(*arguments, **named))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(context._core.routes, "make", at_once)
    threads = [threading.Thread(target=lambda: context.write(memory, handle).result(PATIENCE_S)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2
    registration = memory._registration
    of_memory = [route for route in context.connections[0]._link.routes if route._registration() is registration]
    assert of_memory == list(registration.routes.values())
    assert len(of_memory) == 1
    memory.close()
    assert not [route for route in context.connections[0]._link.routes if route._registration() in (registration, None)]


def test_memory_that_is_closed_meanwhile(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of the route that was just being made."""
    owner, context = (open_context(Options(providers=("shm",))) for _ in range(2))
    handle = owner.alloc(NBYTES).share("rw")
    context.write(context.alloc(NBYTES), handle).result(PATIENCE_S)
    memory = context.alloc(NBYTES)
    remember = context._core.routes._remember

    def close_first(route: Route) -> None:
        memory._registration.routes.clear()  # as if close() had looked a moment before
        memory.close()
        remember(route)

    before = list(context.connections[0]._link.routes)
    monkeypatch.setattr(context._core.routes, "_remember", close_first)
    with pytest.raises(zh.Closed):
        context.write(memory, handle).result(PATIENCE_S)
    assert list(context.connections[0]._link.routes) == before


def test_nothing_is_kept_for_peers_that_were_not_reached(open_context: OpenContext) -> None:
    """A Context that meets new peers for years does not grow by them."""
    owner, context = open_context(Options()), open_context(Options())
    source = context.alloc(NBYTES)
    handle = owner.alloc(NBYTES).share("rw")
    context.write(source, handle).result(PATIENCE_S)
    gone = Options().open()
    lost = gone.alloc(NBYTES).share("rw")
    gone.close()
    with pytest.raises(zh.PeerLost):
        context.write(source, lost).result(PATIENCE_S)
    eventually(lambda: not context._core.gates, "a gate at which nobody waits is kept")
