"""Speaks with a server: asks it, and has it move bytes. On the control thread of the client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import weakref
from typing import TYPE_CHECKING, Final, TypeVar

from zerohop import errors
from zerohop.core.face import NOTHING_AFTER, After, call, quoted, send
from zerohop.errors import DeadlineExceeded, PeerLost, ProtocolError, Unsupported, ZerohopError
from zerohop.storage import wire
from zerohop.storage.failures import REOPEN, of_errno, server_closed, shown_path, words_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from zerohop._native import FileAsking, ServedNumber
    from zerohop.core.face import Link

A = TypeVar("A", bound="wire.Answer")
P = TypeVar("P", "wire.Reached", "wire.Opened")

# The errors that a server may report, by name.
_ERRORS: Final = {
    each.__name__: each
    for each in (
        errors.AccessDenied,
        errors.Closed,
        errors.DeadlineExceeded,
        errors.DeviceFailed,
        errors.LimitReached,
        errors.PeerLost,
        errors.ProtocolError,
        errors.RegistrationFailed,
        errors.Unsupported,
    )
}


_MOST_MOVES: Final = 16
# The server counts the calls of a connection, and knows each by a number. A Moves keeps its link, so that no other has
# the same id.
_by_link: weakref.WeakValueDictionary[int, Moves] = weakref.WeakValueDictionary()


class Moves:
    """Holds the conversation with one server.

    Attributes:
        link: the connection.
        asking: asks for transfers over the lane; None if the server is asked by messages alone.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.asking: FileAsking | None = None
        self._stores = 0
        self._room = asyncio.Semaphore(wire.MOST_CALLS // 2)
        # Moves that are under way. Their numbers and results are long, and a channel holds only so many bytes.
        self.moving = asyncio.Semaphore(_MOST_MOVES)
        self._numbers = itertools.count(1)

    @classmethod
    def over(cls, link: Link) -> Moves:
        """Return the conversation over a connection, which all Stores share that use it."""
        found = _by_link.get(id(link))
        if found is None or found.link is not link:
            found = _by_link[id(link)] = cls(link)
        return found

    async def begin(self, make_asking: Callable[[], FileAsking | None]) -> wire.Welcome:
        """Introduce this side; return what the server says of itself.

        ``make_asking`` makes what asks over the lane, or returns None if there is none that would be faster.

        Raises:
            Unsupported: nothing is served there, or by another version.
        """
        if self.asking is None or not self.asking.usable:
            self.asking = make_asking()
        self._stores += 1
        asking = self.asking
        hello = wire.Hello(wire.VERSION, 0 if asking is None else asking.queue)
        try:
            # At once, without a place of those that calls wait for: whatever fails, the server has heard the greeting.
            answer = _parsed(await self._call(hello), wire.Welcome, "open_store", "")
        except Unsupported as error:
            self.leave()
            raise Unsupported(
                f"the Context at that URL serves no files: {error.reason}",
                fix='start a server there: zerohop serve FOLDER, or zerohop.storage.Server("FOLDER")',
                operation="open_store",
            ) from None
        except BaseException:
            self.leave()
            raise
        if answer.version != wire.VERSION:
            self.leave()
            raise Unsupported(
                "the server speaks another version",
                fix="install the same version of zerohop on both sides",
                operation="open_store",
            )
        if asking is not None and answer.asks:
            asking.ask_by(answer.asks)
        elif asking is not None and asking is self.asking:
            asking.close_unused()
            self.asking = None
        return answer

    def tell(self, request: wire.Request) -> None:
        """Send a request that has no answer worth waiting for."""
        send(self.link, wire.SERVICE, wire.encode(request))

    async def ask(
        self, request: wire.Request, wanted: type[A] | tuple[type[A], ...], kind: str, path: str, keep: object = None
    ) -> A:
        """Return the answer to a request, which is to be of a class that is wanted; ``keep`` stays alive until then.

        Raises:
            ProtocolError: the answer is another one.
            ZerohopError: what the server reports, or the loss of it.
        """
        async with self._place() as given_back:
            answer = await self.ask_now(request, wanted, kind, path, After(ended=given_back))
        del keep
        return answer

    async def ask_numbered(
        self, request: wire.Reach | wire.Open, wanted: type[P], kind: str, path: str
    ) -> tuple[P, ServedNumber | None]:
        """Return the answer like ``ask``, and what holds the lane number in it; None if it has none.

        A number belongs to what asks over the lane when the request is sent. A Store that is closed and opened again
        has another.
        """
        async with self._place() as given_back:
            asking = self.asking

            def give_back(body: bytes) -> None:
                late = wire.answer_of(body)
                if isinstance(late, wire.Opened):
                    self.tell(wire.Close(late.number))
                if isinstance(late, (wire.Opened, wire.Reached)):
                    self._held(late, asking)  # which nobody holds

            answer = await self.ask_now(request, wanted, kind, path, After(late=give_back, ended=given_back))
        return answer, self._held(answer, asking)

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[Callable[[], object]]:
        """Wait for one of the places that calls have, and yield what gives it back.

        A call that is given up keeps its place until the server has answered, because the server counts the call until
        then.
        """
        await self._room.acquire()
        place = contextlib.ExitStack()
        place.callback(self._room.release)
        try:
            yield place.close  # a second time it does nothing
        except (DeadlineExceeded, asyncio.CancelledError):
            raise
        except BaseException:
            place.close()
            raise
        place.close()

    def _held(self, answer: wire.Opened | wire.Reached, asking: FileAsking | None) -> ServedNumber | None:
        """Return what holds the lane number of an answer, and gives it back when it is dropped."""
        if answer.lane_number is None or asking is None or asking is not self.asking:
            return None
        return asking.number(answer.lane_number, isinstance(answer, wire.Opened))

    async def ask_now(
        self,
        request: wire.Request,
        wanted: type[A] | tuple[type[A], ...],
        kind: str,
        path: str,
        after: After = NOTHING_AFTER,
    ) -> A:
        """Send a request before this waits for anything, and return the answer; raise as ``ask`` does."""
        try:
            body = await self._call(request, after)
        except Unsupported:  # something was served here before, as the greeting was answered
            raise server_closed(kind, peer=self.link.peer) from None
        return _parsed(body, wanted, kind, path)

    async def _call(self, request: wire.Request, after: After = NOTHING_AFTER) -> bytes:
        try:
            return await call(self.link, wire.SERVICE, wire.encode(request), after)
        except PeerLost as error:
            error.fix = REOPEN  # a handle, which the connection's own words advise, helps nobody here
            raise

    def new_number(self) -> int:
        """Return a number for a Move. Any thread may call this."""
        return next(self._numbers)

    def leave(self, server: int = 0) -> None:
        """Tell a server that a Store is closed. What is under way ends as usual.

        ``server`` is its number of Welcome; 0: whichever is there.
        """
        self.tell(wire.Leave(server))
        self._stores -= 1
        if not self._stores and self.asking is not None:
            # If the server may have been asked for something, it stays until the server has said that all has ended.
            self.asking.close_unused()
            self.asking = None


def _parsed(body: bytes, wanted: type[A] | tuple[type[A], ...], kind: str, path: str) -> A:
    """Return an answer; raise the error that it tells of, or ProtocolError if it is of no class that is wanted."""
    answer = wire.answer_of(body)
    if isinstance(answer, wire.Failed):
        raise _error_of(answer, kind, path)
    if not isinstance(answer, wanted):
        raise ProtocolError("malformed: an answer of the storage service", operation=kind)
    return answer


def _error_of(answer: wire.Failed, kind: str, path: str) -> Exception:
    fix = _told(answer.fix) if answer.fix else ""
    if answer.errno:
        path = os.fsdecode(answer.path) or path
        said = answer.said.removesuffix(f": {shown_path(path)}") if path else answer.said
        if said == words_of(answer.errno):
            return of_errno(answer.errno, kind, path)
        return of_errno(answer.errno, kind, path, said=_told(said), fix=fix)
    if answer.kind == "ValueError":
        return ValueError(_told(answer.said))
    error = _ERRORS.get(answer.kind, ZerohopError)
    return error(_told(answer.said), fix=fix, operation=kind)


def _told(text: str) -> str:
    """Return words of the server, as such."""
    return f"the server says: {quoted(text)}"
