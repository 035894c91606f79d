"""Every test of this folder gives back what it took; all of them run in the lab's guest only (`make lab`)."""

import pytest


@pytest.fixture(autouse=True)
def checked_for_leaks(no_leaks: None) -> None:
    """Set up first and torn down last, around everything else that the test uses."""
