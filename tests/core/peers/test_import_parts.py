"""Allocations in parts: memory of more pieces than one message has descriptors, and peers that send what they must not.

Whatever a peer sends, no descriptor of it stays open here, and what no peer of ours sends ends its Connection.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from zerohop._native import Status
from zerohop.config.providers import P2P, SHM
from zerohop.core.base.backoff import Backoff
from zerohop.core.control import wire
from zerohop.core.peers import allocations as module
from zerohop.core.peers.import_client import Imports

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

SHARE = SimpleNamespace(share_id=7, capability=b"c" * 16)
OTHER = SimpleNamespace(share_id=8, capability=b"d" * 16)
NBYTES = 4096


def _open() -> int:
    """How many descriptors of the peer's are open here."""
    return sum("memfd:zh-part" in str(link.resolve()) for link in Path("/proc/self/fd").iterdir())


class _Memory:
    """Memory that devices reach, as far as imports ask: parts of it, and its end."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int, bool]] = []
        self.closed = False

    def part(self, *range_: Any) -> _Memory:
        self.parts.append(range_)
        return _Memory()

    def close(self) -> bool:
        self.closed = True
        return True


class _Engine:
    """What it was asked to import, and of which files."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.files: list[int] = []
        self.memories: list[_Memory] = []
        self.error: Exception | None = None

    def import_memory(self, *arguments: Any) -> _Memory:
        *_, self.pieces, fds, _ = arguments
        self.files = [os.fstat(fd).st_ino for fd in fds]
        if self.error is not None:
            raise self.error
        self.memories.append(_Memory())
        return self.memories[-1]


class Owner:
    """Sends an importer what a test wants it to; `imports` has the part of the conversation that is about memory."""

    def __init__(self) -> None:
        self.engine = _Engine()
        self.sent: list[wire.Message] = []
        loop = asyncio.get_running_loop()

        async def run_in_thread(function: Callable[..., object], *arguments: object, discard: object = None) -> object:
            return function(*arguments)

        def start(work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> asyncio.Task[None]:
            return loop.create_task(work(*arguments))

        control = SimpleNamespace(run_in_thread=run_in_thread, start=start, loop=loop)
        core: Any = SimpleNamespace(engine=self.engine, control=control)
        link: Any = SimpleNamespace(
            peer="owner", imports=OrderedDict(), allocations={}, unreachable=Backoff(), lost=None, closing=None
        )
        self.link = link
        channel: Any = SimpleNamespace(post=self.sent.append)
        self.imports = Imports(core, link, channel)
        self.files: list[int] = []

    async def asked(self, *shares: Any, provider: str = P2P) -> list[asyncio.Task[None]]:
        asking = [
            asyncio.get_running_loop().create_task(self.imports.ask(share, provider, ()))
            for share in shares or (SHARE,)
        ]
        await _settle()
        assert isinstance(self.sent[-1], wire.ImportRequest)
        return asking

    def begin(
        self,
        count: int,
        *,
        more: bool,
        exported: bool = True,
        number: int = 1,
        provider: str = P2P,
        pieces: int | None = None,
    ) -> None:
        described = [(NBYTES, b"")] * (count if pieces is None else pieces)
        what = wire.Exported("cuda-fd", "GPU", 1, 0, 0, described) if exported else None
        message = wire.Allocation(
            number=number, provider=provider, nbytes=NBYTES, writable=True, exported=what, more=more, nfds=count
        )
        self._send(self.imports.on_allocation, count, message)

    def part(self, count: int, *, more: bool, pieces: int | None = None, number: int = 1) -> None:
        described = [(NBYTES, b"")] * (count if pieces is None else pieces)
        message = wire.AllocationPart(number=number, pieces=described, more=more, nfds=count)
        self._send(self.imports.allocations.on_part, count, message)

    async def answer(self, *allocations: int, count: int | None = None, rights: int = 3) -> None:
        """Answer the last request with shares of these allocations, and let the importer take them."""
        number = max(message.request for message in self.sent if isinstance(message, wire.ImportRequest))
        answers = [
            wire.Imported(status=Status.OK.value, nbytes=64, rights=rights, allocation=each) for each in allocations
        ]
        self.imports.on_import_reply(wire.ImportReply(request=number, answers=answers))
        await _settle()

    def _send(self, handle: Callable[[Any, list[int]], None], count: int, message: wire.Message) -> None:
        """As a session has it: encoded, and with descriptors that are closed once it was handled."""
        fds = [os.memfd_create("zh-part") for _ in range(count)]
        self.files += [os.fstat(fd).st_ino for fd in fds]
        try:
            handle(wire.decode(wire.encode(message)[wire.HEADER.size :]), fds)
        finally:
            for fd in fds:
                os.close(fd)

    def open(self) -> int:
        """Return how many memories are imported and not closed."""
        return sum(not memory.closed for memory in self.engine.memories)

    def dropped(self) -> list[int]:
        """The allocations that the owner was told of as dropped."""
        return [number for each in self.sent if isinstance(each, wire.Released) for number in each.allocations]

    def given_back(self) -> list[int]:
        return [share for each in self.sent if isinstance(each, wire.Released) for share in each.shares]


async def _settle() -> None:
    """Let all that is ready run, and what becomes ready by it."""
    for _ in range(20):
        await asyncio.sleep(0)


def _run(test: Callable[[Owner], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        await test(Owner())

    asyncio.run(body())
    assert _open() == 0


async def _lost(owner: Owner, asking: list[asyncio.Task[None]]) -> None:
    """As the session ends it after an error."""
    owner.link.lost = zh.PeerLost("the peer is gone")
    owner.imports.end()
    for task in asking:
        with pytest.raises(zh.PeerLost):
            await task
    await _settle()
    assert not owner.link.imports
    assert not owner.imports._replies
    assert not owner.imports._importing
    assert _open() == 0


def test_all_parts_make_one_memory_in_their_order() -> None:
    async def test(owner: Owner) -> None:
        (asking,) = await owner.asked()
        owner.begin(wire.MAX_FDS, more=True)
        owner.part(wire.MAX_FDS, more=True)
        owner.part(3, more=False)
        assert not asking.done()
        await owner.answer(1)
        await asking
        assert owner.engine.files == owner.files
        assert owner.engine.pieces == [(NBYTES, b"")] * (2 * wire.MAX_FDS + 3)
        assert (P2P, SHARE.share_id) in owner.link.imports

    _run(test)


def test_one_memory_for_all_shares_of_an_allocation() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked(SHARE, OTHER)
        owner.begin(1, more=False)
        await owner.answer(1, 1)
        await asyncio.gather(*asking)
        assert len(owner.engine.memories) == 1
        assert owner.engine.memories[0].parts == [(0, 64, True)] * 2
        # The first share that is given back leaves the other one its memory.
        owner.imports.releases.on_release(wire.Release(provider=P2P, shares=[SHARE.share_id]))
        await _settle()
        assert owner.given_back() == [SHARE.share_id]
        assert owner.open() == 1
        owner.imports.releases.on_release(wire.Release(provider=P2P, shares=[OTHER.share_id]))
        await _settle()
        assert owner.given_back() == [SHARE.share_id, OTHER.share_id]
        assert owner.open() == 0
        assert owner.dropped() == [1]
        assert not owner.link.allocations

    _run(test)


def test_an_owner_that_did_not_know_yet_that_its_memory_was_dropped() -> None:
    """It answers without the memory: it is asked again, after the message that tells it."""

    async def test(owner: Owner) -> None:
        (first,) = await owner.asked(SHARE)
        owner.begin(1, more=False)
        await owner.answer(1)
        await first
        (second,) = await owner.asked(OTHER)
        owner.imports.releases.on_release(wire.Release(provider=P2P, shares=[SHARE.share_id]))
        await owner.answer(1)
        assert not second.done()
        assert owner.dropped() == [1]
        assert isinstance(owner.sent[-1], wire.ImportRequest)
        owner.begin(1, more=False, number=2)
        await owner.answer(2)
        await second
        assert len(owner.engine.memories) == 2

    _run(test)


def test_an_import_that_ended_and_is_gone_is_asked_for_anew() -> None:
    """Also in the very turn in which it ended, before its callbacks have run."""

    async def test(owner: Owner) -> None:
        (first,) = await owner.asked()
        (ended,) = owner.imports._importing.values()
        ended.set_result(None)
        share: Any = SHARE
        asked = owner.imports.ask(share, P2P, ())
        asked.send(None)  # as a task does it, before the callbacks of `ended` run
        (new,) = owner.imports._importing.values()
        assert new is not ended
        await first
        await _settle()
        assert owner.imports._importing == {(P2P, SHARE.share_id, ()): new}
        asked.close()
        owner.link.lost = zh.PeerLost("the peer is gone")
        owner.imports.end()
        await _settle()

    _run(test)


def test_memory_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerohop.core.peers.import_client._MAX_ASKED", 2)

    async def test(owner: Owner) -> None:
        (asking,) = await owner.asked()
        for _ in range(3):
            await owner.answer(5)
        with pytest.raises(zh.ProtocolError, match="never came"):
            await asking
        assert owner.given_back() == [SHARE.share_id]

    _run(test)


def test_memory_that_no_answer_refers_to() -> None:
    """The owner has withdrawn the share in between: what it has sent is dropped, and it is told."""

    async def test(owner: Owner) -> None:
        (asking,) = await owner.asked()
        owner.begin(1, more=False)
        refusal = wire.Imported(status=Status.ACCESS_DENIED.value)
        owner.imports.on_import_reply(wire.ImportReply(request=1, answers=[refusal]))
        with pytest.raises(zh.AccessDenied):
            await asking
        await _settle()
        assert owner.open() == 0
        assert owner.dropped() == [1]
        assert not owner.link.allocations

    _run(test)


def test_descriptors_that_did_not_arrive() -> None:
    """The kernel drops what this process has no numbers for: a limit is reached, and it may be tried again."""

    async def test(owner: Owner) -> None:
        (asking,) = await owner.asked()
        owner.begin(2, more=True)
        owner.part(0, pieces=2, more=False)
        await owner.answer(1)
        with pytest.raises(zh.LimitReached, match="descriptors") as caught:
            await asking
        assert caught.value.limit == "RLIMIT_NOFILE"
        assert not owner.engine.files
        assert owner.dropped() == [1]
        (again,) = await owner.asked()
        owner.begin(4, more=False, number=2)
        await owner.answer(2)
        await again

    _run(test)


@pytest.mark.parametrize("more", [False, True])
def test_an_allocation_begun_twice(more: bool) -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked(SHARE, OTHER)
        owner.begin(2, more=more)
        with pytest.raises(zh.ProtocolError, match="begun twice"):
            owner.begin(2, more=True)
        await _lost(owner, asking)

    _run(test)


def test_an_allocation_that_begins_without_pieces() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        with pytest.raises(zh.ProtocolError, match="without pieces"):
            owner.begin(0, more=True, exported=False)
        await _lost(owner, asking)

    _run(test)


def test_a_part_without_a_beginning() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        with pytest.raises(zh.ProtocolError, match="not begun"):
            owner.part(3, more=False)
        await _lost(owner, asking)

    _run(test)


def test_more_allocations_than_shares_were_asked_for() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked(SHARE, OTHER)
        owner.begin(1, more=False, number=1)
        owner.begin(1, more=True, number=2)
        with pytest.raises(zh.ProtocolError, match="nobody has asked"):
            owner.begin(1, more=False, number=3)
        await _lost(owner, asking)

    _run(test)


@pytest.mark.parametrize("provider", ["shm", "verbs", "none of them"])
def test_memory_for_a_provider_over_which_nobody_has_asked(provider: str) -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        with pytest.raises(zh.ProtocolError, match="nobody has asked"):
            owner.begin(1, more=False, provider=provider)
        await _lost(owner, asking)

    _run(test)


def test_more_pieces_than_any_memory_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PIECES", 2 * wire.MAX_FDS)

    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        owner.begin(1, more=True)
        owner.part(wire.MAX_FDS, more=True)
        with pytest.raises(zh.ProtocolError, match="more pieces"):
            owner.part(wire.MAX_FDS, more=True)
        await _lost(owner, asking)

    _run(test)


def test_the_connection_ends_in_between() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        owner.begin(wire.MAX_FDS, more=True)
        owner.part(2, more=True)
        assert _open() == wire.MAX_FDS + 2
        await _lost(owner, asking)

    _run(test)


@pytest.mark.parametrize("allocations", [(), (1, 1)])
def test_not_one_answer_for_each_share(allocations: tuple[int, ...]) -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        owner.begin(1, more=False)
        with pytest.raises(zh.ProtocolError, match="not one answer"):
            await owner.answer(*allocations)
        await _lost(owner, asking)

    _run(test)


@pytest.mark.parametrize("part", [0, 1])
def test_an_owner_without_descriptors(part: int) -> None:
    """It sends a message without them: the limit is that of its process, and not of this one."""

    async def test(owner: Owner) -> None:
        (asking,) = await owner.asked()
        owner.begin(0 if part == 0 else 2, pieces=2, more=True)
        owner.part(0 if part == 1 else 2, pieces=2, more=False)
        await owner.answer(1)
        with pytest.raises(zh.LimitReached, match="said by the peer") as caught:
            await asking
        assert "peer's process" in caught.value.fix
        assert not owner.engine.files

    _run(test)


@pytest.mark.parametrize("part", [0, 1])
def test_more_descriptors_than_pieces(part: int) -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        give: Callable[..., None] = owner.begin
        if part:
            owner.begin(1, more=True)
            give = owner.part
        with pytest.raises(zh.ProtocolError, match="more descriptors"):
            give(2, pieces=1, more=False)
        await _lost(owner, asking)

    _run(test)


def test_whatever_fails_here_reaches_the_operation() -> None:
    """Also what nobody has thought of: nobody waits for ever, and the next use asks anew."""

    async def test(owner: Owner) -> None:
        asking = await owner.asked(SHARE, OTHER)
        owner.engine.error = MemoryError()
        owner.begin(1, more=False)
        await owner.answer(1, 1)
        for each in asking:
            with pytest.raises(MemoryError):
                await each
        owner.engine.error = None
        (again,) = await owner.asked()
        owner.begin(1, more=False, number=2)
        await owner.answer(2)
        await again

    _run(test)


def test_an_allocation_within_another() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked(SHARE, OTHER)
        owner.begin(1, more=True)
        with pytest.raises(zh.ProtocolError, match="within another"):
            owner.begin(1, more=False, number=2)
        await _lost(owner, asking)

    _run(test)


def test_parts_and_allocations_without_pieces() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        with pytest.raises(zh.ProtocolError, match="without pieces"):
            owner.begin(0, more=True, number=2)
        owner.begin(1, more=True)
        with pytest.raises(zh.ProtocolError, match="without pieces"):
            owner.part(0, more=True)
        await _lost(owner, asking)

    _run(test)


def test_pieces_for_shared_memory() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked(provider=SHM)
        with pytest.raises(zh.ProtocolError, match="of a kind that its provider has not"):
            owner.begin(0, more=False, provider=SHM)
        await _lost(owner, asking)

    _run(test)


def test_parts_do_not_take_all_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an allocation that may never end."""
    monkeypatch.setattr(module, "_MOST_OF_LIMIT", 0.0)

    async def test(owner: Owner) -> None:
        (asking,) = await owner.asked()
        owner.begin(2, more=True)
        assert _open() == 0
        owner.part(2, more=False)
        await owner.answer(1)
        with pytest.raises(zh.LimitReached):
            await asking

    _run(test)
