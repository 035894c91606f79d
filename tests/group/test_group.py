"""A Group: ranks find each other by any kind of store, whoever comes first, and an error names the rank."""

from __future__ import annotations

import asyncio
import copy
import pickle
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.forking import in_child
from support.lanes import eventually
from support.mpi import Communicator, Exchange
from support.patience import PATIENCE_S
from zerohop.group import CompletionList, FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from pathlib import Path


class Asked:
    """Notes for which keys a store was asked."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._more = threading.Condition()

    def note(self, keys: list[str]) -> None:
        with self._more:
            self.keys += keys
            self._more.notify_all()

    def wait_for(self, count: int) -> int:
        with self._more:
            assert self._more.wait_for(lambda: len(self.keys) >= count, PATIENCE_S)
            return len(self.keys)


class Values:
    """Has the three methods that a store must have, and no other. It may fail, and its values may be made wrong."""

    def __init__(self, *, fails: bool = False) -> None:
        self.values: dict[str, Any] = {}
        self.error: BaseException | None = RuntimeError("connection reset") if fails else None
        self.asked = Asked()
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        self._fail()
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> Any:
        return self.values[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.asked.note(keys)
        self._fail()
        with self._changed:
            if not self._changed.wait_for(lambda: all(key in self.values for key in keys), timeout.total_seconds()):
                raise RuntimeError("not in time")

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


def torch_store(tmp_path: Path) -> Any:
    return pytest.importorskip("torch.distributed").FileStore(str(tmp_path / "file"), -1)


STORES: dict[str, Callable[[Path], Any]] = {
    "path": lambda tmp_path: tmp_path / "folder",
    "folder": FolderStore,
    "three methods": lambda _: Values(),
    "torch": torch_store,
}


def exchange(first: zh.Group, second: zh.Group) -> None:
    """Each sends its rank to the other."""
    for here, there in ((first, second), (second, first)):
        into = np.zeros(1, np.int64)
        received = there.context.recv(into)
        here.connect(there.rank).result(PATIENCE_S).send(np.array([here.rank])).result(PATIENCE_S)
        received.result(PATIENCE_S)
        assert into[0] == here.rank


@pytest.mark.parametrize("kind", STORES)
class TestStores:
    def test_ranks_find_each_other(self, tmp_path: Path, kind: str) -> None:
        store = STORES[kind](tmp_path)
        with zh.Group(0, 2, store) as first, zh.Group(1, 2, store) as second:
            assert (first.rank, first.size, first.launcher) == (0, 2, "store")
            exchange(first, second)
            assert first.connect(1).result() is first.connect(1).result()

    def test_one_that_comes_later(self, tmp_path: Path, kind: str) -> None:
        store = STORES[kind](tmp_path)
        with zh.Group(0, 3, store) as first:
            waits = [first.connect(1), first.connect(2), first.connect(1)]
            with zh.Group(1, 3, store) as second:
                assert waits[0].result(PATIENCE_S) is waits[2].result(PATIENCE_S)
                exchange(first, second)
                assert not waits[1].done()
                waits[1].cancel()

    def test_ones_that_do_not_come(self, tmp_path: Path, kind: str) -> None:
        with zh.Group(0, 3, STORES[kind](tmp_path)) as group:
            for rank, operation in [(rank, group.connect(rank, timeout=0.3)) for rank in (2, 1)]:
                with pytest.raises(zh.DeadlineExceeded, match=f"rank {rank} has not arrived"):
                    operation.result(PATIENCE_S)

    def test_groups_of_one_store(self, tmp_path: Path, kind: str) -> None:
        """They are told apart by name, and by their order in each process."""
        store = STORES[kind](tmp_path)
        made = [(zh.Group(0, 2, store, name=name), zh.Group(1, 2, store, name=name)) for name in ("", "", "a/b", "a")]
        assert len({pair[0].connect(1).result(PATIENCE_S).peer for pair in made}) == len(made)
        for pair in made:
            assert pair[0].connect(1).result(PATIENCE_S).peer == pair[1].context.id
            for group in pair:
                group.close()


def test_itself(tmp_path: Path) -> None:
    with zh.Group(0, 1, tmp_path) as group:
        exchange(group, group)


def test_a_folder_of_an_earlier_run(tmp_path: Path) -> None:
    """Another process has made this rank's file before: its ranks are gone."""
    with zh.Group(0, 2, FolderStore(tmp_path)):
        pass
    with pytest.raises(ValueError, match=r"has rank 0 of such a group already. Fix: .*an empty folder"):
        zh.Group(0, 2, FolderStore(tmp_path))


def test_a_communicator() -> None:
    shared = Exchange(2)
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(lambda rank: zh.Group(rank, 2, Communicator(rank, shared)), range(2)))
    with made[0], made[1]:
        exchange(*made)
    with pytest.raises(ValueError, match="this is rank 0 of 2, and the communicator says rank 1 of 2"):
        zh.Group(0, 2, Communicator(1, shared))


def test_a_folder_that_was_made_again(tmp_path: Path) -> None:
    """It is empty for a process that has used it before, too."""
    folder = tmp_path / "folder"
    zh.Group(0, 1, folder).close()
    shutil.rmtree(folder)
    with zh.Group(0, 1, folder):
        assert [path.name for path in folder.iterdir()] == ["zerohop%2F%2F0%2F0.value"]


class TestFaults:
    def test_a_rank_that_is_gone(self, tmp_path: Path) -> None:
        with zh.Group(0, 2, tmp_path) as first:
            zh.Group(1, 2, tmp_path).close()
            for _ in range(2):
                with pytest.raises(zh.PeerLost, match="rank 1: "):
                    first.connect(1).result(PATIENCE_S)

    def test_a_rank_that_goes_after_it_was_connected(self, tmp_path: Path) -> None:
        with zh.Group(0, 2, tmp_path) as first:
            second = zh.Group(1, 2, tmp_path)
            connection = first.connect(1).result(PATIENCE_S)
            second.close()
            with pytest.raises(zh.PeerLost):
                connection.recv(np.zeros(1)).result(PATIENCE_S)
            with pytest.raises(zh.PeerLost, match="rank 1: "):
                first.connect(1).result(PATIENCE_S)

    def test_a_store_that_fails(self) -> None:
        store = Values()
        with zh.Group(0, 2, store) as group:
            store.error = RuntimeError("connection reset")
            with pytest.raises(zh.PeerLost, match="the store fails: RuntimeError: 'connection reset'"):
                group.connect(1).result(PATIENCE_S)

    def test_a_store_that_refuses(self) -> None:
        with pytest.raises(zh.PeerLost, match="the store refuses: RuntimeError: 'connection reset'"):
            zh.Group(0, 2, Values(fails=True))

    def test_a_store_that_says_at_once_that_it_has_no_such_key(self) -> None:
        """PMIx may, long before the time that it was given: the rank comes later."""
        store = Values()
        with zh.Group(0, 2, store) as first:
            store.error = TimeoutError()
            operation = first.connect(1)
            store.asked.wait_for(3)
            store.error = None
            with zh.Group(1, 2, store) as second:
                assert operation.result(PATIENCE_S).peer == second.context.id

    def test_a_store_that_fails_once(self) -> None:
        """Whatever it raises, the next wait looks again."""

        class Panic(BaseException):
            pass

        store = Values()
        with zh.Group(0, 2, store) as first, zh.Group(1, 2, store) as second:
            store.error = Panic("once")
            with pytest.raises(zh.PeerLost, match="the store fails: Panic: 'once'"):
                first.connect(1).result(PATIENCE_S)
            store.error = None
            assert first.connect(1).result(PATIENCE_S).peer == second.context.id

    def test_a_constructor_that_fails_counts_for_none(self) -> None:
        store = Values(fails=True)
        with pytest.raises(zh.PeerLost):
            zh.Group(0, 2, store)
        store.error = None
        with zh.Group(0, 2, store) as first, zh.Group(1, 2, store):
            assert first.connect(1).result(PATIENCE_S).alive

    def test_one_bad_value_is_no_matter_of_others(self) -> None:
        store = Values()
        with zh.Group(0, 3, store) as group, zh.Group(2, 3, store):
            store.values["zerohop//0/1"] = b"nonsense"
            bad, good = group.connect(1), group.connect(2)
            assert good.result(PATIENCE_S).alive
            with pytest.raises(zh.ProtocolError, match="no entry for rank 1"):
                bad.result(PATIENCE_S)

    def test_a_rank_that_was_started_again(self) -> None:
        store = Values()
        with zh.Group(0, 2, store) as group, zh.Context() as again:
            zh.Group(1, 2, store).close()
            with pytest.raises(zh.PeerLost):
                group.connect(1).result(PATIENCE_S)
            store.values["zerohop//0/1"] = f"{again.url} {1:016x}"
            assert group.connect(1).result(PATIENCE_S).peer == again.id

    def test_a_peer_that_is_silent(self) -> None:
        """The deadline of the call counts, not that of the Context, and the error names the rank."""
        store = Values()
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            zh.Context(timeout=300) as ctx,
            zh.Group(0, 2, store, ctx=ctx) as group,
        ):
            store.values["zerohop//0/1"] = f"zerohop://127.0.0.1:{silent.getsockname()[1]} {1:016x}"
            with pytest.raises(zh.DeadlineExceeded, match="rank 1: "):
                group.connect(1, timeout=0.3).result(PATIENCE_S)

    def test_a_new_one_waits_for_few_of_those_that_are_missing(self) -> None:
        store = Values()
        with zh.Group(0, 40, store) as group, zh.Group(1, 40, store):
            missing = [group.connect(rank) for rank in range(2, 40)]
            asked = store.asked.wait_for(50)  # for each of them at least once
            assert group.connect(1).result(PATIENCE_S).alive
            others = store.asked.keys[asked:].index("zerohop//0/1")
            assert others < 20, "it had to wait for more than half of the others"
            for operation in missing:
                operation.cancel()

    @pytest.mark.parametrize("value", [b"", b"\xff" * 10_000, "nonsense", b"zerohop://", None, 5, [b"zerohop://"]])
    def test_a_store_with_something_else(self, value: Any) -> None:
        store = Values()
        with zh.Group(0, 2, store) as group:
            store.values["zerohop//0/1"] = value
            with pytest.raises(zh.ProtocolError, match="no entry for rank 1") as caught:
                group.connect(1).result(PATIENCE_S)
            assert len(str(caught.value)) < 500

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match="file"):
            zh.Group(0, 1, tmp_path / "file" / "folder")


class TestArguments:
    @pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0), (0, 1 << 30)])
    def test_out_of_range(self, tmp_path: Path, rank: int, size: int) -> None:
        with pytest.raises(ValueError, match="must be from"):
            zh.Group(rank, size, tmp_path)

    @pytest.mark.parametrize("name", ["x" * 129, "ö" * 30, "\ud800"])
    def test_names(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ValueError, match="name"):
            zh.Group(0, 1, tmp_path, name=name)

    def test_an_empty_path(self) -> None:
        with pytest.raises(ValueError, match="empty path"):
            zh.Group(0, 1, "")

    @pytest.mark.parametrize("store", [5, None, {}, object()])
    def test_no_store(self, store: Any) -> None:
        with pytest.raises(TypeError, match="store is an object with set, get and wait"):
            zh.Group(0, 1, store)

    def test_other_types(self, tmp_path: Path) -> None:
        wrong: Any = 1.0
        arguments: list[tuple[Any, Any, dict[str, Any]]] = [
            (wrong, 2, {}),
            (0, wrong, {}),
            (0, 1, {"name": wrong}),
            (0, 1, {"ctx": wrong}),
        ]
        for rank, size, others in arguments:
            with pytest.raises(TypeError):
                zh.Group(rank, size, tmp_path, **others)

    def test_ranks(self, tmp_path: Path) -> None:
        with zh.Group(np.int64(0), np.int32(1), tmp_path) as group:
            assert group.connect(np.int64(0)).result(PATIENCE_S).alive
            for rank in (-1, 1):
                with pytest.raises(ValueError, match="rank must be from 0 to 0"):
                    group.connect(rank)
            with pytest.raises(ValueError, match="timeout"):
                group.connect(0, timeout=-1)

    def test_a_context_of_the_callers(self, tmp_path: Path) -> None:
        with zh.Context() as ctx:
            with zh.Group(0, 1, tmp_path, ctx=ctx) as group:
                assert group.context is ctx
            assert ctx.alloc(8).nbytes == 8
            with pytest.raises(ValueError, match="listen"):
                zh.Group(0, 1, tmp_path, ctx=ctx, listen="127.0.0.1:0")


class TestEnd:
    def test_closed(self, tmp_path: Path) -> None:
        group = zh.Group(0, 1, tmp_path)
        group.close()
        group.close()
        with pytest.raises(zh.Closed, match="this Group is closed"):
            group.connect(0)

    def test_closed_while_one_waits(self, tmp_path: Path) -> None:
        group = zh.Group(0, 2, tmp_path)
        operation = group.connect(1)
        group.close()
        with pytest.raises(zh.Closed):
            operation.result(PATIENCE_S)

    def test_closed_while_one_waits_and_the_context_stays(self, tmp_path: Path) -> None:
        with zh.Context() as ctx:
            group = zh.Group(0, 2, tmp_path, ctx=ctx)
            operation = group.connect(1)
            group.close()
            with pytest.raises(zh.Closed, match="this Group is closed"):
                operation.result(PATIENCE_S)

    def test_dropped(self, tmp_path: Path) -> None:
        with zh.Group(0, 2, tmp_path) as first:
            second = zh.Group(1, 2, tmp_path)
            connection = first.connect(1).result(PATIENCE_S)
            del second
            with pytest.raises(zh.PeerLost):
                connection.recv(np.zeros(1)).result(PATIENCE_S)

    def test_awaited(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with zh.Group(0, 2, tmp_path) as first, zh.Group(1, 2, tmp_path) as second:
                assert (await first.connect(1)).peer == second.context.id

        asyncio.run(main())

    def test_it_stays_in_its_process(self, tmp_path: Path) -> None:
        def use() -> str:
            with pytest.raises(zh.Closed, match="fork"):
                group.connect(0)
            group.close()
            return "closed"

        with zh.Group(0, 1, tmp_path) as group:
            assert in_child(use) == "closed"
            assert group.connect(0).result(PATIENCE_S).alive
            with pytest.raises(TypeError, match="make one in each process"):
                copy.copy(group)
            with pytest.raises(TypeError, match="make one in each process"):
                pickle.dumps(group)


def test_repr(tmp_path: Path) -> None:
    with zh.Group(0, 2, tmp_path, name="workers") as group:
        assert repr(group) == "<Group 'workers', rank 0 of 2, by store>"


@pytest.mark.parametrize("how", ["close", "abort"])
def test_the_end_while_others_wait(tmp_path: Path, how: str) -> None:
    """Threads that wait for a receive, a barrier, a connection and a completion object end; so does the other rank."""
    with zh.Group(0, 3, tmp_path) as stays, ThreadPoolExecutor(5) as pool:
        leaves = zh.Group(1, 3, tmp_path)
        ended = CompletionList(leaves)
        leaves.send(b"here", 0).result(PATIENCE_S)
        waits = [
            pool.submit(call)
            for call in (
                lambda: leaves.recv(bytearray(1), 0).result(),
                lambda: leaves.recv(bytearray(1)).result(),
                lambda: leaves.barrier().result(),
                lambda: leaves.connect(2, timeout=60).result(),
                ended.pop,
            )
        ]
        eventually(lambda: all(wait.running() for wait in waits), "not all threads wait")
        getattr(leaves, how)()
        for wait in waits:
            with pytest.raises(zh.Closed):
                wait.result(PATIENCE_S)
        assert stays.recv(bytearray(4), 1).result(PATIENCE_S).nbytes == 4, "what was queued is delivered"
        with pytest.raises(zh.PeerLost, match="rank 1"):
            stays.recv(bytearray(4), 1).result(PATIENCE_S)
        getattr(leaves, how)()
