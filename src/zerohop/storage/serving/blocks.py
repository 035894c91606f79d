"""Lends blocks of a fixed piece of memory to the clients of a server, so that none takes all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from zerohop.core.face import Memory, View

# The larger they are, the less the calls for each of them cost; and there are enough that several clients have some.
_MOST_BYTES: Final = 4 << 20
_LEAST_BYTES: Final = 64 << 10
_LEAST_COUNT: Final = 8
# A client that has had a block in its hands for so long is given up if another client can get none.
_PATIENCE_S: Final = 10.0
_LOOK_AGAIN_S: Final = 1.0


class Borrower(Protocol):
    """Borrows blocks: a client."""

    def holds_up_others(self, nbytes: int, seconds: float) -> None:
        """Be lost, because so many bytes took it longer than that while another got no block."""


class Blocks:
    """Lends blocks. On the control thread.

    A client may hold as many as there would be for each if there were one client more. So a client that does not give
    its blocks back, because it has stopped, leaves some to the others and to one that comes. Several such clients may
    hold all of them: they are lost, one by one, when another gets none.

    Attributes:
        block_bytes: bytes of a block.
        clients: clients that may ask for blocks.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        wanted = memory.nbytes // _LEAST_COUNT // _LEAST_BYTES * _LEAST_BYTES
        size = self.block_bytes = min(_MOST_BYTES, max(_LEAST_BYTES, wanted))
        self._free = [memory[at : at + size] for at in range(0, memory.nbytes - size + 1, size)]
        self._count = len(self._free)
        self._held: Counter[Borrower] = Counter()
        self._waiting: deque[tuple[Borrower, asyncio.Future[View]]] = deque()
        self.clients = 0

    @property
    def in_use(self) -> int:
        """Return the bytes of blocks that are lent."""
        return (self._count - len(self._free)) * self.block_bytes

    @contextlib.asynccontextmanager
    async def lent(self, client: Borrower) -> AsyncIterator[Any]:
        """Lend a block; wait until there is one for this client."""
        if self._waiting or not self._may_have(client):
            future: asyncio.Future[View] = asyncio.get_running_loop().create_future()
            self._waiting.append((client, future))
            try:
                self._serve()
                block = await future
            except BaseException:
                if future.done() and not future.cancelled():
                    self._give_back(client, future.result())
                future.cancel()
                raise
        else:
            block = self._take(client)
        try:
            yield block
        finally:
            self._give_back(client, block)

    @contextlib.contextmanager
    def handed_to(self, client: Borrower) -> Iterator[None]:
        """Give up the client if its block is in its hands for too long, and another client can get none."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            if self._starves_some():
                client.holds_up_others(self.block_bytes, _PATIENCE_S)
            else:
                timer = loop.call_later(_LOOK_AGAIN_S, look)

        timer = loop.call_later(_PATIENCE_S, look)
        try:
            yield
        finally:
            timer.cancel()

    def _starves_some(self) -> bool:
        """Tell whether a client that has no block waits for one, and none is free."""
        return not self._free and any(not self._held[client] for client, future in self._waiting if not future.done())

    def _may_have(self, client: Borrower) -> bool:
        most = max(1, self._count // (self.clients + 1))
        return bool(self._free) and self._held[client] < most

    def _take(self, client: Borrower) -> View:
        self._held[client] += 1
        return self._free.pop()

    def _give_back(self, client: Borrower, block: View) -> None:
        self._free.append(block)
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]
        self._serve()

    def _serve(self) -> None:
        """Lend blocks to those that wait, in order; a client that has its share lets others pass."""
        for client, future in list(self._waiting):
            if not self._free:
                break
            if future.done():
                self._waiting.remove((client, future))
            elif self._may_have(client):
                self._waiting.remove((client, future))
                future.set_result(self._take(client))
