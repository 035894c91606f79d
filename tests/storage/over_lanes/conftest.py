"""A server of this host and its Store, which asks over the lane, and the Moves that were asked for by messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.options import Options
from support.sizes import MIB
from support.stores import open_remote
from zerohop import storage
from zerohop.storage import wire
from zerohop.storage.remote.moves import Moves

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.fixtures import OpenContext
    from zerohop.storage.remote.remote_store import RemoteStore


@pytest.fixture
def moved_by_messages(monkeypatch: pytest.MonkeyPatch) -> list[wire.Move]:
    """The Moves that were asked for."""
    asked: list[wire.Move] = []
    ask = Moves.ask_now

    async def noted(self: Moves, request: wire.Request, *args: Any) -> Any:
        if isinstance(request, wire.Move):
            asked.append(request)
        return await ask(self, request, *args)

    monkeypatch.setattr(Moves, "ask_now", noted)
    return asked


@pytest.fixture
def server(open_context: OpenContext, no_leaks: None, tmp_path: Path) -> Iterator[storage.Server]:
    with storage.Server(tmp_path, ctx=open_context(Options(sim_devices=1)), memory=8 * MIB) as server:
        yield server


@pytest.fixture
def store(server: storage.Server, open_context: OpenContext) -> Iterator[RemoteStore]:
    with open_remote(server.url, open_context(Options(sim_devices=1))) as store:
        yield store
