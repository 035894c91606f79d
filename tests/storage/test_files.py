"""Files: what is read and written, whatever the offset, the length and the memory; and what is refused."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.patience import PATIENCE_S
from support.stores import is_served

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zerohop.storage import Store

PAGE = 4096
MIB = 1 << 20
NBYTES = 3 * MIB + 12_345
SIZES = [1, 511, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, NBYTES - 99]
DEVICES = ["host", "sim:0"]


def filled(store: Store, nbytes: int, device: str, value: int = 0xEE) -> zh.Memory:
    """Memory on a device whose bytes all have a value."""
    memory = store.context.alloc(nbytes, device)
    put(store, memory, np.full(nbytes, value, np.uint8))
    return memory


def put(store: Store, memory: zh.Memory, values: np.ndarray) -> None:
    handle = memory.share("w")
    store.context.write(values, handle).result(PATIENCE_S)


def got(store: Store, memory: zh.Memory) -> np.ndarray:
    values = np.zeros(memory.nbytes, np.uint8)
    store.context.read(memory.share("r"), values).result(PATIENCE_S)
    return values


@pytest.mark.parametrize("direct", [None, True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_every_size(
    store: Store, random_file: Callable[..., np.ndarray], tmp_path: Path, device: str, direct: bool | None
) -> None:
    there = random_file("data", NBYTES)
    memory = filled(store, NBYTES, device)
    with store.open("data", direct=direct).result() as file:
        assert file.size == NBYTES
        for nbytes in SIZES:
            put(store, memory, np.full(NBYTES, 0xEE, np.uint8))
            assert file.read_into(memory[13 : 13 + nbytes], 41).result(PATIENCE_S) == nbytes
            expected = np.full(NBYTES, 0xEE, np.uint8)
            expected[13 : 13 + nbytes] = there[41 : 41 + nbytes]
            assert (got(store, memory) == expected).all()
            with store.open("copy", "w", direct=direct).result() as copy:
                assert copy.write_from(memory[13 : 13 + nbytes], 7).result(PATIENCE_S) == nbytes
            written = np.frombuffer((tmp_path / "copy").read_bytes(), np.uint8)
            assert written.size == 7 + nbytes
            assert (written[7:] == there[41 : 41 + nbytes]).all()
    memory.close()


@pytest.mark.parametrize("device", DEVICES)
def test_the_end_of_a_file(store: Store, random_file: Callable[..., np.ndarray], device: str) -> None:
    there = random_file("data", MIB + 10)
    memory = filled(store, 2 * MIB, device)
    with store.open("data").result() as file:
        operation = file.read_into(memory)
        with pytest.raises(zh.EndOfFile, match="ends before the range does") as caught:
            operation.result(PATIENCE_S)
        assert caught.value.bytes_done == MIB + 10
        assert caught.value.filename == "data"
        assert isinstance(caught.value, (EOFError, OSError))
        for direct in (True, False):
            with store.open("data", direct=direct).result() as again:
                put(store, memory, np.full(2 * MIB, 0xEE, np.uint8))
                assert again.read_into(memory, short=True).result(PATIENCE_S) == MIB + 10
                found = got(store, memory)
                assert (found[: MIB + 10] == there).all()
                assert (found[MIB + 10 :] == 0xEE).all()
        assert file.read_into(memory, 5 * MIB, short=True).result(PATIENCE_S) == 0
    memory.close()


@pytest.mark.parametrize("device", DEVICES)
def test_holes_are_zeros(store: Store, tmp_path: Path, device: str) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2 * MIB)
    memory = filled(store, 2 * MIB, device)
    with store.open("sparse").result() as sparse:
        sparse.read_into(memory).result(PATIENCE_S)
    assert not got(store, memory).any()
    memory.close()


def test_many_ranges_are_one_operation(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    there = random_file("data", NBYTES)
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 5000, 500)
    into = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    offsets = rng.integers(0, NBYTES - 5000, 500)
    target = np.zeros(int(lengths.sum()), np.uint8)
    with store.open("data").result() as file:
        operation = file.read_many(target, offsets, lengths, into)
        assert operation.result(PATIENCE_S) == target.size
        for offset, at, length in zip(offsets, into, lengths, strict=True):
            assert (target[at : at + length] == there[offset : offset + length]).all()
        assert file.read_many(target, [], [], []).result(PATIENCE_S) == 0
        with pytest.raises(zh.EndOfFile):
            file.read_many(target, [0, NBYTES - 1], [10, 2], [0, 10]).result(PATIENCE_S)
    with store.open("copy", "w").result() as copy:
        copy.write_many(target, [100, 0], [100, 100], [0, 100]).result(PATIENCE_S)
        back = np.zeros(200, np.uint8)
        copy.read_into(back).result(PATIENCE_S)
    assert (back == np.concatenate([target[100:200], target[:100]])).all()


def test_memories_that_share_a_registration(
    store: Store, random_file: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    """Those of a list do: bytes reach the second of them, and parts of it, in each way to name memory."""
    there = random_file("data", 8 * PAGE)
    array = np.zeros(16 * PAGE, np.uint8)
    first, second = store.context.register([array[: 4 * PAGE], array[4 * PAGE :]])
    expected = array.copy()
    with store.open("data").result(PATIENCE_S) as file:
        assert file.read_into(second[100 : 2 * PAGE], 5).result(PATIENCE_S) == 2 * PAGE - 100
        expected[4 * PAGE + 100 : 6 * PAGE] = there[5 : 5 + 2 * PAGE - 100]
        assert file.read_many(second, [0], [PAGE], [3 * PAGE]).result(PATIENCE_S) == PAGE
        expected[7 * PAGE : 8 * PAGE] = there[:PAGE]
        ring, wrapped = store.ring(2), store.wrap(second)
        ring.prepare(second[5 * PAGE : 6 * PAGE], file, 7)
        ring.prepare(wrapped[9 * PAGE : 10 * PAGE], file, 9)
        ring.submit()
        assert [each.result for each in ring.wait(min_results=2, timeout=PATIENCE_S)] == [PAGE, PAGE]
        expected[9 * PAGE : 10 * PAGE], expected[13 * PAGE : 14 * PAGE] = there[7 : 7 + PAGE], there[9 : 9 + PAGE]
    assert (array == expected).all()
    with store.open("copy", "w").result(PATIENCE_S) as file:
        assert file.write_from(second[7 : 9 * PAGE]).result(PATIENCE_S) == 9 * PAGE - 7
    assert (np.fromfile(tmp_path / "copy", np.uint8) == expected[4 * PAGE + 7 : 13 * PAGE]).all()
    wrapped.close()
    for memory in (first, second):
        memory.close()


def test_explained_where_the_file_ends(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """The bytes that have moved, and not those that were asked for."""
    random_file("data", 50)
    with store.open("data").result(PATIENCE_S) as file:
        for nbytes, moved in ((100, 50), (50, 50)):
            operation = file.read_into(np.zeros(nbytes, np.uint8), short=True)
            assert operation.result(PATIENCE_S) == moved
            assert ", 50 B in " in str(operation.explain())
            assert operation.nbytes == nbytes
        operation = file.read_into(np.zeros(100, np.uint8), 60, short=True)
        assert operation.result(PATIENCE_S) == 0
        assert ", 0 B in " in str(operation.explain())


def test_awaited(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    there = random_file("data", NBYTES)

    async def work() -> None:
        with await store.open("data") as file:
            parts = [np.zeros(MIB, np.uint8) for _ in range(3)]
            done = await zh.gather([file.read_into(part, i * MIB) for i, part in enumerate(parts)])
            assert done == [MIB] * 3
            assert (np.concatenate(parts) == there[: 3 * MIB]).all()

    asyncio.run(work())


def test_explained(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    random_file("data", MIB)
    memory = store.context.alloc(MIB, "sim:0")
    with store.open("data").result() as file:
        host = file.read_into(np.zeros(MIB, np.uint8))
        device = file.read_into(memory)
        host.result(PATIENCE_S)
        device.result(PATIENCE_S)
    by, cached = f"file ({store.engine})", "through the page cache"  # which has what was written just now
    ways = {"host": f"{by} file→host {cached}", "sim:0": f"{by} file→sim:0 staged, {cached}"}
    for end, operation in (("host", host), ("sim:0", device)):
        said = str(operation.explain())
        assert said.startswith("server (") if is_served(store) else said.startswith(f"{ways[end]}, 1.0 MiB in ")
        assert said.partition("→")[2].startswith(end)
    assert bool(store.why_no_uring) == (store.engine == "threads")
    memory.close()


def test_after_the_end(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    random_file("data", MIB)
    file = store.open("data").result()
    target = np.zeros(MIB, np.uint8)
    operation = file.read_into(target)
    file.close()
    file.close()
    assert operation.result(PATIENCE_S) == MIB
    with pytest.raises(zh.Closed, match="the File is closed: 'data'"):
        file.read_into(target)
    other = store.open("data").result()
    store.close()
    store.close()
    for refused in (lambda: other.read_into(target), lambda: store.open("data"), lambda: store.ring(4), store.listdir):
        with pytest.raises(zh.Closed, match="the Store is closed"):
            refused()


def test_what_has_ended_is_not_cancelled(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """An operation whose bytes have all moved stays as it is, also if cancel() is the first to notice."""
    there = random_file("data", MIB)
    target = np.zeros(MIB, np.uint8)
    with store.open("data", direct=True).result() as file:
        for _ in range(20):
            target[:] = 0
            operation = file.read_into(target)
            if operation.cancel():
                with pytest.raises(CancelledError):
                    operation.result(PATIENCE_S)
                store.context.flush().result(PATIENCE_S)
            else:
                assert operation.result(PATIENCE_S) == MIB
                assert (target == there).all()
            assert not operation.cancel()
        operation = file.read_into(target)
        operation.result(PATIENCE_S)
        assert not operation.cancel()
        assert operation.result() == MIB


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "error", "said"),
        [
            (("data", "a"), ValueError, 'mode is "r", "r\\+", "w" or "x"'),
            (("data", "r+b"), ValueError, "mode is"),
            ((1,), TypeError, "a path is a string, not int"),
            (("a\0b",), ValueError, "null character"),
        ],
    )
    def test_opening(self, store: Store, arguments: tuple[Any, ...], error: type[Exception], said: str) -> None:
        with pytest.raises(error, match=said):
            store.open(*arguments)

    def test_transfers(self, store: Store, random_file: Callable[..., np.ndarray]) -> None:
        random_file("data", MIB)
        target = np.zeros(MIB, np.uint8)
        readonly = np.zeros(MIB, np.uint8)
        readonly.flags.writeable = False
        with store.open("data").result() as file:
            with pytest.raises(zh.StorageError, match='opened with mode "r"') as caught:
                file.write_from(target)
            assert caught.value.errno == errno.EBADF
            with pytest.raises(ValueError, match="read-only memory"):
                file.read_into(readonly)
            with pytest.raises(ValueError, match="negative, or too large"):
                file.read_into(target, 2**63 - 1)
            with pytest.raises(ValueError, match="different lengths"):
                file.read_many(target, [0], [1], [0, 1])
            for at, length in ((MIB, 1), (-1, 1), (0, MIB + 1), (0, -1)):
                with pytest.raises(ValueError, match="does not lie within the 1048576 bytes of the memory"):
                    file.read_many(target, [0], [length], [at])
            with pytest.raises(TypeError, match="short"):
                file.read_into(target, short=1)  # type: ignore[arg-type]  # what the test is about
        with store.open("data", "r+").result() as file:
            assert file.write_from(readonly).result(PATIENCE_S) == MIB

    def test_changes_of_a_file_that_is_read(self, store: Store, random_file: Callable[..., np.ndarray]) -> None:
        random_file("data", MIB)
        with store.open("data").result() as file:
            for change in (file.truncate(1), file.punch_hole(0, 1)):
                with pytest.raises(zh.StorageError, match=r'opened with mode "r".*open the file for this') as caught:
                    change.result(PATIENCE_S)
                assert caught.value.errno == errno.EBADF
            assert file.size == MIB

    def test_a_file_that_may_not_grow(self, store: Store) -> None:
        with store.open("data", "w").result() as file:
            limit = _file_size_limit(MIB)
            try:
                with pytest.raises(zh.StorageError, match="File too large") as caught:
                    file.write_from(np.ones(2 * MIB, np.uint8)).result(PATIENCE_S)
            finally:
                limit()
            assert caught.value.errno == errno.EFBIG
            assert "ulimit -f" in caught.value.fix
            assert caught.value.bytes_done == MIB


def _file_size_limit(nbytes: int) -> Callable[[], None]:
    """Limits the size of files of this process, and returns what undoes that."""
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))

    def undo() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)

    return undo
