"""What tells the tests that something leaked must not be wrong itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from support import leaks

if TYPE_CHECKING:
    import pytest


def test_a_listing_of_threads_that_left_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel's does while a thread ends: the test that came next was found to have left a thread behind."""
    listings = iter([["7"], ["7", "8"], ["7", "8"]])
    monkeypatch.setattr(os, "listdir", lambda _: next(listings))
    assert leaks._tasks() == ["7", "8"]
