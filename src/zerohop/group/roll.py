"""Calls the roll of a Group: each rank writes into the store how it is reached, and others look for it there.

A rank writes one key and reads the keys of the ranks that it uses, so that starting takes no longer in a large group.
"""

from __future__ import annotations

import asyncio
import math
import string
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from zerohop.core.face import parse_url
from zerohop.errors import Closed, DeadlineExceeded, PeerLost, ProtocolError
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from zerohop.errors import ZerohopError
    from zerohop.group.stores import Store

# Seconds between two looks into the store, while somebody waits for a rank that is not there yet.
_PAUSE_S: Final = 0.02
# The time for which a look waits for one rank in a store that cannot be asked without waiting. If the store fails much
# sooner, it has failed for another reason than time.
_LOOK: Final = timedelta(milliseconds=50)
# Seconds after which a look asks for no further rank: somebody may wait for one that it does not know of.
_LONGEST_LOOK_S: Final = 0.1
# Seconds before its deadline at which a wait gives up, so that its error names the rank; and the shortest wait.
_MARGIN_S: Final = 0.02
_LEAST_S: Final = 0.005
_MAX_URL: Final = 4096
_DIGITS: Final = 16  # of a secret


class Entry(NamedTuple):
    """Says how a rank is reached.

    Attributes:
        url: address of its Context.
        secret: an int of 64 bits that it has drawn, from which the numbers of its mailboxes follow.
    """

    url: str
    secret: int

    def __str__(self) -> str:
        return f"{self.url} {self.secret:016x}"

    @staticmethod
    def parse(text: str) -> Entry:
        """Return the entry of a text that ``str`` has made; raise ValueError for another one."""
        url, _, secret = text.partition(" ")
        parse_url(url)
        if len(secret) != _DIGITS or not set(secret) <= set(string.hexdigits):
            raise ValueError("no secret of 16 digits")
        return Entry(url, int(secret, 16))


class InThread(Protocol):
    """Calls a function on a thread of its own, as a Face does."""

    def __call__(self, call: Callable[[list[int]], None], ranks: list[int], /) -> Awaitable[None]:
        """Return what the function returns."""


class Roll:
    """Holds the URLs of the ranks that have been found. Its coroutines run on the control thread."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self.found: dict[int, Entry] = {}
        # Errors are the store's last ones, of ranks that are not found. Times say when it was asked for each rank.
        self._errors: dict[int, ZerohopError] = {}
        self._asked: dict[int, float] = {}
        # How many wait for each rank that is not found yet.
        self._wanted: Counter[int] = Counter()
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = -math.inf

    def enter(self, rank: int, entry: Entry) -> None:
        """Write a rank's entry into the store. This may take as long as the store does.

        Raises:
            ValueError: the store has this rank of such a group already.
            PeerLost: the store refuses.
        """
        try:
            self._store.set(self._key(rank), str(entry).encode())
        except FileExistsError:
            raise ValueError(
                f"the store has rank {rank} of such a group already. Fix: give each run a store of its own, such as an "
                "empty folder, and each Group that uses the same one a name= of its own"
            ) from None
        except Exception as error:  # stores raise errors of their own
            raise PeerLost(
                f"the store refuses: {_told(error)}", fix="see that all ranks reach it", operation="group"
            ) from error
        self.found[rank] = entry

    def forget(self, rank: int) -> None:
        """Look for a rank anew the next time: it may have been started again."""
        self.found.pop(rank, None)

    async def entry_of(self, rank: int, deadline_ns: int, in_thread: Callable[[], InThread | None]) -> Entry:
        """Return the entry of a rank, and wait until it is there. ``in_thread()`` is None once the Group is gone.

        Raises:
            Closed: the Group is gone.
            DeadlineExceeded: the deadline, on the monotonic clock, is about to pass; the error names the rank.
            PeerLost: the store fails.
            ProtocolError: what is there is no entry.
        """
        self._wanted[rank] += 1
        self._errors.pop(rank, None)
        began = time.monotonic()
        try:
            while rank not in self.found:
                left_s = self.left_s(deadline_ns)
                looking = self._look_soon(in_thread)
                await asyncio.wait({looking}, timeout=None if left_s == math.inf else max(left_s, _LEAST_S))
                if rank in self._errors:
                    raise self._errors[rank]
                if looking.done():
                    looking.result()
                if rank not in self.found and left_s <= 0:
                    raise self._missing(rank, asked=self._asked.get(rank, -math.inf) >= began)
        finally:
            self._wanted[rank] -= 1
            if not self._wanted[rank]:
                del self._wanted[rank]
        return self.found[rank]

    @staticmethod
    def left_s(deadline_ns: int) -> float:
        """Return the seconds until shortly before a deadline on the monotonic clock; 0 stands for no deadline."""
        return (deadline_ns - time.monotonic_ns()) / 1e9 - _MARGIN_S if deadline_ns else math.inf

    @staticmethod
    def _missing(rank: int, *, asked: bool) -> DeadlineExceeded:
        """Return the error for a rank that is not found, whether or not the store has said that it is not there."""
        if asked:
            said = f"rank {rank} has not arrived: it has not made its Group"
            fix = "see whether it was started, with the same store, and what it printed"
        else:
            said, fix = f"the store has not answered about rank {rank}", "allow more time with timeout="
        return DeadlineExceeded(said, fix=fix, operation="connect", ranks=(rank,))

    def _look_soon(self, in_thread: Callable[[], InThread | None]) -> asyncio.Task[None]:
        """Return the look that is under way, or the next one, for all ranks that are wanted when it begins."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_once(in_thread))
            # asyncio would warn of an exception that nobody fetched.
            self._looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._looking

    async def _look_once(self, in_thread: Callable[[], InThread | None]) -> None:
        await asyncio.sleep(max(0.0, self._looked_at + _PAUSE_S - time.monotonic()))
        # Those that have waited longest for an answer, or have had none, go first.
        ranks = sorted(self._wanted, key=lambda rank: self._asked.get(rank, -math.inf))
        call = in_thread()
        if call is None:
            raise Closed("this Group is gone", fix="keep it while it is used")
        await call(self._look, ranks)
        self._looked_at = time.monotonic()

    def _look(self, ranks: list[int]) -> None:
        """Find those of the ranks that are there. What goes wrong for one of them is no matter of the others."""
        until = time.monotonic() + _LONGEST_LOOK_S
        for rank in ranks:
            try:
                if self._has(self._key(rank)):
                    self.found[rank] = _checked(rank, self._store.get(self._key(rank)))
            except ProtocolError as error:
                self._errors[rank] = error
            except BaseException as error:  # noqa: BLE001 - a store may raise anything; those who wait for the rank get it
                fix = "see that it still runs"
                self._errors[rank] = PeerLost(f"the store fails: {_told(error)}", fix=fix, operation="connect")
            self._asked[rank] = time.monotonic()
            if self._asked[rank] > until:
                break

    def _has(self, key: str) -> bool:
        # torch's TCPStore writes two lines into the log each time that a wait ends without the key.
        check = getattr(self._store, "check", None)
        if check is not None:
            return bool(check([key]))
        began = time.monotonic()
        try:
            self._store.wait([key], _LOOK)
        except TimeoutError:
            return False
        except Exception:  # stores have errors of their own for a time that has passed, too
            if time.monotonic() - began < _LOOK.total_seconds() / 2:
                raise
            return False
        return True

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{rank}"


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {shown(str(error))}"


def _checked(rank: int, value: object) -> Entry:
    """Return the entry that a store has for a rank; raise ProtocolError if it is none."""
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = bytes(value[:_MAX_URL]).decode(errors="replace")
        if not isinstance(value, str):
            raise ValueError(f"a value of type {type(value).__name__}")  # noqa: TRY004, TRY301 - the next lines make one error of it and of a bad URL
        return Entry.parse(value[:_MAX_URL])
    except ValueError as error:
        raise ProtocolError(
            f"malformed: the store has no entry for rank {rank}: {shown(str(error))}",
            fix="let no other program write below the group's keys",
        ) from None
