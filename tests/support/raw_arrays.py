"""How arrays are posted that are given to write and read as they are, and what is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerohop.core.memory.memory import Memory
from zerohop.core.transfers import transfer

if TYPE_CHECKING:
    import numpy as np
    import pytest

    import zerohop as zh


class LongWay:
    """Counts the calls that go the long way through Python."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        real = transfer.transfer

        def count(*arguments: Any, **named: Any) -> zh.Operation[int]:
            self.calls += 1
            return real(*arguments, **named)

        monkeypatch.setattr(transfer, "transfer", count)


class Lifetimes:
    """Counts how often each Memory is made from now on, and dropped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = self.dropped = 0
        make, drop = Memory.__init__, Memory.__del__
        made: set[int] = set()

        def count_made(memory: Memory, *arguments: Any, **named: Any) -> None:
            self.made += 1
            made.add(id(memory))
            make(memory, *arguments, **named)

        def count_dropped(memory: Memory) -> None:
            # One that an earlier test has left may be collected only now.
            self.dropped += id(memory) in made
            drop(memory)

        monkeypatch.setattr(Memory, "__init__", count_made)
        monkeypatch.setattr(Memory, "__del__", count_dropped)


def memories_of(context: zh.Context, array: np.ndarray[Any, Any]) -> int:
    """How many Memories of an array there are."""
    registration = context._core.registration_cache.of_owner(array)
    return 0 if registration is None else len(registration.users)
