"""Stores over a folder of the test's own: of this machine, by each way to read and write files, and of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.stores import LOCAL, SERVED, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zerohop import storage

MIB = 1 << 20


@pytest.fixture(params=[*LOCAL, *SERVED])
def store(request: pytest.FixtureRequest, no_leaks: None, tmp_path: Path) -> Iterator[storage.Store]:
    """A Store in each way."""
    with opened(tmp_path, request.param) as store:
        yield store


@pytest.fixture(params=LOCAL)
def local_store(request: pytest.FixtureRequest, no_leaks: None, tmp_path: Path) -> Iterator[storage.Store]:
    """A Store of a folder of this machine."""
    with opened(tmp_path, request.param) as store:
        yield store


@pytest.fixture
def random_file(tmp_path: Path) -> Callable[..., np.ndarray]:
    """Makes a file of random bytes, and returns them."""

    def make(name: str, nbytes: int) -> np.ndarray:
        values = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
        (tmp_path / name).write_bytes(values.tobytes())
        return values

    return make
