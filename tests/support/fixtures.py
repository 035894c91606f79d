"""The fixtures of the tests between real processes."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from multiprocessing import resource_tracker

import pytest

import zerohop as zh
from support.first_gpu import current_context
from support.leaks import SESSION, expect_given_back, holdings
from support.loops import LOOPS
from support.nursery import NURSERY
from support.options import Options
from support.peer import Peer, finish_all
from support.service import Service
from support.software_gpus import IN_SOFTWARE
from support.transports import Link
from support.world import Pool, World

OpenContext = Callable[[Options], zh.Context]
StartPeer = Callable[[Options], Peer]

# Whether the test itself did not fail; a failed one's traceback keeps its objects alive, so its leaks say nothing.
_passed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_passed] = not report.failed
    return report


@pytest.fixture(scope="session")
def runtime_directory() -> Iterator[None]:
    """A folder of the session's own for the sockets of all its Contexts, and whatever a process opens only once."""
    # Not tmp_path: the path of a Unix socket is limited to 107 bytes.
    directory = tempfile.mkdtemp(prefix="zh-")
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = os.environ[SESSION] = directory
    resource_tracker.ensure_running()
    NURSERY.start()
    Options().open().close()
    for make_loop in LOOPS.values():
        loop = make_loop()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    # What is there by now stays: a collection that looks at all of torch takes a tenth of a second.
    gc.collect()
    gc.freeze()
    yield
    NURSERY.stop()
    if before is None:
        del os.environ["XDG_RUNTIME_DIR"]
    else:
        os.environ["XDG_RUNTIME_DIR"] = before
    del os.environ[SESSION]
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def pool(runtime_directory: None) -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


def _world_name(request: pytest.FixtureRequest) -> str | None:
    callspec = getattr(request.node, "callspec", None)
    name = callspec.params.get("world") if callspec is not None else None
    return name if isinstance(name, str) else None


@pytest.fixture
def no_leaks(request: pytest.FixtureRequest, pool: Pool) -> Iterator[None]:
    """Descriptors, mappings, threads, /dev/shm and socket files are after the test what they were before, here and in
    the pooled peer that the test uses."""
    name = _world_name(request)
    peer = None
    if name is not None:
        pool.world(name)
        peer = pool.peer(name)
    if request.node.get_closest_marker("cuda") is not None and not IN_SOFTWARE:
        # A real driver opens, maps and starts what it likes, and keeps it. What grows with use, failure/test_gpus.py's
        # many rounds find there, too.
        yield
        return
    there = peer.call(Service.holdings) if peer is not None else None
    here = holdings()
    yield
    if not request.node.stash.get(_passed, False):
        return
    expect_given_back(here, holdings, "this process")
    if peer is not None and there is not None:
        pooled = peer
        expect_given_back(there, lambda: pooled.call(Service.holdings), "the peer process")


@pytest.fixture(autouse=True)
def same_gpu_context(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test on GPUs the thread's current context, and so torch's current device, is the one before it."""
    if request.node.get_closest_marker("cuda") is None:
        yield
        return
    before = current_context()
    yield
    # A program that has none gets one with torch's first call; no torch is for GPUs in software.
    assert before == current_context() or (before is None and not IN_SOFTWARE)


@pytest.fixture
def world(request: pytest.FixtureRequest, pool: Pool, no_leaks: None) -> Iterator[World]:
    """Parametrise it indirectly with names of support.world.WORLDS."""
    world = pool.world(request.param)
    yield world
    if request.node.stash.get(_passed, False):
        world.close_buffers()
    else:
        pool.drop(request.param)


@pytest.fixture
def link(request: pytest.FixtureRequest, world: World) -> Iterator[Link]:
    """A Transport here, and one at the other side that it is connected to."""
    link = Link(world.here, world.there)
    yield link
    if request.node.stash.get(_passed, False):
        link.close()


@pytest.fixture
def open_context(no_leaks: None) -> Iterator[OpenContext]:
    """Opens Contexts and closes them after the test."""
    opened: list[zh.Context] = []

    def open_one(options: Options) -> zh.Context:
        context = options.open()
        opened.append(context)
        return context

    yield open_one
    for context in opened:
        context.close()


@pytest.fixture
def start_peer(no_leaks: None) -> Iterator[StartPeer]:
    """Starts peers of the test's own, which are gone after it."""
    peers: list[Peer] = []

    def start_one(options: Options) -> Peer:
        peers.append(Peer())
        return peers[-1].open(options)

    yield start_one
    finish_all(peers)
