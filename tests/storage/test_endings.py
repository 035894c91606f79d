"""What is dropped, closed in a hurry or interrupted leaves nothing behind, and what waits elsewhere goes on."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.patience import ANSWER_S, PATIENCE_S, times
from zerohop import storage
from zerohop.storage.local_store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.storage import Store

MIB = 1 << 20


def pinned_kib() -> int:
    found = re.search(r"^VmPin:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_dropped_iovs_keep_no_pages(local_store: Store) -> None:
    before = pinned_kib()
    iovs = [local_store.iov(4 * MIB) for _ in range(8)]
    for iov in iovs:
        iov.memory.numpy()[:] = 1
    if not any(iov.not_fixed for iov in iovs):  # a user other than root may pin little
        assert pinned_kib() - before >= 8 * 4 * 1024
    del iovs, iov
    gc.collect()
    assert pinned_kib() <= before


def test_two_iovs_of_one_memory(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    there = random_file("data", MIB)
    memory = store.context.alloc(MIB)
    one, two = store.wrap(memory), store.wrap(memory)
    before = pinned_kib()
    one.close()
    assert pinned_kib() >= before  # a server may pin it only now
    with store.open("data").result() as file:
        file.read_into(two).result(PATIENCE_S)
    assert (memory.numpy() == there).all()
    three = store.wrap(two)
    three.close()
    assert memory.share("r").nbytes == MIB  # it is open
    two.close()
    memory.close()


@pytest.mark.parametrize("engine", ["auto", "threads"])
@pytest.mark.parametrize("end", ["drop", "store", "context"])
def test_a_read_under_way(
    no_leaks: None, tmp_path: Path, random_file: Callable[..., np.ndarray], engine: str, end: str
) -> None:
    """A Store that goes while a read is under way takes its threads, descriptors and pages along."""
    random_file("data", 8 * MIB)
    for _ in range(6):
        store = storage.open_store(tmp_path, engine=engine)  # type: ignore[arg-type]  # a str of the parameters, which are the names that it takes
        target = np.zeros(8 * MIB, np.uint8)
        operation = store.open("data").result().read_into(target)
        if end == "store":
            store.close(0)
        elif end == "context":
            store.context.close(0)
            store.close(0)
        else:
            store.context.close()
        try:
            operation.result(PATIENCE_S)
        except zh.Closed:
            pass
        del store, operation, target


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_a_flush_after_a_deadline(tmp_path: Path, random_file: Callable[..., np.ndarray], engine: str) -> None:
    """Bytes of a read that ran out of time may still move; after a flush they do not, and the memory can be used."""
    random_file("data", 64 * MIB)
    with storage.open_store(tmp_path, engine=engine) as store:  # type: ignore[arg-type]  # a str of the parameters, which are the names that it takes
        target = np.zeros(64 * MIB, np.uint8)
        with store.open("data").result() as file:
            late = 0
            for _ in range(times(400)):
                operation = file.read_into(target, timeout=1e-6)
                if operation.exception(PATIENCE_S) is not None:  # otherwise it ended before anybody looked at the clock
                    store.context.flush().result(PATIENCE_S)
                    assert not operation.memory_in_use
                    late += 1
                if late == 8:
                    break
            assert late == 8


def test_a_forked_child(local_store: Store) -> None:
    """A child closes its copy although a thread that it lacks was opening a file."""
    assert isinstance(local_store, LocalStore)
    with local_store._root_lock:
        child = os.fork()
        if child == 0:
            local_store.close(0)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_ring_that_is_closed_meanwhile(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    random_file("data", MIB)
    target = np.zeros(MIB, np.uint8)
    errors: list[BaseException] = []
    with store.open("data").result() as file:
        for _ in range(30):
            ring = store.ring(64)
            for i in range(64):
                ring.prepare(target[i * 4096 : (i + 1) * 4096], file, 0, i)

            def work(ring: storage.Ring = ring) -> None:
                try:
                    ring.submit()
                except zh.Closed:
                    pass
                except BaseException as error:
                    errors.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            ring.close()
            thread.join(PATIENCE_S)
    assert not errors


def test_two_tasks_wait_for_results(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    random_file("data", MIB)
    target = np.zeros(MIB, np.uint8)

    async def work() -> None:
        ring = store.ring(8)
        with await store.open("data") as file:
            ring.prepare(target, file, 0, 1)
            ring.prepare(target, file, 0, 2)
            ring.submit()
            waits = [ring.results(1, timeout=PATIENCE_S) for _ in range(2)]
            found = [each.userdata for results in await asyncio.gather(*waits) for each in results]
            assert sorted(found) == [1, 2]

    asyncio.run(work())


def test_memory_closed_before_submit(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """A transfer that cannot begin has that as its result, and the others begin."""
    random_file("data", MIB)
    ring, memory, target = store.ring(8), store.context.alloc(4096), np.zeros(4096, np.uint8)
    with store.open("data").result() as file:
        ring.prepare(memory, file, 0, 1)
        ring.prepare(target, file, 0, 2)
        memory.close()
        assert ring.submit() == 2
        first, second = sorted(ring.wait(min_results=2, timeout=PATIENCE_S), key=lambda each: each.index)
        assert first.userdata == 1
        assert isinstance(first.error, zh.Closed)
        assert second == storage.Completion(1, 2, 4096, None)


REFUSED = """
import sys
import numpy as np
import zerohop as zh
from support.seccomp import forbid
from zerohop import storage
from zerohop.storage.local_store import LocalStore

call, when, folder = sys.argv[1:]
if when == "before":
    forbid(call, everywhere=True)
try:
    store = storage.open_store(folder)
except zh.ZerohopError as error:
    print(type(error).__name__, error)
    raise SystemExit
with store:
    engine, why = store.engine, store.why_no_uring
    if when == "after":
        forbid(call, everywhere=True)
    with store.open("data").result() as file:
        try:
            print(engine, why, file.read_into(np.zeros(4096, np.uint8)).result(5))
        except zh.ZerohopError as error:
            print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("call", "when", "said"),
    [
        ("io_uring_setup", "before", "threads io_uring_setup: Operation not permitted 4096"),
        ("io_uring_enter", "before", "threads io_uring_enter: Operation not permitted 4096"),
        ("io_uring_enter", "after", "Unsupported read_into over file: not allowed"),
        ("openat2", "before", "Unsupported open: the system has no openat2"),
    ],
)
def test_in_a_sandbox(
    no_leaks: None, tmp_path: Path, random_file: Callable[..., np.ndarray], call: str, when: str, said: str
) -> None:
    random_file("data", MIB)
    ran = subprocess.run(
        [sys.executable, "-c", REFUSED, call, when, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(said), ran.stdout


DIAGNOSED = """
import sys
from support.seccomp import forbid
from zerohop.machine import inspect
from zerohop.machine.doctor import diagnose, read_system

forbid(sys.argv[1], everywhere=True)
(check,) = diagnose(read_system(), names=["io-uring"])
print(inspect().io_uring.cause, check.state.value, check.found, check.fix)
"""


@pytest.mark.parametrize("call", ["io_uring_setup", "io_uring_enter"])
def test_what_a_sandbox_refuses_is_diagnosed(call: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DIAGNOSED, call],
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert ran.returncode == 0, ran.stderr
    refused = f"a seccomp filter of this process refuses it ({call}: Operation not permitted)"
    assert ran.stdout.startswith(f"filter WARN {refused}: threads read and write files ("), ran.stdout


class TestOddArguments:
    def test_offsets(self, store: Store, random_file: Callable[..., np.ndarray]) -> None:
        there = random_file("data", MIB)
        target, ring = np.zeros(4096, np.uint8), store.ring(4)
        with store.open("data", "r+").result() as file:
            for odd in (-1, 2**63, 2**64, 2**64 + 4096):
                for refused in (
                    lambda odd=odd: file.punch_hole(odd, 4096),
                    lambda odd=odd: file.punch_hole(0, odd),
                    lambda odd=odd: file.truncate(odd),
                    lambda odd=odd: file.read_into(target, odd),
                    lambda odd=odd: ring.prepare(target, file, odd),
                ):
                    with pytest.raises(ValueError, match=r"must be from 0 to 2\*\*63 - 1"):
                        refused()
            for wrong in (True, 1.5, "1", None, [1]):
                for refused in (
                    lambda wrong=wrong: file.punch_hole(wrong, 4096),
                    lambda wrong=wrong: file.truncate(wrong),
                    lambda wrong=wrong: file.read_into(target, wrong),
                    lambda wrong=wrong: ring.prepare(target, file, wrong),
                ):
                    with pytest.raises(TypeError, match="must be an int, not"):
                        refused()
            with pytest.raises(ValueError, match="an offset in the file is negative, or too large"):
                ring.prepare_many(target, file, [2**63 - 1], [4096], [0])
            assert file.read_into(target, np.int64(7)).result(PATIENCE_S) == 4096
        assert (target == there[7:4103]).all()

    def test_others(self, store: Store, tmp_path: Path) -> None:
        for new in (None, 1, b"x", Path("x")):
            with pytest.raises(TypeError, match="a path is a string"):
                store.rename("a", new)  # type: ignore[arg-type]  # what the test is about
        with pytest.raises(TypeError, match="file is a File"):
            store.ring(4).prepare(np.zeros(1, np.uint8), "x", 0)  # type: ignore[arg-type]  # what the test is about
        with pytest.raises(ValueError, match="mode is"):
            store.open("a", [])  # type: ignore[arg-type]  # what the test is about
        for odd in (2**64, 2**63):
            with pytest.raises(ValueError, match="max_results must be"):
                store.ring(4).wait(odd)
            with pytest.raises(ValueError, match="staging_bytes must be"):
                storage.open_store(tmp_path, staging_bytes=odd)
        with pytest.raises(TypeError, match="the path of a folder"):
            storage.open_store(None)  # type: ignore[arg-type]  # what the test is about

    def test_words(self, store: Store) -> None:
        store.mkdir("folder").result()
        with pytest.raises(zh.StorageError) as caught:
            store.mkdir("folder").result()
        assert caught.value.fix == ""
        with pytest.raises(zh.StorageError, match=r"leads out of the store: '\.\./out'"):
            store.rename("folder", "../out").result()
        with pytest.raises(zh.StorageError, match="name a file or folder beneath"):
            store.unlink("").result()


def test_dropped_in_a_circle(tmp_path: Path) -> None:
    """The garbage collector ends a Store and its Context in one go: each is closed once, and nothing is printed."""
    program = f"""
import gc, time
from pathlib import Path
from zerohop import storage
def threads():
    names = []
    for each in Path("/proc/self/task").glob("*/comm"):
        try:
            names.append(each.read_text().strip())
        except (FileNotFoundError, ProcessLookupError):
            pass  # the thread has ended meanwhile
    return [each for each in names if each.startswith("zerohop")]
for _ in range(10):
    store = storage.open_store({str(tmp_path)!r})
    store.listdir().result()
    circle = [store]
    circle.append(circle)
    del store, circle
    gc.collect()
    plain = storage.open_store({str(tmp_path)!r})
    del plain
until = time.monotonic() + 5
while threads() and time.monotonic() < until:
    time.sleep(0.01)
print(threads())
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("[]\n", "", 0)


def _open_in_this_process(path: Path) -> int:
    links = (each for each in Path("/proc/self/fd").iterdir())
    return sum(os.path.realpath(each) == str(path) for each in links)


@pytest.mark.parametrize("is_served", [False, True], ids=["local", "served"])
@pytest.mark.parametrize("lent", [False, True], ids=["array", "iov"])
def test_closed_files_whose_transfers_have_ended(
    tmp_path: Path, random_file: Callable[..., np.ndarray], is_served: bool, lent: bool
) -> None:
    """They are closed, whether their results were asked for or not."""
    random_file("data", 4096)
    with storage.Server(tmp_path) as server, storage.open_store(server.url if is_served else tmp_path) as store:
        target = store.iov(4096) if lent else np.zeros(4096, np.uint8)
        kept = []
        for _ in range(5):
            with store.open("data").result(PATIENCE_S) as file:
                kept.append(file.read_into(target))
        eventually(lambda: all(operation.done() for operation in kept), "they do not end")
        eventually(lambda: _open_in_this_process(tmp_path / "data") == 0, "files are kept open")
        assert [operation.result(PATIENCE_S) for operation in kept] == [4096] * 5


def test_a_result_that_was_forgotten(local_store: Store) -> None:
    operation: Any = local_store.stat(".")
    with pytest.raises(AttributeError, match=r"no 'st_size'.*call result\(\) first"):
        print(operation.st_size)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = storage.open_store(tmp_path)
    store.close()
    with pytest.raises(zh.Closed, match=r"the Store is closed.*open_store\(\)"):
        store.open("data")


def test_nothing_is_copied(store: Store, random_file: Callable[..., np.ndarray]) -> None:
    """The end of a copy would be that of the original."""
    random_file("data", 100)
    with store.open("data").result(PATIENCE_S) as file, store.ring(1) as ring, store.iov(100) as iov:
        for each in (store, file, ring, iov):
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="stays in its process, and is not copied"):
                    make(each)
        file.read_into(iov).result(PATIENCE_S)
