"""fork: the child gets a clear error and never hangs, the parent goes on as if nothing had happened."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.forking import CHILD_S, in_child
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.world import WORLDS
from zerohop import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.world import World


def _kind_and_text(action: Callable[[], object]) -> str:
    try:
        returned = action()
        if isinstance(returned, zh.Operation):
            returned.result(1)
    except zh.ZerohopError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_every_call_in_the_child_is_refused(world: World) -> None:
    target = world.target("numpy", 1000)
    source = world.buffer("numpy", 1000)
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    pending = connection.recv(np.zeros(8, np.uint8))
    here = world.here
    array = np.zeros(1000, np.uint8)
    here.write(array, target.handle).result(PATIENCE_S)
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: here.write(source.memory, target.handle),
        "write of an array": lambda: here.write(array, target.handle),
        "read into an array": lambda: here.read(target.handle, array),
        "write_nowait": lambda: here.write_nowait(source.memory, target.handle),
        "read": lambda: here.read(target.handle, source.memory),
        "write_pages": lambda: here.write_pages(source.memory, target.handle, [0], [0], page_bytes=8),
        "write_pages_nowait": lambda: here.write_pages_nowait(source.memory, target.handle, [0], [0], page_bytes=8),
        "fetch_add": lambda: here.fetch_add(target.handle, 1),
        "send_nowait": lambda: connection.send_nowait(source.memory),
        "notify_nowait": lambda: here.notify_nowait(target.handle, 1),
        "notify": lambda: here.notify(connection, 1),
        "send": lambda: connection.send(source.memory),
        "recv": lambda: connection.recv(source.memory),
        "flush": here.flush,
        "notification": lambda: here.notification(1).result(),
        "notification_nowait": here.notification_nowait,
        "register": lambda: here.register(np.zeros(8, np.uint8)),
        "alloc": lambda: here.alloc(4096),
        "share": lambda: source.memory.share("rw"),
        "connect": lambda: here.connect(world.there.identity.url).result(1),
        "a pending operation": lambda: pending.result(1),
        "explain": pending.explain,
        "connections": lambda: here.connections,
        "connection statistics": connection.statistics,
    }
    for name, call in calls.items():
        said = in_child(functools.partial(_kind_and_text, call))
        assert said.startswith("Closed: "), f"{name}: {said}"
        assert "fork" in said, f"{name}: {said}"
    assert pending.cancel()
    world.here.write(pattern(1, 1000), target.handle).result(PATIENCE_S)
    target.settle(0, 1000, 1)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_closing_in_the_child_closes_nothing_of_the_parent(world: World) -> None:
    target = world.target("alloc", 1000)
    source = world.buffer("alloc", 1000)
    world.here.write(source.memory, target.handle).result(PATIENCE_S)

    def work() -> str:
        source.memory.close()
        world.here.close(timeout=1)
        world.here.close(timeout=1)
        return _kind_and_text(lambda: world.here.write(source.memory, target.handle))

    said = in_child(work)
    assert said.startswith("Closed: "), said
    source.fill(0, 1000, 4)
    world.here.write(source.memory, target.handle).result(PATIENCE_S)
    target.settle(0, 1000, 4)
    source.poison(0, 1000)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_the_child_may_open_a_context_of_its_own(world: World) -> None:
    """And talk to the parent's peer, and to the parent."""
    target = world.target("numpy", 100_000)
    mine = world.buffer("numpy", 100_000)
    handle = mine.memory.share("rw")

    def work() -> str:
        with Options(providers=(world.provider,)).open() as context:
            context.write(pattern(5, 100_000), target.handle).result(PATIENCE_S)
            context.write(pattern(6, 100_000), handle).result(PATIENCE_S)
            return context.id

    said = in_child(work)
    assert len(said) == 32, said
    assert said != world.here.id
    target.settle(0, 100_000, 5)
    mine.settle(0, 100_000, 6)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_forking_under_load(world: World) -> None:
    """Children are forked while operations are in flight; all of those end well in the parent."""
    nbytes = 3_000_001
    target = world.target("numpy", nbytes)
    for seed in range(10):
        operation = world.here.write(pattern(seed, nbytes), target.handle, notify=seed)
        assert in_child(lambda: "alive") == "alive"
        assert operation.result(PATIENCE_S) == nbytes
        world.expect_notification(seed, nbytes)
        target.settle(0, nbytes, seed)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_objects_that_the_child_drops(world: World) -> None:
    """Finalizers run in the child, of Operations, Memories and the Context, and do nothing there."""
    target = world.target("numpy", 1000)
    memory = world.here.alloc(4096)
    held: list[object] = [memory, world.here.write(pattern(1, 1000), target.handle)]
    del memory

    def work() -> str:
        held.clear()
        return "done"

    assert in_child(work) == "done"
    assert len(held) == 2
    again = held[0]
    assert isinstance(again, zh.Memory)
    again.write_bytes(0, b"\1" * 4096)
    assert again.read_bytes(4095, 1) == b"\1"
    again.close()
    written = held[1]
    assert isinstance(written, zh.Operation)
    assert written.result(PATIENCE_S) == 1000
    held.clear()
    target.settle(0, 1000, 1)


@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_a_child_does_not_wait_for_threads_of_its_parent(world: World) -> None:
    """At its exit; here such a wait would outlast the test."""
    before = world.here.statistics().engine["sleeps"]
    thread = threading.Thread(target=world.here.notification(PATIENCE_S).exception)
    thread.start()
    eventually(lambda: world.here.statistics().engine["sleeps"] > before, "nobody sleeps in native code")

    def leave() -> str:
        _native.interpreter_exits(int(6 * CHILD_S * 1e9))
        return "left"

    assert in_child(leave) == "left"
    world.there.call(Service.notify, world.here.url, 1)
    thread.join(PATIENCE_S)


@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_a_notification_that_a_thread_of_the_parent_waits_for(world: World) -> None:
    """The thread is not in the child, where nobody would end its wait."""
    waiting: Any = world.here.notification(PATIENCE_S)  # asked for what an Operation does not tell
    thread = threading.Thread(target=waiting.exception)
    thread.start()
    eventually(lambda: waiting._claimed, "the thread does not wait")

    def work() -> str:
        said = [_kind_and_text(waiting.result), str(waiting.done()), type(waiting.exception()).__name__]
        return "; ".join(said)

    said = in_child(work)
    assert said.startswith("Closed: this Context was created before fork()")
    assert said.endswith("; True; Closed")
    world.there.call(Service.notify, world.here.url, 5)
    thread.join(PATIENCE_S)
    assert waiting.result(PATIENCE_S).value == 5


@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_a_child_of_a_process_that_makes_remote_keys(world: World) -> None:
    """No lock of the parent's threads is held in the child for ever."""
    memory = world.here.alloc(64)
    stop = threading.Event()

    def make_keys() -> None:
        while not stop.is_set():
            memory.remote_key()
            memory.revoke()

    def work() -> str:
        with zh.Context(providers=["tcp"]) as own:
            return str(len(own.alloc(64).remote_key()) > 0)

    threads = [threading.Thread(target=make_keys) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert in_child(work) == "True"
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)


FIRST_CONTEXT = """
import os, signal, sys, threading, time
import zerohop as zh

class HeldUp:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1] and not begun.is_set():
            begun.set()
            time.sleep(0.5)  # meanwhile the main thread forks

begun = threading.Event()
sys.meta_path.insert(0, HeldUp())
thread = threading.Thread(target=lambda: zh.Context().close())
thread.start()
assert begun.wait(10), "a Context does not import it"
child = os.fork()
if child == 0:
    signal.alarm(int(float(sys.argv[2])))
    with zh.Context() as context:
        context.write(bytes(8), context.alloc(8).share("rw")).result()
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    "module", ["logging", "asyncio.log", "ssl", "zerohop.core.peers.peers", "encodings.idna", "encodings.ascii"]
)
def test_a_fork_beside_the_first_context(module: str) -> None:
    """It waits for what that imports: the child would have modules of which there is only a half."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FIRST_CONTEXT, module, str(CHILD_S / 2)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=2 * CHILD_S, check=False)
    assert run.returncode == 0, run.stderr
