"""Two Transports that are joined, in this process and another, and what is expected of one that is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.forms import FORMS
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.pattern import pattern
from support.sizes import MIB
from support.transports import Link, every_call
from support.world import Target

if TYPE_CHECKING:
    import zerohop as zh
    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

NBYTES = 4 * MIB
# So long that no deadline can be taken for an end.
NEVER_S = patience(60.0)


class Pair(NamedTuple):
    context: zh.Context
    peer: Peer
    link: Link
    target: Target


def joined_pair(open_context: OpenContext, start_peer: StartPeer, form: str, timeout: float = NEVER_S) -> Pair:
    """Joined, and every path gone once."""
    provider, kind, _ = FORMS[form]
    options = Options(providers=(provider,), timeout=timeout)
    context, peer = open_context(options), start_peer(options)
    link, target = Link(context, peer), Target(peer, kind, NBYTES)
    link.here.write(pattern(1, NBYTES), target.handle, notify=1).result(PATIENCE_S)
    link.expect_arrival(1, NBYTES)
    link.here.write_many([(pattern(1, 8), target.handle)]).result(PATIENCE_S)
    target.poison()
    return Pair(context, peer, link, target)


def expect_broken(pair: Pair, kind: type[zh.ZerohopError], text: str) -> None:
    """Every call raises at once, nothing is written, and looking at it is harmless."""
    for call in every_call(pair.link.here, pair.link.url, pair.target.handle):
        with pytest.raises(kind, match=text):
            call()
    assert not pair.link.here.connected()
    assert text in repr(pair.link.here)
