"""Declares FileRing, what a Ring needs of the way in which its transfers are carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from zerohop._native import Op


class FileRing(Protocol):
    """Carries out transfers, and keeps their results until they are taken.

    A Ring has a lock for the calls that add and begin.
    """

    @property
    def prepared(self) -> int:
        """Return how many transfers were added and have not begun."""

    @property
    def taken_up(self) -> int:
        """Return how many have begun, and their results were not taken."""

    @property
    def ready(self) -> int:
        """Return how many results are there."""

    def prepare(
        self,
        file: Any,
        memory: Any,
        part_offset: int,
        part_nbytes: int,
        file_offsets: Any,
        memory_offsets: Any,
        lengths: Any,
        userdata: Any,
    ) -> int | None:
        """Add transfers, and return the index of the first; None, and nothing is done, if there is no room for all.

        The first four arguments are those that ``FileEngine.place_of`` gives.
        """

    def submit(self, count: int) -> None:
        """Begin the first transfers that were added."""

    def refuse(self, userdata: int, error: int) -> int | None:
        """Give a transfer that is not carried out its result, and return its index; None if there is no room for it."""

    def cancel(self, userdata: int | None, first: int) -> tuple[int, int]:
        """End transfers with this userdata, or all, as soon as nothing uses their memory; not those that end anyway.

        Return their number, and how many of them were among the first ``first`` that were added and have not begun.
        """

    def take(self, most: int, least: int = 0) -> bytes:
        """Return results as records (completion.py); none if there are fewer than ``least``, and more can come."""

    def wait(self, results: int, deadline_ns: int, spin_ns: int) -> bool:
        """Wait until so many results are there, or all that can still come."""

    def end_when(self, results: int, deadline_ns: int) -> Op:
        """Return an Op that ends then."""

    def close(self) -> None:
        """Drop what was added, and what has not begun."""
