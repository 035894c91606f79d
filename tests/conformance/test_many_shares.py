"""Very many handles of one allocation: one mapping of it, few messages; each handle has rights and an end of its own.

What a clock would show is counted here: mappings, descriptors and messages. Both ends are in this process.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.buffers import Buffer, Kind
from support.fake_nics import of
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from zerohop._native import NativeError, Reason, Status
from zerohop.core.control import wire
from zerohop.core.memory import granted
from zerohop.core.peers import import_client
from zerohop.core.peers.session import Session
from zerohop.core.runtime import gate
from zerohop.core.transfers import posting

if TYPE_CHECKING:
    import asyncio

    from support.fake_nics import Heard
    from support.fixtures import OpenContext
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.remote_buffer import Share
    from zerohop.core.memory.rights import Rights

PAGE = 4096
MANY = 1500
# A provider by which a peer maps memory, and the memory.
WAYS: list[tuple[str, Kind]] = [("shm", "alloc"), ("p2p", "sim")]


def _mappings(permissions: str = "") -> int:
    """Return how many mappings of shared memory of Contexts this process has."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum("memfd:zerohop" in line and permissions in line for line in lines)


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class _Both:
    """One that shares an allocation, and one that reaches it, with memory of its own of the same length."""

    def __init__(self, open_context: OpenContext, provider: str, kind: Kind, npages: int) -> None:
        options = Options(providers=(provider,), sim_devices=1)
        self.here, self.there = open_context(options), open_context(options)
        self.owned, self.mine = Buffer(self.there, kind, npages * PAGE), Buffer(self.here, kind, npages * PAGE)
        self.here.connect(self.there.url).result(PATIENCE_S)

    def share(self, page: int, rights: Rights = "rw") -> zh.RemoteBuffer:
        return self.owned.memory[page * PAGE : (page + 1) * PAGE].share(rights)

    def read_at_once(self, handles: list[zh.RemoteBuffer]) -> None:
        """Post all reads before the control thread of this side sees one."""
        held = threading.Event()
        self.here._core.control.call(held.wait)
        try:
            memory = self.mine.memory
            reads = [
                self.here.read(handle, memory[page * PAGE : (page + 1) * PAGE]) for page, handle in enumerate(handles)
            ]
        finally:
            held.set()
        for read in reads:
            assert read.result(PATIENCE_S) == PAGE

    def close(self) -> None:
        self.owned.close()
        self.mine.close()


@pytest.fixture
def all_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every share asked for, as where the system gives no memory for tables of grants."""

    def refused(*_: object) -> None:
        raise NativeError(Status.NO_MEMORY.value, Reason.OUT_OF_SHARED_MEMORY.value, "")

    monkeypatch.setattr(granted, "Grants", refused)


@pytest.mark.parametrize(("provider", "kind"), WAYS)
class TestCounts:
    def test_one_mapping_and_few_messages(
        self, open_context: OpenContext, heard: Heard, provider: str, kind: Kind
    ) -> None:
        both = _Both(open_context, provider, kind, MANY)
        both.owned.fill(0, MANY * PAGE, 5)
        handles = [both.share(page) for page in range(MANY)]
        maps, fds, said = _mappings(), _descriptors(), len(heard.sent)
        both.read_at_once(handles)
        both.mine.expect(0, MANY * PAGE, 5)
        assert both.here.statistics().mapped == MANY
        # One mapping, which devices may know by a second one; a lane's own descriptors, and none for the shares.
        assert _mappings() - maps <= 2 + 2
        assert _descriptors() - fds <= 6
        messages = heard.sent[said:]
        assert len(of(wire.Allocation, messages)) == 1
        most = 4 + 2 * MANY // wire.MAX_SHARES
        assert len(of(wire.ImportRequest, messages)) <= most
        assert len(of(wire.ImportReply, messages)) <= most
        before = len(heard.sent)
        both.owned.memory.close(timeout=PATIENCE_S)
        assert both.here.statistics().mapped == 0
        assert not both.here._core.connected[both.there.id].allocations
        messages = heard.sent[before:]
        assert len(of(wire.Release, messages)) <= most
        assert len(of(wire.Released, messages)) <= most
        both.close()

    @pytest.mark.usefixtures("all_asked_for")
    def test_few_are_prepared_at_a_time(self, open_context: OpenContext, provider: str, kind: Kind) -> None:
        """However many reads are posted, no more than a few hundred wait for the memory, and none has a task."""
        both = _Both(open_context, provider, kind, MANY)
        both.here.read(both.share(0), both.mine.memory[:PAGE]).result(PATIENCE_S)  # connects, and opens the lane
        handles = [both.share(page) for page in range(MANY)]
        inside, most, begin, tasks = 0, 0, Session.begin_import, 0
        find_route = posting.find_route

        def ended(_: object) -> None:
            nonlocal inside
            inside -= 1

        def counting(session: Session, share: Share, registration: Registration) -> asyncio.Future[None] | None:
            nonlocal inside, most
            future = begin(session, share, registration)
            assert future is not None
            inside += 1
            most = max(most, inside)
            future.add_done_callback(ended)
            return future

        async def counting_tasks(*arguments: Any) -> object:
            nonlocal tasks
            tasks += 1
            return await find_route(*arguments)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Session, "begin_import", counting)
            patched.setattr(posting, "find_route", counting_tasks)
            both.read_at_once(handles)
        assert wire.MAX_SHARES < most <= gate._MOST
        assert not tasks
        both.close()

    def test_with_the_connection(self, open_context: OpenContext, provider: str, kind: Kind) -> None:
        """Reads that wait for the connection, too, and many more than Python lets calls lie within each other."""
        both = _Both(open_context, provider, kind, MANY)
        both.owned.fill(0, MANY * PAGE, 5)
        handles = [both.share(page) for page in range(MANY)]
        both.here.connections[0].close()
        both.read_at_once(handles)
        both.mine.expect(0, MANY * PAGE, 5)
        both.close()

    @pytest.mark.usefixtures("all_asked_for")
    @pytest.mark.parametrize("way", ["cancelled", "too late"])
    def test_one_that_gives_up_lets_the_next_in(
        self, open_context: OpenContext, provider: str, kind: Kind, way: str
    ) -> None:
        """Operations that wait for a peer that does not answer end in time, and hold up none that come later."""
        both = _Both(open_context, provider, kind, MANY)
        both.owned.fill(0, MANY * PAGE, 5)
        both.here.read(both.share(0), both.mine.memory[:PAGE]).result(PATIENCE_S)
        handles = [both.share(page) for page in range(MANY)]
        memory, answering = both.mine.memory, threading.Event()
        both.there._core.control.call(answering.wait)
        try:
            timeout = 0.2 if way == "too late" else None
            reads = [
                both.here.read(handle, memory[page * PAGE : (page + 1) * PAGE], timeout=timeout)
                for page, handle in enumerate(handles)
            ]
            if way == "cancelled":
                assert all(read.cancel() for read in reads)
            for read in reads:
                with pytest.raises(zh.DeadlineExceeded if timeout else CancelledError):
                    read.result(PATIENCE_S)
        finally:
            answering.set()
        both.read_at_once(handles)
        both.mine.expect(0, MANY * PAGE, 5)
        assert not any(each._inside for each in both.here._core.gates.values())
        both.close()


@pytest.mark.parametrize("first", ["r", "rw"])
@pytest.mark.parametrize(("provider", "kind"), WAYS)
def test_a_reader_cannot_write_through_the_mapping_of_a_writer(
    open_context: OpenContext, provider: str, kind: Kind, first: str
) -> None:
    both = _Both(open_context, provider, kind, 2)
    both.owned.fill(0, 2 * PAGE, 1)
    both.mine.fill(0, 2 * PAGE, 2)
    reader, writer = both.share(0, "r"), both.owned.memory.share("rw")
    readable = _mappings("r--s")
    source, into = both.mine.memory[:PAGE], both.mine.memory[PAGE:]
    for handle in (reader, writer) if first == "r" else (writer, reader):
        assert both.here.read(handle[:PAGE], into).result(PATIENCE_S) == PAGE
    if provider == "shm":
        assert _mappings("r--s") == readable + 1
    assert both.here.write(source, writer[PAGE:]).result(PATIENCE_S) == PAGE
    with pytest.raises(zh.AccessDenied, match="rights"):
        both.here.write(source, reader).result(PATIENCE_S)
    both.owned.expect(0, PAGE, 1)
    both.owned.expect(PAGE, PAGE, 2)
    both.close()


@pytest.mark.parametrize(("provider", "kind"), WAYS)
class TestTakenBack:
    def test_one_of_several(self, open_context: OpenContext, heard: Heard, provider: str, kind: Kind) -> None:
        """The others go on over the mapping that they had in common; the last one takes it along."""
        both = _Both(open_context, provider, kind, 3)
        doomed, kept = both.share(0), both.share(1)
        both.mine.fill(0, PAGE, 6)
        source = both.mine.memory[:PAGE]
        for handle in (doomed, kept):
            both.here.write(source, handle).result(PATIENCE_S)
        link = both.here._core.connected[both.there.id]
        assert [allocation.users for allocation in link.allocations.values()] == [2]
        both.owned.memory.revoke(doomed, timeout=PATIENCE_S)
        with pytest.raises(zh.AccessDenied, match="revoked"):
            both.here.write(source, doomed).result(PATIENCE_S)
        assert [allocation.users for allocation in link.allocations.values()] == [1]
        both.owned.poison(0, 3 * PAGE)
        both.here.write(source, kept).result(PATIENCE_S)
        both.owned.expect(PAGE, PAGE, 6)
        both.owned.expect_poison(0, PAGE)
        both.owned.memory.revoke(kept, timeout=PATIENCE_S)
        assert not link.allocations
        # A new handle brings the allocation anew.
        both.here.write(source, both.share(2)).result(PATIENCE_S)
        both.owned.expect(2 * PAGE, PAGE, 6)
        assert len(of(wire.Allocation, heard.sent)) == 2
        both.close()

    def test_all_of_very_many_one_by_one(self, open_context: OpenContext, provider: str, kind: Kind) -> None:
        npages = 100
        both = _Both(open_context, provider, kind, npages)
        handles = [both.share(page) for page in range(npages)]
        both.read_at_once(handles)
        link = both.here._core.connected[both.there.id]
        for left, handle in zip(range(npages - 1, -1, -1), handles, strict=True):
            both.owned.memory.revoke(handle, timeout=PATIENCE_S)
            assert both.here.statistics().mapped == left
            assert bool(link.allocations) == bool(left)
        both.close()

    def test_unused_ones_if_there_are_very_many(
        self, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, provider: str, kind: Kind
    ) -> None:
        """Only those go back that no route uses, and they come again when they are used."""
        monkeypatch.setattr(import_client, "_MAX_IMPORTS", 20)
        both = _Both(open_context, provider, kind, 60)
        handles = [both.share(page) for page in range(60)]
        both.read_at_once(handles)
        assert both.here.statistics().mapped == 60
        for route in list(both.here._core.connected[both.there.id].routes):
            route.drop()
        more = [both.share(page) for page in range(20)]
        both.read_at_once(more)
        assert both.here.statistics().mapped <= 40
        both.read_at_once(handles)
        both.close()


@pytest.mark.parametrize(("provider", "kind"), WAYS)
def test_the_newest_import_stays(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, provider: str, kind: Kind
) -> None:
    """Also where there are very many allocations, and hardly any imports that could be given back in its place."""
    monkeypatch.setattr(import_client, "_MAX_ALLOCATIONS", 0)
    both = _Both(open_context, provider, kind, 2)
    for page in range(2):
        both.here.write(both.mine.memory[:PAGE], both.share(page)).result(PATIENCE_S)
    both.close()


def test_memory_of_other_allocations_has_mappings_of_its_own(open_context: OpenContext, heard: Heard) -> None:
    options = Options(providers=("shm",), sim_devices=0)
    here, there = open_context(options), open_context(options)
    into = np.zeros(PAGE, np.uint8)
    for seed in range(5):
        with there.alloc(2 * PAGE) as memory:
            memory.write_bytes(PAGE, pattern(seed, PAGE).tobytes())
            for handle in (memory[PAGE:].share("r"), memory[PAGE:].share("r")):
                here.read(handle, into).result(PATIENCE_S)
                assert into.tobytes() == pattern(seed, PAGE).tobytes()
    assert len(of(wire.Allocation, heard.sent)) == 5
    assert not here._core.connected[there.id].allocations
