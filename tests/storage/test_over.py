"""Transfers and calls that are over, for the client or for the file: a server does nothing more for them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import mmap
import weakref
from concurrent.futures import CancelledError
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
    from pathlib import Path

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
