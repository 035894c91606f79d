"""3FS's C interface, function by function, on the host's memory and that of simulated devices."""

from __future__ import annotations

import errno
import inspect
import os
import pickle
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.hf3fs import batches, own_state
from support.options import Options
from support.patience import ANSWER_S, PATIENCE_S
from support.pattern import pattern
from zerohop.compat import hf3fs
from zerohop.compat.hf3fs import (
    hf3fs_cqe,
    hf3fs_dereg_fd,
    hf3fs_gdr_available,
    hf3fs_gdr_device_count,
    hf3fs_gpu_ipc_handle_t,
    hf3fs_hardlink,
    hf3fs_io_entries,
    hf3fs_ior,
    hf3fs_ior_size,
    hf3fs_iorcreate4,
    hf3fs_iordestroy,
    hf3fs_iov,
    hf3fs_iov_export_gpu,
    hf3fs_iov_gpu_device,
    hf3fs_iov_import_gpu,
    hf3fs_iov_is_gpu,
    hf3fs_iovcreate,
    hf3fs_iovcreate_gpu,
    hf3fs_iovdestroy,
    hf3fs_iovdestroy_gpu,
    hf3fs_iovsync_gpu,
    hf3fs_iovwrap,
    hf3fs_iovwrap_gpu,
    hf3fs_prep_io,
    hf3fs_punchhole,
    hf3fs_reg_fd,
    hf3fs_submit_ios,
    hf3fs_wait_for_ios,
)
from zerohop.compat.process import shared_context
from zerohop.storage import Iov

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NBYTES = 300_001
PAGE = 4096
HOST = -1


@pytest.fixture(autouse=True)
def own(no_leaks: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    monkeypatch.setenv("ZEROHOP_SIM_DEVICES", "2")
    if request.node.get_closest_marker("cuda") is None:
        monkeypatch.setattr("zerohop.compat.hf3fs.gpus._KINDS", ("sim",))  # also on a machine with GPUs
    with own_state():
        yield


@pytest.fixture
def there(tmp_path: Path) -> np.ndarray:
    values = pattern(3, NBYTES)
    (tmp_path / "data").write_bytes(values.tobytes())
    return values


def created(folder: Path, device: int, nbytes: int = NBYTES) -> hf3fs_iov:
    iov = hf3fs_iov()
    if device == HOST:
        assert hf3fs_iovcreate(iov, str(folder), nbytes, 0, -1) == 0
    else:
        assert hf3fs_iovcreate_gpu(iov, str(folder), nbytes, 0, device) == 0
    return iov


def ring_of(folder: Path, entries: int = 64, *, for_read: bool = True, depth: int = 0, flags: int = 0) -> hf3fs_ior:
    ior = hf3fs_ior()
    assert hf3fs_iorcreate4(ior, str(folder), entries, for_read, depth, 0, -1, flags) == 0
    return ior


def memory_of(iov: hf3fs_iov) -> Any:
    assert isinstance(iov.iovh, Iov)
    return iov.iovh.memory


def code(function: Any, *arguments: Any) -> int:
    result: int = function(*arguments)
    return result


def test_signatures() -> None:
    """The order of arguments is that of hf3fs_usrbio.h and hf3fs_usrbio_gdr.h."""
    expected = {
        "hf3fs_gdr_available": "",
        "hf3fs_gdr_device_count": "",
        "hf3fs_iovcreate": "iov, hf3fs_mount_point, size, block_size, numa",
        "hf3fs_iovcreate_gpu": "iov, hf3fs_mount_point, size, block_size, gpu_device_id",
        "hf3fs_iovwrap": "iov, base, id, hf3fs_mount_point, size, block_size, numa",
        "hf3fs_iovwrap_gpu": "iov, gpu_ptr, id, hf3fs_mount_point, size, block_size, gpu_device_id",
        "hf3fs_iovdestroy": "iov",
        "hf3fs_iovdestroy_gpu": "iov",
        "hf3fs_iov_is_gpu": "iov",
        "hf3fs_iov_gpu_device": "iov",
        "hf3fs_iovsync_gpu": "iov, direction",
        "hf3fs_iov_export_gpu": "iov, handle",
        "hf3fs_iov_import_gpu": "iov, handle, hf3fs_mount_point",
        "hf3fs_iorcreate4": "ior, hf3fs_mount_point, entries, for_read, io_depth, timeout, numa, flags",
        "hf3fs_iordestroy": "ior",
        "hf3fs_ior_size": "entries",
        "hf3fs_io_entries": "ior",
        "hf3fs_reg_fd": "fd, flags",
        "hf3fs_dereg_fd": "fd",
        "hf3fs_prep_io": "ior, iov, read, ptr, fd, off, len, userdata",
        "hf3fs_submit_ios": "ior",
        "hf3fs_wait_for_ios": "ior, cqes, cqec, min_results, abs_timeout",
        "hf3fs_hardlink": "target, link_name",
        "hf3fs_punchhole": "fd, n, start, end, flags",
    }
    functions = {
        name for name in hf3fs.__all__ if inspect.isfunction(getattr(hf3fs, name)) and name.startswith("hf3fs_")
    }
    assert functions == expected.keys()
    for name, parameters in expected.items():
        assert ", ".join(inspect.signature(getattr(hf3fs, name)).parameters) == parameters, name


class TestMemory:
    def test_gpus(self) -> None:
        assert hf3fs_gdr_available()
        count = hf3fs_gdr_device_count()
        assert count == len([each for each in shared_context().devices if each.kind == "sim"]) == 2

    def test_no_gpus(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("ZEROHOP_SIM_DEVICES", "0")
        assert (hf3fs_gdr_available(), hf3fs_gdr_device_count()) == (False, 0)
        assert hf3fs_iovcreate_gpu(hf3fs_iov(), str(tmp_path), 100, 0, 0) == -errno.ENODEV

    def test_no_context(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setenv("ZEROHOP_SIM_DEVICES", "many")
        assert (hf3fs_gdr_available(), hf3fs_gdr_device_count()) == (False, 0)
        assert "ZEROHOP_SIM_DEVICES" in caplog.text

    @pytest.mark.parametrize("device", [HOST, 0, 1])
    def test_created(self, tmp_path: Path, device: int) -> None:
        iov = created(tmp_path, device)
        memory = memory_of(iov)
        assert (iov.base, iov.size, iov.mount_point, iov.block_size, iov.numa) == (
            *(memory.address, NBYTES, str(tmp_path)),
            *(0, -1),
        )
        assert len(iov.id) == 16
        assert iov.id != created(tmp_path, device, 1).id
        assert hf3fs_iov_is_gpu(iov) == (device != HOST)
        assert hf3fs_iov_gpu_device(iov) == device
        hf3fs_iovdestroy_gpu(iov)
        hf3fs_iovdestroy(iov)
        assert (iov.base, iov.size, hf3fs_iov_is_gpu(iov), hf3fs_iov_gpu_device(iov)) == (0, 0, False, -1)
        with pytest.raises(zh.Closed):
            memory.read_bytes()

    def test_wrapped_on_a_device(self, tmp_path: Path, there: np.ndarray) -> None:
        """A part of memory, by its address; it outlives the iov."""
        memory = shared_context().alloc(NBYTES, "sim:1")
        iov, name = hf3fs_iov(), uuid.uuid4().bytes
        assert hf3fs_iovwrap_gpu(iov, memory.address + 4096, name, str(tmp_path), 8192, 4096, 1) == 0
        assert (iov.base, iov.size, iov.id, iov.block_size) == (memory.address + 4096, 8192, name, 4096)
        memory.write_bytes(0, bytes(NBYTES))
        assert read(tmp_path, iov, 100, 0, 8192) == 8192
        hf3fs_iovdestroy_gpu(iov)
        assert memory.read_bytes() == bytes(4096) + there[100:8292].tobytes() + bytes(NBYTES - 12_288)
        memory.close()

    @pytest.mark.parametrize("by_address", [True, False])
    def test_wrapped_on_the_host(self, tmp_path: Path, there: np.ndarray, by_address: bool) -> None:
        array = np.zeros(NBYTES, np.uint8)
        iov = hf3fs_iov()
        base = array.ctypes.data if by_address else array
        assert hf3fs_iovwrap(iov, base, bytes(16), str(tmp_path), NBYTES, 0, 0) == 0
        assert (iov.base, iov.numa) == (array.ctypes.data, 0)
        assert read(tmp_path, iov, 0, 0, NBYTES) == NBYTES
        hf3fs_iovdestroy(iov)
        assert (array == there).all()

    def test_refused(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        iov, folder, name = hf3fs_iov(), str(tmp_path), bytes(16)
        array = np.zeros(100, np.uint8)
        address = shared_context().alloc(100, "sim:0").address
        cases: list[tuple[int, str, Any, tuple[Any, ...]]] = [
            (errno.EINVAL, "size must be at least 1", hf3fs_iovcreate, (iov, folder, 0, 0, -1)),
            (errno.EINVAL, "block_size must be", hf3fs_iovcreate, (iov, folder, 1, -1, -1)),
            (errno.EINVAL, "numa must be", hf3fs_iovcreate, (iov, folder, 1, 0, -2)),
            (errno.ENOENT, "no mount point", hf3fs_iovcreate, (iov, folder + "/no", 1, 0, -1)),
            (errno.EINVAL, "at most 255 bytes", hf3fs_iovcreate, (iov, "/" + "x" * 256, 1, 0, -1)),
            (errno.ENODEV, "there is no GPU 2; there are sim:0, sim:1", hf3fs_iovcreate_gpu, (iov, folder, 1, 0, 2)),
            (errno.ENODEV, "there is no GPU -1", hf3fs_iovcreate_gpu, (iov, folder, 1, 0, -1)),
            (errno.EINVAL, "size must be at least 1", hf3fs_iovcreate_gpu, (iov, folder, 0, 0, 0)),
            (errno.ENOMEM, "", hf3fs_iovcreate, (iov, folder, 1 << 60, 0, -1)),
            (errno.EINVAL, "an id has 16 bytes", hf3fs_iovwrap_gpu, (iov, address, b"x", folder, 100, 0, 0)),
            (errno.EINVAL, "at the address 0", hf3fs_iovwrap_gpu, (iov, 0, name, folder, 100, 0, 0)),
            (errno.EINVAL, "has 100 bytes of host", hf3fs_iovwrap_gpu, (iov, array, name, folder, 100, 0, 0)),
            (errno.EINVAL, "and not 99 of host", hf3fs_iovwrap, (iov, array, name, folder, 99, 0, -1)),
        ]
        for number, said, function, arguments in cases:
            caplog.clear()
            assert code(function, *arguments) == -number, said
            assert said in caplog.text
            assert f"{errno.errorcode[number]}: " in caplog.text
        assert (iov.base, iov.iovh) == (0, None)
        with pytest.raises(TypeError):
            hf3fs_iovcreate_gpu(iov, folder, 100, 0, "0")  # type: ignore[arg-type]  # what the test is about

    @pytest.mark.parametrize("direction", [0, 1])
    def test_synchronized(self, tmp_path: Path, direction: int) -> None:
        iov = created(tmp_path, 1)
        assert hf3fs_iovsync_gpu(iov, direction) == 0
        assert hf3fs_iovsync_gpu(iov, 2) == -errno.EINVAL
        assert hf3fs_iovsync_gpu(created(tmp_path, HOST), direction) == -errno.EINVAL
        hf3fs_iovdestroy_gpu(iov)


IMPORTING = """
import os, sys
from zerohop.compat.hf3fs import *

data, folder, nbytes = bytes.fromhex(sys.argv[1]), sys.argv[2], int(sys.argv[3])
iov, cqe = hf3fs_iov(), hf3fs_cqe()
result = hf3fs_iov_import_gpu(iov, hf3fs_gpu_ipc_handle_t(data), folder)
print(result)
if result == 0:
    print(hf3fs_iov_is_gpu(iov), hf3fs_iov_gpu_device(iov), iov.size)
    for read, name, flags in ((True, "data", os.O_RDONLY), (False, "copy", os.O_WRONLY | os.O_CREAT)):
        ior = hf3fs_ior()
        assert hf3fs_iorcreate4(ior, folder, 4, read, 0, 0, -1, 0) == 0
        fd = os.open(f"{folder}/{name}", flags)
        assert hf3fs_reg_fd(fd, 0) <= 0
        assert hf3fs_prep_io(ior, iov, read, iov.base, fd, 0, nbytes, None) >= 0
        assert hf3fs_wait_for_ios(ior, cqe, 1, 1, None) == 1
        print(cqe.result)
        hf3fs_iordestroy(ior)
    hf3fs_iovdestroy_gpu(iov)
    print("done")
"""


class TestHandles:
    def test_in_this_process(self, tmp_path: Path, there: np.ndarray) -> None:
        iov, handle, other = created(tmp_path, 0), hf3fs_gpu_ipc_handle_t(), hf3fs_iov()
        assert hf3fs_iov_export_gpu(iov, handle) == 0
        assert hf3fs_iov_import_gpu(other, pickle.loads(pickle.dumps(handle)), str(tmp_path)) == 0
        assert (other.base, other.size, hf3fs_iov_gpu_device(other)) == (iov.base, iov.size, 0)
        assert other.id != iov.id
        assert read(tmp_path, other, 0, 0, NBYTES) == NBYTES
        hf3fs_iovdestroy_gpu(other)
        assert memory_of(iov).read_bytes() == there.tobytes()
        with Options(sim_devices=1).open() as peer:
            found = np.zeros(NBYTES, np.uint8)
            peer.read(zh.RemoteBuffer.from_bytes(handle.data), found).result(PATIENCE_S)
            assert (found == there).all()
        hf3fs_iovdestroy_gpu(iov)
        assert hf3fs_iov_import_gpu(other, handle, str(tmp_path)) == -errno.EACCES

    def test_in_another_process(self, tmp_path: Path, there: np.ndarray) -> None:
        """It imports the memory, reads a file into it, and writes it to another file."""
        iov, handle = created(tmp_path, 0), hf3fs_gpu_ipc_handle_t()
        assert hf3fs_iov_export_gpu(iov, handle) == 0
        command = [sys.executable, "-c", IMPORTING, handle.data.hex(), str(tmp_path), str(NBYTES)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
        assert ran.stdout.splitlines() == ["0", f"True 0 {NBYTES}", str(NBYTES), str(NBYTES), "done"], ran.stderr
        assert memory_of(iov).read_bytes() == there.tobytes()
        assert (tmp_path / "copy").read_bytes() == there.tobytes()
        hf3fs_iovdestroy_gpu(iov)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
        assert ran.stdout.splitlines()[0] == str(-errno.EACCES), ran.stderr

    def test_refused(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        handle = hf3fs_gpu_ipc_handle_t(b"nothing")
        assert hf3fs_iov_export_gpu(created(tmp_path, HOST), handle) == -errno.EINVAL
        assert hf3fs_iov_import_gpu(hf3fs_iov(), handle, str(tmp_path)) == -errno.EINVAL
        assert "no handle that hf3fs_iov_export_gpu gave" in caplog.text
        assert hf3fs_iov_import_gpu(hf3fs_iov(), handle, "/no/such/folder") == -errno.ENOENT


def read(folder: Path, iov: hf3fs_iov, offset: int, at: int, nbytes: int) -> int:
    """Reads by the whole sequence of calls, as the examples of 3FS do."""
    ior, cqe = ring_of(folder), hf3fs_cqe()
    fd = os.open(folder / "data", os.O_RDONLY)
    assert hf3fs_reg_fd(fd, 0) <= 0
    assert hf3fs_prep_io(ior, iov, True, iov.base + at, fd, offset, nbytes, None) >= 0
    assert hf3fs_submit_ios(ior) == 0
    assert hf3fs_wait_for_ios(ior, cqe, 1, 1, None) == 1
    hf3fs_dereg_fd(fd)
    os.close(fd)
    hf3fs_iordestroy(ior)
    return cqe.result


class TestTransfers:
    @pytest.mark.parametrize("device", [HOST, 0, 1])
    @pytest.mark.parametrize(("offset", "at", "nbytes"), [(0, 0, NBYTES), (13, 4097, 8191), (NBYTES - 5, 7, 100)])
    def test_reading(self, tmp_path: Path, there: np.ndarray, device: int, offset: int, at: int, nbytes: int) -> None:
        iov = created(tmp_path, device)
        memory_of(iov).write_bytes(0, b"\xee" * NBYTES)
        expected = np.full(NBYTES, 0xEE, np.uint8)
        found = there[offset : offset + nbytes]
        expected[at : at + found.size] = found
        assert read(tmp_path, iov, offset, at, nbytes) == found.size
        assert memory_of(iov).read_bytes() == expected.tobytes()
        hf3fs_iovdestroy_gpu(iov)

    @pytest.mark.parametrize("device", [HOST, 1])
    def test_writing(self, tmp_path: Path, device: int) -> None:
        values = pattern(4, NBYTES)
        iov, ior, cqe = created(tmp_path, device), ring_of(tmp_path, for_read=False), hf3fs_cqe()
        memory_of(iov).write_bytes(0, values.tobytes())
        fd = os.open(tmp_path / "new", os.O_CREAT | os.O_WRONLY)
        number = hf3fs_reg_fd(fd, 0)
        assert number <= 0
        assert hf3fs_iovsync_gpu(iov, 0) == (0 if device != HOST else -errno.EINVAL)
        assert hf3fs_prep_io(ior, iov, False, iov.base + 3, number, 5, NBYTES - 3, "mine") >= 0
        assert hf3fs_submit_ios(ior) == 0
        assert hf3fs_wait_for_ios(ior, [cqe], 1, 1, time.time() + PATIENCE_S) == 1
        assert (cqe.result, cqe.userdata, cqe.reserved) == (NBYTES - 3, "mine", 0)
        assert (tmp_path / "new").read_bytes() == bytes(5) + values[3:].tobytes()
        hf3fs_dereg_fd(number)
        os.close(fd)
        hf3fs_iordestroy(ior)
        hf3fs_iovdestroy_gpu(iov)

    @pytest.mark.parametrize("device", [HOST, 0])
    @pytest.mark.parametrize(("depth", "begun", "later"), [(0, [21], []), (8, [16], [5]), (-8, [21], [])])
    def test_many(
        self,
        tmp_path: Path,
        there: np.ndarray,
        monkeypatch: pytest.MonkeyPatch,
        device: int,
        depth: int,
        begun: list[int],
        later: list[int],
    ) -> None:
        """In the batches of io_depth, with an index and a result for each, and a tail that does not hang."""
        seen = batches(monkeypatch)
        iov, ior = created(tmp_path, device), ring_of(tmp_path, 21, depth=depth)
        assert hf3fs_io_entries(ior) == 21
        assert (ior.mount_point, ior.for_read, ior.io_depth, ior.timeout, ior.flags) == (
            *(str(tmp_path), True),
            *(depth, 0, 0),
        )
        fd = os.open(tmp_path / "data", os.O_RDONLY)
        assert hf3fs_reg_fd(fd, 0) <= 0
        pages = {
            hf3fs_prep_io(ior, iov, True, iov.base + (20 - page) * PAGE, fd, page * PAGE, PAGE, page): page
            for page in range(21)
        }
        assert sorted(pages) == [*range(21)]
        assert hf3fs_prep_io(ior, iov, True, iov.base, fd, 0, PAGE, None) == -errno.EAGAIN
        assert hf3fs_submit_ios(ior) == 0
        assert seen == begun
        cqes = [hf3fs_cqe() for _ in range(30)]
        assert hf3fs_wait_for_ios(ior, cqes, 30, 21, (int(time.time() + PATIENCE_S), 0)) == 21
        assert seen == begun + later
        assert {each.index: each.userdata for each in cqes[:21]} == pages
        assert {each.result for each in cqes[:21]} == {PAGE}
        assert cqes[21].userdata is None
        found = np.frombuffer(memory_of(iov).read_bytes()[: 21 * PAGE], np.uint8)
        assert (found.reshape(21, PAGE)[::-1] == there[: 21 * PAGE].reshape(21, PAGE)).all()
        hf3fs_dereg_fd(fd)
        os.close(fd)
        hf3fs_iordestroy(ior)
        hf3fs_iordestroy(ior)
        hf3fs_iovdestroy_gpu(iov)

    @pytest.mark.parametrize("device", [HOST, 0])
    def test_holes(self, tmp_path: Path, device: int) -> None:
        (tmp_path / "data").write_bytes(b"x" * 4 * PAGE)
        fd = os.open(tmp_path / "data", os.O_RDWR)
        assert hf3fs_punchhole(fd, 1, [PAGE, 0], [2 * PAGE, 1], 0) == 0
        assert hf3fs_punchhole(fd, 3, [0], [1], 0) == -errno.EINVAL
        os.close(fd)
        iov, ior, cqe = created(tmp_path, device, PAGE), ring_of(tmp_path, flags=2), hf3fs_cqe()
        assert read(tmp_path, iov, PAGE, 0, PAGE) == PAGE
        assert memory_of(iov).read_bytes() == bytes(PAGE)
        fd = os.open(tmp_path / "data", os.O_RDONLY)
        assert hf3fs_reg_fd(fd, 0) <= 0
        for offset, result in ((0, PAGE), (PAGE, -errno.ENODATA), (PAGE - 1, -errno.ENODATA), (3 * PAGE, PAGE)):
            assert hf3fs_prep_io(ior, iov, True, iov.base, fd, offset, PAGE, None) >= 0
            assert hf3fs_wait_for_ios(ior, cqe, 1, 1, None) == 1
            assert cqe.result == result
        hf3fs_dereg_fd(fd)
        os.close(fd)
        hf3fs_iordestroy(ior)
        hf3fs_iovdestroy(iov)

    def test_memory_that_is_destroyed_first(self, tmp_path: Path, there: np.ndarray) -> None:
        """What was not begun has a result, too."""
        iov, ior, cqe = created(tmp_path, 0), ring_of(tmp_path, depth=8), hf3fs_cqe()
        fd = os.open(tmp_path / "data", os.O_RDONLY)
        assert hf3fs_reg_fd(fd, 0) <= 0
        index = hf3fs_prep_io(ior, iov, True, iov.base, fd, 0, 100, None)
        hf3fs_iovdestroy_gpu(iov)
        assert hf3fs_wait_for_ios(ior, cqe, 1, 1, None) == 1
        assert (cqe.index, cqe.result) == (index, -errno.EINVAL)
        assert hf3fs_prep_io(ior, iov, True, 4096, fd, 0, 100, None) == -errno.EINVAL
        hf3fs_dereg_fd(fd)
        os.close(fd)
        hf3fs_iordestroy(ior)

    def test_refused(self, tmp_path: Path, there: np.ndarray, caplog: pytest.LogCaptureFixture) -> None:
        iov, ior, writing = created(tmp_path, HOST), ring_of(tmp_path), ring_of(tmp_path, for_read=False)
        reads, writes = (os.open(tmp_path / "data", flags) for flags in (os.O_RDONLY, os.O_WRONLY))
        assert hf3fs_reg_fd(reads, 0) == -reads
        assert hf3fs_reg_fd(writes, 0) == -writes
        base, end = iov.base, iov.base + NBYTES
        cases: list[tuple[int, str, Any, tuple[Any, ...]]] = [
            (errno.EINVAL, "do not lie within", hf3fs_prep_io, (ior, iov, True, end - 5, reads, 0, 6, None)),
            (errno.EINVAL, "do not lie within", hf3fs_prep_io, (ior, iov, True, base - 1, reads, 0, 6, None)),
            (errno.EINVAL, "length must be at least 1", hf3fs_prep_io, (ior, iov, True, base, reads, 0, 0, None)),
            (errno.EINVAL, "an offset in the file", hf3fs_prep_io, (ior, iov, True, base, reads, 2**63, 6, None)),
            (errno.EINVAL, "the ring reads", hf3fs_prep_io, (ior, iov, False, base, writes, 0, 6, None)),
            (errno.EINVAL, "the iov was not created", hf3fs_prep_io, (ior, hf3fs_iov(), True, 1, reads, 0, 6, None)),
            (errno.EINVAL, "use hf3fs_iorcreate4", hf3fs_prep_io, (hf3fs_ior(), iov, True, base, reads, 0, 6, None)),
            (errno.EBADF, "is not registered", hf3fs_prep_io, (ior, iov, True, base, 999, 0, 6, None)),
            (errno.EACCES, "not opened for reading", hf3fs_prep_io, (ior, iov, True, base, writes, 0, 6, None)),
            (errno.EACCES, "not opened for writing", hf3fs_prep_io, (writing, iov, False, base, reads, 0, 6, None)),
            (errno.EINVAL, "use hf3fs_iorcreate4", hf3fs_submit_ios, (hf3fs_ior(),)),
            (errno.EINVAL, "use hf3fs_iorcreate4", hf3fs_io_entries, (hf3fs_ior(),)),
            (errno.EINVAL, "use hf3fs_iorcreate4", hf3fs_wait_for_ios, (hf3fs_ior(), hf3fs_cqe(), 1, 1, None)),
            (errno.EINVAL, "cqec must be from 1 to 1", hf3fs_wait_for_ios, (ior, hf3fs_cqe(), 2, 1, None)),
            (errno.EINVAL, "cqec must be from 1", hf3fs_wait_for_ios, (ior, [hf3fs_cqe()], 0, 0, None)),
            (errno.EINVAL, "timeout must be", hf3fs_iorcreate4, (hf3fs_ior(), str(tmp_path), 4, True, 0, -1, -1, 0)),
            (errno.EINVAL, "flags must be", hf3fs_iorcreate4, (hf3fs_ior(), str(tmp_path), 4, True, 0, 0, -1, 8)),
            (errno.ENOENT, "no mount point", hf3fs_iorcreate4, (hf3fs_ior(), "/no/such", 4, True, 0, 0, -1, 0)),
            (errno.ENOENT, "", hf3fs_hardlink, (str(tmp_path / "no"), str(tmp_path / "name"))),
        ]
        for number, said, function, arguments in cases:
            caplog.clear()
            assert code(function, *arguments) == -number, said
            assert f"{function.__name__}: {errno.errorcode[number]}: " in caplog.text
            assert said in caplog.text
        caplog.clear()
        assert hf3fs_reg_fd(reads, 0) == errno.EINVAL
        assert "hf3fs_reg_fd: EINVAL: register_fd: descriptor" in caplog.text
        assert hf3fs_reg_fd(999, 0) == errno.EBADF
        assert hf3fs_hardlink(str(tmp_path / "data"), str(tmp_path / "name")) == 0
        assert hf3fs_ior_size(64) == hf3fs.ioring.size_for_entries(64)
        assert hf3fs_wait_for_ios(ior, hf3fs_cqe(), 1, 1, 0.0) == 0
        for fd in (reads, writes):
            hf3fs_dereg_fd(fd)
            os.close(fd)


@pytest.mark.cuda
class TestOnAGpu:
    """Where there are GPUs, numbers mean them, and not the simulated devices beside them."""

    def test_there_and_back(self, tmp_path: Path, there: np.ndarray) -> None:
        assert hf3fs_gdr_device_count() == len([each for each in shared_context().devices if each.kind == "cuda"]) > 0
        iov = created(tmp_path, 0)
        assert (memory_of(iov).device, hf3fs_iov_gpu_device(iov)) == ("cuda:0", 0)
        assert read(tmp_path, iov, 0, 0, NBYTES) == NBYTES
        assert memory_of(iov).read_bytes() == there.tobytes()
        assert [hf3fs_iovsync_gpu(iov, direction) for direction in (0, 1)] == [0, 0]
        ior, cqe = ring_of(tmp_path, for_read=False), hf3fs_cqe()
        fd = os.open(tmp_path / "new", os.O_CREAT | os.O_RDWR)
        assert hf3fs_reg_fd(fd, 0) <= 0
        assert hf3fs_prep_io(ior, iov, False, iov.base + 7, fd, 0, NBYTES - 7, None) >= 0
        assert hf3fs_wait_for_ios(ior, cqe, 1, 1, None) == 1
        assert (tmp_path / "new").read_bytes() == there[7:].tobytes()
        hf3fs_dereg_fd(fd)
        os.close(fd)
        hf3fs_iordestroy(ior)
        hf3fs_iovdestroy_gpu(iov)

    def test_wrapped(self, tmp_path: Path, there: np.ndarray) -> None:
        memory = shared_context().alloc(NBYTES, "cuda:0")
        memory.write_bytes(0, bytes(NBYTES))
        iov = hf3fs_iov()
        assert hf3fs_iovwrap_gpu(iov, memory.address + 100, bytes(16), str(tmp_path), 5000, 0, 0) == 0
        assert read(tmp_path, iov, 3, 0, 5000) == 5000
        hf3fs_iovdestroy_gpu(iov)
        assert memory.read_bytes() == bytes(100) + there[3:5003].tobytes() + bytes(NBYTES - 5100)
        memory.close()
