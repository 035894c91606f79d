"""Rings whose memory is closed, or gone in part, before their transfers have ended."""

from __future__ import annotations

import gc
import os
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.patience import PATIENCE_S
from support.stores import is_served, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zerohop.storage import Store

MIB = 1 << 20
PAGE = 4096


def test_memory_that_was_closed_before_the_transfer_began(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """The program has closed its own memory: there is no owner to ask for a handle."""
    random_file("data", PAGE)
    ring, iov = store.ring(8), store.iov(PAGE)
    with store.open("data").result(PATIENCE_S) as file:
        ring.prepare(iov, file, 0)
        iov.close()
        ring.submit()
        (done,) = ring.wait(timeout=PATIENCE_S)
    assert type(done.error) is zh.Closed
    assert done.error.reason == "the memory of a transfer was closed"
    assert done.error.fix == "keep it open until its transfers have ended"


@pytest.mark.parametrize("way", ["threads", "served over tcp"])
@pytest.mark.parametrize("for_read", [True, False], ids=["reads", "writes"])
def test_memory_that_is_partly_gone(
    no_leaks: None, tmp_path: Path, random_file: Callable[..., np.ndarray], way: str, for_read: bool
) -> None:
    """Of one batch, transfers whose memory is there go on."""
    there = random_file("data", 8 * PAGE)
    shared = SharedMemory(create=True, size=8 * PAGE)
    mapped = np.ndarray(8 * PAGE, np.uint8, shared.buf)
    mapped[:] = 1
    with opened(tmp_path, way) as store:
        with store.open("data", "r+").result() as file, store.wrap(mapped) as iov:
            os.truncate(f"/dev/shm/{shared.name}", 2 * PAGE)
            ring = store.ring(8, for_read=for_read)
            places = np.array([0, 5, 1]) * PAGE
            ring.prepare_many(iov, file, places, np.full(3, PAGE), places)
            ring.submit()
            found = {each.index: each for each in ring.wait(min_results=3, timeout=PATIENCE_S)}
            assert [found[i].result for i in range(3)] == [PAGE, 0, PAGE]
            assert [found[i].error is None for i in range(3)] == [True, False, True]
            assert "memory gone" in str(found[1].error)
        here = np.fromfile(tmp_path / "data", np.uint8)
        if for_read:
            assert (mapped[: 2 * PAGE] == there[: 2 * PAGE]).all()
            assert (here == there).all()
        else:
            assert (here[: 2 * PAGE] == 1).all()
            assert (here[2 * PAGE :] == there[2 * PAGE :]).all()
    del mapped
    shared.unlink()
    gc.collect()
    shared.close()


def test_memory_stays_until_the_end(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """What is under way keeps the memory, whoever else drops it."""
    there = random_file("data", MIB)
    ring = store.ring(4)
    memory = store.context.alloc(MIB)
    shown = memory.numpy()
    file = store.open("data").result()
    ring.prepare(memory, file, 0, 5)
    ring.submit()
    memory.close()
    file.close()
    (result,) = ring.wait(timeout=PATIENCE_S)
    assert result.userdata == 5
    if is_served(store) and result.error is not None:  # closing it has told the server to let go of it
        assert isinstance(result.error, zh.Closed)
    else:
        assert result.result == MIB
        assert (shown == there).all()
