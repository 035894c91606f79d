"""A server of files over RDMA NICs: into memory of its clients on the host and on a device, and from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.options import Options
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from zerohop import storage

if TYPE_CHECKING:
    from pathlib import Path

    from support.fixtures import OpenContext, StartPeer

NBYTES = 3 * MIB + 4099
PATIENCE_S = 60.0
PAGE = 4096


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_every_byte(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, device: str) -> None:
    """The server writes to the client's memory, and reads it, by RDMA."""
    options = Options(providers=("verbs",), sim_peermem=True, timeout=PATIENCE_S)
    there = pattern(3, NBYTES)
    (tmp_path / "data").write_bytes(there.tobytes())
    peer = start_peer(options)
    url = peer.call(Service.serve, str(tmp_path))
    with storage.open_store(url, ctx=open_context(options)) as store, store.iov(NBYTES, device) as iov:
        with store.open("data").result() as file:
            operation = file.read_into(iov)
            assert operation.result(PATIENCE_S) == NBYTES
            assert str(operation.explain()).startswith(f"server (verbs) file→{device}")
            assert iov.memory.read_bytes() == there.tobytes()
            pages = np.random.default_rng(2).permutation(NBYTES // PAGE)[:64]
            ring = store.ring(64)
            ring.prepare_many(iov, file, pages * PAGE, np.full(64, PAGE), np.arange(64) * PAGE)
            ring.submit()
            taken = 0
            while taken < 64:
                taken += len(ring.wait(min_results=1, timeout=PATIENCE_S))
        expected = there.copy()
        expected[: 64 * PAGE] = there[: NBYTES // PAGE * PAGE].reshape(-1, PAGE)[pages].reshape(-1)
        assert iov.memory.read_bytes() == expected.tobytes()
        with store.open("copy", "w").result() as copy:
            assert copy.write_from(iov[5:]).result(PATIENCE_S) == NBYTES - 5
    assert (tmp_path / "copy").read_bytes() == expected[5:].tobytes()
    assert peer.call(Service.served).memory_in_use == 0
