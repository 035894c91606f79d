"""Probes: a message whose length is known before there is memory for it, and what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.groups import PLACES, groups
from support.patience import PATIENCE_S
from support.pattern import pattern, poison
from zerohop.group import Message

if TYPE_CHECKING:
    from pathlib import Path

# Around the size of what is copied into a frame, of what waits at the receiver, and of a piece.
SIZES = (0, 1, 256, 257, 8192, 8193, 262_145, 3_000_001)
PROVIDERS = ("shm", "tcp")


class TestProbe:
    @pytest.mark.parametrize("provider", PROVIDERS)
    @pytest.mark.parametrize("target", PLACES)
    def test_the_length_is_known_before_there_is_memory(self, tmp_path: Path, provider: str, target: str) -> None:
        with groups(tmp_path, 2, provider) as (sender, receiver):
            for nbytes in SIZES:
                probe = receiver.probe(0, tag=3)
                sent = sender.send(pattern(1, nbytes), 1, tag=3)
                arrival = probe.result(PATIENCE_S)
                assert (arrival.source, arrival.tag, arrival.nbytes) == (0, 3, nbytes)
                into = receiver.context.alloc(nbytes + 1, target)
                assert arrival.recv(into[:nbytes]).result(PATIENCE_S) == Message(0, 3, nbytes)
                assert into.read_bytes(0, nbytes) == pattern(1, nbytes).tobytes()
                assert sent.result(PATIENCE_S) == nbytes
                with pytest.raises(zh.Closed, match="received already"):
                    arrival.recv(into)

    def test_what_is_dropped_goes_to_others_in_its_place(self, two: list[zh.Group]) -> None:
        sender, receiver = two
        for value in (1, 2, 3):
            sender.send(np.array([value]), 1).result(PATIENCE_S)
        into = np.zeros(1, np.int64)
        arrival = receiver.probe().result(PATIENCE_S)
        assert receiver.recv(into).result(PATIENCE_S).nbytes == 8
        assert into[0] == 2
        del arrival
        for value in (1, 3):
            receiver.recv(into).result(PATIENCE_S)
            assert into[0] == value
        # One that has found nothing yet takes nothing later.
        probe = receiver.probe()
        del probe
        sender.send(np.array([4]), 1).result(PATIENCE_S)
        receiver.recv(into).result(PATIENCE_S)
        assert into[0] == 4

    def test_a_group_that_is_closed_and_a_rank_that_is_gone(self, tmp_path: Path) -> None:
        with groups(tmp_path, 2) as (sender, receiver):
            small = sender.send(pattern(1, 100), 1, tag=1)
            sender.send(pattern(1, 100_000), 1, tag=2)
            arrivals = [receiver.probe(tag=tag).result(PATIENCE_S) for tag in (1, 2)]
            probe = receiver.probe(0)
            small.result(PATIENCE_S)
            sender.context.close()
            with pytest.raises(zh.PeerLost, match="rank 0"):
                probe.result(PATIENCE_S)
            assert arrivals[0].recv(into := poison(100)).result(PATIENCE_S).nbytes == 100
            assert (into == pattern(1, 100)).all()
            with pytest.raises(zh.PeerLost):
                arrivals[1].recv(poison(100_000)).result(PATIENCE_S)
            with pytest.raises(ValueError, match="source"):
                receiver.probe(2)
            waiting = receiver.probe()
            receiver.close()
            with pytest.raises((zh.Closed, zh.PeerLost)):
                waiting.result(PATIENCE_S)
            with pytest.raises(zh.Closed):
                receiver.probe()
