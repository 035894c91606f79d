"""What memory is kept for peers that have imported it, when one of several is lost and the Memory is closed."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.patience import PATIENCE_S
from zerohop._native import Grants
from zerohop.core.base import peer_process
from zerohop.core.control.auth import grant_key
from zerohop.core.memory import granted
from zerohop.core.memory.granted import Granted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zerohop.core.memory.local_share import LocalShare
    from zerohop.core.memory.shares import Shares

SHM = "shm"


class Importer:
    """A peer, as far as shares ask: it is on no conversation, so that nobody hears what it is asked for."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._process: Any = peer_process.unknown_process()

    def process(self) -> Any:
        return self._process

    def ask_back(self, provider: str, share_ids: list[int]) -> None:
        pass

    def admit(self, shares: Shares, share: LocalShare) -> None:
        assert shares.admit(self, SHM, share.share_id, share.handle._share.capability) is share

    def give_back(self, shares: Shares, share: LocalShare) -> None:
        shares.given_back(self, SHM, [share.share_id])

    def be_lost(self, shares: Shares, process: Any) -> None:
        self._process = process
        shares.lost(self)


class PeerProcess:
    """The process of a lost peer, which ends when the test says so."""

    ended = False

    def has_exited(self) -> bool:
        return self.ended

    def watch(self, _: object) -> None:
        pass


@pytest.fixture
def context() -> Iterator[zh.Context]:
    with zh.Context(providers=[SHM]) as context:
        yield context


def shared(context: zh.Context, array: object) -> tuple[zh.Memory, LocalShare]:
    memory = context.register(array)
    memory.share("rw")
    (share,) = memory._shares.values()  # type: ignore[union-attr]
    return memory, share


def lost_and_kept(shares: Shares, share: LocalShare) -> tuple[PeerProcess, Importer]:
    """Of two that have imported it: the process of one that is lost, and the other."""
    process, first, second = PeerProcess(), Importer("first"), Importer("second")
    first.admit(shares, share)
    second.admit(shares, share)
    first.be_lost(shares, process)
    return process, second


@pytest.mark.parametrize("swept", ["while open", "while being closed", "when closed"])
def test_a_lost_peer_and_one_that_still_has_it(
    context: zh.Context, monkeypatch: pytest.MonkeyPatch, swept: str
) -> None:
    """The end of the one's process, whenever that is seen, takes nothing from the other."""
    shares, array = context._core.shares, np.zeros(64, np.uint8)
    alive = weakref.ref(array)
    memory, share = shared(context, array)
    process, second = lost_and_kept(shares, share)

    def process_ends(when: str) -> None:
        if when == swept:
            process.ended = True
            shares.sweep()

    withdraw = shares.withdraw

    def while_being_closed(some: Sequence[LocalShare], timeout: float) -> None:
        process_ends("while being closed")
        withdraw(some, timeout)

    monkeypatch.setattr(shares, "withdraw", while_being_closed)
    process_ends("while open")
    memory.close(timeout=0)
    process_ends("when closed")
    del memory, array
    gc.collect()
    assert alive() is not None
    second.give_back(shares, share)
    assert alive() is None


def test_one_that_gives_back_before_the_lost_one_has_ended(context: zh.Context) -> None:
    shares, array = context._core.shares, np.zeros(64, np.uint8)
    alive = weakref.ref(array)
    memory, share = shared(context, array)
    process, second = lost_and_kept(shares, share)
    memory.close(timeout=0)
    second.give_back(shares, share)
    del memory, array
    gc.collect()
    assert alive() is not None
    process.ended = True
    shares.sweep()
    assert alive() is None


def test_a_destructor_may_ask_for_what_another_thread_holds(context: zh.Context) -> None:
    """Whoever lets go of the memory holds no lock: the user's destructors may wait for threads that use the Context."""
    shares, array = context._core.shares, np.zeros(64, np.uint8)
    told: list[int] = []

    def destructor() -> None:
        thread = threading.Thread(target=lambda: told.append(len(shares.holders(SHM))), daemon=True)
        thread.start()
        thread.join(PATIENCE_S)

    weakref.finalize(array, destructor)
    memory, share = shared(context, array)
    importer = Importer("peer")
    importer.admit(shares, share)
    memory.close(timeout=0)
    del memory, array
    gc.collect()
    assert told == []
    importer.give_back(shares, share)
    assert told == [0]


def test_what_nobody_has_imported_keeps_nothing(context: zh.Context) -> None:
    """Who still refers to a share that was taken back does not keep the memory by it."""
    array = np.zeros(64, np.uint8)
    alive = weakref.ref(array)
    memory, share = shared(context, array)
    memory.close()
    del memory, array
    gc.collect()
    assert alive() is None
    assert share.keep is None


def _take(shares: Shares, importer: Importer, share: LocalShare) -> Grants:
    """Have a peer take a share by its table; return the peer's end of the table."""
    begun = shares.begin_granting(importer)
    assert begun is not None
    table, granted = begun
    shares.grant(importer, granted)
    taken = Grants(table.fd)
    assert taken.take(share.share_id, grant_key(share.handle._share.capability), False) is not None
    return taken


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_revocation_that_a_signal_cuts_short(context: zh.Context, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The owner knows of the peer that has taken the share, also if that peer is lost before the next try."""
    shares = context._core.shares
    memory, share = shared(context, np.zeros(64, np.uint8))
    importer, process = Importer("taker"), PeerProcess()
    _take(shares, importer, share)
    revoke = Granted.revoke

    def interrupted(self: Granted, one: LocalShare) -> None:
        if step == "after":
            revoke(self, one)
        raise KeyboardInterrupt

    monkeypatch.setattr(Granted, "revoke", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memory.revoke(share.handle, timeout=0)
    monkeypatch.undo()
    importer.be_lost(shares, process)
    with pytest.raises(zh.RevocationIncomplete):
        memory.revoke(share.handle, timeout=0)
    process.ended = True
    shares.sweep()


def test_an_end_that_crosses_a_take(context: zh.Context) -> None:
    """Released names a share, and may be about an earlier import of it: the table says that the peer has it again."""
    shares = context._core.shares
    memory, share = shared(context, np.zeros(64, np.uint8))
    importer = Importer("taker")
    importer.admit(shares, share)
    taken = _take(shares, importer, share)
    with pytest.raises(zh.RevocationIncomplete):
        memory.revoke(share.handle, timeout=0)
    importer.give_back(shares, share)  # what it had asked for
    assert shares.kept() == [None]
    taken.give_back(share.share_id, grant_key(share.handle._share.capability), False)
    importer.give_back(shares, share)
    assert shares.kept() == []


@pytest.mark.parametrize("end", ["stop", "lost", "close"])
def test_a_destructor_in_the_middle(context: zh.Context, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Garbage is collected while the tables are gone through, and takes other shares out of them."""
    shares, importer = context._core.shares, Importer("taker")
    _memory, share = shared(context, np.zeros(64, np.uint8))
    _take(shares, importer, share)
    others = [context.register(np.zeros(64, np.uint8)) for _ in range(10)]
    for other in others:
        other.share("r")
    revoke = granted._revoke

    def collecting(*arguments: Any) -> None:
        if others:
            others.pop().close(timeout=0)
        revoke(*arguments)

    monkeypatch.setattr(granted, "_revoke", collecting)
    if end == "stop":
        shares.stop_granting(importer)
    elif end == "lost":
        importer.be_lost(shares, None)
    else:
        context.close()
    assert not others
