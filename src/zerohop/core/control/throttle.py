"""Slows down sources that prove wrong secrets, so that a secret cannot be guessed by trying.

Some wrong proofs are free, because a mistyped secret is tried a few times. After them each handshake of that source
waits for its turn; a right proof gets in as before, and others do not wait. Wrong proofs are forgotten with time.
"""

from __future__ import annotations

import ipaddress
import time
from typing import Final

_FREE: Final = 10
_FORGET_S: Final = 10.0
# The pause doubles with each wrong proof, from the first value to the second.
_SHORTEST_S: Final = 0.125
_LONGEST_S: Final = 2.0
# A handshake that would wait longer for its turn is refused: so many others of this source wait already.
_PATIENCE_S: Final = 3.0
# Wrong proofs that are counted at most, so that every source is forgiven within minutes.
_MOST: Final = 40
# The source whose last wrong proof is the oldest is forgotten first.
_SOURCES: Final = 1024


class _Source:
    def __init__(self, now: float) -> None:
        self.wrong = 0.0
        self.counted_at = now
        self.next_turn = now

    def count(self, now: float) -> float:
        """Return the number of wrong proofs that are not forgotten."""
        self.wrong = max(0.0, self.wrong - (now - self.counted_at) / _FORGET_S)
        self.counted_at = now
        return self.wrong


class Throttle:
    """Counts wrong proofs for each source. Only the control thread may use it."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}

    def turn(self, address: str) -> float | None:
        """Take a turn for a handshake: return in how many seconds it comes; None: refuse it now."""
        source, now = self._sources.get(source_of(address)), time.monotonic()
        if source is None or (excess := source.count(now) - _FREE) <= -1:
            return 0.0
        start = max(now, source.next_turn)
        if start - now > _PATIENCE_S:
            return None
        source.next_turn = start + min(_LONGEST_S, _SHORTEST_S * 2.0 ** max(0.0, excess))
        return start - now

    def wrong(self, address: str) -> bool:
        """Count a wrong proof; return whether the source is slowed down from now on."""
        key, now = source_of(address), time.monotonic()
        source = self._sources.pop(key, None) or _Source(now)
        self._sources[key] = source
        if len(self._sources) > _SOURCES:
            del self._sources[next(iter(self._sources))]
        source.wrong = min(source.count(now) + 1, _MOST)
        return source.wrong > _FREE - 1


def source_of(host: str) -> str:
    """Return what counts as one source: an IPv4 address, or the /64 of an IPv6 address, of which one host has all.

    A host that is no address, such as this one over its Unix socket, is a source itself.
    """
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if found.version == 4:
        return str(found)
    # A listener for both kinds sees IPv4 addresses in this form.
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
