"""A signal's handler that raises, as Ctrl-C does, in the middle of a call: the next call goes on from there."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.interrupting import Interrupted, at_each_line
from support.lanes import eventually
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.runtime.event_loops import LoopQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from support.fixtures import OpenContext

ROUNDS = 150
NBYTES = 4096


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], object]], bool]]:
    """Calls with a signal within 60 µs, and tells whether the call was interrupted."""

    def raise_it(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    # This drops an exception that comes up in a destructor, where nobody can catch it.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    before = signal.signal(signal.SIGALRM, raise_it)
    chance = random.Random(5)

    def call(work: Callable[[], object]) -> bool:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.random() * 60e-6 + 1e-6)
                work()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            return True
        return False

    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@contextmanager
def _at_least_one() -> Iterator[list[bool]]:
    hits: list[bool] = []
    yield hits
    assert any(hits), "no call was interrupted"


def test_a_memory_that_is_being_closed(
    open_context: OpenContext, interrupted: Callable[[Callable[[], object]], bool]
) -> None:
    """Closed again, no peer reads it, and its registration is gone."""
    owner, peer = open_context(Options()), open_context(Options())
    into = np.zeros(NBYTES, np.uint8)

    def close_one() -> bool:
        memory = owner.alloc(NBYTES)
        handle = memory.share("r")
        peer.read(handle, into).result(PATIENCE_S)
        hit = interrupted(memory.close)
        memory.close()
        if hit:
            with pytest.raises(zh.AccessDenied):
                peer.read(handle, into).result(PATIENCE_S)
        return hit

    with _at_least_one() as hits:
        hits += [close_one() for _ in range(ROUNDS)]
    assert owner.statistics().shares == 0
    # With what tracebacks have collected.
    eventually(lambda: gc.collect() >= 0 and owner.statistics().registrations == 0, "a registration is kept")


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop an exception that comes up in a destructor or a weak reference's callback, as Python does."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


def _open_and_close(context: zh.Context) -> None:
    context.alloc(NBYTES).close()


def _open_and_drop(context: zh.Context) -> None:
    context.alloc(NBYTES)


def _register_and_drop(context: zh.Context) -> None:
    context.register(np.zeros(NBYTES, np.uint8))


def _show(context: zh.Context) -> None:
    """Use a Memory by an array, which is the last to use it."""
    with context.alloc(NBYTES) as memory:
        array = memory.numpy()
    array[:] = 1


@pytest.mark.usefixtures("unheard")
@pytest.mark.parametrize("action", [_open_and_close, _open_and_drop, _register_and_drop, _show])
def test_no_registration_stays(open_context: OpenContext, action: Callable[[zh.Context], None]) -> None:
    """Whichever line is the last: the next call drops what a destructor or a callback has left."""
    context = open_context(Options())

    def nothing_left() -> bool:
        context._core.retention.stop_lingering()
        gc.collect()
        facts = context.statistics()
        return facts.registrations == facts.pinned == 0

    def check() -> None:
        action(context)
        eventually(nothing_left, "a registration is kept")

    at_each_line(lambda: action(context), check)


@pytest.mark.usefixtures("unheard")
def test_an_owner_that_goes_away(open_context: OpenContext) -> None:
    """The next registration drops the one that is cached for it."""
    context, owners = open_context(Options()), list[object]()

    def prepare() -> None:
        owners.append(np.zeros(NBYTES, np.uint8))
        context.register(owners[0]).close()
        context._core.retention.stop_lingering()
        assert context.statistics().registrations == 1

    def check() -> None:
        context.register(bytearray(NBYTES)).close()
        gc.collect()
        assert context.statistics().registrations == 0
        prepare()

    prepare()
    at_each_line(owners.clear, check)


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_a_pool(open_context: OpenContext, interrupted: Callable[[Callable[[], object]], bool], device: str) -> None:
    """No two Memories of it overlap."""
    context = open_context(Options(sim_devices=1))
    with context.pool(device, chunk_bytes=1 << 16, max_bytes=1 << 16) as pool:
        living: list[zh.Memory] = []
        chance = random.Random(7)

        def use() -> None:
            if living and chance.random() < 0.5:
                living.pop(chance.randrange(len(living)))
            else:
                living.append(pool.alloc(chance.choice((512, 1000, 5000)), timeout=0))

        with _at_least_one() as hits:
            for _ in range(8 * ROUNDS):
                try:
                    hits.append(interrupted(use))
                except zh.RegistrationFailed:
                    living.clear()
                ranges = sorted((memory.address, memory.nbytes) for memory in living)
                for (start, nbytes), (next_start, _) in itertools.pairwise(ranges):
                    assert start + nbytes <= next_start, "two Memories have the same bytes"
                assert pool.free_bytes <= 1 << 16


def test_what_the_control_thread_is_asked(
    open_context: OpenContext, interrupted: Callable[[Callable[[], object]], bool]
) -> None:
    """It is woken for what comes after."""
    context = open_context(Options())
    control = context._core.control
    with _at_least_one() as hits:
        for _ in range(ROUNDS):
            hits.append(interrupted(lambda: [control.call(lambda: None) for _ in range(10)]))
            done = threading.Event()
            control.call(done.set)
            assert done.wait(PATIENCE_S), "nobody has woken it"


def test_a_context_that_is_being_closed(interrupted: Callable[[Callable[[], object]], bool]) -> None:
    """The next close goes on, and ends it."""
    before = holdings()
    for _ in range(ROUNDS // 5):
        context = Options().open()
        for _ in range(3):
            if not interrupted(context.close):
                break
        context.close()
        context.close()
        assert context._core.gone
        del context
    expect_given_back(before, holdings, "this process")


def test_a_progress_thread_without_memory() -> None:
    """Its first exception finds room for itself: the call ends, well or not, and the process lives."""
    program = """
import resource
from pathlib import Path
import numpy as np
import zerohop as zh
source, into = np.arange(1 << 22, dtype=np.uint8), np.empty(1 << 22, np.uint8)
with zh.Context(timeout=4) as here, zh.Context(timeout=4) as there:
    here.connect(there.url).result(5)
    handle = there.register(source).share("r")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used, hard))
    junk = []
    try:
        for nbytes in (65536, 4096, 512, 64):
            while True:
                junk.append(bytearray(nbytes))
    except MemoryError:
        pass
    del junk[-40:]
    try:
        here.read(handle, into=into).result(5)
    except BaseException:
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
print("lives")
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stdout) == (0, "lives\n"), ran.stderr


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_loop_that_is_interrupted_as_an_operation_ends(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A program that runs its loop on after Ctrl-C gets the end of the operation, which was told just then."""
    owner, context = (open_context(Options(providers=("shm",), sim_devices=0)) for _ in range(2))
    connection = context.connect(owner.url).result(PATIENCE_S)
    told: list[str] = []

    def interrupted(self: LoopQueue) -> None:
        here = threading.current_thread() is threading.main_thread()
        happened = bool(self._happened)
        if where == "after" or not here:
            call_back(self)
        if here and happened:
            monkeypatch.setattr(LoopQueue, "_call_back", call_back)
            told.append(where)
            raise KeyboardInterrupt

    call_back = LoopQueue._call_back
    monkeypatch.setattr(LoopQueue, "_call_back", interrupted)
    loop = asyncio.new_event_loop()
    try:

        async def hear() -> int:
            return (await owner.notification()).value

        def notify() -> None:
            """Notify once the task waits, so that the loop has to be told."""
            if task._fut_waiter is None:  # type: ignore[attr-defined] # asyncio's own, and the only sign of it
                loop.call_soon(notify)
            else:
                context.notify(connection, 7)

        task = loop.create_task(hear())
        loop.call_soon(notify)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(task)
        assert loop.run_until_complete(asyncio.wait_for(task, PATIENCE_S)) == 7
        assert told == [where]
    finally:
        loop.close()
