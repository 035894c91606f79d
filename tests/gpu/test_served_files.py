"""Files of a server, and of this process, into memory of a GPU that belongs to another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpu.others import EXPANDABLE, Other
from gpu.tensors import blank_tensor, bytes_of, options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from zerohop import storage

if TYPE_CHECKING:
    from pathlib import Path

    from support.fixtures import OpenContext, StartPeer

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(90)
NBYTES = 33 * MIB + 3


@pytest.mark.parametrize("memory", ["tensor", "allocated"])
def test_a_server(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, memory: str) -> None:
    """It reads into the client's GPU by itself, and writes from it: every byte, through a Ring, too."""
    there = pattern(3, NBYTES)
    (tmp_path / "data").write_bytes(there.tobytes())
    peer = start_peer(options())
    url = peer.call(Service.serve, str(tmp_path), 64 * MIB)
    with storage.open_store(url, ctx=open_context(options())) as store:
        target = store.iov(NBYTES, "cuda:0") if memory == "allocated" else store.wrap(blank_tensor(NBYTES))
        with store.open("data").result() as file:
            operation = file.read_into(target)
            assert operation.result(PATIENCE_S) == NBYTES
            assert "file→cuda:0 staged" in str(operation.explain())
            with store.open("copy", "w").result() as copy:
                assert copy.write_from(target[5:]).result(PATIENCE_S) == NBYTES - 5
            assert (tmp_path / "copy").read_bytes() == there[5:].tobytes()
            ring, pages = store.ring(256), np.random.default_rng().permutation(NBYTES // 4096)[:256]
            ring.prepare_many(target, file, pages * 4096, np.full(256, 4096), np.arange(256) * 4096)
            ring.submit()
            taken = 0
            while taken < 256:
                taken += len(ring.wait(min_results=1, timeout=PATIENCE_S))
        expected = there.copy()
        expected[: 256 * 4096] = there[: NBYTES // 4096 * 4096].reshape(-1, 4096)[pages].reshape(-1)
        assert target.memory.read_bytes() == expected.tobytes()
        target.close()


def test_imported(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    there = pattern(4, NBYTES)
    (tmp_path / "data").write_bytes(there.tobytes())
    peer = start_peer(options())
    number = peer.call(Service.new, "cuda", NBYTES)
    store = storage.open_store(tmp_path, ctx=open_context(options()))
    with store, store.import_iov(peer.call(Service.share, number, "rw")).result(PATIENCE_S) as iov:
        assert iov.is_device
        with store.open("data").result() as file:
            assert file.read_into(iov).result(PATIENCE_S) == NBYTES
        assert peer.call(Service.get, number, 0, NBYTES) == there.tobytes()
        with store.open("copy", "w").result() as copy:
            assert copy.write_from(iov).result(PATIENCE_S) == NBYTES
    assert (tmp_path / "copy").read_bytes() == there.tobytes()


def test_imported_by_a_descriptor(open_context: OpenContext, tmp_path: Path) -> None:
    """Virtual memory has no handle of CUDA IPC: its driver's descriptors come over a Unix socket."""
    there = pattern(6, NBYTES)
    (tmp_path / "data").write_bytes(there.tobytes())
    store = storage.open_store(tmp_path, ctx=open_context(options()))
    with (
        Other(NBYTES, EXPANDABLE) as other,
        store,
        store.import_iov(bytes(other.handle)).result(PATIENCE_S) as iov,
    ):
        assert iov.is_device
        with store.open("data").result() as file:
            assert file.read_into(iov[:-7], offset=7).result(PATIENCE_S) == NBYTES - 7
        other.expect(0, there[7:].tobytes() + b"\xcc" * 7)
        with store.open("copy", "w").result() as copy:
            assert copy.write_from(iov[5:]).result(PATIENCE_S) == NBYTES - 5
        assert (tmp_path / "copy").read_bytes() == there[12:].tobytes() + b"\xcc" * 7


def test_a_tensor_of_this_process(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    """It is lent for one transfer, and then nothing holds it."""
    there = pattern(5, NBYTES)
    (tmp_path / "data").write_bytes(there.tobytes())
    url = start_peer(options()).call(Service.serve, str(tmp_path), 64 * MIB)
    with storage.open_store(url, ctx=open_context(options())) as store, store.open("data").result() as file:
        for _ in range(3):
            tensor = blank_tensor(NBYTES)
            torch.cuda.synchronize()
            assert file.read_into(tensor).result(PATIENCE_S) == NBYTES
            assert bytes_of(tensor) == there.tobytes()
