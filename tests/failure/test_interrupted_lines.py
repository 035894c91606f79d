"""A signal's handler that raises at any line of the library: nothing stays, nothing is printed, the rest works on."""

from __future__ import annotations

import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

import zerohop as zh
from support.interrupting import Interrupted, at_each_line
from support.lanes import eventually
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import PATIENCE_S, patience

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.fixtures import OpenContext

NBYTES: Final = 4096
_DAY_S: Final = 24 * 60 * 60
# Seconds for a flush that waits for nothing: far less than the deadline of what was interrupted.
FLUSH_S: Final = patience(3.0)

# All lines take a minute. Each day takes others, so that some days take all of them; the slow test takes all at once.
SOME: Final = 8
STRIDES: Final = [SOME, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(patience(180))])]

# What was interrupted between its return and its use is dropped, and says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore:<Context .* was dropped and not closed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:a flush was dropped:ResourceWarning"),
]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Holds what Python would print as "Exception ignored", but for the handler's own in a destructor."""
    found: list[str] = []

    def note(ignored: sys.UnraisableHookArgs) -> None:
        if not isinstance(ignored.exc_value, Interrupted):
            found.append(f"{ignored.exc_value!r} in {ignored.object!r}")

    monkeypatch.setattr(sys, "unraisablehook", note)
    return found


@pytest.fixture
def pair(open_context: OpenContext) -> tuple[zh.Context, zh.Context]:
    """Two Contexts that are connected."""
    here, there = (open_context(Options(sim_devices=0)) for _ in range(2))
    here.connect(there.url).result(PATIENCE_S)
    return here, there


def _at_lines(stride: int, action: Callable[[], object], check: Callable[[], object]) -> None:
    first = 1 + int(time.time() // _DAY_S) % stride
    at_each_line(action, check, first=first, stride=stride)


def _open_and_close() -> None:
    with Options(sim_devices=0).open():
        pass


def _transport() -> None:
    with zh.Transport():
        pass


def _transfer(here: zh.Context, there: zh.Context) -> None:
    """Write to memory that was never used before, and flush."""
    with there.alloc(NBYTES) as memory:
        source = np.full(NBYTES, 3, np.uint8)
        here.write(source, memory.share("rw")).result(PATIENCE_S)
        here.flush(timeout=FLUSH_S).result()
        assert memory.read_bytes() == bytes(source)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("action", [_open_and_close, _transport])
def test_what_opens_a_context(
    said: list[str], pair: tuple[zh.Context, zh.Context], action: Callable[[], object], stride: int
) -> None:
    _transfer(*pair)
    action()
    before = holdings()

    def check() -> None:
        expect_given_back(before, holdings, "this process")
        assert not said
        _transfer(*pair)

    _at_lines(stride, action, check)


def _look_at_files(store: zh.storage.Store) -> None:
    with store.open("data").result(PATIENCE_S):
        store.listdir().result(PATIENCE_S)
    store.stat("data").result(PATIENCE_S)


@pytest.mark.parametrize("stride", STRIDES)
def test_files(said: list[str], tmp_path: Path, open_context: OpenContext, stride: int) -> None:
    """No descriptor stays, and none is closed twice, which would be another's by then."""
    (tmp_path / "data").write_bytes(bytes(NBYTES))
    with zh.storage.open_store(tmp_path, ctx=open_context(Options(sim_devices=0))) as store:
        _look_at_files(store)
        before = holdings()

        def check() -> None:
            expect_given_back(before, holdings, "this process")
            assert not said
            _look_at_files(store)

        _at_lines(stride, lambda: _look_at_files(store), check)


@pytest.mark.parametrize("stride", STRIDES)
def test_a_memory(said: list[str], pair: tuple[zh.Context, zh.Context], stride: int) -> None:
    here, there = pair

    memories: list[zh.Memory] = []

    def use() -> None:
        """Share before the list keeps the Memory: it is dropped where nobody gets the handle."""
        memory = here.register(bytearray(NBYTES))
        handle = memory.share("rw")
        memories.append(memory)
        memory.revoke(handle)
        memory.share("r")
        memory.close()

    def check() -> None:
        for memory in memories:
            memory.close()
        memories.clear()
        assert here.statistics().shares == 0
        use()
        assert here.statistics().shares == 0
        assert not said
        _transfer(there, here)

    _at_lines(stride, use, check)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("what", ["write", "notify", "connect", "flush"])
def test_a_first_use(said: list[str], pair: tuple[zh.Context, zh.Context], what: str, stride: int) -> None:
    """A flush waits for nothing that an interrupt has left."""
    here, there = pair
    source = np.ones(NBYTES, np.uint8)
    memories: list[zh.Memory] = []

    def prepare() -> None:
        for memory in memories:
            memory.close()
        memories[:] = [there.alloc(NBYTES)]
        if what != "write":
            for connection in here.connections:
                connection.close()

    def use() -> None:
        (handle,) = (memory.share("rw") for memory in memories)
        uses: dict[str, Callable[[], zh.Operation[Any]]] = {
            "write": lambda: here.write(source, handle),
            "notify": lambda: here.notify(handle, 1),
            "connect": lambda: here.connect(there.url),
            "flush": here.flush,
        }
        uses[what]().result(PATIENCE_S)
        here.flush().result(PATIENCE_S)

    def check() -> None:
        here.flush(timeout=FLUSH_S).result()
        # An operation is done a moment before the control thread forgets it.
        eventually(lambda: not here._core.deferred, "an operation is kept")
        assert not said
        _transfer(here, there)
        prepare()

    prepare()
    _at_lines(stride, use, check)


def test_lines_at_which_python_calls_no_handler() -> None:
    """What is raised where an except clause ends would leave its exception the current one, and all that it holds."""

    def check() -> None:
        assert sys.exc_info() == (None, None, None)

    at_each_line(lambda: weakref.WeakKeyDictionary[Any, int]().copy(), check)
