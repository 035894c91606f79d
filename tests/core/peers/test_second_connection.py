"""A peer that has dialled and does not give its own dial up for this side's: one of both Connections stays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.peers.admission import Admission
from zerohop.core.peers.attempt import Dial
from zerohop.core.peers.peers import Peers
from zerohop.core.peers.session import Session

if TYPE_CHECKING:
    import pytest

    from support.fixtures import OpenContext


def test_one_connection_stays(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = open_context(Options()), open_context(Options())
    links = []
    run = Session.run

    async def wait_and_run(session: Session) -> None:
        """Begin when both ends of both Connections exist, and the one that `here` has dialled first."""
        links.append(session._link)
        while len(links) < 4 or (link_from_there(session) and not here._core.connected):  # noqa: ASYNC110 - no event spans loops
            await asyncio.sleep(0.001)
        await run(session)

    def link_from_there(session: Session) -> bool:
        return session.initiator == (session._core is there._core)

    # A peer may do so; it is this side's second Connection that is tried here.
    monkeypatch.setattr(Dial, "serve", lambda *_: None)
    monkeypatch.setattr(Admission, "admit", lambda *_: None)
    monkeypatch.setattr(Admission, "arriving", lambda *_, **__: False)
    monkeypatch.setattr(Peers, "_gives_way", lambda *_: False)
    monkeypatch.setattr(Session, "run", wait_and_run)
    dialled, hostile = here.connect(there.url), there.connect(here.url)
    connection = dialled.result(PATIENCE_S)
    assert isinstance(hostile.exception(PATIENCE_S), zh.ZerohopError)
    eventually(lambda: sum(link.lost is None for link in links) == 2, "both Connections stay")
    assert [here._core.connected[there.id]] == [link for link in here._core.introduced.values() if link.lost is None]
    assert here.connections == [connection]
    target = np.zeros(64, np.uint8)
    here.write(np.full(64, 7, np.uint8), there.register(target).share("rw")).result(PATIENCE_S)
    assert (target == 7).all()
    connection.close()
    eventually(lambda: all(link.lost is not None for link in links), "one outlives the close")
