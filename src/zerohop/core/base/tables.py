"""Looks into tables that several threads change."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

_Key = TypeVar("_Key")


def oldest(table: Iterable[_Key], most: int) -> list[_Key]:
    """Return the first keys of a dictionary, at most so many; none if another thread changes it in the middle.

    The copy of a whole dictionary is one step for other threads, and that of its beginning is not.
    """
    try:
        return list(itertools.islice(table, most))
    except RuntimeError:  # "dictionary changed size during iteration": the next thread that adds a key looks again
        return []
