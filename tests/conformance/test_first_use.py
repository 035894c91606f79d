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
    from zerohop._native import PeerMemory
    from zerohop.core.lanes.link import Route
    from zerohop.core.memory.registration import Registration

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


@pytest.mark.parametrize("device", ["host", "sim:0"])
@pytest.mark.parametrize("warm", [False, True], ids=["first reach", "reached before"])
def test_memory_that_is_closed_while_a_device_is_given_access(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, warm: bool, device: str
) -> None:
    """Tell its user that it is closed, whether the caller's own thread has found it or another one."""
    owner, context = (open_context(Options(providers=("p2p",), sim_devices=1)) for _ in range(2))
    handle = owner.alloc(NBYTES, "sim:0").share("rw")
    if warm:  # a device that has reached the peer's memory is given more of this side's by the call itself
        context.write(context.alloc(NBYTES, device), handle).result(PATIENCE_S)
    memory, routes = context.alloc(NBYTES, device), context._core.routes
    reach, reached_by = routes._reach, list[str]()

    def close_first(registration: Registration, imported: PeerMemory) -> int:
        reached_by.append(threading.current_thread().name)
        memory.close()
        return reach(registration, imported)

    with monkeypatch.context() as patched:
        patched.setattr(routes, "_reach", close_first)
        with pytest.raises(zh.Closed):
            context.write(memory, handle).result(PATIENCE_S)
    assert reached_by == [threading.current_thread().name if warm else "zerohop-aside"]
    with pytest.raises(zh.Closed):
        context.write(memory, handle).result(PATIENCE_S)
    # Another memory is not concerned.
    context.write(context.alloc(NBYTES, device), handle).result(PATIENCE_S)


@pytest.mark.parametrize("provider", ["shm", "tcp", "p2p"])
@pytest.mark.parametrize("moment", ["explain", "route"])
@pytest.mark.parametrize("warm", [False, True], ids=["first use", "connected before"])
def test_memory_that_is_closed_while_a_route_is_made(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, provider: str, moment: str, warm: bool
) -> None:
    """Tell its user that it is closed, and not that an argument is wrong, or that the connection broke."""
    options = Options(providers=(provider,), sim_devices=1 if provider == "p2p" else 0)
    device = "sim:0" if provider == "p2p" else "host"
    owner, context = open_context(options), open_context(options)
    handle = owner.alloc(NBYTES, device).share("rw")
    if warm:
        context.write(context.alloc(NBYTES, device), handle).result(PATIENCE_S)
    memory, routes = context.alloc(NBYTES, device), context._core.routes
    engine, explain = routes._engine, routes.explain

    class ClosingEngine:
        def __getattr__(self, name: str) -> object:
            if name == "route" and moment == "route":
                memory.close()
            return getattr(engine, name)

    def close_first(*args: object) -> object:
        if moment == "explain":
            memory.close()
        return explain(*args)  # type: ignore[arg-type]

    for pages in (False, True):
        with monkeypatch.context() as patched:
            patched.setattr(routes, "_engine", ClosingEngine())
            patched.setattr(routes, "explain", close_first)
            with pytest.raises(zh.Closed):
                _write(context, memory, handle, pages=pages).result(PATIENCE_S)
        memory = context.alloc(NBYTES, device)
    context.write(memory, handle).result(PATIENCE_S)


def _write(context: zh.Context, memory: zh.Memory, handle: zh.RemoteBuffer, *, pages: bool) -> zh.Operation[int]:
    if pages:
        return context.write_pages(memory, handle, [0], [0], page_bytes=64)
    return context.write(memory, handle)


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
