"""A peer says why it leaves: that is this side's error, also if it finds the end of the lanes first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.peers import session

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext
    from zerohop.core.lanes.lane import Lane
    from zerohop.core.peers.peer_link import PeerLink


def test_the_lanes_end_before_the_farewell_is_handled(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = (open_context(Options(providers=("tcp",))) for _ in range(2))
    connection = here.connect(there.url).result(PATIENCE_S)
    eventually(lambda: bool(there.connections), "the other side does not know of it")
    waited = []

    async def wait_until_lost(link: PeerLink, _: Callable[[Lane], bool]) -> None:
        for _turn in range(1000):
            if link.lost is not None:
                break
            await asyncio.sleep(0.001)
        waited.append(link.lost is not None)

    monkeypatch.setattr(session, "wait_while", wait_until_lost)
    back = there._core.connected[here.id]
    there._core.control.call(back.step_failed, zh.PeerLost("enough of it", fix="ask later"))
    eventually(lambda: bool(waited), "no farewell arrives")
    assert waited == [True]  # before the farewell was handled
    with pytest.raises(zh.PeerLost, match=r"the peer left: 'enough of it'.*ask later"):
        connection.send(b"more").result(PATIENCE_S)
