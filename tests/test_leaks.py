"""What tells the tests that something leaked must not be wrong itself."""

from __future__ import annotations

import os

import pytest

from support.leaks import holdings


@pytest.mark.usefixtures("runtime_directory")
def test_a_listing_of_threads_that_left_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel's does while a thread ends: the test that came next was found to have left a thread behind."""
    listdir, listings = os.listdir, 0

    def incomplete_at_first(path: str) -> list[str]:
        nonlocal listings
        found = listdir(path)
        if path == "/proc/self/task":
            listings += 1
            return found[1:] if listings == 1 else found
        return found

    whole = holdings().threads
    monkeypatch.setattr(os, "listdir", incomplete_at_first)
    assert holdings().threads == whole
