"""Every test of this folder gives back what it took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.first_gpu import Still
from support.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext


@pytest.fixture(autouse=True)
def checked_for_leaks(no_leaks: None) -> None:
    """Set up first and torn down last, around everything else that the test uses."""


@pytest.fixture
def still(open_context: OpenContext) -> Iterator[Still]:
    made = Still(open_context(Options(sim_devices=0, providers=("p2p",))))
    yield made
    made.close()
