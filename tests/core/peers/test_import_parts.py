"""An answer in parts: memory of more pieces than one message has descriptors, and peers that send what they should not.

Whatever a peer sends, no descriptor of it stays open here, and what no peer of ours sends ends its Connection.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from zerohop._native import Status
from zerohop.config.providers import P2P
from zerohop.core.base.backoff import Backoff
from zerohop.core.control import wire
from zerohop.core.peers import import_client as module
from zerohop.core.peers.import_client import Imports

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

REQUEST = 1
SHARE = SimpleNamespace(share_id=7, capability=b"c" * 16)


def _open() -> int:
    """How many descriptors of the peer's are open here."""
    return sum("memfd:zh-part" in str(link.resolve()) for link in Path("/proc/self/fd").iterdir())


class _Engine:
    """What it was asked to import, and of which files."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.files: list[int] = []

    def import_memory(self, *arguments: Any) -> object:
        *_, self.pieces, fds, _ = arguments
        self.files = [os.fstat(fd).st_ino for fd in fds]
        return object()


class Owner:
    """Sends an importer what a test wants it to; `imports` has the part of the conversation that is about memory."""

    def __init__(self) -> None:
        self.engine = _Engine()
        self.posted = asyncio.Event()

        async def run_in_thread(function: Callable[..., object], *arguments: object) -> object:
            return function(*arguments)

        core: Any = SimpleNamespace(engine=self.engine, control=SimpleNamespace(run_in_thread=run_in_thread))
        link: Any = SimpleNamespace(peer="owner", imports={}, unreachable=Backoff())
        self.link = link
        channel: Any = SimpleNamespace(post=lambda message: self.posted.set())
        self.imports = Imports(core, link, channel)
        self.files: list[int] = []

    async def asked(self) -> asyncio.Task[None]:
        share: Any = SHARE
        task = asyncio.get_running_loop().create_task(self.imports._import(share, P2P, ()))
        self.imports._importing[P2P, SHARE.share_id, ()] = task
        await self.posted.wait()
        return task

    def reply(self, count: int, *, more: bool, exported: bool = True, request: int = REQUEST) -> None:
        pieces = [(4096, b"")] * count
        what = wire.Exported("cuda-fd", "GPU", 1, 0, 0, pieces) if exported else None
        self._send(
            self.imports.on_import_reply,
            count,
            wire.ImportReply(
                request=request,
                status=Status.OK.value,
                reason=0,
                nbytes=4096,
                rights=3,
                exported=what,
                more=more,
                nfds=count,
            ),
        )

    def part(self, count: int, *, more: bool, request: int = REQUEST, pieces: int | None = None) -> None:
        described = [(4096, b"")] * (count if pieces is None else pieces)
        self._send(
            self.imports.on_import_part,
            count,
            wire.ImportPart(request=request, pieces=described, more=more, nfds=count),
        )

    def _send(self, handle: Callable[[Any, list[int]], None], count: int, message: wire.Message) -> None:
        """As a session has it: encoded, and with descriptors that are closed once it was handled."""
        fds = [os.memfd_create("zh-part") for _ in range(count)]
        self.files += [os.fstat(fd).st_ino for fd in fds]
        try:
            handle(wire.decode(wire.encode(message)[wire.HEADER.size :]), fds)
        finally:
            for fd in fds:
                os.close(fd)


def _run(test: Callable[[Owner], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        await test(Owner())

    asyncio.run(body())
    assert _open() == 0


async def _lost(owner: Owner, task: asyncio.Task[None]) -> None:
    """As the session ends it after an error."""
    owner.imports.end(zh.PeerLost("the peer is gone"))
    with pytest.raises((zh.PeerLost, asyncio.CancelledError)):
        await task
    assert not owner.link.imports
    assert not owner.imports._unfinished
    assert not owner.imports._replies


def test_all_parts_make_one_memory_in_their_order() -> None:
    async def test(owner: Owner) -> None:
        task = await owner.asked()
        owner.reply(wire.MAX_FDS, more=True)
        owner.part(wire.MAX_FDS, more=True)
        assert not task.done()
        owner.part(3, more=False)
        await task
        assert owner.engine.files == owner.files
        assert owner.engine.pieces == [(4096, b"")] * (2 * wire.MAX_FDS + 3)
        assert (P2P, SHARE.share_id) in owner.link.imports

    _run(test)


def test_descriptors_that_did_not_arrive() -> None:
    """The kernel drops what this process has no numbers for: it is noted, and may be tried again."""

    async def test(owner: Owner) -> None:
        task = await owner.asked()
        owner.reply(2, more=True)
        owner.part(0, pieces=2, more=False)
        with pytest.raises(zh.RegistrationFailed, match="descriptors"):
            await task
        assert not owner.engine.files

    _run(test)


def test_an_answer_begun_twice() -> None:
    async def test(owner: Owner) -> None:
        task = await owner.asked()
        owner.reply(2, more=True)
        with pytest.raises(zh.ProtocolError, match="begun twice"):
            owner.reply(2, more=True)
        assert _open() == 2
        await _lost(owner, task)

    _run(test)


def test_an_answer_that_begins_without_pieces() -> None:
    async def test(owner: Owner) -> None:
        task = await owner.asked()
        with pytest.raises(zh.ProtocolError, match="without pieces"):
            owner.reply(0, more=True, exported=False)
        await _lost(owner, task)

    _run(test)


@pytest.mark.parametrize("request_", [REQUEST, 99])
def test_a_part_without_a_beginning(request_: int) -> None:
    """As of an answer that nobody waits for any more: it is dropped."""

    async def test(owner: Owner) -> None:
        task = await owner.asked()
        owner.part(3, more=False, request=request_)
        owner.reply(3, more=True, request=99)
        assert _open() == 0
        assert not task.done()
        owner.reply(1, more=False)
        await task
        assert len(owner.engine.files) == 1

    _run(test)


def test_more_pieces_than_any_memory_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PIECES", 2 * wire.MAX_FDS)

    async def test(owner: Owner) -> None:
        task = await owner.asked()
        owner.reply(1, more=True)
        owner.part(wire.MAX_FDS, more=True)
        with pytest.raises(zh.ProtocolError, match="more pieces"):
            owner.part(wire.MAX_FDS, more=True)
        await _lost(owner, task)

    _run(test)


def test_the_connection_ends_in_between() -> None:
    async def test(owner: Owner) -> None:
        task = await owner.asked()
        owner.reply(wire.MAX_FDS, more=True)
        owner.part(2, more=True)
        assert _open() == wire.MAX_FDS + 2
        await _lost(owner, task)

    _run(test)


def test_more_after_the_last_part() -> None:
    """Before whoever waits for the answer has run: it is of nothing that has begun."""

    async def test(owner: Owner) -> None:
        task = await owner.asked()
        owner.reply(2, more=True)
        owner.part(1, more=False)
        owner.part(1, more=False)
        await task
        assert len(owner.engine.files) == 3

    _run(test)


def test_a_part_after_a_whole_answer_in_its_place() -> None:
    async def test(owner: Owner) -> None:
        task = await owner.asked()
        owner.reply(2, more=True)
        with pytest.raises(zh.ProtocolError, match="malformed"):
            owner.reply(1, more=False)
        await _lost(owner, task)

    _run(test)
