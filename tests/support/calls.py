"""The public calls between two Contexts of a process, each of them made alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

import zerohop as zh
from support.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_NBYTES: Final = 1 << 22
# Nothing comes that is waited for so long.
_NEVER_S: Final = 0.01


class World(NamedTuple):
    """Two connected Contexts, memory at both, and an event loop that neither has met."""

    here: zh.Context
    there: zh.Context
    connection: zh.Connection
    source: np.ndarray[tuple[int], np.dtype[np.uint8]]
    owned: zh.Memory
    handle: zh.RemoteBuffer
    loop: asyncio.AbstractEventLoop

    def write(self) -> zh.Operation[int]:
        return self.here.write(self.source, self.handle)

    def run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self.loop.run_until_complete(asyncio.wait_for(work(), ANSWER_S))

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.here.close()
        self.there.close()


def open_world(here: zh.Context, there: zh.Context) -> World:
    connection = here.connect(there.url).result(ANSWER_S)
    source, owned = np.ones(_NBYTES, np.uint8), there.alloc(_NBYTES)
    handle = owned.share("rw")
    here.write(source, handle).result(ANSWER_S)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.sleep(0))
    return World(here, there, connection, source, owned, handle, loop)


async def _await_write(world: World) -> None:
    await world.write()


async def _await_notification(world: World) -> None:
    await world.here.notification(_NEVER_S)


async def _notifications(world: World) -> None:
    world.there.notify(world.there.connections[0], 1).result(ANSWER_S)
    async for _ in world.here.notifications():
        return


async def _gather(world: World) -> None:
    await zh.gather([world.write() for _ in range(4)])


async def _as_completed(world: World) -> None:
    async for operation in zh.as_completed([world.write() for _ in range(4)]):
        await operation


CALLS: Final[dict[str, Callable[[World], object]]] = {
    "register": lambda world: world.here.register(np.ones(_NBYTES, np.uint8)),
    "alloc": lambda world: world.here.alloc(_NBYTES),
    "alloc on a device": lambda world: world.here.alloc(_NBYTES, "sim:0"),
    "pool": lambda world: world.here.pool("sim:0", chunk_bytes=_NBYTES).alloc(64),
    "share": lambda world: world.owned.share("r"),
    "revoke": lambda world: world.owned.revoke(),
    "read_bytes": lambda world: world.owned.read_bytes(),
    "devices": lambda world: world.here.devices,
    "statistics": lambda world: world.here.statistics(),
    "explain": lambda world: world.here.explain(world.source, world.handle),
    "connect": lambda world: world.here.connect(world.there.url).result(ANSWER_S),
    "write": lambda world: world.write().result(ANSWER_S),
    "read": lambda world: world.here.read(world.handle, world.source).result(ANSWER_S),
    "fetch_add": lambda world: world.here.fetch_add(world.handle[:8], 1).result(ANSWER_S),
    "flush": lambda world: world.here.flush().result(ANSWER_S),
    "notify": lambda world: world.connection.notify(1).result(ANSWER_S),
    "send": lambda world: world.connection.send(world.source[:64]).cancel(),
    "recv": lambda world: world.connection.recv(world.source).cancel(),
    "notification": lambda world: world.here.notification(_NEVER_S).exception(),
    "wait_all": lambda world: zh.wait_all([world.write() for _ in range(4)], ANSWER_S),
    "as_completed": lambda world: list(zh.as_completed([world.here.notification(_NEVER_S)])),
    "await write": lambda world: world.run(lambda: _await_write(world)),
    "await notification": lambda world: world.run(lambda: _await_notification(world)),
    "async for notifications": lambda world: world.run(lambda: _notifications(world)),
    "await gather": lambda world: world.run(lambda: _gather(world)),
    "async for as_completed": lambda world: world.run(lambda: _as_completed(world)),
    "Transport": lambda world: zh.Transport(ctx=world.here).bind(),
    "Transport of its own": lambda _: zh.Transport().bind(),
    "Context": lambda _: zh.Context().close(),
    "Context with tcp": lambda _: zh.Context(providers=["tcp"]).close(),
    "Context with shm": lambda _: zh.Context(providers=["shm"]).close(),
}
