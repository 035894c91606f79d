"""Stores over a folder of the test's own, by each way to read and write files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.options import Options
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture(params=["auto", "threads"])
def store(request: pytest.FixtureRequest, no_leaks: None, tmp_path: Path) -> Iterator[storage.Store]:
    """A Store whose Context has a simulated device."""
    context = Options(sim_devices=1).open()
    with storage.open_store(tmp_path, ctx=context, engine=request.param) as store:
        yield store
    context.close()


@pytest.fixture
def random_file(tmp_path: Path) -> Callable[..., np.ndarray]:
    """Makes a file of random bytes, and returns them."""

    def make(name: str, nbytes: int) -> np.ndarray:
        values = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
        (tmp_path / name).write_bytes(values.tobytes())
        return values

    return make
