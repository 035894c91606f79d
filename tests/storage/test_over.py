"""Transfers and calls that are over, for the client or for the file: a server does nothing more for them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import mmap
import weakref
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.stores import open_remote, opened, served
from zerohop import storage
from zerohop.storage.serving.delivery import _all_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext, StartPeer

PAGE = 4096
TIB = 1 << 40
# Addresses without memory behind them, until somebody writes there.
_UNRESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


@contextlib.contextmanager
def very_much(context: zh.Context) -> Iterator[zh.Memory]:
    with mmap.mmap(-1, 4 * TIB, flags=_UNRESERVED) as room, context.register(room) as memory:
        yield memory


def let_control_thread_run(context: zh.Context) -> None:
    """Let it take some steps, so that calls that can be sent are."""
    for _ in range(5):
        context._core.control.call(lambda: None)


def test_a_file_that_ends_long_before_the_memory(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(PAGE))
    with (
        opened(tmp_path, "served over tcp") as store,
        very_much(store.context) as memory,
        store.open("data").result(PATIENCE_S) as file,
    ):
        assert file.read_into(memory, short=True).result(PATIENCE_S) == PAGE


@pytest.mark.parametrize("how", ["deadline", "cancel", "close"])
def test_a_transfer_that_nobody_waits_for(open_context: OpenContext, tmp_path: Path, how: str) -> None:
    """The server begins nothing more of it, however much is left."""
    (tmp_path / "data").write_bytes(b"")
    with (tmp_path / "data").open("r+b") as file:
        file.truncate(4 * TIB)
    there, context = open_context(Options(providers=("tcp",))), open_context(Options(providers=("tcp",)))
    with storage.Server(tmp_path, ctx=there) as server, very_much(context) as memory:
        store = open_remote(server.url, context)
        reading = store.open("data").result(PATIENCE_S).read_into(memory, timeout=0.1 if how == "deadline" else 60)
        (client,) = server._answers.clients.values()
        eventually(lambda: bool(client.moves), "the server was not asked")
        if how == "cancel":
            reading.cancel()
        elif how == "close":
            store.close()
            context.close()
        eventually(lambda: not client.moves, "the server goes on")
        with contextlib.suppress(zh.ZerohopError, CancelledError):
            reading.result(PATIENCE_S)
        store.close()


@pytest.mark.parametrize("writes", [False, True], ids=["read", "write"])
def test_the_file_of_a_client_that_is_gone(open_context: OpenContext, tmp_path: Path, writes: bool) -> None:
    """It is closed then, and not when the garbage collector happens to run."""
    with (tmp_path / "data").open("wb") as file:
        file.truncate(TIB)
    there = open_context(Options(providers=("tcp",)))
    gc.collect()
    gc.disable()
    try:
        with storage.Server(tmp_path, ctx=there) as server:
            for _ in range(5):
                context = Options(providers=("tcp",)).open()
                store = open_remote(server.url, context)
                memory = context.alloc(64 << 20)
                opened = store.open("data", "r+").result(PATIENCE_S)
                operation: Any = opened.write_from(memory) if writes else opened.read_into(memory)
                (client,) = server._answers.clients.values()
                eventually(partial(bool, client.moves), "the server was not asked")
                context.close()
                with contextlib.suppress(zh.ZerohopError, CancelledError):
                    operation.result(PATIENCE_S)
                opened.close()
                store.close()
                del client, opened, operation
                eventually(lambda: not descriptors_of(tmp_path / "data"), "the file stays open")
    finally:
        gc.enable()


def descriptors_of(path: Path) -> list[str]:
    """The descriptors of this process that are of a file."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if each.readlink() == path:
                found.append(each.name)
    return found


def test_a_long_folder_is_listed_once(
    open_context: OpenContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its names go in pages; the time for all of them does not grow with the number of pages."""
    names = sorted(f"{number:0200}" for number in range(2000))
    for name in names:
        (tmp_path / name).touch()
    there, context = open_context(Options()), open_context(Options())
    with storage.Server(tmp_path, ctx=there) as server, open_remote(server.url, context) as store:
        lists, call = [], server._store.folder_call

        def counted(kind: str, *paths: str, numbers: tuple[int, ...] = ()) -> Any:
            lists.append(kind)
            return call(kind, *paths, numbers=numbers)

        monkeypatch.setattr(server._store, "folder_call", counted)
        assert sorted(store.listdir().result(PATIENCE_S)) == names
        assert lists == ["listdir"]
        (tmp_path / "a name").touch()
        assert sorted(store.listdir().result(PATIENCE_S)) == sorted([*names, "a name"])
        assert not server._answers._listings


def test_calls_that_were_given_up(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    """While the server still has them, later ones wait, and none is refused."""
    (tmp_path / "data").write_bytes(bytes(PAGE))
    peer, url = served(start_peer, tmp_path)
    with open_remote(url, open_context(Options())) as store:
        store.open("data").result(PATIENCE_S).close()
        peer.stop()
        for _ in range(50):
            given_up = [store.open("data") for _ in range(100)]
            let_control_thread_run(store.context)
            for each in given_up:
                each.cancel()
            for each in given_up:
                with contextlib.suppress(CancelledError):
                    each.result(PATIENCE_S)
        waiting = [store.open("data") for _ in range(20)]
        let_control_thread_run(store.context)
        peer.resume()
        for each in waiting:
            each.result(PATIENCE_S).close()


def test_the_error_of_a_transfer_keeps_nothing() -> None:
    """Nothing waits for the garbage collector: not the file of a client that is gone."""

    class File:
        pass

    async def fails() -> None:
        raise zh.PeerLost("the client is gone")

    async def deliver(file: File) -> None:  # its frame holds the file
        works: list[Any] = [fails(), fails()]
        await _all_of(works)

    async def work() -> weakref.ref[File]:
        file = File()
        with pytest.raises(zh.PeerLost):
            await deliver(file)
        return weakref.ref(file)

    gc.disable()
    try:
        assert asyncio.run(work())() is None
    finally:
        gc.enable()
