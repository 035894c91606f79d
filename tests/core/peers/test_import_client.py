"""Memory that a peer's NIC reaches: registered at both ends when it is first used, and taken back.

Over NICs that are faked (support/fake_nics.py).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.fake_nics import NBYTES, FakeEngine, numbers, of, with_nics, write_over
from support.lanes import eventually
from support.options import Options
from support.patience import ANSWER_S, PATIENCE_S, patience
from support.pattern import pattern
from support.tamper import CAPABILITY, fields, flip, forge
from zerohop.core.base import backoff
from zerohop.core.control import wire
from zerohop.core.memory import revocation
from zerohop.core.peers.releases import Releases

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fake_nics import Heard, Pair
    from support.fixtures import OpenContext


class TestImporting:
    def test_memory_that_no_nic_knows_here(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        both.connect()
        source, target = both.here.register(pattern(1, NBYTES)), both.there.alloc(NBYTES)
        tried = "ibv_reg_mr: Bad address; ibv_reg_dmabuf_mr: not exported"
        both.nics.unregistrable[source.address] = tried
        explanation = both.here.explain(source, target.share("rw"))
        assert explanation.provider in ("verbs", "tcp")
        assert tried in dict(explanation.rejected)["verbs (rdma)"]
        assert f"the memory here: not supported: {tried}" in explanation.details()
        # Another memory is not concerned.
        assert both.here.explain(np.zeros(NBYTES, np.uint8), target.share("rw")).form == "rdma"

    def test_how_memory_is_registered(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        both.connect()
        source, target = both.here.register(pattern(1, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        write_over(both.here, source, handle)
        explanation = both.here.explain(source, handle)
        assert explanation.registered == (("here", "plain address"), ("there", "dma-buf"))
        assert "the memory there is registered by dma-buf" in explanation.details()

    def test_what_a_peer_says_of_that_stays_in_its_line(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        both.connect()
        both.their_nics.how = "dma-buf\x1b[2J\n2026-01-01 all is well"
        source, target = both.here.register(pattern(1, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        write_over(both.here, source, handle)
        assert all(how.isprintable() for _, how in both.here.explain(source, handle).registered)

    def test_memory_that_no_nic_knows_there(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        both.connect()
        both.their_nics.unreachable, both.their_nics.short_of_memory = "ibv_reg_mr: Cannot allocate memory", True
        source, target = both.here.register(pattern(1, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        explanation = both.here.explain(source, handle)
        why = dict(explanation.rejected)["verbs (rdma)"]
        assert why.startswith("the memory there: 'memlock")
        assert "Cannot allocate memory" in why
        write_over(both.here, source, handle)
        # It holds up nobody.
        target.revoke(timeout=PATIENCE_S)

    @pytest.mark.parametrize("side", ["here", "there"])
    def test_memory_for_which_there_was_no_room_is_tried_again(
        self, nic_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, side: str
    ) -> None:
        both = nic_pair()
        both.connect()
        source, target = both.here.register(pattern(1, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        nics = both.nics if side == "here" else both.their_nics
        nics.short_of_memory = True
        nics.unregistrable[source.address] = nics.unreachable = "ibv_reg_mr: Cannot allocate memory"
        for _ in range(3):
            assert "rdma" not in write_over(both.here, source, handle)
            assert "memlock" in dict(both.here.explain(source, handle).rejected)["verbs (rdma)"]
        assert (nics.registered if side == "here" else len(nics.reached)) == 1
        # From here on it is tried again and again, until there is room; nothing else has to happen for that.
        monkeypatch.setattr(backoff, "HOLD_OFF_S", 0.05)
        other, its = both.here.register(pattern(2, NBYTES)), both.there.alloc(NBYTES).share("rw")
        nics.unregistrable[other.address] = "ibv_reg_mr: Cannot allocate memory"
        assert "rdma" not in write_over(both.here, other, its)
        nics.unregistrable, nics.unreachable = {}, ""
        eventually(lambda: "rdma" in write_over(both.here, other, its), "nobody tries it again")

    @pytest.mark.parametrize("side", ["here", "there"])
    def test_memory_that_a_nic_cannot_know_is_not_tried_again(self, nic_pair: Callable[..., Pair], side: str) -> None:
        both = nic_pair()
        connection, _ = both.connect()
        source, target = both.here.register(pattern(1, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        if side == "here":
            both.nics.unregistrable[source.address] = "no driver gives these pages"
        else:
            both.their_nics.unreachable = "no driver gives these pages"
        for _ in range(3):
            assert "rdma" not in write_over(both.here, source, handle)
            # As when a port is back: whatever may have passed is tried again.
            both.here._core.control.call(connection._link.reconsider)
        asked = both.nics.registered if side == "here" else len(both.their_nics.reached)
        assert asked == 1

    def test_direct_or_nothing(self, open_context: OpenContext) -> None:
        options = Options(providers=("tcp",), require="direct")
        here, there = open_context(options), open_context(options)
        nics, _ = with_nics(here), with_nics(there)
        source, target = here.alloc(NBYTES, "sim:0"), there.alloc(NBYTES)
        assert write_over(here, source, target.share("rw")).startswith("verbs (rdma) sim:0→host direct")
        other = here.alloc(NBYTES, "sim:0")
        nics.unregistrable[other.address] = "no peer memory"
        with pytest.raises(zh.Unsupported, match="no peer memory"):
            here.write(other, target.share("rw")).result(PATIENCE_S)

    def test_a_forged_capability_imports_nothing(self, nic_pair: Callable[..., Pair]) -> None:
        both = nic_pair()
        both.connect()
        source, target = both.here.register(pattern(1, NBYTES)), both.there.alloc(NBYTES)
        handle = target.share("rw")
        forged = forge(handle, {CAPABILITY: flip(fields(handle)[CAPABILITY], 5)})
        with pytest.raises(zh.AccessDenied, match="capability"):
            both.here.write(source, forged).result(PATIENCE_S)
        assert not both.their_nics.reached
        write_over(both.here, source, handle)
        with pytest.raises(zh.AccessDenied, match="capability"):
            both.here.write(source, forged).result(PATIENCE_S)

    def test_revoking_asks_first(
        self, nic_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, heard: Heard
    ) -> None:
        """A peer that is well gives its keys back at once, and loses no lane."""
        both = nic_pair()
        connection, _ = both.connect()
        source, target = both.here.register(pattern(1, NBYTES)), both.there.register(np.zeros(NBYTES, np.uint8))
        handle = target.share("rw")
        assert handle.revocation == "enforced"
        write_over(both.here, source, handle)
        monkeypatch.setattr(revocation, "_MAX_GRACE_S", PATIENCE_S)
        target.revoke(handle, timeout=2 * PATIENCE_S)
        assert [message.provider for message in of(wire.Release, heard.sent)] == ["verbs"]
        assert [message.provider for message in of(wire.Released, heard.sent)] == ["verbs"]
        with pytest.raises(zh.AccessDenied, match="revoked"):
            both.here.write(source, handle).result(PATIENCE_S)
        assert both.here.statistics().mapped == 0
        assert numbers(connection) == [0]

    @pytest.mark.parametrize("timeout", [patience(60.0), 0.2])
    def test_a_peer_that_keeps_silent_is_not_waited_for_long(
        self, nic_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, timeout: float
    ) -> None:
        both = nic_pair()
        both.connect()
        source, target = both.here.register(pattern(1, NBYTES)), both.there.register(np.zeros(NBYTES, np.uint8))
        handle = target.share("rw")
        write_over(both.here, source, handle)
        monkeypatch.setattr(Releases, "on_release", lambda self, message: None)
        started = time.monotonic()
        target.revoke(handle, timeout=timeout)
        taken = time.monotonic() - started
        assert min(0.5, timeout / 2) <= taken < ANSWER_S

    def test_revoked_while_it_is_registered(
        self, nic_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The peer gets no key that is good for nothing."""
        both = nic_pair()
        both.connect()
        source, target = both.here.register(pattern(1, NBYTES)), both.there.register(np.zeros(NBYTES, np.uint8))
        handle = target.share("rw")
        reaching, go_on = threading.Event(), threading.Event()
        reach = FakeEngine.reach

        def slow(self: FakeEngine, *args: object) -> tuple[int, int, str]:
            reaching.set()
            assert go_on.wait(PATIENCE_S)
            return reach(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(FakeEngine, "reach", slow)
        write = both.here.write(source, handle)
        assert reaching.wait(PATIENCE_S)
        target.revoke(handle, timeout=PATIENCE_S)
        go_on.set()
        with pytest.raises(zh.AccessDenied, match="revoked"):
            write.result(PATIENCE_S)
        eventually(lambda: not both.there._core.shares._leaving, "it is kept for the peer")
