"""Calls the roll of a Group: each rank writes the URL of its Context into the store, and others look for it there.

A rank writes one key and reads the keys of the ranks that it uses, so that starting takes no longer in a large group.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from zerohop.core.face import parse_url
from zerohop.errors import DeadlineExceeded, PeerLost, ProtocolError
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from zerohop.group.stores import Store

# Seconds between two looks into the store, while somebody waits for a rank that is not there yet.
_PAUSE_S: Final = 0.02
# The time for which one look waits in a store that cannot be asked without waiting. One that fails much sooner has
# failed for another reason than time.
_LOOK: Final = timedelta(milliseconds=50)
# Seconds before its deadline at which a wait gives up, so that its error names the rank; and the shortest wait.
_MARGIN_S: Final = 0.02
_LEAST_S: Final = 0.005
_MAX_URL: Final = 4096


class InThread(Protocol):
    """Calls a function on a thread of its own, as a Face does."""

    def __call__(self, call: Callable[[list[int]], dict[int, str]], ranks: list[int], /) -> Awaitable[dict[int, str]]:
        """Return what the function returns."""


class Roll:
    """Holds the URLs of the ranks that have been found. Its coroutines run on the control thread."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self.found: dict[int, str] = {}
        # How many wait for each rank that is not found yet.
        self._wanted: Counter[int] = Counter()
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = -math.inf

    def enter(self, rank: int, url: str) -> None:
        """Write this rank's URL into the store. This may take as long as the store does.

        Raises:
            ValueError: the store has this rank of such a group already.
            PeerLost: the store refuses.
        """
        try:
            self._store.set(self._key(rank), url.encode())
        except FileExistsError:
            raise ValueError(
                f"the store has rank {rank} of such a group already. Fix: give each run a store of its own, such as an "
                "empty folder, and each Group that uses the same one a name= of its own"
            ) from None
        except Exception as error:  # stores raise errors of their own
            raise PeerLost(
                f"the store refuses: {error}", fix="see that all ranks reach it", operation="group"
            ) from error
        self.found[rank] = url

    async def url_of(self, rank: int, deadline_ns: int, in_thread: InThread) -> str:
        """Return the URL of a rank, and wait until it is there.

        Raises:
            DeadlineExceeded: the deadline, on the monotonic clock, is about to pass; the error names the rank.
            PeerLost: the store fails.
            ProtocolError: what is there is no URL of a Context.
        """
        self._wanted[rank] += 1
        try:
            while rank not in self.found:
                left_s = (deadline_ns - time.monotonic_ns()) / 1e9 - _MARGIN_S if deadline_ns else math.inf
                looking = self._look_soon(in_thread)
                await asyncio.wait({looking}, timeout=None if left_s == math.inf else max(left_s, _LEAST_S))
                if looking.done():
                    looking.result()
                if rank not in self.found and left_s <= 0:
                    raise DeadlineExceeded(
                        f"rank {rank} has not arrived: it has not made its Group",
                        fix="see whether it was started, with the same store, and what it printed",
                        operation="connect",
                    )
        finally:
            self._wanted[rank] -= 1
            if not self._wanted[rank]:
                del self._wanted[rank]
        return self.found[rank]

    def _look_soon(self, in_thread: InThread) -> asyncio.Task[None]:
        """Return the look that is under way, or the next one, for all ranks that are wanted when it begins."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_once(in_thread))
            # asyncio would warn of an exception that nobody fetched.
            self._looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._looking

    async def _look_once(self, in_thread: InThread) -> None:
        await asyncio.sleep(max(0.0, self._looked_at + _PAUSE_S - time.monotonic()))
        self.found.update(await in_thread(self._look, list(self._wanted)))
        self._looked_at = time.monotonic()

    def _look(self, ranks: list[int]) -> dict[int, str]:
        """Return those of the ranks that are there."""
        try:
            present = [rank for rank in ranks if self._has(self._key(rank))]
            values = {rank: self._store.get(self._key(rank)) for rank in present}
        except Exception as error:  # stores raise errors of their own
            raise PeerLost(f"the store fails: {error}", fix="see that it still runs", operation="connect") from error
        return {rank: _checked(rank, value) for rank, value in values.items()}

    def _has(self, key: str) -> bool:
        # torch's TCPStore writes two lines into the log each time that a wait ends without the key.
        check = getattr(self._store, "check", None)
        if check is not None:
            return bool(check([key]))
        began = time.monotonic()
        try:
            self._store.wait([key], _LOOK)
        except Exception:
            if time.monotonic() - began < _LOOK.total_seconds() / 2:
                raise
            return False
        return True

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{rank}"


def _checked(rank: int, value: bytes | str) -> str:
    """Return the URL that a store has for a rank; raise ProtocolError if it is none."""
    url = value if isinstance(value, str) else bytes(value[:_MAX_URL]).decode(errors="replace")
    try:
        parse_url(url)
    except ValueError as error:
        raise ProtocolError(
            f"malformed: the store has no URL for rank {rank}: {shown(str(error))}",
            fix="let no other program write below the group's keys",
        ) from None
    return url
