"""The benchmark is no package that is installed: its folder, and this one for the fakes, must be found."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS.parent))


@pytest.fixture(autouse=True)
def fakes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the processes that the tests start, too."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
