"""Each test of this folder gives back what it has taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.groups import groups

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import zerohop as zh


@pytest.fixture(autouse=True)
def _gives_back(no_leaks: None) -> None:
    """Checks descriptors, threads, mappings and memory after each test."""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[zh.Group]]:
    """Opens two ranks."""
    with groups(tmp_path, 2) as both:
        yield both
