"""Opens Stores over a folder: of this machine, by each way to read and write files, and of a server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from support.options import Options
from support.service import Service
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import zerohop as zh
    from support.fixtures import StartPeer
    from support.peer import Peer
    from zerohop.storage.remote.remote_store import RemoteStore

LOCAL = ("auto", "threads")
# A server that maps the client's memory, and one that knows it over sockets only.
SERVED = ("served", "served over tcp")


@contextlib.contextmanager
def opened(folder: Path, how: str) -> Iterator[storage.Store]:
    """Open a folder in one of these ways; the Store's Context has a simulated device."""
    providers = ("tcp",) if how == "served over tcp" else None
    context = Options(sim_devices=1, providers=providers).open()
    with contextlib.ExitStack() as stack:
        if how in SERVED:
            there = Options(sim_devices=1, providers=providers).open()
            stack.callback(there.close)
            server = stack.enter_context(storage.Server(folder, ctx=there))
            stack.callback(context.close)
            yield stack.enter_context(storage.open_store(server.url, ctx=context))
        else:
            stack.callback(context.close)
            yield stack.enter_context(storage.open_store(folder, ctx=context, engine=how))  # type: ignore[arg-type]  # one of LOCAL


def is_served(store: storage.Store) -> bool:
    """Whether a server carries out the transfers."""
    return store.folder.startswith("zerohop://")


def open_remote(url: str, context: zh.Context) -> RemoteStore:
    """The Store of a server."""
    store: Any = storage.open_store(url, ctx=context)
    return store  # type: ignore[no-any-return]  # what the URL says


def served(
    start_peer: StartPeer, folder: Path, providers: tuple[str, ...] | None = None, **how: Any
) -> tuple[Peer, str]:
    """A peer that serves a folder, and its URL."""
    peer = start_peer(Options(providers=providers, sim_devices=1))
    return peer, peer.call(Service.serve, str(folder), **how)
