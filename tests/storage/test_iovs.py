"""Iovs: memory on the host and on devices, made ready for files; and what is given back at their end."""

from __future__ import annotations

import gc
import os
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.forking import in_child
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import PATIENCE_S
from support.stores import is_served
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zerohop.storage import Store

MIB = 1 << 20


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_allocated(store: Store, random_file: Callable[..., np.ndarray], device: str) -> None:
    there = random_file("data", MIB)
    with store.open("data").result() as file, store.iov(MIB, device) as iov:
        assert (iov.nbytes, len(iov), iov.device, iov.is_device) == (MIB, MIB, device, device != "host")
        assert file.read_into(iov).result(PATIENCE_S) == MIB
        assert file.read_into(iov[100:200], 5).result(PATIENCE_S) == 100
        with Options(sim_devices=1).open() as other:
            found = np.zeros(MIB, np.uint8)
            other.read(zh.RemoteBuffer.from_bytes(iov.export("r")), found).result(PATIENCE_S)
            expected = there.copy()
            expected[100:200] = there[5:105]
            assert (found == expected).all()
        if is_served(store) or (device == "host" and store.engine == "io_uring"):
            assert iov.not_fixed == ""
        else:
            assert iov.not_fixed
        memory = iov.memory
    with pytest.raises(zh.Closed):
        memory.share("r")


def test_wrapped(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    there = random_file("data", MIB)
    array, memory = np.zeros(MIB, np.uint8), store.context.alloc(MIB)
    with store.open("data").result() as file:
        for x in (array, memory, memory[:]):
            iov = store.wrap(x)
            file.read_into(iov).result(PATIENCE_S)
            iov.close()
            iov.close()
    assert (array == there).all()
    assert (memory.numpy() == there).all()
    assert store.context.statistics().pinned == 0
    memory.close()


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_advice_on_alignment(store: Store, device: str) -> None:
    """Memory of a GPU should begin at a multiple of 256 bytes, and what is allocated does."""
    with store.iov(MIB, device) as whole:
        assert whole.advice == ""
        for start, behind in ((0, 0), (256, 0), (4, 4), (511, 255)):
            part = store.wrap(whole[start:])
            said = f"the memory begins {behind} bytes behind a multiple of 256; "
            assert part.advice.startswith(said) if behind and device != "host" else part.advice == ""
            part.close()


def test_wrapped_tensor(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    torch = pytest.importorskip("torch")
    there = random_file("data", 16384)
    tensor = torch.zeros(4096, dtype=torch.float32)  # few: torch keeps the threads that it starts for many
    with store.open("data").result() as file, store.wrap(tensor) as iov:
        file.read_into(iov).result(PATIENCE_S)
    assert (tensor.view(torch.uint8).numpy() == there).all()


def test_memory_that_comes_after(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """Pages that the system kept at hand for one Iov are not taken for another's, at the same address or not."""
    there = random_file("data", MIB)
    with store.open("data").result() as file:
        for _ in range(20):
            iov = store.iov(MIB)
            memory = iov.memory
            assert isinstance(memory, zh.Memory)
            memory.close()  # beneath the Iov, which goes without close()
            del iov, memory
            target = store.context.alloc(MIB)
            file.read_into(target).result(PATIENCE_S)
            assert (target.numpy() == there).all()
            target.close()


def test_a_mapped_file_whose_pages_are_replaced(
    store: Store, random_file: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    """Another cuts the file and makes it as long as before: transfers go by the pages that are there now."""
    there = random_file("data", MIB)
    shared = SharedMemory(create=True, size=MIB)
    try:
        mapped = np.ndarray(MIB, np.uint8, shared.buf)
        iov = store.wrap(mapped)
        with store.open("data").result() as file, store.open("copy", "w").result() as copy:
            for length in (MIB, 0):
                os.truncate(f"/dev/shm/{shared.name}", length)
                os.truncate(f"/dev/shm/{shared.name}", MIB)
                mapped[:] = 9
                assert copy.write_from(iov).result(PATIENCE_S) == MIB
                assert (np.fromfile(tmp_path / "copy", np.uint8) == 9).all()
                assert file.read_into(iov).result(PATIENCE_S) == MIB
                assert (mapped == there).all()
        assert iov.not_fixed == "the memory is a mapping of a file, whose pages others may replace"
        iov.close()
        del mapped, iov
    finally:
        shared.unlink()
        gc.collect()
        shared.close()


def test_dropped(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """An Iov that is dropped gives its memory back, like one that is closed; a Memory of it that is kept is of use."""
    random_file("data", MIB)
    with store.open("data").result() as file:
        file.read_into(store.iov(4096)).result(PATIENCE_S)
        before = holdings()
        for _ in range(8):
            file.read_into(store.iov(4096)).result(PATIENCE_S)
            store.iov(4096)
            store.wrap(np.zeros(4096, np.uint8))
        expect_given_back(before, holdings, "this process")
        kept = store.iov(4096).memory
        assert file.read_into(kept).result(PATIENCE_S) == 4096


@pytest.mark.parametrize("direct", [None, True, False])
def test_closed_under_a_transfer(
    store: Store, random_file: Callable[..., np.ndarray], tmp_path: Path, direct: bool | None
) -> None:
    """What has begun ends as usual: it keeps the memory, and all that was made ready of it."""
    there = random_file("data", 8 * MIB)
    array = np.zeros(8 * MIB, np.uint8)
    memory = store.context.register(array)
    at = np.arange(2048) * 4096
    with store.open("data", direct=direct).result(PATIENCE_S) as file:
        for _ in range(5):
            array[:] = 0
            iov = store.wrap(memory)
            reading = file.read_many(iov, at, np.full(2048, 4096), at)
            iov.close()
            assert reading.result(PATIENCE_S) == 8 * MIB
            assert (array == there).all()
            array[:] = 0
            assert file.read_many(store.wrap(memory), at, np.full(2048, 4096), at).result(PATIENCE_S) == 8 * MIB
            assert (array == there).all()
    with store.open("copy", "w", direct=direct).result(PATIENCE_S) as file:
        for _ in range(5):
            iov = store.wrap(memory)
            writing = file.write_from(iov)
            iov.close()
            assert writing.result(PATIENCE_S) == 8 * MIB
    assert (tmp_path / "copy").read_bytes() == there.tobytes()
    memory.close()


def test_a_forked_child_leaves_the_parents_alone(tmp_path: Path) -> None:
    """The child has the same io_uring by its descriptor, and drops the parent's objects."""
    there = np.random.default_rng(3).integers(0, 256, MIB, np.uint8)
    (tmp_path / "data").write_bytes(there.tobytes())
    store = storage.open_store(tmp_path, sim_devices=1)
    file = store.open("data").result(PATIENCE_S)
    objects: list[Any] = [file, store.iov(MIB), store]
    del file, store

    def work() -> str:
        objects.clear()
        gc.collect()
        return "dropped"

    for _ in range(2):
        assert in_child(work) == "dropped"
        file, iov, store = objects
        assert file.read_into(iov).result(PATIENCE_S) == MIB
        assert (iov.memory.numpy() == there).all()
        del file, iov, store
    objects[1].close()
    objects[2].close()


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_synchronized(store: Store, device: str) -> None:
    """Neither has work of its own that could be waited for; tests/gpu has a GPU's."""
    with store.iov(64, device) as iov:
        iov.sync("to_file")
        iov.sync("from_file")
        with pytest.raises(ValueError, match='direction is "to_file" or "from_file", not 0'):
            iov.sync(0)  # type: ignore[arg-type]  # what the test is about


def test_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="sim:7"):
        store.iov(MIB, "sim:7")
    with pytest.raises(ValueError, match="cannot allocate 0 bytes"):
        store.iov(0)
    with pytest.raises(TypeError):
        store.wrap("text")
    memory = store.context.alloc(MIB)
    memory.close()
    with pytest.raises(zh.Closed):
        store.wrap(memory)
