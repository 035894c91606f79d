"""Allocations in parts: memory of more pieces than one message has descriptors, and peers that send what they must not.

Whatever a peer sends, no descriptor of it stays open here, and what no peer of ours sends ends its Connection.
"""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.owner import NBYTES, OTHER, SHARE, Owner, expect_lost, open_parts, run, settle
from zerohop._native import Status
from zerohop.config.providers import P2P, SHM
from zerohop.core.control import wire
from zerohop.core.peers import allocations as module

if TYPE_CHECKING:
    from collections.abc import Callable


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

    run(test)


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
        await settle()
        assert owner.given_back() == [SHARE.share_id]
        assert owner.open() == 1
        owner.imports.releases.on_release(wire.Release(provider=P2P, shares=[OTHER.share_id]))
        await settle()
        assert owner.given_back() == [SHARE.share_id, OTHER.share_id]
        assert owner.open() == 0
        assert owner.dropped() == [1]
        assert not owner.link.allocations

    run(test)


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

    run(test)


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
        await settle()
        assert list(owner.imports._importing.values()) == [new]
        asked.close()
        owner.link.lost = zh.PeerLost("the peer is gone")
        owner.imports.end()
        await settle()

    run(test)


def test_memory_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerohop.core.peers.import_client._MAX_ASKED", 2)

    async def test(owner: Owner) -> None:
        (asking,) = await owner.asked()
        for _ in range(3):
            await owner.answer(5)
        with pytest.raises(zh.ProtocolError, match="never came"):
            await asking
        assert owner.given_back() == [SHARE.share_id]

    run(test)


def test_memory_that_no_answer_refers_to() -> None:
    """The owner has withdrawn the share in between: what it has sent is dropped, and it is told."""

    async def test(owner: Owner) -> None:
        (asking,) = await owner.asked()
        owner.begin(1, more=False)
        refusal = wire.Imported(status=Status.ACCESS_DENIED.value)
        owner.imports.on_import_reply(wire.ImportReply(request=1, answers=[refusal]))
        with pytest.raises(zh.AccessDenied):
            await asking
        await settle()
        assert owner.open() == 0
        assert owner.dropped() == [1]
        assert not owner.link.allocations

    run(test)


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

    run(test)


@pytest.mark.parametrize("more", [False, True])
def test_an_allocation_begun_twice(more: bool) -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked(SHARE, OTHER)
        owner.begin(2, more=more)
        with pytest.raises(zh.ProtocolError, match="begun twice"):
            owner.begin(2, more=True)
        await expect_lost(owner, asking)

    run(test)


def test_an_allocation_that_begins_without_pieces() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        with pytest.raises(zh.ProtocolError, match="without pieces"):
            owner.begin(0, more=True, exported=False)
        await expect_lost(owner, asking)

    run(test)


def test_a_part_without_a_beginning() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        with pytest.raises(zh.ProtocolError, match="not begun"):
            owner.part(3, more=False)
        await expect_lost(owner, asking)

    run(test)


def test_more_allocations_than_shares_were_asked_for() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked(SHARE, OTHER)
        owner.begin(1, more=False, number=1)
        owner.begin(1, more=True, number=2)
        with pytest.raises(zh.ProtocolError, match="nobody has asked"):
            owner.begin(1, more=False, number=3)
        await expect_lost(owner, asking)

    run(test)


@pytest.mark.parametrize("provider", ["shm", "verbs", "none of them"])
def test_memory_for_a_provider_over_which_nobody_has_asked(provider: str) -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        with pytest.raises(zh.ProtocolError, match="nobody has asked"):
            owner.begin(1, more=False, provider=provider)
        await expect_lost(owner, asking)

    run(test)


def test_more_pieces_than_any_memory_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PIECES", 2 * wire.MAX_FDS)

    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        owner.begin(1, more=True)
        owner.part(wire.MAX_FDS, more=True)
        with pytest.raises(zh.ProtocolError, match="more pieces"):
            owner.part(wire.MAX_FDS, more=True)
        await expect_lost(owner, asking)

    run(test)


def test_the_connection_ends_in_between() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        owner.begin(wire.MAX_FDS, more=True)
        owner.part(2, more=True)
        assert open_parts() == wire.MAX_FDS + 2
        await expect_lost(owner, asking)

    run(test)


@pytest.mark.parametrize("allocations", [(), (1, 1)])
def test_not_one_answer_for_each_share(allocations: tuple[int, ...]) -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        owner.begin(1, more=False)
        with pytest.raises(zh.ProtocolError, match="not one answer"):
            await owner.answer(*allocations)
        await expect_lost(owner, asking)

    run(test)


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

    run(test)


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
        await expect_lost(owner, asking)

    run(test)


@pytest.mark.parametrize(
    ("failure", "told"), [(MemoryError(), zh.RegistrationFailed), (RuntimeError("odd"), RuntimeError)]
)
def test_whatever_fails_here_reaches_the_operation(failure: Exception, told: type[Exception]) -> None:
    """Also what nobody has thought of: nobody waits for ever, and the next use asks anew."""

    async def test(owner: Owner) -> None:
        asking = await owner.asked(SHARE, OTHER)
        owner.engine.error = failure
        owner.begin(1, more=False)
        await owner.answer(1, 1)
        for each in asking:
            with pytest.raises(told):
                await each
        # Lack of memory leaves nothing half done. After a fault of this library's own the link is lost to be sure.
        assert bool(owner.steps_failed) == (told is RuntimeError)
        owner.engine.error = None
        (again,) = await owner.asked()
        owner.begin(1, more=False, number=2)
        await owner.answer(2)
        await again

    run(test)


def test_an_allocation_within_another() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked(SHARE, OTHER)
        owner.begin(1, more=True)
        with pytest.raises(zh.ProtocolError, match="within another"):
            owner.begin(1, more=False, number=2)
        await expect_lost(owner, asking)

    run(test)


def test_parts_and_allocations_without_pieces() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked()
        with pytest.raises(zh.ProtocolError, match="without pieces"):
            owner.begin(0, more=True, number=2)
        owner.begin(1, more=True)
        with pytest.raises(zh.ProtocolError, match="without pieces"):
            owner.part(0, more=True)
        await expect_lost(owner, asking)

    run(test)


def test_pieces_for_shared_memory() -> None:
    async def test(owner: Owner) -> None:
        asking = await owner.asked(provider=SHM)
        with pytest.raises(zh.ProtocolError, match="of a kind that its provider has not"):
            owner.begin(0, more=False, provider=SHM)
        await expect_lost(owner, asking)

    run(test)


def test_parts_do_not_take_all_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of an allocation may never end: others need descriptors meanwhile."""
    monkeypatch.setattr(module, "_MOST_OF_LIMIT", 0.0)

    async def test(owner: Owner) -> None:
        (asking,) = await owner.asked()
        owner.begin(2, more=True)
        assert open_parts() == 0
        owner.part(2, more=False)
        await owner.answer(1)
        with pytest.raises(zh.LimitReached):
            await asking

    run(test)


def test_parts_from_many_peers_do_not_take_all_descriptors() -> None:
    """The limit is that of the process, whatever number of peers leaves allocations unfinished."""

    async def test(owner: Owner) -> None:
        owners = [owner, Owner(), Owner()]
        asking = [task for each in owners for task in await each.asked()]
        for each in owners:
            each.begin(8, more=True)
        # Together they want all descriptors but 30, and each of them less than its own three quarters.
        for _ in range((limit - used - 30) // 24):
            for each in owners:
                each.part(8, more=True)
        spare = [os.memfd_create("zh-spare") for _ in range(60)]
        for fd in spare:
            os.close(fd)
        assert open_parts() >= 200
        for each in owners:
            each.link.lost = zh.PeerLost("the peer is gone")
            each.imports.end()
        await asyncio.gather(*asking, return_exceptions=True)
        await settle()
        assert open_parts() == 0

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    limit = (used + 300) * 4 // 3
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        run(test)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
