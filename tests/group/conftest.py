"""Each test of this folder gives back what it has taken."""

import pytest


@pytest.fixture(autouse=True)
def _gives_back(no_leaks: None) -> None:
    """Checks descriptors, threads, mappings and memory after each test."""
