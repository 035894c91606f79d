"""Several NIC ports in one lane: large transfers use all of them, and what is left when one goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.pattern import pattern
from support.sizes import MIB
from support.wire import cut
from support.world import Target

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer

NBYTES = 16 * MIB + 4097
# Two that the rule takes for equals (docs/nics.md).
RAILS = ("rxe0", "rxe1")


def _sent(nic: str) -> int:
    """Packets that the NIC has sent."""
    return int(Path(f"/sys/class/infiniband/{nic}/ports/1/hw_counters/sent_pkts").read_text(encoding="ascii"))


@pytest.mark.timeout(300)
def test_large_transfers_use_all_rails(open_context: OpenContext, start_peer: StartPeer) -> None:
    options = Options(providers=("verbs",), nics=",".join(RAILS), timeout=100.0)
    context, peer = open_context(options), start_peer(options)
    target = Target(peer, "numpy", NBYTES)
    data = pattern(2, NBYTES)
    source = context.register(data)
    context.write(source[:8], target.handle[:8]).result(30)
    before = {nic: _sent(nic) for nic in RAILS}
    assert context.write(source, target.handle).result(60) == NBYTES
    target.expect(0, NBYTES, 2)
    packets = {nic: _sent(nic) - before[nic] for nic in before}
    # The path's MTU is 4096.
    least = NBYTES // 4096 // 4
    assert min(packets.values()) > least, packets
    back = np.zeros(NBYTES, np.uint8)
    assert context.read(target.handle, back).result(60) == NBYTES
    assert np.array_equal(back, data)


@pytest.mark.timeout(300)
def test_the_rail_that_is_left(open_context: OpenContext, start_peer: StartPeer) -> None:
    """One port's link goes down: what is in flight may be lost, what comes later takes the other port."""
    options = Options(providers=("verbs",), nics=",".join(RAILS), timeout=100.0)
    context, peer = open_context(options), start_peer(options)
    target = Target(peer, "numpy", NBYTES)
    source = context.register(pattern(4, NBYTES))
    assert context.write(source, target.handle).result(60) == NBYTES
    with cut("d1"):
        until = time.monotonic() + 60
        while True:
            try:
                assert context.write(source, target.handle).result(60) == NBYTES
                break
            except (zh.PeerLost, zh.Unsupported):
                assert time.monotonic() < until, "a rail is left, and nothing works"
        target.expect(0, NBYTES, 4)
        path = context.explain(source, target.handle)
        assert (path.provider, path.form) == ("verbs", "rdma"), path.details()
        assert path.rails == (("rxe0 port 1", "rxe0 port 1"),)
