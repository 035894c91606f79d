"""The list of Registrations that live, while destructors and threads change it."""

from __future__ import annotations

import gc
import itertools
from typing import Any

from zerohop.core.memory.living import Living


def test_a_destructor_adds_while_another_one_does() -> None:
    """The garbage collector may run a destructor wherever an object is made, also while the table is looked at."""
    numbers, living = itertools.count(), Living()

    class Registered:
        def __init__(self) -> None:
            self.number = next(numbers)

    class Dropped:
        def __init__(self) -> None:
            self.myself = self

        def __del__(self) -> None:
            add(Registered())

    def add(registered: Any) -> None:
        living.add(registered)

    kept = [Registered() for _ in range(5000)]
    before = gc.get_threshold()
    try:
        gc.set_threshold(5)
        for each in kept:
            Dropped()
            add(each)
    finally:
        gc.set_threshold(*before)
    assert len(living) == len(kept)
