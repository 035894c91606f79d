"""Each test of this folder gives back what it has taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.groups import groups
from zerohop.group.collectives import nccl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import zerohop as zh
    from support.gloo import Gloo


@pytest.fixture(autouse=True)
def _gives_back(no_leaks: None) -> None:
    """Checks descriptors, threads, mappings and memory after each test."""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[zh.Group]]:
    """Opens two ranks."""
    with groups(tmp_path, 2) as both:
        yield both


@pytest.fixture(scope="module")
def torch_threads() -> None:
    """Has torch start its threads, which no test of a module gives back."""
    pytest.importorskip("support.gloo").warm_up()


@pytest.fixture
def gloo(torch_threads: None, monkeypatch: pytest.MonkeyPatch) -> Gloo:
    """Puts gloo in the place of NCCL."""
    library: Gloo = pytest.importorskip("support.gloo").Gloo()
    monkeypatch.setattr(nccl, "LIBRARY", library)
    return library
