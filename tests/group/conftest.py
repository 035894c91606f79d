"""Each test of this folder gives back what it has taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.groups import PLACES, groups
from support.patience import PATIENCE_S
from zerohop.group.collectives import nccl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.gloo import Gloo


@pytest.fixture(autouse=True)
def _gives_back(no_leaks: None) -> None:
    """Checks descriptors, threads, mappings and memory after each test."""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[zh.Group]]:
    """Opens two ranks."""
    with groups(tmp_path, 2) as both:
        yield both


@pytest.fixture(params=PLACES[1:])
def gpu(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[list[zh.Group]]:
    """Opens two ranks that have connected, and whose GPUs reach each other's memory."""
    with groups(tmp_path, 2, "p2p") as two:
        zh.wait_all([two[0].connect(1), two[1].connect(0)], PATIENCE_S)
        yield two


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
