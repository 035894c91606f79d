"""Much at once: reads longer than 32 bits count, and very many small files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.patience import PATIENCE_S, patience

if TYPE_CHECKING:
    from pathlib import Path

    from zerohop.storage import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(patience(180))]

GIB = 1 << 30
LONG = 4 * GIB + 12_345
PIECE = 64 << 20
FILES = 10_000
SMALL = 100


def test_one_read_longer_than_4_gib(store: Store, tmp_path: Path) -> None:
    """The file has holes, and bytes around each place where a number of 31 or 32 bits would wrap."""
    path = tmp_path / "long"
    random = np.random.default_rng()
    with path.open("wb") as file:
        for at in (0, 2 * GIB - 5000, 4 * GIB - 5000, LONG - 5000):
            file.seek(at)
            file.write(random.bytes(min(10_000, LONG - at)))
    there = np.memmap(path, np.uint8, "r")
    with store.iov(LONG) as iov, store.open("long").result(PATIENCE_S) as opened:
        got = iov.memory.numpy()
        got[::4096] = 0xEE
        assert opened.read_into(iov, timeout=patience(120)).result() == LONG
        for at in range(0, LONG, PIECE):
            assert (got[at : at + PIECE] == there[at : at + PIECE]).all(), at
        del got


def test_ten_thousand_small_files(store: Store, tmp_path: Path) -> None:
    there = np.random.default_rng().integers(0, 256, (FILES, SMALL), np.uint8)
    folder = tmp_path / "many"
    folder.mkdir()
    for number, content in enumerate(there):
        (folder / f"{number}").write_bytes(content.tobytes())
    with store.iov(FILES * SMALL) as iov:
        reads = []
        for number in range(FILES):
            with store.open(f"many/{number}").result(PATIENCE_S) as file:
                reads.append(file.read_into(iov[number * SMALL : (number + 1) * SMALL]))
        assert [each.result(PATIENCE_S) for each in reads] == [SMALL] * FILES
        assert (iov.memory.numpy().reshape(FILES, SMALL) == there).all()
    assert len(store.listdir("many").result(PATIENCE_S)) == FILES
