"""Shares of memory that the peer has already: their first use asks nobody, and their end is noticed all the same.

Both Contexts are in this process: the control thread of the owner stands still while the other one must not need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.buffers import Buffer, Kind
from support.fake_nics import of
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.streams import Stream
from zerohop._native import NativeError, Reason, Status
from zerohop.core.control import wire
from zerohop.core.lanes import peer_grants
from zerohop.core.lanes.imported import Import
from zerohop.core.memory import granted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fake_nics import Heard
    from support.fixtures import OpenContext
    from zerohop.core.memory.rights import Rights

PAGE = 4096
PAGES = 8
SOON_S = 0.1
WAYS: list[tuple[str, Kind]] = [("shm", "alloc"), ("p2p", "sim"), ("p2p", "alloc")]


class Both:
    """An owner of memory whose first page the peer has used, by a handle of that page alone."""

    def __init__(self, open_context: OpenContext, provider: str, kind: Kind) -> None:
        options = Options(providers=(provider,), sim_devices=1)
        self.owner, self.peer = open_context(options), open_context(options)
        self.owned = Buffer(self.owner, kind, PAGES * PAGE)
        # With p2p, host memory is reached by a device of the peer.
        self.mine = Buffer(self.peer, "sim" if provider == "p2p" else kind, PAGE)
        self.early = self.share(PAGES - 1)
        self.mine.fill(0, PAGE, 1)
        self.write(self.share(0))
        self.settle()

    def settle(self) -> None:
        """Let the owner grant what there was before its table."""
        for _ in range(3):
            done = threading.Event()
            self.owner._core.control.call(done.set)
            assert done.wait(PATIENCE_S)

    def share(self, page: int, rights: Rights = "rw") -> zh.RemoteBuffer:
        return self.owned.memory[page * PAGE : (page + 1) * PAGE].share(rights)

    def write(self, handle: zh.RemoteBuffer) -> None:
        assert self.peer.write(self.mine.memory, handle).result(PATIENCE_S) == PAGE

    @contextlib.contextmanager
    def owner_stands_still(self) -> Iterator[None]:
        going_on = threading.Event()
        self.owner._core.control.call(going_on.wait)
        try:
            yield
        finally:
            going_on.set()

    def close(self) -> None:
        self.owned.close()
        self.mine.close()


@pytest.fixture(params=WAYS, ids=["shm", "p2p", "p2p-host"])
def both(request: pytest.FixtureRequest, open_context: OpenContext) -> Iterator[Both]:
    made = Both(open_context, *request.param)
    yield made
    made.close()


def test_the_owner_is_not_needed(both: Both) -> None:
    """Neither for a share that is new, nor for one that there was before the peer had the memory."""
    new = both.share(3)
    both.owned.poison(0, PAGES * PAGE)
    with both.owner_stands_still():
        for seed, handle in ((5, new), (6, both.early)):
            both.mine.fill(0, PAGE, seed)
            both.write(handle)
    both.owned.expect(3 * PAGE, PAGE, 5)
    both.owned.expect((PAGES - 1) * PAGE, PAGE, 6)
    both.owned.expect_poison(0, 3 * PAGE)
    both.owned.expect_poison(4 * PAGE, (PAGES - 1) * PAGE)


def test_nothing_is_said(both: Both, heard: Heard) -> None:
    both.write(both.share(2))
    assert not of(wire.ImportRequest, heard.sent)
    assert both.peer.statistics().mapped == 2


def test_a_handle_that_was_revoked_before(both: Both) -> None:
    doomed = both.share(1)
    both.owned.memory.revoke(doomed, timeout=PATIENCE_S)
    with pytest.raises(zh.AccessDenied, match="revoked"):
        both.write(doomed)
    # The next share has the same place in the table, and another key.
    both.write(both.share(2))
    with pytest.raises(zh.AccessDenied, match="revoked"):
        both.write(doomed)


def test_a_handle_with_a_wrong_capability(both: Both) -> None:
    handle = both.share(1)
    capability = handle._share.capability
    raw = bytes(handle)
    assert raw.count(capability) == 1
    forged = zh.RemoteBuffer.from_bytes(raw.replace(capability, bytes(16)))
    with pytest.raises(zh.AccessDenied, match="capability"):
        both.write(forged)
    both.write(handle)


def test_rights_are_those_of_the_handle(both: Both) -> None:
    with pytest.raises(zh.AccessDenied, match="rights"):
        both.write(both.share(1, "r"))
    both.write(both.share(1))


def test_revoked_while_in_use(both: Both) -> None:
    """The owner is told that it is free once the peer has let go of it, and not before."""
    handle = both.share(1)
    both.write(handle)
    both.owned.memory.revoke(handle, timeout=PATIENCE_S)
    assert both.peer.statistics().mapped == 1
    with pytest.raises(zh.AccessDenied, match="revoked"):
        both.write(handle)


def test_a_peer_that_does_not_answer(both: Both) -> None:
    """It has taken the share, and its owner knows that although nobody has told it."""
    handle = both.share(1)
    both.write(handle)
    going_on = threading.Event()
    both.peer._core.control.call(going_on.wait)
    try:
        with pytest.raises(zh.RevocationIncomplete) as refused:
            both.owned.memory.revoke(handle, timeout=SOON_S)
        assert refused.value.peers == (both.peer.id,)
    finally:
        going_on.set()


def test_a_peer_that_leaves(both: Both) -> None:
    both.write(both.share(1))
    both.peer.close()
    both.owned.memory.revoke(timeout=PATIENCE_S)


def test_an_owner_that_leaves(both: Both) -> None:
    handle = both.share(1)
    both.write(handle)
    both.owner.connections[0].close()
    assert both.peer.statistics().mapped == 0
    both.write(handle)  # over a new connection
    both.write(both.share(2))


def test_one_more_import_while_an_earlier_one_ends(open_context: OpenContext) -> None:
    """A share that is given back is asked for while the copy into it is under way, and taken again after that."""
    both = Both(open_context, "p2p", "sim")
    handle = both.share(1)
    both.write(handle)
    link = both.peer._core.connected[both.owner.id]
    key = "p2p", handle._share.share_id
    stream = Stream(both.peer)
    try:
        stream.stand_still()
        copy = both.peer.write(both.mine.memory, handle, stream=stream)
        session: Any = link.session
        releases = session._imports.releases
        done = threading.Event()

        def give_back() -> None:
            releases.release(key, link.imports.pop(key))
            done.set()

        both.peer._core.control.call(give_back)
        assert done.wait(PATIENCE_S)
        again = both.peer.write(both.mine.memory, handle)
        assert not again.done()
    finally:
        stream.release()
    assert copy.result(PATIENCE_S) == again.result(PATIENCE_S) == PAGE
    both.owned.memory.revoke(handle, timeout=PATIENCE_S)
    assert both.peer.statistics().mapped == 1
    both.close()


@pytest.mark.parametrize("revoked", ["one", "all"])
def test_taken_while_it_is_asked_for(both: Both, revoked: str) -> None:
    """The import that was taken stays; the answer changes nothing, and the owner waits for one end."""
    handle = both.share(1)
    link = both.peer._core.connected[both.owner.id]
    provider = "shm" if "shm" in both.peer._core.providers else "p2p"
    session: Any = link.session
    imports = session._imports
    asked = threading.Event()

    def ask() -> None:
        imports.begin(handle._share, provider, ())
        asked.set()

    with both.owner_stands_still():
        both.peer._core.control.call(ask)
        assert asked.wait(PATIENCE_S)
        both.write(handle)
        taken = link.imports[provider, handle._share.share_id]
    eventually(lambda: not imports._importing, "the owner does not answer")
    assert link.imports[provider, handle._share.share_id] is taken
    both.write(handle)
    both.owned.memory.revoke(handle if revoked == "one" else None, timeout=PATIENCE_S)
    assert bool(link.allocations) == (revoked == "one")
    both.write(both.share(2))
    with pytest.raises(zh.AccessDenied, match="revoked"):
        both.write(handle)


@pytest.mark.parametrize("then", ["revoked", "closed by the peer", "closed by the owner"])
def test_uses_that_a_signal_cuts_short(both: Both, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """Nothing of them stays: no mapping here, and nobody that the owner waits for."""
    handle = both.share(1)

    def interrupted(*arguments: Any, **named: Any) -> None:
        Import(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(peer_grants, "Import", interrupted)
    with pytest.raises(KeyboardInterrupt):
        both.write(handle)
    monkeypatch.undo()
    link = both.peer._core.connected[both.owner.id]
    if then == "closed by the peer":
        both.peer.connections[0].close()
    elif then == "closed by the owner":
        both.owner.connections[0].close()
    both.owned.memory.revoke(timeout=PATIENCE_S)
    assert not link.allocations
    both.write(both.share(2))


def test_taken_just_before_it_is_asked_for(both: Both, heard: Heard) -> None:
    """A use that saw no import does not replace the one that another thread has made since."""
    handle = both.share(1)
    both.write(handle)
    link = both.peer._core.connected[both.owner.id]
    imports = dict(link.imports)
    session = link.session
    assert session is not None
    done = asyncio.run_coroutine_threadsafe(
        session.prepare(both.mine.memory._registration, handle._share), both.peer._core.control.loop
    )
    done.result(PATIENCE_S)
    assert dict(link.imports) == imports
    assert not of(wire.ImportRequest, heard.sent)


def test_without_a_table(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer for which the system gives no memory for a table asks for each share."""

    def refused(*_: object) -> None:
        raise NativeError(Status.NO_MEMORY.value, Reason.OUT_OF_SHARED_MEMORY.value, "")

    monkeypatch.setattr(granted, "Grants", refused)
    both = Both(open_context, "shm", "alloc")
    both.write(both.share(1))
    assert both.peer._core.connected[both.owner.id].grants is None
    both.close()


def test_after_very_many(open_context: OpenContext) -> None:
    """Shares are granted after there were more at once than a table has places for."""
    both = Both(open_context, "shm", "alloc")
    with both.owner.alloc(PAGE) as other:
        for _ in range(1 << 16):
            other[:8].share("r")
    with both.owner_stands_still():
        both.write(both.share(1))
    both.close()
