"""Files into the memory of a GPU and back: every byte, from torch's tensors and from memory of the library's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from gpu.tensors import blank_tensor, bytes_of, options, random_tensor
from support.patience import PATIENCE_S
from support.sizes import MIB
from zerohop import storage

if TYPE_CHECKING:
    from pathlib import Path

    from support.fixtures import OpenContext

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_there_and_back(open_context: OpenContext, tmp_path: Path, engine: Any) -> None:
    context = open_context(options())
    source, back = random_tensor(70 * MIB), blank_tensor(70 * MIB)
    with storage.open_store(tmp_path, ctx=context, engine=engine, staging_bytes=8 * MIB) as store:
        with store.open("weights", "w").result() as file:
            assert file.write_from(source).result(PATIENCE_S) == 70 * MIB
        assert (tmp_path / "weights").read_bytes() == bytes_of(source)
        for direct in (None, True, False):
            back.zero_()
            torch.cuda.synchronize()
            with store.open("weights", direct=direct).result() as file:
                operation = file.read_into(back)
                assert operation.result(PATIENCE_S) == 70 * MIB
                assert "file→cuda:0 staged" in str(operation.explain())
            assert torch.equal(source, back)


def test_rings(open_context: OpenContext, tmp_path: Path) -> None:
    context = open_context(options())
    there = np.random.default_rng().integers(0, 256, 16 * MIB, dtype=np.uint8)
    (tmp_path / "pages").write_bytes(there.tobytes())
    pages = np.random.default_rng().permutation(4096)
    with storage.open_store(tmp_path, ctx=context) as store, store.iov(16 * MIB, "cuda:0") as iov:
        ring = store.ring(4096)
        with store.open("pages").result() as file:
            ring.prepare_many(iov, file, pages * 4096, np.full(4096, 4096), np.arange(4096) * 4096)
            ring.submit()
            taken = 0
            while taken < 4096:
                taken += len(ring.wait(min_results=1, timeout=PATIENCE_S))
        found = np.zeros(16 * MIB, np.uint8)
        with options().open() as other:
            other.read(zh.RemoteBuffer.from_bytes(iov.export("r")), found).result(PATIENCE_S)
    assert (found.reshape(4096, -1) == there.reshape(4096, -1)[pages]).all()


def test_synchronized(open_context: OpenContext, tmp_path: Path) -> None:
    """The file gets the bytes that a kernel was still writing when sync() was called."""
    tensor = blank_tensor(16 * MIB)
    with storage.open_store(tmp_path, ctx=open_context(options())) as store, store.wrap(tensor) as iov:
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(500_000_000)
            tensor.fill_(9)
        iov.sync("to_file")
        with store.open("data", "w").result() as file:
            file.write_from(iov).result(PATIENCE_S)
    assert (tmp_path / "data").read_bytes() == bytes([9]) * (16 * MIB)
