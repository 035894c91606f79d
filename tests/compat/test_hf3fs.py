"""3FS's names in Python on folders: memory, mount points, descriptors and whole files."""

from __future__ import annotations

import errno
import gc
import inspect
import os
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.forking import in_child
from support.hf3fs import opened, own_state
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from zerohop.compat import hf3fs
from zerohop.compat.process import shared_context

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.fixtures import StartPeer

NBYTES = 300_001
UUID = "5f0c7a1e-0d3b-4d65-9f7e-52f4b4d6c001"


@pytest.fixture(autouse=True)
def own(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ZEROHOP_SIM_DEVICES", "2")
    with own_state():
        yield


@pytest.fixture
def there(tmp_path: Path) -> np.ndarray:
    values = pattern(1, NBYTES)
    (tmp_path / "data").write_bytes(values.tobytes())
    return values


def read_all(iov: hf3fs.iovec, folder: Path) -> int:
    with opened(folder / "data") as fd:
        ring = hf3fs.make_ioring(str(folder), 4)
        (done,) = ring.prepare(iov, True, fd, 0).submit().wait()
        assert done is iov
        return int(done.result)


def test_signatures() -> None:
    """As in 3FS's hf3fs_fuse/io.py and usrbio_binding.cc."""
    expected = {
        "make_iovec": "shm, hf3fs_mount_point, block_size=0, numa=-1",
        "make_ioring": "hf3fs_mount_point, entries, for_read=True, io_depth=0, priority=None, timeout=None, numa=-1, "
        "flags=0",
        "read_file": "fn, hf3fs_mount_point=None, block_size=1073741824, off=0, priority=None, cb=None",
        "register_fd": "fd, flags=0",
        "deregister_fd": "fd",
        "extract_mount_point": "path",
        "force_fsync": "fd",
        "hardlink": "target, link_name",
        "punch_hole": "file, start, end, flags=0",
    }
    for name, parameters in expected.items():
        signature = inspect.signature(getattr(hf3fs, name))
        plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
        assert str(inspect.Signature(plain)) == f"({parameters})", name
    assert (hf3fs.IorPriority.HIGH, hf3fs.IorPriority.NORMAL, hf3fs.IorPriority.LOW) == (-1, 0, 1)
    assert all(getattr(hf3fs, name).__doc__ for name in hf3fs.__all__)
    assert list(hf3fs.__all__) == sorted(hf3fs.__all__)


class TestIovec:
    def test_shared_memory(self, there: np.ndarray, tmp_path: Path) -> None:
        """It may be unlinked at once, and closed while slices are left, which programs for 3FS do."""
        shm: Any = SharedMemory(create=True, size=NBYTES)
        iov: Any = hf3fs.make_iovec(shm, str(tmp_path))
        shm.unlink()
        assert read_all(iov, tmp_path) == NBYTES
        assert bytes(shm.buf[:NBYTES]) == there.tobytes()
        assert memoryview(iov)[:NBYTES].tobytes() == bytes(iov)[:NBYTES] == there.tobytes()
        assert np.array_equal(np.asarray(iov)[:NBYTES], there)
        iov[5:9] = b"\1\2\3\4"
        assert bytes(shm.buf[5:9]) == b"\1\2\3\4"
        kept = iov[10:20]
        del iov
        shm.close()
        del kept

    @pytest.mark.parametrize(
        "make",
        [bytearray, lambda n: np.zeros(n, np.uint8), lambda n: memoryview(bytearray(n))],
        ids=["bytearray", "array", "view"],
    )
    def test_other_buffers(self, there: np.ndarray, tmp_path: Path, make: Any) -> None:
        buffer = make(NBYTES)
        iov = hf3fs.make_iovec(buffer, str(tmp_path), block_size=4096, numa=0)
        assert read_all(iov, tmp_path) == NBYTES
        assert bytes(buffer) == there.tobytes()

    def test_slices(self, there: np.ndarray, tmp_path: Path) -> None:
        buffer: Any = np.zeros(NBYTES, np.uint8)
        iov = hf3fs.iovec(buffer, UUID, str(tmp_path))
        part = iov[1000:][234:300_000]
        assert (part.base_off, part.nbytes, part.result, part.userdata) == (1234, NBYTES - 1234, 0, None)
        assert iov.slice_by(memoryview(buffer)[7:9]).base_off == 7
        assert read_all(part, tmp_path) == NBYTES - 1234
        assert np.array_equal(buffer[1234:], there[: NBYTES - 1234])
        assert not buffer[:1234].any()
        with pytest.raises(IndexError, match="does not lie within the iovec"):
            part.slice_by(memoryview(buffer)[7:9])

    def test_as_objects(self, tmp_path: Path) -> None:
        """They are told apart as 3FS's are, though they are arrays."""
        iov = hf3fs.make_iovec(bytearray(100), str(tmp_path))
        first, second = iov[:10], iov[:10]
        assert first == first
        assert first != second
        assert {first: 1}[first] == 1
        assert [second, first].index(first) == 1
        assert first
        assert not first.any()
        assert type(first == np.zeros(10, np.uint8)) is np.ndarray
        assert type(first + 1) is np.ndarray
        assert isinstance(first.sum(), np.integer)

    def test_given_back(self, tmp_path: Path) -> None:
        iov = hf3fs.make_iovec(bytearray(100), str(tmp_path))
        assert shared_context().statistics().registrations == 1
        part = iov[2:4]
        del iov
        gc.collect()
        assert shared_context().statistics().registrations == 1
        del part
        gc.collect()
        assert shared_context().statistics().registrations == 0

    def test_refused(self, tmp_path: Path) -> None:
        folder = str(tmp_path)
        with pytest.raises(TypeError, match="hf3fs_iovwrap_gpu"):
            hf3fs.make_iovec(5, folder)
        with pytest.raises(ValueError, match="this one is read-only"):
            hf3fs.make_iovec(b"abc", folder)
        with pytest.raises(ValueError, match="this one is empty"):
            hf3fs.make_iovec(bytearray(), folder)
        with pytest.raises(ValueError, match="this one is not contiguous"):
            hf3fs.make_iovec(np.zeros(10, np.uint8)[::2], folder)
        with pytest.raises(zh.StorageError, match="no mount point, and no folder"):
            hf3fs.make_iovec(bytearray(10), folder + "/nothing")
        with pytest.raises(ValueError, match="block_size must be at least 0"):
            hf3fs.make_iovec(bytearray(10), folder, -1)
        with pytest.raises(ValueError, match="numa must be at least -1"):
            hf3fs.make_iovec(bytearray(10), folder, 0, -2)
        with pytest.raises(ValueError, match="UUID"):
            hf3fs.iovec(bytearray(10), "no id", folder)


class TestMounts:
    def test_a_folder_elsewhere(self, there: np.ndarray, tmp_path: Path) -> None:
        hf3fs.mount("/mnt/3fs-of-a-test", tmp_path)
        assert hf3fs.local_path("/mnt/3fs-of-a-test/a/../data") == str(tmp_path / "data")
        assert hf3fs.local_path("/mnt/3fs-of-a-test-2") == "/mnt/3fs-of-a-test-2"
        assert hf3fs.local_path("/mnt/3fs-of-a-test") == str(tmp_path)
        assert hf3fs.read_file("/mnt/3fs-of-a-test/data") == there.tobytes()
        hf3fs.make_ioring("/mnt/3fs-of-a-test/", 4)
        hf3fs.unmount("/mnt/3fs-of-a-test")
        with pytest.raises(zh.StorageError, match=r'mount\(.*"/some/folder"\)') as caught:
            hf3fs.make_ioring("/mnt/3fs-of-a-test", 4)
        assert caught.value.errno == errno.ENOENT
        with pytest.raises(ValueError, match="is not mounted; mounted is: nothing"):
            hf3fs.unmount("/mnt/3fs-of-a-test")

    def test_the_mount_point_of_a_path(self, tmp_path: Path) -> None:
        (tmp_path / "deep").mkdir()
        assert hf3fs.extract_mount_point(str(tmp_path / "deep")) == str(tmp_path / "deep")
        assert hf3fs.extract_mount_point(str(tmp_path / "deep" / "file")) == str(tmp_path / "deep")
        assert hf3fs.extract_mount_point(str(tmp_path / "nothing" / "file")) is None
        hf3fs.mount("/mnt/a", tmp_path)
        hf3fs.mount("/mnt/a/b", tmp_path / "deep")
        assert hf3fs.extract_mount_point("/mnt/a/x") == "/mnt/a"
        assert hf3fs.extract_mount_point("/mnt/a/b/x") == "/mnt/a/b"
        assert hf3fs.extract_mount_point(str(tmp_path / "deep" / "file")) == "/mnt/a/b"

    def test_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ValueError, match="a server's URL begins with zerohop://"):
            hf3fs.mount(tmp_path, "http://host:1")
        with pytest.raises(ValueError, match="is no zerohop URL"):
            hf3fs.mount(tmp_path, "zerohop://host")
        with pytest.raises(zh.StorageError, match=r"os\.open finds the files of the server"):
            hf3fs.mount("/mnt/a", "zerohop://host:1")
        with pytest.raises(zh.StorageError) as caught:
            hf3fs.mount("/mnt/a", tmp_path / "file")
        assert caught.value.errno == errno.ENOTDIR
        with pytest.raises(TypeError, match="path is a path"):
            hf3fs.mount(5, tmp_path)  # type: ignore[arg-type]  # what the test is about
        for name in ("", "a\0b", "/" + "x" * 255):
            with pytest.raises(ValueError, match=r"is a path|at most 255 bytes"):
                hf3fs.mount(name, tmp_path)


class TestServers:
    def test_every_byte(self, there: np.ndarray, tmp_path: Path, start_peer: StartPeer) -> None:
        """Files of a mount point are read and written by its server, in another process."""
        peer = start_peer(Options())
        url = peer.call(Service.serve, str(tmp_path))
        hf3fs.mount(tmp_path, url)
        iov = hf3fs.make_iovec(bytearray(there.size), str(tmp_path))
        ring = hf3fs.make_ioring(str(tmp_path), 8, for_read=True)
        with opened(tmp_path / "data") as fd:
            ring.prepare(iov[10:], True, fd, 10, "kept").submit()
            (done,) = ring.wait(timeout=PATIENCE_S)
        assert (done.result, done.userdata) == (there.size - 10, "kept")
        assert bytes(iov[10:]) == there[10:].tobytes()
        (tmp_path / "copy").write_bytes(b"x")
        writing = hf3fs.make_ioring(str(tmp_path), 8, for_read=False)
        with opened(tmp_path / "copy", os.O_RDWR) as fd:
            writing.prepare(iov[10:], False, fd, 0).submit()
            assert writing.wait(timeout=PATIENCE_S)[0].result == there.size - 10
        assert (tmp_path / "copy").read_bytes() == there[10:].tobytes()
        statistics = peer.call(Service.served)
        assert statistics.bytes_read == statistics.bytes_written == there.size - 10
        ring.destroy()
        writing.destroy()

    def test_other_files_than_the_servers(self, there: np.ndarray, tmp_path: Path, start_peer: StartPeer) -> None:
        """A folder that has files of the same names is noticed, and so is a ring of another mount point."""
        other = tmp_path / "other"
        other.mkdir()
        (other / "data").write_bytes(b"other")
        hf3fs.mount(other, start_peer(Options()).call(Service.serve, str(tmp_path)))
        fd = os.open(other / "data", os.O_RDONLY)
        with pytest.raises(zh.StorageError, match="the server's file has") as caught:
            hf3fs.register_fd(fd)
        assert caught.value.errno == errno.ESTALE
        os.close(fd)
        iov, ring = hf3fs.make_iovec(bytearray(100), str(other)), hf3fs.make_ioring(str(other), 8)
        with opened(tmp_path / "data") as fd, pytest.raises(ValueError, match="another Store than the ring"):
            ring.prepare(iov, True, fd, 0)
        ring.destroy()


class TestDescriptors:
    def test_refused_with_a_reason(self, tmp_path: Path, there: np.ndarray) -> None:
        reads, writes = os.pipe()
        for fd, number, said in (
            (reads, errno.EINVAL, "not a regular file"),
            (12345, errno.EBADF, "not open in this process"),
            (-1, errno.EBADF, "-1 is no descriptor"),
        ):
            with pytest.raises(OSError, match=said) as caught:
                hf3fs.register_fd(fd)
            assert caught.value.errno == number
        os.close(reads)
        os.close(writes)
        with pytest.raises(TypeError, match="a descriptor must be an int"):
            hf3fs.register_fd("3")  # type: ignore[arg-type]  # what the test is about
        with opened(tmp_path / "data") as fd:
            with pytest.raises(OSError, match="is registered already") as caught:
                hf3fs.register_fd(fd)
            assert caught.value.errno == errno.EINVAL
        hf3fs.deregister_fd(fd)

    def test_closed_without_deregistering(
        self, tmp_path: Path, there: np.ndarray, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What was registered is still meant while the number is nobody's; another file's is never read instead."""
        (tmp_path / "other").write_bytes(bytes(NBYTES))
        iov = hf3fs.make_iovec(bytearray(NBYTES), str(tmp_path))
        ring = hf3fs.make_ioring(str(tmp_path), 4)
        fd = os.open(tmp_path / "data", os.O_RDONLY)
        hf3fs.register_fd(fd)
        os.close(fd)
        assert ring.prepare(iov, True, fd, 0).submit().wait()[0].result == NBYTES
        assert bytes(iov) == there.tobytes()
        assert os.open(tmp_path / "other", os.O_RDONLY) == fd
        with pytest.raises(OSError, match="and is another file's now") as caught:
            ring.prepare(iov, True, fd, 0)
        assert caught.value.errno == errno.EBADF
        hf3fs.register_fd(fd)
        assert "was closed without deregister_fd" in caplog.text
        assert ring.prepare(iov, True, fd, 0).submit().wait()[0].result == NBYTES
        assert not any(bytes(iov))
        os.close(fd)

    def test_a_forked_child_registers_its_own(self, tmp_path: Path, there: np.ndarray) -> None:
        iov = hf3fs.make_iovec(bytearray(NBYTES), str(tmp_path))
        with opened(tmp_path / "data") as fd:

            def work() -> str:
                mine = hf3fs.make_iovec(bytearray(NBYTES), str(tmp_path))
                ring = hf3fs.make_ioring(str(tmp_path), 4)
                with pytest.raises(OSError, match="is not registered in this process"):
                    ring.prepare(mine, True, fd, 0)
                hf3fs.register_fd(fd)
                (done,) = ring.prepare(mine, True, fd, 0).submit().wait()
                shared_context().close()
                return str(bytes(done) == there.tobytes())

            assert in_child(work) == "True"
        del iov


class TestFiles:
    @pytest.mark.parametrize("block_size", [1 << 30, NBYTES, 65536, 1000, 100_000 - 1])
    @pytest.mark.parametrize("off", [0, 1, 299_999, NBYTES, 2 * NBYTES])
    def test_read(self, tmp_path: Path, there: np.ndarray, block_size: int, off: int) -> None:
        path = str(tmp_path / "data")
        assert hf3fs.read_file(path, block_size=block_size, off=off) == there[off:].tobytes()
        blocks: list[tuple[int, bytes]] = []

        def keep(block: memoryview, at: int) -> None:
            blocks.append((at, bytes(block)))

        assert hf3fs.read_file(path, str(tmp_path), block_size, off, hf3fs.IorPriority.HIGH, keep) is None
        assert b"".join(block for _, block in blocks) == there[off:].tobytes()
        assert [at for at, _ in blocks] == [*range(off, NBYTES, block_size)]

    def test_the_function_of_a_block(self, tmp_path: Path, there: np.ndarray) -> None:
        """An int that it returns moves the offset; anything else that is true ends the reading."""
        path, seen = str(tmp_path / "data"), list[int]()

        def moving(block: memoryview, at: int) -> object:
            seen.append(at)
            return {0: 200_000, 200_000: 50, 50: None, 1050: True}[at]

        assert hf3fs.read_file(path, block_size=1000, cb=moving) is None
        assert seen == [0, 200_000, 50, 1050]

    def test_empty(self, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        assert hf3fs.read_file(str(tmp_path / "empty")) == b""

    def test_refused(self, tmp_path: Path, there: np.ndarray) -> None:
        path = str(tmp_path / "data")
        with pytest.raises(FileNotFoundError):
            hf3fs.read_file(path + "2")
        with pytest.raises(ValueError, match="block_size must be at least 1"):
            hf3fs.read_file(path, block_size=0)
        with pytest.raises(ValueError, match="off must be at least 0"):
            hf3fs.read_file(path, off=-1)
        with pytest.raises(zh.StorageError, match="no mount point"):
            hf3fs.read_file(path, path)
        with pytest.raises(ValueError, match="that cb returned"):
            hf3fs.read_file(path, cb=lambda *_: -5)

    def test_holes(self, tmp_path: Path, there: np.ndarray) -> None:
        path = tmp_path / "data"
        hf3fs.punch_hole(str(path), [0, 200_704], [4096, 204_800])
        expected = there.copy()
        expected[:4096] = expected[200_704:204_800] = 0
        assert path.read_bytes() == expected.tobytes()
        fd = os.open(path, os.O_RDWR)
        hf3fs.punch_hole(fd, [8192], [12_288])
        assert hf3fs.force_fsync(fd) == 0
        os.close(fd)
        expected[8192:12_288] = 0
        assert path.read_bytes() == expected.tobytes()
        with pytest.raises(ValueError, match="1 starts, and 2 ends"):
            hf3fs.punch_hole(str(path), [0], [1, 2])
        with pytest.raises(ValueError, match="an end must be at least 6"):
            hf3fs.punch_hole(str(path), [5], [5])
        with pytest.raises(FileNotFoundError):
            hf3fs.punch_hole(str(path) + "2", [0], [1])
        with pytest.raises(OSError, match="Bad file descriptor"):
            hf3fs.force_fsync(fd)

    def test_hardlink(self, tmp_path: Path, there: np.ndarray) -> None:
        hf3fs.mount("/mnt/linked", tmp_path)
        hf3fs.hardlink("/mnt/linked/data", "/mnt/linked/name")
        assert (tmp_path / "name").samefile(tmp_path / "data")
        with pytest.raises(FileExistsError):
            hf3fs.hardlink("/mnt/linked/data", "/mnt/linked/name")


class TestModules:
    def test_installed(self, tmp_path: Path, there: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
        import importlib
        import importlib.util

        older = type(sys)("hf3fs_py_usrbio")
        monkeypatch.setitem(sys.modules, "hf3fs_py_usrbio", older)
        hf3fs.install()
        hf3fs.install()
        upper: Any = importlib.import_module("hf3fs_fuse.io")
        lower: Any = importlib.import_module("hf3fs_py_usrbio")
        package: Any = importlib.import_module("hf3fs_fuse")
        assert package.io is upper
        assert upper.read_file(str(tmp_path / "data")) == there.tobytes()
        for name in ("make_iovec", "make_ioring", "iovec", "ioring", "IorPriority", "read_file"):
            assert getattr(upper, name) is getattr(hf3fs, name)
        for name in (
            *("iovec", "ioring", "register_fd", "deregister_fd", "extract_mount_point", "force_fsync", "hardlink"),
            "punch_hole",
        ):
            assert getattr(upper, name) is getattr(lower, name) is getattr(hf3fs, name)
        assert importlib.util.find_spec("hf3fs_py_usrbio") is not None
        hf3fs.uninstall()
        hf3fs.uninstall()
        assert sys.modules["hf3fs_py_usrbio"] is older
        with pytest.raises(ImportError):
            importlib.import_module("hf3fs_fuse.io")


@pytest.mark.parametrize(
    ("level", "seen", "unseen"),
    [("INFO", "INFO zerohop.hf3fs: registered descriptor", "DEBUG"), ("err", "", "hf3fs"), ("", "EBADF", "INFO")],
)
def test_log_level(tmp_path: Path, level: str, seen: str, unseen: str) -> None:
    (tmp_path / "data").touch()
    program = (
        "import os; from zerohop.compat import hf3fs; "
        f"hf3fs.register_fd(os.open({str(tmp_path / 'data')!r}, os.O_RDONLY)); assert hf3fs.hf3fs_reg_fd(99, 0) == 9"
    )
    environment = os.environ | {"HF3FS_USRBIO_LIB_LOG": level}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert seen in ran.stderr
    assert unseen not in ran.stderr


def test_no_such_log_level(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF3FS_USRBIO_LIB_LOG", "LOUD")
    with pytest.raises(ValueError, match="HF3FS_USRBIO_LIB_LOG='LOUD' is not understood: expected one of DBG"):
        hf3fs.make_ioring(str(tmp_path), 4)
