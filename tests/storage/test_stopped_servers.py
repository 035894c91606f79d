"""Servers that are stopped (SIGSTOP) in each state: all that a client asks ends at its deadline; later all works."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from support.stores import open_remote, served
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer
    from zerohop.storage import File, Store

NBYTES = 4 * MIB
# The deadline of what is asked of a server that stands still, and also of everything that it does while it runs.
LIMIT_S = patience(1.5)
SHORT_S = 0.2
PLACES = np.arange(4) * MIB
LENGTHS = np.full(4, MIB)


class Setting:
    """A server in a process of its own, and a Context that is to be its client."""

    def __init__(self, open_context: OpenContext, peer: Peer, url: str, options: Options) -> None:
        self._open_context = open_context
        self._options = options
        self.peer, self.url = peer, url
        self.context = open_context(options)

    def open(self) -> Store:
        return storage.open_store(self.url, ctx=self.context, timeout=LIMIT_S)

    def greet(self, errors: list[BaseException]) -> None:
        """Open a Store and close it; the error goes to the list."""
        try:
            storage.open_store(self.url, ctx=self.context, timeout=SHORT_S).close()
        except zh.ZerohopError as error:
            errors.append(error)

    def expect_counts(self, clients: int, files: int) -> None:
        """Wait until the server has so many clients and open files, and none of its memory in use."""

        def is_so() -> bool:
            found = self.peer.call(Service.served)
            return (found.clients, found.files, found.memory_in_use) == (clients, files, 0)

        eventually(is_so, f"not {clients} clients and {files} files: {self.peer.call(Service.served)}")

    def take_collision(self) -> None:
        """Flush once: the writes and holes of `asked` overlap, some past the page cache and some through it, and Linux
        tells of such a collision by EIO, once, at the next flush of the file."""
        with self.open() as store, store.open("data", "r+").result(PATIENCE_S) as file:
            error = file.fsync().exception(PATIENCE_S)
            assert error is None or (isinstance(error, zh.StorageError) and error.errno == errno.EIO), error

    def expect_all_works(self) -> None:
        """A new client, and one that was there before, read, write and flush."""
        for context in (self.context, self._open_context(self._options)):
            with open_remote(self.url, context) as store, store.open("data", "r+").result(PATIENCE_S) as file:
                written, back = pattern(8, NBYTES), np.zeros(NBYTES, np.uint8)
                assert file.write_from(written).result(PATIENCE_S) == NBYTES
                file.fsync().result(PATIENCE_S)
                assert file.read_into(back).result(PATIENCE_S) == NBYTES
                assert (back == written).all()
                assert "data" in store.listdir().result(PATIENCE_S)


@pytest.fixture(params=[None, ("tcp",)], ids=["mapped", "tcp"])
def setting(
    request: pytest.FixtureRequest, open_context: OpenContext, start_peer: StartPeer, tmp_path: Path
) -> Iterator[Setting]:
    (tmp_path / "data").write_bytes(pattern(1, NBYTES).tobytes())
    (tmp_path / "link").symlink_to("data")
    peer, url = served(start_peer, tmp_path, request.param)
    setting = Setting(open_context, peer, url, Options(providers=request.param))
    yield setting
    setting.context.close()
    setting.expect_counts(0, 0)


def asked(store: Store, file: File, memory: zh.Memory) -> dict[str, zh.Operation[Any]]:
    """Everything that a Store and a File have another process do, begun."""
    return {
        "open": store.open("data"),
        "open a new file": store.open("new", "w"),
        "stat": store.stat("data"),
        "listdir": store.listdir(),
        "mkdir": store.mkdir("folder"),
        "rmdir": store.rmdir("nothing"),
        "unlink": store.unlink("nothing"),
        "rename": store.rename("nothing", "anything"),
        "utime": store.utime("data"),
        "readlink": store.readlink("link"),
        "fsync": file.fsync(),
        "truncate": file.truncate(NBYTES),
        "punch_hole": file.punch_hole(0, 1),
        "hole_in": file.hole_in(0, NBYTES),
        "read": file.read_into(memory, timeout=SHORT_S),
        "read within the Store's limit": file.read_into(memory),
        "read of an array": file.read_into(np.zeros(MIB, np.uint8), timeout=SHORT_S),
        "read_many": file.read_many(memory, PLACES, LENGTHS, PLACES, timeout=SHORT_S),
        "write": file.write_from(memory, timeout=SHORT_S),
        "write of an array": file.write_from(np.zeros(MIB, np.uint8), timeout=SHORT_S),
        "write_many": file.write_many(memory, PLACES, LENGTHS, PLACES, timeout=SHORT_S),
    }


def test_everything_that_is_asked_of_it(setting: Setting) -> None:
    """Each call ends with DeadlineExceeded, and leaves no open file at the server."""
    with setting.open() as store, store.open("data", "r+").result(PATIENCE_S) as file:
        memory = setting.context.alloc(NBYTES)
        assert file.read_into(memory).result(PATIENCE_S) == NBYTES
        ring = store.ring(4)
        setting.peer.stop()
        ring.prepare_many(memory, file, PLACES, LENGTHS, PLACES)
        assert ring.submit() == 4
        for name, operation in asked(store, file, memory).items():
            error = operation.exception(PATIENCE_S)
            assert isinstance(error, zh.DeadlineExceeded), (name, error)
        with pytest.raises(zh.DeadlineExceeded):
            file.stat()
        with pytest.raises(zh.DeadlineExceeded):
            ring.wait(min_results=4, timeout=SHORT_S)
        setting.peer.resume()
        done = ring.wait(min_results=4, timeout=PATIENCE_S)
        assert sorted(each.userdata for each in done) == [0, 1, 2, 3]
        assert {(each.result, each.error) for each in done} == {(MIB, None)}
        setting.context.flush().result(PATIENCE_S)
        setting.expect_counts(1, 1)  # what was opened too late is closed
        for name, operation in asked(store, file, memory).items():
            # The names may be there by now or not, as of any call that ended by its deadline.
            error = operation.exception(PATIENCE_S)
            assert error is None or isinstance(error, zh.StorageError | zh.DeadlineExceeded), (name, error)
    setting.expect_counts(0, 0)
    setting.take_collision()
    setting.expect_all_works()


@pytest.mark.parametrize("met", [False, True], ids=["stranger", "met before"])
def test_greetings(setting: Setting, met: bool) -> None:
    """A Store that cannot be opened in time is no client, once the server goes on."""
    if met:
        setting.context.connect(setting.url).result(PATIENCE_S)
    for stopped_first in (True, False):
        errors: list[BaseException] = []
        greeting = threading.Thread(target=setting.greet, args=(errors,))
        if stopped_first:
            setting.peer.stop()
            greeting.start()
        else:
            greeting.start()
            setting.peer.stop()
        greeting.join(PATIENCE_S)
        assert not greeting.is_alive()
        assert errors or not stopped_first
        assert all(isinstance(error, zh.DeadlineExceeded) for error in errors), errors
        setting.peer.resume()
        setting.expect_counts(0, 0)
    setting.expect_all_works()


@pytest.mark.parametrize(
    "after", ["open", *(pytest.param(each, marks=pytest.mark.slow) for each in ("read", "write", "fsync"))]
)
def test_in_the_middle_of_calls(setting: Setting, tmp_path: Path, after: str) -> None:
    """Of many that are under way each ends as usual or at its deadline; a late byte goes to no place but its own."""
    before, written = pattern(1, NBYTES), pattern(2, NBYTES)
    with setting.open() as store, store.open("data", "r+").result(PATIENCE_S) as file:
        source, target = setting.context.alloc(NBYTES), setting.context.alloc(NBYTES)
        source.write_bytes(0, written.tobytes())
        assert file.read_into(target).result(PATIENCE_S) == NBYTES
        under_way: list[zh.Operation[Any]] = []
        firsts: dict[str, zh.Operation[Any]] = {}
        for _ in range(8):
            begun: dict[str, zh.Operation[Any]] = {
                "open": store.open("data"),
                "read": file.read_into(target, timeout=SHORT_S),
                "write": file.write_from(source, timeout=SHORT_S),
                "fsync": file.fsync(),
            }
            firsts = firsts or begun
            under_way += begun.values()
        firsts[after].exception(PATIENCE_S)
        setting.peer.stop()
        for operation in under_way:
            error = operation.exception(PATIENCE_S)
            assert error is None or isinstance(error, zh.DeadlineExceeded), error
            if error is None and isinstance(opened := operation.result(), storage.File):
                opened.close()
        under_way.clear()
        setting.peer.resume()
        setting.context.flush().result(PATIENCE_S)
        setting.expect_counts(1, 1)
        for found in (np.fromfile(tmp_path / "data", np.uint8), target.numpy()):
            assert ((found == before) | (found == written)).all()
        assert file.write_from(source).result(PATIENCE_S) == NBYTES
        assert (tmp_path / "data").read_bytes() == written.tobytes()
    setting.expect_all_works()


@pytest.mark.parametrize("first", ["file", pytest.param("store", marks=pytest.mark.slow), "context"])
def test_closing(setting: Setting, first: str) -> None:
    """Whatever is closed meanwhile: closing returns, transfers end, and the server keeps nothing when it goes on."""
    store = setting.open()
    file, iov, ring = store.open("data", "r+").result(PATIENCE_S), store.iov(NBYTES), store.ring(8)
    operations: list[zh.Operation[Any]] = [file.read_into(iov, timeout=LIMIT_S) for _ in range(20)]
    ring.prepare_many(iov, file, PLACES, LENGTHS, PLACES)
    ring.submit()
    operations[0].exception(PATIENCE_S)
    setting.peer.stop()
    operations += [file.fsync(), store.open("data"), store.listdir()]
    closing: dict[str, Callable[[], None]] = {
        "file": file.close,
        "ring": ring.close,
        "iov": iov.close,
        "store": store.close,
        "context": lambda: setting.context.close(timeout=SHORT_S),
    }
    closing.pop(first)()
    for operation in operations:
        error = operation.exception(PATIENCE_S)
        assert error is None or isinstance(error, zh.DeadlineExceeded | zh.Closed), error
    for close in closing.values():
        close()
    setting.peer.resume()
    setting.expect_counts(0, 0)
    setting.context = setting._open_context(setting._options)
    setting.expect_all_works()
