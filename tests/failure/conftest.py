"""Every test of this folder gives back what it took."""

import pytest


@pytest.fixture(autouse=True)
def checked_for_leaks(no_leaks: None) -> None:
    """Set up first and torn down last, around everything else that the test uses."""
