"""close() at moments of its own: beside other calls, from several threads, on what stands still or has nothing left,
and by an interpreter that ends."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.buffers import Buffer
from support.closing import GRACE_S, NBYTES, TIMEOUT_S, connected, expect_closed, expect_prompt
from support.leaks import expect_given_back, holdings
from support.native import engine_of
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from support.world import PROVIDERS
from zerohop.core.lanes.lane_setup import LaneSetup

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer
    from zerohop.core.lanes.lane import Lane


def test_while_a_stopped_peer_has_memory_mapped(open_context: OpenContext, start_peer: StartPeer) -> None:
    """As importer and as exporter; also while a thread revokes."""
    setting = connected(open_context, start_peer, "shm")
    owned = Buffer(setting.context, "alloc", NBYTES)
    theirs = setting.peer.call(Service.new, "numpy", NBYTES, 0)
    handle = owned.memory.share("rw")
    setting.peer.call(Service.write, bytes(handle), theirs, 0, NBYTES)
    setting.peer.stop()
    failed: list[BaseException] = []

    def revoke() -> None:
        try:
            owned.memory.revoke(handle, timeout=8 * PATIENCE_S)
        except zh.ZerohopError as error:
            failed.append(error)

    thread = threading.Thread(target=revoke)
    thread.start()
    expect_prompt(lambda: setting.context.close(timeout=TIMEOUT_S))
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "revoke() still waits in a closed Context"
    expect_closed(setting.context, [])
    owned.close()
    setting.peer.resume()


@pytest.mark.parametrize("limit", ["descriptors", "files", "address space"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_under_a_limit(open_context: OpenContext, start_peer: StartPeer, provider: str, limit: str) -> None:
    """In a process that has nothing left to open or to map."""
    setting = connected(open_context, start_peer, provider)
    setting.peer.call(Service.connect, setting.context.url)
    if limit == "descriptors":
        setting.peer.call(Service.leave_descriptors, 0)
    elif limit == "files":
        setting.peer.call(Service.limit_file_bytes, 0)
    else:
        setting.peer.call(Service.limit_address_space, 8 * MIB)
    assert setting.peer.call(Service.close, TIMEOUT_S) < TIMEOUT_S + GRACE_S
    # At once: for as long as this nobody waits for an answer.
    setting.peer.call(Service.close, 8 * PATIENCE_S)
    setting.peer.call(Service.lift_limits)


def test_while_it_connects(open_context: OpenContext) -> None:
    """To one that takes connections and says nothing: Closed, also where the socket for it is just being made."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"zerohop://127.0.0.1:{server.getsockname()[1]}/{'0' * 32}"
        for _ in range(10):
            context = open_context(Options())
            pending = context.connect(url)
            context.close()
            assert isinstance(pending.exception(PATIENCE_S), zh.Closed)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_both_sides_at_once(open_context: OpenContext, provider: str) -> None:
    for _ in range(10):
        options = Options(providers=(provider,))
        first, second = open_context(options), open_context(options)
        memory = second.alloc(NBYTES)
        handle = memory.share("rw")
        pending = [first.write(pattern(1, NBYTES), handle) for _ in range(4)]
        threads = [threading.Thread(target=context.close, args=[TIMEOUT_S]) for context in (first, second)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - started < TIMEOUT_S + GRACE_S
        assert all(operation.done() for operation in pending)
        for operation in pending:
            operation.exception(0)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_from_several_threads(open_context: OpenContext, provider: str) -> None:
    options = Options(providers=(provider,))
    first, second = open_context(options), open_context(options)
    first.connect(second.url).result(PATIENCE_S)
    threads = [threading.Thread(target=first.close, args=[TIMEOUT_S]) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    expect_closed(first, [])


FORGETFUL = """
import sys, zerohop as zh
context = zh.Context()
context.write(b"x" * 64, zh.RemoteBuffer.from_bytes(bytes.fromhex(sys.argv[1])), notify=1).result()
sys.stdin.read()
"""


def test_a_context_that_nobody_closes(open_context: OpenContext) -> None:
    """It lives until the interpreter exits; that ends it as close() would."""
    owner = open_context(Options())
    target = np.zeros(64, np.uint8)
    memory = owner.register(target)
    with tempfile.TemporaryDirectory(prefix="zh-forgetful-") as runtime:
        child = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", FORGETFUL, bytes(memory.share("w")).hex()],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "XDG_RUNTIME_DIR": runtime},
        )
        try:
            peer = owner.notification(PATIENCE_S).result().peer
            assert target.tobytes() == b"x" * 64
            receive = peer.recv(np.zeros(8, np.uint8))
            # It is there as long as its process is.
            peer.notify(1).result(PATIENCE_S)
            assert list(Path(runtime).iterdir())
            _, said = child.communicate(timeout=PATIENCE_S)
        finally:
            child.kill()
            child.communicate()
        assert (child.returncode, said) == (0, b"")
        with pytest.raises(zh.PeerLost):
            receive.result(PATIENCE_S)
        assert not list(Path(runtime).iterdir())


@pytest.mark.parametrize("call", ["read_bytes", "write_bytes"])
def test_while_a_device_copies_for_the_caller(open_context: OpenContext, call: str) -> None:
    context = open_context(Options())
    memory = context.alloc(4096, device="sim:0")
    memory.write_bytes(0, b"x" * 4096)
    engine_of(context).sim_delay(0, 3600 * 10**9, 0)  # whoever waits for it ends at the limit of the test
    calling = threading.Event()
    ended: list[BaseException] = []

    def copy() -> None:
        calling.set()
        try:
            memory.read_bytes() if call == "read_bytes" else memory.write_bytes(0, b"y" * 4096)
        except zh.ZerohopError as error:
            ended.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    calling.wait()
    context.close()
    thread.join()
    assert [type(error) for error in ended] == [zh.Closed]


def test_on_a_loop_that_was_closed_under_it(open_context: OpenContext) -> None:
    """A coroutine that will never run again keeps nothing open."""
    context = open_context(Options())

    async def wait() -> None:
        await context.notification()

    loop = asyncio.new_event_loop()
    waiting = loop.create_task(wait())
    vars_of: Any = waiting
    vars_of._log_destroy_pending = False  # asyncio would report it as an error, which it is not here
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    context.close()
    expect_closed(context, [])
    # It cannot be cancelled any more.
    waiting.get_coro().close()


def _interrupt(at: str, spawn: Any, wait: Any, work: Any, *args: object, timeout: float) -> object:
    """What the control thread is asked for goes on there; who waits for `at` does not."""
    if work.__name__ == at:
        spawn(work, *args)
        raise KeyboardInterrupt
    return wait(work, *args, timeout=timeout)


def test_interrupted(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while peers are told ends the rest too; while the rest is ended, the next close goes on with it."""
    for interrupted in ("_say_goodbye", "_lose_peers"):
        context = open_context(Options())
        threads = threading.active_count()
        wait = context._core.control.wait

        monkeypatch.setattr(
            context._core.control, "wait", partial(_interrupt, interrupted, context._core.control.spawn, wait)
        )
        with pytest.raises(KeyboardInterrupt):
            context.close()
        monkeypatch.undo()
        context.close()
        assert threading.active_count() < threads
        expect_closed(context, [])


@pytest.mark.parametrize(
    "call",
    [
        lambda context: context.devices,
        lambda context: context.statistics(),
        lambda context: context.alloc(64, "sim:0"),
        lambda context: context.register(np.ones(64)),
    ],
)
def test_just_after_a_call_has_looked_whether_it_is_closed(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, call: Callable[[zh.Context], object]
) -> None:
    """The error is that of a closed Context, and not one of native code."""
    context = open_context(Options(sim_devices=1))
    context.close()
    monkeypatch.setattr(context._core, "check_open", lambda: None)
    monkeypatch.setattr(context._core, "closed", False)
    with pytest.raises(zh.Closed):
        call(context)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_while_the_control_thread_is_held_up(
    open_context: OpenContext, start_peer: StartPeer, provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By a device that answers slowly, say: it lets go of everything once it comes to it."""
    setting = connected(open_context, start_peer, provider)
    held, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        held.set()
        go_on.wait(PATIENCE_S)

    setting.context._core.control.call(hold_up)
    held.wait(PATIENCE_S)
    pending = [setting.context.write(pattern(1, NBYTES), setting.ring.handle)]
    setting.context.close(0.1)
    go_on.set()
    expect_closed(setting.context, pending)
    setting.context._core.control._thread.join(PATIENCE_S)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


LEFT_WAITING = """
import sys, threading, zerohop as zh
context, other = zh.Context(), zh.Context()
connection = context.connect(other.url).result()
receive = lambda: connection.recv(bytearray(8))

def until_closed(wait):
    try:  # a thread that the interpreter kills while it writes to stderr aborts the process whatever it ran
        wait().result()
    except zh.ZerohopError:
        pass

for wait in (context.notification, receive, lambda: zh.gather([receive()])):
    threading.Thread(target=until_closed, args=[wait], daemon=True).start()
"""


def test_daemon_threads_that_wait_at_the_end_of_the_interpreter() -> None:
    """Killed in the middle of a native call they would abort the process."""
    for _ in range(5):
        ran = subprocess.run(
            [sys.executable, "-c", LEFT_WAITING], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert not ran.stderr


def test_a_kept_first_use_keeps_nothing(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first use that close() cuts short, in the middle of a lane's setup, keeps neither the lane nor its engine."""
    in_setup = threading.Event()

    async def for_ever(self: LaneSetup, lane: Lane, futures: object) -> None:
        in_setup.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(LaneSetup, "_take_sockets", for_ever)
    monkeypatch.setattr(LaneSetup, "_bring_sockets", for_ever)
    options = Options(providers=("tcp",), sim_devices=0)
    owner = open_context(options)
    handle = owner.alloc(NBYTES).share("rw")
    before = holdings()
    context = zh.Context(providers=("tcp",))
    operation = context.write(pattern(1, NBYTES), handle)
    assert in_setup.wait(PATIENCE_S)
    context.close()
    assert isinstance(operation.exception(PATIENCE_S), zh.Closed)
    expect_given_back(before, holdings, "the Context of a first use that was cut short")
    assert operation.done()
