"""An owner of memory that says what a test wants to an importer, and of whose descriptors none may stay open."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from zerohop._native import Status
from zerohop.config.providers import P2P
from zerohop.core.base.backoff import Backoff
from zerohop.core.control import wire
from zerohop.core.peers.import_client import Imports

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

SHARE = SimpleNamespace(share_id=7, capability=b"c" * 16)
OTHER = SimpleNamespace(share_id=8, capability=b"d" * 16)
NBYTES = 4096


def open_parts() -> int:
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
        # Errors that would have lost a real link.
        self.steps_failed: list[BaseException] = []
        link: Any = SimpleNamespace(
            peer="owner",
            imports=OrderedDict(),
            imports_lock=threading.RLock(),
            grants=None,
            allocations={},
            unreachable=Backoff(),
            lost=None,
            closing=None,
            start=start,
            step_failed=self.steps_failed.append,
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
        await settle()
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
        await settle()

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


async def settle() -> None:
    """Let all that is ready run, and what becomes ready by it."""
    for _ in range(20):
        await asyncio.sleep(0)


def run(test: Callable[[Owner], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        await test(Owner())

    asyncio.run(body())
    assert open_parts() == 0


async def expect_lost(owner: Owner, asking: list[asyncio.Task[None]]) -> None:
    """Lose the owner; expect that everything that waits for it ends, and that nothing stays."""
    owner.link.lost = zh.PeerLost("the peer is gone")
    owner.imports.end()
    for task in asking:
        with pytest.raises(zh.PeerLost):
            await task
    await settle()
    assert not owner.link.imports
    assert not owner.imports._replies
    assert not owner.imports._importing
    assert open_parts() == 0
