"""Servers that are killed after, and during, an fsync: what it acknowledged is in the file, and on the disk."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.sizes import MIB
from support.stores import open_remote, served

if TYPE_CHECKING:
    from pathlib import Path

    from support.fixtures import OpenContext, StartPeer
    from zerohop.storage import Store

WAYS = pytest.mark.parametrize("providers", [None, ("tcp",)], ids=["mapped", "tcp"])
NBYTES = 2 * MIB
_CACHESTAT = 451  # the number of the system call, on every processor


def pages_to_be_written(path: Path) -> int:
    """Return how many pages of a file the page cache has and the disk has not; skips where the system cannot tell."""
    found = (ctypes.c_uint64 * 5)()  # pages in the cache, dirty ones, those being written, and evicted ones
    everything = (ctypes.c_uint64 * 2)(0, 0)
    with path.open("rb") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        # Nothing else tells which pages of one file are still to be written.
        if libc.syscall(_CACHESTAT, file.fileno(), everything, found, 0) != 0:
            pytest.skip(f"no cachestat() before Linux 6.5: {os.strerror(ctypes.get_errno())}")
    return int(found[1] + found[2])


@pytest.mark.parametrize("direct", [False, None, True], ids=["cached", "either", "direct"])
def test_nothing_is_left_to_be_written(store: Store, tmp_path: Path, direct: bool | None) -> None:
    """Done means that the disk has it: writes of a file, of another File of it, and through a Ring."""
    source = pattern(1, NBYTES)
    with store.open("data", "w", direct=direct).result(PATIENCE_S) as file:
        ring = store.ring(1, for_read=False)
        with store.open("data", "r+", direct=False).result(PATIENCE_S) as other:
            ring.prepare(source, other, NBYTES)
            ring.submit()
            file.write_from(source).result(PATIENCE_S)
            assert ring.wait(timeout=PATIENCE_S)[0].result == NBYTES
        file.fsync().result(PATIENCE_S)
        assert pages_to_be_written(tmp_path / "data") == 0


@WAYS
def test_what_fsync_acknowledged_outlives_a_kill(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, providers: tuple[str, ...] | None
) -> None:
    """Killed at once after an fsync, or among writes that follow it: where none of these went, all is as it was."""
    context = open_context(Options(providers=providers))
    for follow in (0, 1, 20):
        path = tmp_path / f"after-{follow}"
        peer, url = served(start_peer, tmp_path, providers)
        synced, later = context.alloc(NBYTES), context.alloc(NBYTES)
        synced.write_bytes(0, pattern(1, NBYTES).tobytes())
        later.write_bytes(0, pattern(2, NBYTES).tobytes())
        with open_remote(url, context) as store, store.open(path.name, "w").result(PATIENCE_S) as file:
            assert file.write_from(synced).result(PATIENCE_S) == NBYTES
            file.fsync().result(PATIENCE_S)
            assert pages_to_be_written(path) == 0
            # They go to the second half alone, and the last of them nowhere else.
            half = NBYTES // 2
            writes: list[zh.Operation[Any]] = [file.write_from(later[half:], half) for _ in range(follow)]
            if writes:
                assert writes[0].result(PATIENCE_S) == half
            peer.kill()
            for operation in [*writes, file.fsync()]:
                error = operation.exception(PATIENCE_S)
                assert error is None or isinstance(error, zh.PeerLost), error
        peer.reap()
        found = np.fromfile(path, np.uint8)
        assert np.array_equal(found[:half], pattern(1, NBYTES)[:half])
        second = found[half:]
        if not follow:
            assert np.array_equal(second, pattern(1, NBYTES)[half:])
        else:  # the first of them was acknowledged, and each wrote the same
            assert np.array_equal(second, pattern(2, NBYTES)[half:])
        synced.close()
        later.close()


@WAYS
def test_killed_during_fsyncs(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, providers: tuple[str, ...] | None
) -> None:
    """Each of many ends well or with PeerLost; all writes that were acknowledged before any of them are there."""
    peer, url = served(start_peer, tmp_path, providers)
    source, blocks = pattern(3, NBYTES), 16
    length = NBYTES // blocks
    with open_remote(url, open_context(Options(providers=providers))) as store:
        file = store.open("data", "w").result(PATIENCE_S)
        flushes: list[zh.Operation[None]] = []
        for block in range(blocks):
            part = source[block * length : (block + 1) * length]
            assert file.write_from(part, block * length).result(PATIENCE_S) == length
            flushes.append(file.fsync())
        flushes[0].result(PATIENCE_S)
        peer.kill()
        ended = [each.exception(PATIENCE_S) for each in flushes]
        assert all(error is None or isinstance(error, zh.PeerLost) for error in ended), ended
        file.close()
    peer.reap()
    assert (tmp_path / "data").read_bytes() == source.tobytes()
