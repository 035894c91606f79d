"""What is under way at a server when something ends: operations, rings, Stores, the server itself."""

from __future__ import annotations

import errno
import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.sizes import MIB
from support.stores import open_remote
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.fixtures import OpenContext

PAGE = 4096


@pytest.fixture(params=[None, ("tcp",)], ids=["mapped", "tcp"])
def server(request: pytest.FixtureRequest, open_context: OpenContext, tmp_path: Path) -> Iterator[storage.Server]:
    with storage.Server(tmp_path, ctx=open_context(Options(providers=request.param)), memory=8 * MIB) as server:
        yield server


@pytest.fixture
def client(request: pytest.FixtureRequest, open_context: OpenContext) -> zh.Context:
    providers = request.node.callspec.params["server"]
    return open_context(Options(providers=providers))


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_a_flush_waits_for_the_server(server: storage.Server, client: zh.Context, tmp_path: Path, how: str) -> None:
    """An operation that has ended early says that its memory is in use, and nothing comes after a flush."""
    (tmp_path / "data").write_bytes(bytes([7]) * (64 * MIB))
    memory = client.alloc(64 * MIB)
    shown, in_use = memory.numpy(), 0
    with open_remote(server.url, client) as store, store.open("data").result(PATIENCE_S) as file:
        for round_ in range(12):
            shown[:] = 1
            operation = file.read_into(memory, timeout=0.001 * (1 + round_) if how == "deadline" else PATIENCE_S)
            if how == "cancel":
                time.sleep(0.001 * round_)  # it is to be cancelled at one moment or another
                operation.cancel()
            try:
                operation.result(PATIENCE_S)
            except (zh.DeadlineExceeded, CancelledError):
                in_use += operation.memory_in_use
                client.flush().result(PATIENCE_S)
                assert not operation.memory_in_use
                shown[:] = 2
                store.listdir().result(PATIENCE_S)
                assert (shown == 2).all()
    assert in_use


def test_opens_that_are_cancelled(server: storage.Server, client: zh.Context, tmp_path: Path) -> None:
    """A file that was opened for nobody is closed, at whichever moment that was."""
    (tmp_path / "data").write_bytes(b"there")
    with open_remote(server.url, client) as store:
        for after in range(100):
            opening = [store.open("data")]
            if after % 2:
                store.stat("data").result(PATIENCE_S)  # its answer comes after that of the open
            opening.pop().cancel()  # nobody keeps the operation, whose value may be the open file
        eventually(lambda: server.statistics().files == 0, "a file stays open")


def test_queued_writes_of_a_store_that_is_closed(server: storage.Server, client: zh.Context, tmp_path: Path) -> None:
    """They reach no other file, and end with Closed or as usual."""
    source = client.register(np.full(MIB, 9, np.uint8))
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(bytes(MIB))
    for _ in range(3):
        first = open_remote(server.url, client)
        file = first.open("one", "r+").result(PATIENCE_S)
        operations = [file.write_from(source) for _ in range(400)]
        first.close()
        with open_remote(server.url, client) as second, second.open("two", "r+").result(PATIENCE_S) as other:
            for operation in operations:
                try:
                    operation.result(PATIENCE_S)
                except zh.Closed:
                    pass
            assert other.size == MIB
        assert not np.fromfile(tmp_path / "two", np.uint8).any()


def test_a_new_server_of_the_same_context(open_context: OpenContext, tmp_path: Path) -> None:
    """A file of the one before is none of it."""
    there, client = open_context(Options()), open_context(Options())
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode() * 1000)
    before = storage.Server(tmp_path, ctx=there)
    old = open_remote(before.url, client)
    file = old.open("one").result(PATIENCE_S)
    before.close()
    target = np.zeros(3000, np.uint8)
    with storage.Server(tmp_path, ctx=there) as server, open_remote(server.url, client) as store:
        with store.open("two").result(PATIENCE_S), pytest.raises((zh.StorageError, zh.PeerLost)):
            file.read_into(target).result(PATIENCE_S)
        assert not target.any()
        file.close()
        old.close()


def test_stores_of_one_context(server: storage.Server, client: zh.Context, tmp_path: Path) -> None:
    """Their calls neither cancel each other nor are refused, and each closes its own files."""
    there = pattern(3, 4 * MIB)
    (tmp_path / "data").write_bytes(there.tobytes())
    stores = [open_remote(server.url, client) for _ in range(4)]
    files = [store.open("data").result(PATIENCE_S) for store in stores]
    targets = [client.alloc(4 * MIB) for _ in stores]
    operations = [file.read_into(target) for _ in range(100) for file, target in zip(files, targets, strict=True)]
    for operation in operations:
        assert operation.result(PATIENCE_S) == 4 * MIB
    for target in targets:
        assert (target.numpy() == there).all()
    for left, (store, _) in enumerate(zip(stores, files, strict=True), 1):
        store.close()
        if left < len(stores):
            eventually(lambda left=left: server.statistics().files == 4 - left, "a file stays open")  # type: ignore[misc]  # mypy takes no default here
    eventually(lambda: server.statistics().clients == 0, "the client stays")


def test_a_ring_that_is_cancelled_at_once(server: storage.Server, client: zh.Context, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(64 * MIB))
    memory = client.alloc(32 * MIB)
    with open_remote(server.url, client) as store, store.open("data").result(PATIENCE_S) as file:
        ended = 0
        for _ in range(10):
            ring, at = store.ring(256), np.arange(256) % 32 * MIB  # more than a server begins at once
            ring.prepare_many(memory, file, at, np.full(256, MIB), at)
            ring.submit()
            found = ring.cancel()
            done = ring.wait(min_results=256, timeout=PATIENCE_S)
            assert sorted(each.userdata for each in done) == [*range(256)]
            cancelled = sum(isinstance(each.error, CancelledError) for each in done)
            assert {each.result for each in done if each.error is None} <= {MIB}
            assert cancelled <= found  # the others had ended by then, or the system had been asked for all of them
            ended += cancelled
        assert ended


@pytest.mark.parametrize("closes", ["server", "context"])
def test_a_server_that_is_closed_under_transfers(
    client: zh.Context, server: storage.Server, tmp_path: Path, closes: str
) -> None:
    """They end as usual, or with PeerLost and what to do; the Contexts live on."""
    (tmp_path / "data").write_bytes(bytes(8 * MIB))
    memory, said = client.alloc(8 * MIB), set()
    store = open_remote(server.url, client)
    file = store.open("data").result(PATIENCE_S)
    operations: list[Any] = [file.read_into(memory) for _ in range(40)]
    ring = store.ring(40)
    for number in range(40):
        ring.prepare(memory, file, 0, number)
    ring.submit()
    operations[0].result(PATIENCE_S)
    (server if closes == "server" else server.context).close()
    operations.append(store.listdir())
    for operation in operations:
        try:
            operation.result(PATIENCE_S)
        except zh.PeerLost as error:
            said.add((error.reason, error.fix))
    assert said
    for each in ring.wait(min_results=40, timeout=PATIENCE_S):
        if each.error is not None:
            assert isinstance(each.error, zh.PeerLost), each.error
            said.add((each.error.reason, each.error.fix))
    assert all(reason and "open_store" in fix for reason, fix in said), said
    store.close()


def test_many_ranges_are_cancelled_one_by_one(server: storage.Server, client: zh.Context, tmp_path: Path) -> None:
    """Before the server has heard of them, and in more calls than one message has room for: each has one result."""
    (tmp_path / "data").write_bytes(bytes(MIB))
    memory, count = client.alloc(16 * MIB), 3000
    with open_remote(server.url, client) as store, store.open("data").result(PATIENCE_S) as file:
        busy = [file.read_into(memory, short=True) for _ in range(40)]  # those of the ring come behind them
        ring, at = store.ring(count), np.arange(count) * PAGE
        ring.prepare_many(memory, file, at % MIB, np.full(count, PAGE), at)
        ring.submit()
        for number in [*range(count), *range(1000)]:
            ring.cancel(number)
        done = ring.wait(min_results=count, timeout=PATIENCE_S)
        assert sorted(each.userdata for each in done) == [*range(count)]
        assert {type(each.error) for each in done} <= {CancelledError, type(None)}
        for operation in busy:
            operation.result(PATIENCE_S)


def test_a_ring_that_is_closed_while_a_thread_waits(server: storage.Server, client: zh.Context, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(64 * MIB))
    with open_remote(server.url, client) as store, store.open("data").result(PATIENCE_S) as file:
        ring, results = store.ring(4), []
        ring.prepare(client.alloc(64 * MIB), file, 0, 5)
        ring.submit()
        waiter = threading.Thread(target=lambda: results.extend(ring.wait(timeout=PATIENCE_S)))
        waiter.start()
        ring.close()
        waiter.join(PATIENCE_S)
    assert [each.userdata for each in results] == [5]


def test_what_is_refused_keeps_no_array(server: storage.Server, client: zh.Context, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(MIB))
    kept = []

    def array() -> Any:
        made = np.zeros(PAGE, np.uint8)
        kept.append(weakref.ref(made))
        return made

    with open_remote(server.url, client) as store, store.open("data").result(PATIENCE_S) as file:
        ring = store.ring(1)
        for refused in (
            lambda: ring.prepare_many(array(), file, [0], [PAGE + 1], [0]),
            lambda: ring.prepare_many(array(), file, [-1], [1], [0]),
            lambda: ring.prepare_many(array(), file, [0, 1], [1, 1], [0, 1]),
            lambda: file.read_into(array(), timeout="soon"),  # type: ignore[arg-type]  # what the test is about
            lambda: file.read_many(array(), [0], [PAGE + 1], [0]),
        ):
            with pytest.raises((ValueError, TypeError, zh.WouldBlock)):
                refused()
        ring.prepare(array(), file, 0)
        ring.close()
        dropped = store.ring(1)
        dropped.prepare(array(), file, 0)
        del dropped
        assert file.read_into(array()).result(PATIENCE_S) == PAGE

        def gone() -> bool:
            gc.collect()
            return not any(each() is not None for each in kept)

        eventually(gone, "an array is kept")


def test_very_many_ranges(server: storage.Server, client: zh.Context, tmp_path: Path) -> None:
    there = pattern(5, MIB)
    (tmp_path / "data").write_bytes(there.tobytes())
    count = 100_000
    memory, offsets = client.alloc(8 * count), np.random.default_rng(1).integers(0, MIB - 8, count)
    with open_remote(server.url, client) as store, store.open("data").result(PATIENCE_S) as file:
        done = file.read_many(memory, offsets, np.full(count, 8), np.arange(count) * 8).result(3 * PATIENCE_S)
        assert done == 8 * count
        found = memory.numpy().reshape(count, 8)
        assert (found == there[offsets[:, None] + np.arange(8)]).all()
        with pytest.raises(zh.StorageError) as caught:
            store.open("x" * 5000).result(PATIENCE_S)
        assert caught.value.errno == errno.ENAMETOOLONG


def test_a_greeting_that_comes_too_late(server: storage.Server, client: zh.Context) -> None:
    """A Store that could not be opened in time is no client of the server for good."""
    client.connect(server.url).result(PATIENCE_S)
    for _ in range(20):
        try:
            storage.open_store(server.url, ctx=client, timeout=1e-6).close()
        except zh.DeadlineExceeded:
            pass
    eventually(lambda: server.statistics().clients == 0, "a client stays")
