"""Clients and servers that are killed in the middle of writes, many times: what is in the file, and what is left."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from support.stores import open_remote, served
from support.written_blocks import DEPTH, FILE_BYTES, expect_blocks, write_blocks
from zerohop import storage
from zerohop.storage.local_store import threads_of

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer
    from support.leaks import Holdings
    from support.peer import Peer

WAYS = pytest.mark.parametrize("providers", [None, ("tcp",)], ids=["mapped", "tcp"])
ROUNDS = pytest.mark.parametrize(
    "rounds", [10, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(patience(300))])]
)
BEFORE = pattern(1, FILE_BYTES)
# The allocator keeps some memory, and some grows with the first uses. A block of a client's that stays would be as much
# in a few rounds.
SPARE_KIB = 12 * 1024


def _is_as_long(log: Path, nbytes: int) -> bool:
    return log.stat().st_size >= nbytes


def held() -> Holdings:
    """What this process holds, but for threads that copy bytes, which start one by one and stay for the next copy."""
    now = holdings()
    assert now.threads.pop("zerohop-file", 0) <= threads_of(None)
    return now


def held_kib() -> dict[str, int]:
    """Memory of this process that is its own, and that is pinned."""
    found = re.findall(r"^(RssAnon|RssShmem|VmPin):\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return {name: int(kib) for name, kib in found}


def expect_no_more_memory(before: dict[str, int]) -> None:
    """Raise AssertionError if the process holds more than before, for good."""

    def is_back() -> bool:
        now = held_kib()
        return now["VmPin"] <= before["VmPin"] and all(now[each] <= before[each] + SPARE_KIB for each in now)

    try:
        eventually(is_back, "")
    except AssertionError:
        raise AssertionError(f"memory is held: {held_kib()}, and {before} before") from None


class Killing:
    """Notes what is acknowledged, and kills a server after so many."""

    def __init__(self, server: Peer, after: int) -> None:
        self.acknowledged: list[int] = []
        self.after = after
        self._server = server

    def note(self, index: int) -> None:
        self.acknowledged.append(index)
        if len(self.acknowledged) == self.after:
            self._server.kill()


@ROUNDS
@WAYS
def test_clients_that_are_killed_while_they_write(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, providers: tuple[str, ...] | None, rounds: int
) -> None:
    """What a client was told of is there whole, nothing outside its ranges changed, and the server is as before."""
    folder, log = tmp_path / "served", tmp_path / "log"
    folder.mkdir()
    with storage.Server(folder, ctx=open_context(Options(providers=providers)), memory=8 * MIB) as server:
        before, memory = held(), held_kib()
        for number in range(rounds):
            (folder / "data").write_bytes(BEFORE.tobytes())
            log.write_bytes(b"")
            peer = start_peer(Options(providers=providers))
            peer.call(Service.use_store, server.url)
            peer.call(Service.open_file, "data")
            peer.start(Service.write_blocks, str(log))
            # Before its first write is acknowledged, or once it has gone through the file, or a part of it.
            wanted = number * 7 % 50
            eventually(functools.partial(_is_as_long, log, wanted), "it does not write")
            peer.kill()
            peer.reap()
            eventually(lambda: server.statistics().clients == 0, "the client stays")
            eventually(lambda: server.statistics().files == 0, "its file stays open")
            eventually(lambda: server.statistics().memory_in_use == 0, "its memory is not given back")
            acknowledged = log.stat().st_size
            # One that was acknowledged may not have been noted yet, and DEPTH are under way then.
            expect_blocks(np.fromfile(folder / "data", np.uint8), BEFORE, range(acknowledged), acknowledged + DEPTH + 1)
            if number == 0:
                before, memory = held(), held_kib()  # what is opened only once is there now
        expect_given_back(before, held, "the server")
        expect_no_more_memory(memory)


@ROUNDS
@WAYS
def test_servers_that_are_killed_while_they_write(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, providers: tuple[str, ...] | None, rounds: int
) -> None:
    """What was acknowledged is there whole, nothing outside the ranges changed, and the next server works at once."""
    context = open_context(Options(providers=providers))
    before, memory = held(), held_kib()
    for number in range(rounds):
        (tmp_path / "data").write_bytes(BEFORE.tobytes())
        peer, url = served(start_peer, tmp_path, providers)
        with open_remote(url, context) as store, store.open("data", "r+").result(PATIENCE_S) as file:
            killing = Killing(peer, 1 + number * 7 % 50)
            begun = write_blocks(context, file, killing.note)
            with pytest.raises(zh.PeerLost):
                store.listdir().result(PATIENCE_S)
        peer.reap()
        assert len(killing.acknowledged) >= killing.after
        expect_blocks(np.fromfile(tmp_path / "data", np.uint8), BEFORE, killing.acknowledged, begun)
        if number == 0:
            before, memory = held(), held_kib()  # what is opened only once is there now
    expect_given_back(before, held, "the client")
    expect_no_more_memory(memory)
