"""Files straight into memory of GPUs: by cuFile in software (tests/native/fake_cufile) over GPUs in software."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.patience import ANSWER_S, PATIENCE_S
from support.software_gpus import IN_SOFTWARE
from zerohop import storage
from zerohop.storage import alignment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not IN_SOFTWARE, reason="cuFile in software is for GPUs in software"),
]

MIB = 1 << 20
PAGE = 4096
GPU = "cuda:0"
DEVICE_NOT_SUPPORTED = -5009


@pytest.fixture
def cufile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The functions that tell cuFile what to do; whatever file system the tests' folder has, cuFile takes it."""
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        monkeypatch.setattr(alignment, "_LOCAL", (alignment._file_system(file.fileno()),))
    library = ctypes.CDLL("libcufile.so.0")
    library.fake_cufile_fail.argtypes = (ctypes.c_int, ctypes.c_long, ctypes.c_int)
    library.fake_cufile_hold.argtypes = (ctypes.c_bool,)
    yield library
    library.fake_cufile_fail(0, 0, 0)
    library.fake_cufile_refuse_files(0)
    library.fake_cufile_hold(False)


@pytest.fixture(params=["auto", "threads"])
def engine(request: pytest.FixtureRequest, no_leaks: None, cufile: Any) -> Any:
    return request.param


def bytes_in(store: storage.Store, memory: zh.Memory | zh.View) -> np.ndarray:
    found = np.empty(memory.nbytes, np.uint8)
    store.context.read(memory.share("r"), found).result(PATIENCE_S)
    return found


def test_there_and_back(engine: Any, tmp_path: Path, random_file: Callable[..., np.ndarray]) -> None:
    there = random_file("data", 5 * MIB)
    with storage.open_store(tmp_path, engine=engine) as store, store.iov(5 * MIB, GPU) as block:
        with store.open("data", direct=True).result() as file:
            read = file.read_into(block)
            assert read.result(PATIENCE_S) == 5 * MIB
        assert read.explain().direct
        assert str(read.explain()).startswith(f"file (cuFile) file→{GPU} by GPUDirect Storage, 5.0 MiB in ")
        assert dict(read.explain().rejected).keys() <= {"io_uring"}
        assert (bytes_in(store, block.memory) == there).all()
        with store.open("copy", "w").result() as file:
            written = file.write_from(block)
            assert written.result(PATIENCE_S) == 5 * MIB
            assert written.explain().way == "by GPUDirect Storage"  # as large writes go past the cache anyway
    assert (tmp_path / "copy").read_bytes() == there.tobytes()


def test_what_is_not_aligned_is_staged(engine: Any, tmp_path: Path, random_file: Callable[..., np.ndarray]) -> None:
    there = random_file("data", MIB + 100)
    with storage.open_store(tmp_path, engine=engine) as store, store.iov(2 * MIB, GPU) as block:
        with store.open("data", direct=True).result() as file:
            both = file.read_into(block[: MIB + 100])
            odd = file.read_into(block[MIB + 512 : MIB + 512 + 4 * PAGE])
            assert both.result(PATIENCE_S) == MIB + 100
            assert odd.result(PATIENCE_S) == 4 * PAGE
            assert both.explain().way == f"{MIB} bytes by GPUDirect Storage, others staged, through the page cache"
            assert both.explain().form == f"cuFile, {store.engine}"
            for staged in (both, odd):
                assert not staged.explain().direct
                assert "multiples of 4096" in dict(staged.explain().rejected)["GPUDirect Storage"]
            assert odd.explain().way == "staged, past the page cache"
        with store.open("data", direct=False).result() as file:
            cached = file.read_into(block[: 4 * PAGE])
            assert cached.result(PATIENCE_S) == 4 * PAGE
            assert "past the page cache" in dict(cached.explain().rejected)["GPUDirect Storage"]
        found = bytes_in(store, block.memory)
        assert (found[:MIB] == there[:MIB]).all()
        assert (found[MIB + 512 : MIB + 512 + 4 * PAGE] == there[: 4 * PAGE]).all()


def test_a_file_that_cufile_refuses(
    engine: Any, cufile: Any, tmp_path: Path, random_file: Callable[..., np.ndarray]
) -> None:
    there = random_file("data", MIB)
    cufile.fake_cufile_refuse_files(5008)
    with storage.open_store(tmp_path, engine=engine) as store, store.iov(MIB, GPU) as block:
        with store.open("data", direct=True).result() as file:
            read = file.read_into(block)
            assert read.result(PATIENCE_S) == MIB
        assert read.explain().way == "staged, past the page cache"
        assert dict(read.explain().rejected)["GPUDirect Storage"].endswith("CU_FILE_IO_NOT_SUPPORTED")
        assert (bytes_in(store, block.memory) == there).all()
    with storage.open_store(tmp_path, engine=engine, require="direct") as store, store.iov(MIB, GPU) as block:
        with store.open("data").result() as file:
            error = file.read_into(block).exception(PATIENCE_S)
        assert isinstance(error, zh.Unsupported)
        assert "cuFileHandleRegister: CU_FILE_IO_NOT_SUPPORTED" in str(error)
        assert error.fix.startswith("put the file on an NVMe disk")


def test_other_file_systems_are_not_asked(
    engine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, random_file: Callable[..., np.ndarray]
) -> None:
    random_file("data", MIB)
    monkeypatch.setattr(alignment, "_LOCAL", ())
    with storage.open_store(tmp_path, engine=engine) as store, store.iov(MIB, GPU) as block:
        with store.open("data", direct=True).result() as file:
            read = file.read_into(block)
            assert read.result(PATIENCE_S) == MIB
        assert dict(read.explain().rejected)["GPUDirect Storage"] == "its file system is neither ext4 nor xfs"


def test_errors(engine: Any, cufile: Any, tmp_path: Path, random_file: Callable[..., np.ndarray]) -> None:
    """A disk's errors are those of every other transfer; what cuFile refuses goes the other way."""
    there = random_file("data", MIB)
    with storage.open_store(tmp_path, engine=engine) as store, store.iov(MIB, GPU) as block:
        with store.open("data", "r+", direct=True).result() as file:
            cufile.fake_cufile_fail(1, -1, errno.ENOSPC)
            error = file.write_from(block).exception(PATIENCE_S)
            assert isinstance(error, zh.StorageError)
            assert (error.errno, error.bytes_done) == (errno.ENOSPC, 0)
            assert error.fix.startswith("free space")
            end = file.read_into(block, MIB).exception(PATIENCE_S)
            assert isinstance(end, zh.EndOfFile)
            cufile.fake_cufile_fail(1, DEVICE_NOT_SUPPORTED, 0)
            read = file.read_into(block)
            assert read.result(PATIENCE_S) == MIB
            assert read.explain().way == "staged, past the page cache"
            after = file.read_into(block)
            after.result(PATIENCE_S)
            assert dict(after.explain().rejected)["GPUDirect Storage"] == "cuFileRead: CU_FILE_DEVICE_NOT_SUPPORTED"
        assert (bytes_in(store, block.memory) == there).all()


@pytest.mark.parametrize("whose", ["store", "context"])
def test_required(whose: str, engine: Any, cufile: Any, tmp_path: Path, random_file: Callable[..., np.ndarray]) -> None:
    there = random_file("data", 2 * MIB)
    of_store: Any = "direct" if whose == "store" else None
    (tmp_path / "data").read_bytes()  # the cache has it, and it goes straight all the same
    with (
        zh.Context(require="direct" if whose == "context" else None) as context,
        storage.open_store(tmp_path, ctx=context, engine=engine, require=of_store) as store,
        store.iov(2 * MIB, GPU) as block,
        store.open("data").result() as file,
    ):
        read = file.read_into(block)
        assert read.result(PATIENCE_S) == 2 * MIB
        assert read.explain().way == "by GPUDirect Storage"
        ring = store.ring(4)
        ring.prepare(block[:MIB], file, MIB)
        ring.submit()
        assert ring.wait(min_results=1, timeout=PATIENCE_S)[0].result == MIB
        calls = cufile.fake_cufile_calls()
        for part, offset, said in (
            (block[: MIB + 512], 0, f"{MIB + 512} bytes are no multiple of 4096"),
            (block[512 : MIB + 512], 0, "the memory for it begins at no multiple of 4096"),
            (block[:MIB], 512, "offset 512 in the file is no multiple of 4096"),
            (block[:MIB], 2 * MIB, "behind the end of the file"),
        ):
            error = file.read_into(part, offset).exception(PATIENCE_S)
            assert isinstance(error, zh.Unsupported)
            assert said in str(error)
            assert f"straight between file and {GPU}" in str(error)
            assert error.fix
            with pytest.raises(zh.Unsupported):
                ring.prepare(part, file, offset)
        assert cufile.fake_cufile_calls() == calls  # no byte was asked for
        cufile.fake_cufile_fail(4, DEVICE_NOT_SUPPORTED, 0)
        error = file.read_into(block).exception(PATIENCE_S)
        assert isinstance(error, zh.Unsupported)
        assert error.bytes_done == 0
        again = file.read_into(block).exception(PATIENCE_S)
        assert "cuFileRead: CU_FILE_DEVICE_NOT_SUPPORTED" in str(again)
        assert (bytes_in(store, block.memory)[MIB:] == there[MIB:]).all()
        # Memory of the host is the Store's demand alone.
        host = file.read_into(np.empty(100, np.uint8))
        assert (host.exception(PATIENCE_S) is None) == (whose == "context")


def test_a_deadline_and_a_close(
    engine: Any, cufile: Any, tmp_path: Path, random_file: Callable[..., np.ndarray]
) -> None:
    there = random_file("data", 4 * MIB)
    with zh.Context() as context, context.alloc(4 * MIB, GPU) as memory:
        with storage.open_store(tmp_path, ctx=context, engine=engine) as store:
            file = store.open("data", direct=True).result()
            file.read_into(memory[:PAGE]).result(PATIENCE_S)
            cufile.fake_cufile_hold(True)
            late = file.read_into(memory[:MIB], timeout=0.05)
            error = late.exception(PATIENCE_S)
            assert isinstance(error, zh.DeadlineExceeded)
            before = late.memory_in_use
            going_on = file.read_into(memory)
            file.close()
        cufile.fake_cufile_hold(False)
        assert going_on.result(PATIENCE_S) == 4 * MIB
        context.flush().result(PATIENCE_S)
        assert (before, late.memory_in_use) == (True, False)
        found = np.empty(4 * MIB, np.uint8)
        context.read(memory.share("r"), found).result(PATIENCE_S)
        assert (found == there).all()


CHILD = """
import json, sys
import zerohop as zh
from zerohop import storage
from zerohop.machine.doctor.process import read_process
from zerohop.machine.gpudirect import read_gpudirect

with storage.open_store(sys.argv[1]) as store, store.iov(1 << 20, "cuda:0") as block:
    with store.open("data", direct=True).result() as file:
        read = file.read_into(block)
        read.result(30)
found = read_gpudirect()
why = dict(read.explain().rejected)["GPUDirect Storage"]
print(json.dumps([why, found.why, found.fix, read_process().gpudirect.why]))
"""


def test_a_driver_that_refuses(no_leaks: None, tmp_path: Path, random_file: Callable[..., np.ndarray]) -> None:
    """The process asks once, so that this is another."""
    random_file("data", MIB)
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        env=os.environ | {"FAKE_CUFILE_REFUSES": "5001"},
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    why, of_machine, fix, of_process = json.loads(ran.stdout)
    assert why == of_machine == of_process == "cuFileDriverOpen: CU_FILE_DRIVER_NOT_INITIALIZED"
    assert fix == "modprobe nvidia-fs"
