"""3FS's rings on folders: batches, waits and results, and what is refused."""

from __future__ import annotations

import errno
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.hf3fs import batches, opened, own_state
from support.lanes import eventually
from support.patience import PATIENCE_S
from support.pattern import pattern
from zerohop.compat import hf3fs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = 4096
COUNT = 21
NBYTES = COUNT * PAGE


@pytest.fixture(autouse=True)
def own(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ZEROHOP_SIM_DEVICES", "1")
    with own_state():
        yield


@pytest.fixture
def there(tmp_path: Path) -> np.ndarray:
    values = pattern(2, NBYTES)
    (tmp_path / "data").write_bytes(values.tobytes())
    return values


def new_iov(folder: Path) -> hf3fs.iovec:
    """Not a fixture, which pytest would keep beyond the end of the Context."""
    return hf3fs.make_iovec(bytearray(NBYTES), str(folder))


def prepare(ring: hf3fs.ioring, iov: hf3fs.iovec, fd: int, pages: range) -> None:
    """Reads each page to the place of the one opposite."""
    for page in pages:
        at = (COUNT - 1 - page) * PAGE
        assert ring.prepare(iov[at : at + PAGE], True, fd, page * PAGE, userdata=[page]) is ring


def check(iov: hf3fs.iovec, there: np.ndarray) -> None:
    assert (np.asarray(iov).reshape(COUNT, PAGE)[::-1] == there.reshape(COUNT, PAGE)).all()


class TestDepth:
    @pytest.mark.parametrize(
        ("depth", "timeout", "begun", "later"),
        [
            (0, None, [COUNT], []),
            (0, 50, [COUNT], []),
            (8, None, [16], [5]),
            (7, 0, [21], []),
            (30, None, [], [COUNT]),
            (-8, None, [COUNT], []),
            (-8, 60_000, [16], [5]),
            (-30, 60_000, [], [COUNT]),
            (-1, 0, [COUNT], []),
        ],
    )
    def test_batches(
        self,
        tmp_path: Path,
        there: np.ndarray,
        monkeypatch: pytest.MonkeyPatch,
        depth: int,
        timeout: int | None,
        begun: list[int],
        later: list[int],
    ) -> None:
        """Full ones begin with submit, and a short tail never hangs: wait begins it."""
        iov = new_iov(tmp_path)
        seen = batches(monkeypatch)
        ring = hf3fs.make_ioring(str(tmp_path), 32, io_depth=depth, timeout=timeout)
        with opened(tmp_path / "data") as fd:
            prepare(ring, iov, fd, range(COUNT))
            ring.submit()
            assert seen == begun
            done = ring.wait(min_results=COUNT, timeout=PATIENCE_S)
            assert seen == begun + later
        assert sorted(each.userdata[0] for each in done) == [*range(COUNT)]
        assert {each.result for each in done} == {PAGE}
        check(iov, there)
        ring.destroy()

    @pytest.mark.parametrize("depth", [8, -8])
    def test_a_batch_that_time_completes(
        self, tmp_path: Path, there: np.ndarray, monkeypatch: pytest.MonkeyPatch, depth: int
    ) -> None:
        """It begins though nobody waits; a full one before does not wait for it."""
        iov = new_iov(tmp_path)
        seen = batches(monkeypatch)
        ring = hf3fs.make_ioring(str(tmp_path), 32, io_depth=depth, timeout=20)
        with opened(tmp_path / "data") as fd:
            prepare(ring, iov, fd, range(11))
            ring.submit()
            assert seen[:1] == [8]
            eventually(lambda: seen == [8, 3], "the tail did not begin")
            prepare(ring, iov, fd, range(11, COUNT))
            ring.submit()
            eventually(lambda: seen == [8, 3, 8, 2], "the second tail did not begin")
            assert len(ring.wait(min_results=COUNT)) == COUNT
        check(iov, there)

    def test_a_ring_that_is_dropped_first(
        self,
        tmp_path: Path,
        there: np.ndarray,
    ) -> None:
        iov = new_iov(tmp_path)
        ring = hf3fs.make_ioring(str(tmp_path), 32, io_depth=-8, timeout=10)
        with opened(tmp_path / "data") as fd:
            prepare(ring, iov, fd, range(3))
            ring.submit()
        del ring
        time.sleep(0.05)


class TestWait:
    def test_how_many(
        self,
        tmp_path: Path,
        there: np.ndarray,
    ) -> None:
        """As many as were asked for, and not one more, which a program for 3FS would lose."""
        iov = new_iov(tmp_path)
        ring = hf3fs.make_ioring(str(tmp_path), 32)
        assert ring.wait(min_results=5) == [], "nothing can come"
        with opened(tmp_path / "data") as fd:
            prepare(ring, iov, fd, range(COUNT))
            assert len(ring.wait()) == 1
            assert len(ring.wait(min_results=3)) == 3
            assert len(ring.wait(max_results=2, min_results=4)) == 4
            rest = COUNT - 8
            assert len(ring.wait(max_results=100, min_results=rest, timeout=timedelta(seconds=PATIENCE_S))) == rest
        assert ring.wait(min_results=0) == []
        assert ring.wait(timeout=0.0) == []
        check(iov, there)

    def test_timeout(self, tmp_path: Path, there: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is there is returned when the time has passed."""
        iov = new_iov(tmp_path)
        ring = hf3fs.make_ioring(str(tmp_path), 32)
        with opened(tmp_path / "data") as fd:
            prepare(ring, iov, fd, range(2))
            waited: list[float] = []
            inner = ring._ring._ring
            usual = type(inner).wait_array

            def late(self: Any, most: int, least: int = 1, timeout: float | None = None) -> Any:
                if least:
                    waited.append(timeout or 0)
                    raise zh.DeadlineExceeded("the time has passed")
                eventually(lambda: self._native.ready == 2, "the reads did not end")
                return usual(self, most, least, timeout)

            monkeypatch.setattr(type(inner), "wait_array", late)
            assert len(ring.wait(max_results=9, min_results=5, timeout=0.5)) == 2
            assert waited == [0.5]

    def test_userdata_and_results(
        self,
        tmp_path: Path,
        there: np.ndarray,
    ) -> None:
        """The objects come back that were given; a file that ends earlier gives a smaller result."""
        iov = new_iov(tmp_path)
        ring = hf3fs.make_ioring(str(tmp_path), 3)
        thing = object()
        part, tail, beyond = iov[:100], iov[100:300], iov[300:400]
        with opened(tmp_path / "data") as fd:
            ring.prepare(part, True, fd, 5, thing).prepare(tail, True, fd, NBYTES - 50).prepare(
                beyond, True, fd, NBYTES
            )
            done = {id(each): each for each in ring.submit().wait(min_results=3)}
            assert done.keys() == {id(part), id(tail), id(beyond)}
            assert part.userdata is thing
            assert tail.userdata is None
            assert [part.result, tail.result, beyond.result] == [100, 50, 0]
            assert bytes(part) == there[5:105].tobytes()
            assert bytes(tail[:50]) == there[-50:].tobytes()
            for _ in range(10):  # entries are taken again
                prepare(ring, iov, fd, range(3))
                assert len(ring.submit().wait(min_results=3)) == 3


def test_writing(tmp_path: Path, there: np.ndarray) -> None:
    iov = hf3fs.make_iovec(bytearray(there.tobytes()), str(tmp_path))
    ring = hf3fs.make_ioring(str(tmp_path), 32, for_read=False, io_depth=-4)
    with opened(tmp_path / "new", os.O_CREAT | os.O_WRONLY) as fd:
        for page in range(COUNT):
            ring.prepare(iov[page * PAGE : (page + 1) * PAGE], False, fd, (COUNT - 1 - page) * PAGE)
        assert {each.result for each in ring.submit().wait(min_results=COUNT)} == {PAGE}
    written = np.fromfile(tmp_path / "new", np.uint8)
    assert (written.reshape(COUNT, PAGE)[::-1] == there.reshape(COUNT, PAGE)).all()


class TestHoles:
    @pytest.fixture
    def sparse(self, tmp_path: Path) -> Path:
        path = tmp_path / "sparse"
        with path.open("wb") as file:
            file.write(b"x" * PAGE)
            file.seek(3 * PAGE)
            file.write(b"y" * PAGE)
        return path

    def test_are_errors(
        self,
        tmp_path: Path,
        sparse: Path,
    ) -> None:
        """Only the read that would read one fails, and reads nothing."""
        iov = new_iov(tmp_path)
        ring = hf3fs.make_ioring(str(tmp_path), 8, flags=2)
        iov[:] = 0xEE
        with opened(sparse) as fd:
            for page in range(4):
                ring.prepare(iov[page * PAGE : (page + 1) * PAGE], True, fd, page * PAGE, page)
            ring.prepare(iov[4 * PAGE : 6 * PAGE], True, fd, 3 * PAGE, 4)
            done = {each.userdata: each for each in ring.submit().wait(min_results=5)}
        results = [done[number].result for number in range(5)]
        assert results == [PAGE, -errno.ENODATA, -errno.ENODATA, PAGE, PAGE]
        shown = np.asarray(iov)
        assert bytes(iov[:PAGE]) == b"x" * PAGE
        assert (shown[PAGE : 3 * PAGE] == 0xEE).all()
        assert bytes(iov[3 * PAGE : 5 * PAGE]) == b"y" * 2 * PAGE, "the end of the file is no hole"

    @pytest.mark.parametrize("flags", [0, 1])
    def test_are_zeros(self, tmp_path: Path, sparse: Path, flags: int) -> None:
        iov = new_iov(tmp_path)
        ring = hf3fs.make_ioring(str(tmp_path), 8, flags=flags)
        iov[:] = 0xEE
        with opened(sparse) as fd:
            (done,) = ring.prepare(iov[: 4 * PAGE], True, fd, 0).submit().wait()
        assert done.result == 4 * PAGE
        assert bytes(done) == b"x" * PAGE + bytes(2 * PAGE) + b"y" * PAGE

    def test_are_written_to(
        self,
        tmp_path: Path,
        sparse: Path,
    ) -> None:
        iov = new_iov(tmp_path)
        ring = hf3fs.make_ioring(str(tmp_path), 8, for_read=False, flags=2)
        with opened(sparse, os.O_RDWR) as fd:
            assert ring.prepare(iov[:PAGE], False, fd, PAGE).submit().wait()[0].result == PAGE


class TestRefused:
    @pytest.mark.parametrize(
        ("changed", "error", "said"),
        [
            ({"entries": 0}, ValueError, "entries must be from 1"),
            ({"entries": "4"}, TypeError, "entries must be an int"),
            ({"for_read": 1}, TypeError, "for_read must be True or False"),
            ({"io_depth": 1.5}, TypeError, "io_depth must be an int"),
            ({"timeout": -1}, ValueError, "timeout must be from 0"),
            ({"numa": -2}, ValueError, "numa must be at least -1"),
            ({"priority": 2}, ValueError, "priority must be from -1 to 1"),
            ({"flags": 4}, ValueError, "flags must be from 0 to 3"),
            ({"hf3fs_mount_point": "/no/such/folder"}, zh.StorageError, "no mount point"),
        ],
    )
    def test_rings(self, tmp_path: Path, changed: dict[str, Any], error: type[Exception], said: str) -> None:
        usual: dict[str, Any] = {"hf3fs_mount_point": str(tmp_path), "entries": 4}
        with pytest.raises(error, match=said):
            hf3fs.make_ioring(**usual | changed)
        assert hf3fs.make_ioring(str(tmp_path), 4, priority=hf3fs.IorPriority.LOW).entries == 4

    def test_transfers(
        self,
        tmp_path: Path,
        there: np.ndarray,
    ) -> None:
        iov = new_iov(tmp_path)
        ring = hf3fs.make_ioring(str(tmp_path), 2)
        writing = hf3fs.make_ioring(str(tmp_path), 2, for_read=False)
        with opened(tmp_path / "data") as reads, opened(tmp_path / "data", os.O_WRONLY) as writes:
            cases: list[tuple[hf3fs.ioring, tuple[Any, ...], type[Exception], str]] = [
                (ring, (iov, False, reads, 0), ValueError, "the ring reads"),
                (writing, (iov, True, writes, 0), ValueError, "the ring writes"),
                (ring, (iov, 1, reads, 0), TypeError, "read must be True or False"),
                (ring, (iov[::2], True, reads, 0), ValueError, "step 1"),
                (ring, (iov.copy(), True, reads, 0), ValueError, "it is a copy"),
                (ring, (iov[:0], True, reads, 0), ValueError, "the length must be at least 1"),
                (ring, (bytearray(5), True, reads, 0), TypeError, "with an iovec"),
                (ring, (iov, True, reads, -1), ValueError, "an offset in the file"),
                (ring, (iov, True, 999, 0), OSError, "descriptor 999 is not registered"),
                (ring, (iov, True, "3", 0), TypeError, "a descriptor must be an int"),
            ]
            for which, arguments, error, said in cases:
                with pytest.raises(error, match=said):
                    which.prepare(*arguments)
            for which, read, fd in ((ring, True, writes), (writing, False, reads)):
                with pytest.raises(OSError, match="was not opened for") as caught:
                    which.prepare(iov, read, fd, 0)
                assert caught.value.errno == errno.EACCES
            prepare(ring, iov, reads, range(2))
            with pytest.raises(OSError, match="2 entries, which are taken") as caught:
                ring.prepare(iov, True, reads, 0)
            assert caught.value.errno == errno.EAGAIN
            with pytest.raises(ValueError, match="min_results must be at least 0"):
                ring.wait(min_results=-1)
            with pytest.raises(TypeError, match="a timedelta"):
                ring.wait(timeout="1")  # type: ignore[arg-type]  # what the test is about
            ring.destroy()
            ring.destroy()
            for ended in (ring.submit, ring.wait, lambda: ring.prepare(iov, True, reads, 0)):
                with pytest.raises(zh.Closed, match="the ring was destroyed"):
                    ended()

    def test_transfers_that_fail(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error of one is its result, as -errno, and the others go on."""
        iov = new_iov(tmp_path)
        import resource
        import signal

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ring = hf3fs.make_ioring(str(tmp_path), 4, for_read=False)
        with opened(tmp_path / "new", os.O_CREAT | os.O_RDWR) as fd:
            resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, before[1]))
            try:
                ring.prepare(iov[:PAGE], False, fd, 0, 1).prepare(iov[:PAGE], False, fd, PAGE, 2)
                found = {each.userdata: each.result for each in ring.submit().wait(min_results=2)}
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
                signal.signal(signal.SIGXFSZ, handler)
        # Both have the same memory, and each its own slice of it.
        assert found == {1: PAGE, 2: -errno.EFBIG}

    @pytest.mark.parametrize("size", [1, 100])
    def test_the_size_of_a_ring(self, size: int) -> None:
        assert hf3fs.ioring.size_for_entries(size) == 4144 + 96 * (size + 1)
