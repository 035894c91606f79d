"""Posting on the lane for messages, at moments that only a call made for the purpose can hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from zerohop._native import NativeError, Status
from zerohop.core.runtime.native_operation import NBYTES
from zerohop.core.transfers.message_lane import post_message
from zerohop.errors import LANE_RESET

if TYPE_CHECKING:
    from support.fixtures import OpenContext


@pytest.mark.parametrize("nowait", [False, True])
def test_a_peer_that_is_lost_while_its_lane_is_reset(open_context: OpenContext, nowait: bool) -> None:
    """The operation fails with the loss, and not as if the lane were full."""
    here, there = open_context(Options()), open_context(Options())
    link = here.connect(there.url).result(PATIENCE_S)._link

    def post(_nowait: bool) -> int:
        link.lost = zh.PeerLost("gone in this moment")
        raise NativeError(Status.WOULD_BLOCK.value, LANE_RESET, "")

    operation = post_message(here._core, link, "notify", None, 0, post, NBYTES, nowait=nowait)
    link.lost = None
    error = operation.exception(PATIENCE_S)
    assert isinstance(error, zh.PeerLost)
    assert "gone in this moment" in str(error)
