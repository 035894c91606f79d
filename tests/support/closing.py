"""A Context with a peer, to be closed, and what is expected of that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.sizes import MIB
from support.world import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

TIMEOUT_S = 0.5
# However late a busy machine lets anybody go on; what is in flight has a deadline far beyond it.
GRACE_S = PATIENCE_S
NBYTES = 2 * MIB

Pending = list[zh.Operation[int]]


class Setting(NamedTuple):
    """A Context, its peer, and memory of either kind at the peer's."""

    context: zh.Context
    peer: Peer
    ring: Target
    mapped: Target
    device: Target


def connected(open_context: OpenContext, start_peer: StartPeer, provider: str) -> Setting:
    options = Options(providers=(provider,), timeout=8 * PATIENCE_S)
    context, peer = open_context(options), start_peer(options)
    targets = [Target(peer, kind, NBYTES) for kind in ("numpy", "alloc", "sim")]
    for target in targets:
        context.write(pattern(1, NBYTES), target.handle).result(PATIENCE_S)
    return Setting(context, peer, *targets)


def expect_prompt(close: Callable[[], object], limit: float = TIMEOUT_S) -> None:
    started = time.monotonic()
    close()
    elapsed = time.monotonic() - started
    assert elapsed < limit + GRACE_S, f"close took {elapsed:.1f} s"


def expect_closed(context: zh.Context, pending: Pending) -> None:
    """What was in flight has ended, well or as one may expect, and a second close does nothing."""
    for operation in pending:
        assert operation.done()
        error = operation.exception(0)
        assert isinstance(error, zh.Closed | zh.PeerLost | zh.DeviceFailed | None), error
    context.close(timeout=PATIENCE_S)
    context.close()
    with pytest.raises(zh.Closed):
        context.alloc(64)
