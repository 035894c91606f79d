"""An attempt to reach a peer that another one makes needless."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from zerohop.core.control import address
from zerohop.core.peers.attempt import Dial

WHERE = address.parse("zerohop://127.0.0.1:1")


@pytest.mark.parametrize("begun", [False, True])
def test_served_by_a_link_that_was_made_in_another_way(begun: bool) -> None:
    """Also before its task has taken its first step."""

    async def serve() -> None:
        async def work(_where: address.Address, _dial: Dial) -> Any:
            await asyncio.Event().wait()

        link = cast("Any", object())
        dial = Dial(work, WHERE)
        if begun:
            await asyncio.sleep(0)
        dial.serve(link)
        await asyncio.wait([dial.task])
        assert dial.result() is link

    asyncio.run(serve())
