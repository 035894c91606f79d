"""Holds what a server keeps for one of its clients: open files, and the client's memory as far as it is known."""

from __future__ import annotations

import errno
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from zerohop.core.face import RemoteBuffer, give_up, keep_reached, start_of, until_messages
from zerohop.errors import AccessDenied, PeerLost
from zerohop.storage import wire
from zerohop.storage.failures import of_errno

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import TypeAlias

    from zerohop._native import FileServing, Reached, ServedBytes
    from zerohop.core.face import Link, Route
    from zerohop.storage.file import File
    from zerohop.storage.local_store import LocalStore
    from zerohop.storage.serving.delivery import Delivery

    Reach: TypeAlias = Callable[[RemoteBuffer], Awaitable[tuple[Route, Reached | None]]]
    InThread: TypeAlias = Callable[[Callable[[], object]], Awaitable[object]]

# Handles that are remembered; one more replaces the oldest.
_MOST_HANDLES: Final = 1024


class Known(NamedTuple):
    """Holds a client's memory.

    Attributes:
        memory: the handle.
        route: the route to it.
        reached: the memory itself, if files can be read into it without a lane; else None.
    """

    memory: RemoteBuffer
    route: Route
    reached: Reached | None


class Client:
    """Holds the state of one connection. On the control thread.

    Attributes:
        link: the connection.
        stores: Stores that use the connection.
        calls: calls that are under way.
        moves: the deliveries that are under way, by their number.
    """

    def __init__(self, link: Link, store: LocalStore, numbers: Iterator[int], count: ServedBytes) -> None:
        self.link = link
        self._store = store
        self._count = count
        self.stores = self.calls = 0
        self.moves: dict[int, Delivery] = {}
        self._files: dict[int, File] = {}
        self._ended = False
        # Carries out what the client asks for over its lane, and the client's queue of notifications for the answers.
        self._serving: FileServing | None = None
        self._answers = 0
        # Each keeps memory with a lane number, which would not be reached any more where very many are in use.
        self._numbered: dict[int, object] = {}
        self._numbers = numbers
        # How often each handle is to be kept. A Forget may come while a Keep is still being carried out.
        self._wanted: Counter[bytes] = Counter()
        self._kept: dict[bytes, Reached] = {}
        self._known: OrderedDict[bytes, Known] = OrderedDict()

    @property
    def files(self) -> int:
        """Return how many files are open."""
        return len(self._files)

    async def greet(self, answers: int) -> int:
        """Take what the client asks for over its lane, and return the queue of notifications for that; 0: none.

        Raises:
            ZerohopError: the client is gone.
        """
        if not answers:
            return 0
        await until_messages(self.link)
        # All at once from here on: another greeting may come meanwhile.
        if not self._ended and (self._serving is None or self._answers != answers):
            self._stop_serving()
            self._serving, self._answers = self._store.serving(self.link, answers, self._count), answers
        return 0 if self._serving is None else self._serving.queue

    def _stop_serving(self) -> None:
        """Take nothing more over the lane. The client hears when nothing uses its memory any more."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.close()
            self._numbered.clear()

    def add_file(self, file: File) -> wire.Opened:
        """Keep an open file, and return its numbers; raise StorageError (EMFILE) if there are too many."""
        if len(self._files) >= wire.MOST_FILES:
            file.close()
            raise of_errno(
                errno.EMFILE,
                "open",
                file.path,
                said=f"a client may have {wire.MOST_FILES} files open",
                fix="close some",
            )
        if self._ended:
            file.close()
            raise of_errno(errno.EBADF, "open", file.path, said="the client has left")
        number = next(self._numbers)
        self._files[number] = file
        serving = self._serving
        lane_number = None if serving is None else serving.add_file(file.native(), True, file.mode != "r")
        return wire.Opened(number, lane_number)

    def file(self, number: int) -> File:
        """Return an open file; raise StorageError (EBADF) if there is none of this number."""
        found = self._files.get(number)
        if found is None:
            raise of_errno(errno.EBADF, "storage", "", said="the server has no such open file", fix="open it again")
        return found

    def close_file(self, number: int) -> None:
        """Forget a file; what is under way goes on."""
        file = self._files.pop(number, None)
        if file is not None:
            file.close()

    async def memory(self, handle: bytes, reach: Reach) -> Known:
        """Return the memory that a handle names, which ``reach`` finds the way to.

        Raises:
            ProtocolError: the bytes are no handle.
            AccessDenied: it is not the client's own memory.
            ZerohopError: it cannot be reached.
        """
        known = self._known.get(handle)
        if known is not None and not known.route.stale:
            return known
        memory = RemoteBuffer.from_bytes(handle)
        if memory.owner != self.link.peer:
            # A server that took any handle would write to others in the client's name.
            raise AccessDenied("the memory belongs to another Context", fix="pass memory of the Store's own Context")
        self._known[handle] = known = Known(memory, *await reach(memory))
        if len(self._known) > _MOST_HANDLES:
            self._known.popitem(last=False)
        return known

    async def lane_number(self, handle: bytes, reach: Reach) -> wire.Reached:
        """Return the number of the client's memory in messages over the lane, if it gets one; errors as ``memory``."""
        known = await self.memory(handle, reach)
        if known.reached is None or self._serving is None:
            return wire.Reached()
        number = self._serving.add_memory(known.reached, start_of(known.memory), known.memory.nbytes)
        if number is not None:
            self._numbered[number] = keep_reached(known.route)
        return wire.Reached(number, known.route.explanation.form)

    async def keep(self, handle: bytes, reach: Reach, in_thread: InThread) -> None:
        """Have the system keep the pages of the client's memory at hand, if it reaches them; errors as ``memory``."""
        if len(self._wanted) >= _MOST_HANDLES:
            return
        self._wanted[handle] += 1
        reached = (await self.memory(handle, reach)).reached
        if reached is not None and not self._ended and self._wanted[handle] > 0 and handle not in self._kept:
            self._kept[handle] = reached
            await in_thread(lambda: self._store.keep(reached))
            if self._kept.get(handle) is not reached:  # it was given back meanwhile
                self._store.let_go(reached)

    def forget(self, handle: bytes) -> None:
        """End what ``keep`` began."""
        self._wanted[handle] -= 1
        if self._wanted[handle] <= 0:
            del self._wanted[handle]
            reached = self._kept.pop(handle, None)
            if reached is not None:
                self._store.let_go(reached)

    def holds_up_others(self, nbytes: int, seconds: float) -> None:
        """Lose the client: it keeps others from being served because it does not take or give so many bytes."""
        text = (
            f"the server has given this client up: {nbytes} bytes took it more than {seconds:g} s while others waited"
        )
        give_up(self.link, PeerLost(text, peer=self.link.peer, fix="open_store() again", operation="storage"))

    def end(self) -> None:
        """Give everything up, because the client is gone."""
        self._ended = True
        self._stop_serving()
        for reached in self._kept.values():
            self._store.let_go(reached)
        self._kept.clear()
        for delivery in self.moves.values():
            delivery.cancel()
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._known.clear()
