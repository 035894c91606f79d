"""Connections that break while the peer's process lives, and has memory of ours mapped."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from support.lanes import eventually
from support.options import Options
from support.service import Service
from zerohop.core.peers.session import Session

if TYPE_CHECKING:
    import zerohop as zh
    from support.fixtures import OpenContext, StartPeer

ROUNDS = 12
# Descriptors that a Context opens at first use, whatever comes later.
A_FEW = 4


def _break(context: zh.Context) -> None:
    """End the control channel as a broken wire does: without a goodbye, and without giving anything back."""
    [link] = context._core.connected.values()
    assert isinstance(link.session, Session)
    link.session._channel._sock.shutdown(socket.SHUT_RDWR)
    eventually(lambda: link.lost is not None, "nobody has noticed")


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_they_share_one_descriptor(open_context: OpenContext, start_peer: StartPeer) -> None:
    """Of a process, however often it comes back; and its memory is given up when it has ended."""
    options = Options(providers=("shm",), sim_devices=0)
    context, peer = open_context(options), start_peer(options)
    memory = context.alloc(4096)
    handle = bytes(memory.share("rw"))
    number = peer.call(Service.new, "numpy", 4096)
    counts = []

    def mapped_again() -> bool:
        # Until the peer has noticed its loss, it writes through the mapping that it has.
        written = peer.call(Service.try_write, handle, number, 4096).kind == "ok"
        return written and bool(context._core.connected)

    for _ in range(ROUNDS):
        eventually(mapped_again, "the peer cannot come back")
        _break(context)
        counts.append(_descriptors())
    # Another thread takes the last connection apart.
    eventually(lambda: _descriptors() - counts[0] <= A_FEW, f"descriptors pile up: {counts}")
    share = context._core.shares._lingering
    assert share
    memory.close()
    peer.kill()
    eventually(lambda: not share, "its memory is kept for a process that is gone")
    eventually(lambda: context.statistics().pinned == 0, "its memory is kept for a process that is gone")
