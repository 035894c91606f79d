"""A process that is out of memory for a moment: what the control thread could not finish then is finished later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.lanes.lane_setup import LaneSetup
from zerohop.core.lanes.lanes import Lanes
from zerohop.core.lanes.peer_grants import PeerGrants
from zerohop.core.memory.shares import Shares
from zerohop.core.peers import teardown
from zerohop.core.peers.allocations import Allocations
from zerohop.core.peers.export_server import Exports
from zerohop.core.peers.import_client import Imports
from zerohop.core.peers.releases import Releases
from zerohop.core.peers.session import Session
from zerohop.core.runtime.gate import Gate
from zerohop.core.transfers import posting, transfer
from zerohop.core.transfers.quick_use import QuickUse

if TYPE_CHECKING:
    from support.fixtures import OpenContext

NBYTES = 4096


def _fail_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[MemoryError]:
    """Have a function fail for lack of memory when it is called next; the list is empty once it has."""
    function, failures = getattr(owner, name), [MemoryError()]

    def fail_once(*arguments: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, fail_once)
    return failures


@pytest.mark.parametrize(
    ("owner", "name"), [(teardown, "_forget"), (teardown, "_drop_peer"), (teardown, "part"), (Shares, "lost")]
)
def test_closing_a_connection(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    """Whichever step of it fails, the next transfer connects anew."""
    here, there = open_context(Options()), open_context(Options())
    target = there.alloc(NBYTES)
    memory, handle = here.alloc(NBYTES), target.share("rw")
    here.write(memory, handle).result(PATIENCE_S)
    connection = here.connections[0]
    failures = _fail_once(monkeypatch, owner, name)
    connection.close()
    assert not failures
    memory.write_bytes(0, bytes([7]) * NBYTES)
    for attempt in range(3):
        try:
            here.write(memory, handle).result(PATIENCE_S)
        except zh.PeerLost:
            assert attempt < 2
        else:
            break
    assert target.read_bytes() == bytes([7]) * NBYTES
    assert not connection.alive


def test_a_step_of_a_conversation(open_context: OpenContext) -> None:
    """Every conversation begins anew, because any task may wait for the step that the loop has lost."""
    here, there = open_context(Options()), open_context(Options())
    target = np.zeros(NBYTES, np.uint8)
    handle = there.register(target).share("rw")
    here.write(b"a" * NBYTES, handle).result(PATIENCE_S)
    connection = here.connections[0]
    here._core.control.call(here._core.control.loop.call_soon, here._core.control._make_up_for, MemoryError())
    here.notification(timeout=0.01).exception()
    with pytest.raises(zh.PeerLost, match="out of memory"):
        connection.send(b"x").result(PATIENCE_S)
    here.write(b"b" * NBYTES, handle).result(PATIENCE_S)
    assert target.tobytes() == b"b" * NBYTES


@pytest.mark.parametrize("step", ["begin_import", "_try"])
def test_a_first_use(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """It ends at once, whichever step of it fails, or takes the long way; and more than a gate lets in hold up none."""
    here, there = open_context(Options()), open_context(Options())
    pool = there.alloc(NBYTES * 8)
    memory = here.alloc(8)
    here.write(memory, pool[:8].share("rw")).result(PATIENCE_S)
    owner: Any = Session if step == "begin_import" else QuickUse
    function = getattr(owner, step)

    def fail(*_: object) -> None:
        raise MemoryError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, step, fail)
        failing = [here.write(memory, pool[k * 8 : k * 8 + 8].share("rw")) for k in range(400)]
        for operation in failing:
            error = operation.exception(PATIENCE_S)
            assert error is None or not isinstance(error, zh.DeadlineExceeded), error
    assert getattr(owner, step) is function
    eventually(lambda: not here._core.deferred, "operations that have ended are kept")
    assert not any(gate._inside for gate in here._core.gates.values())
    for attempt in range(3):
        try:
            here.write(memory, pool[8:16].share("rw")).result(PATIENCE_S)
        except zh.PeerLost:
            assert attempt < 2
        else:
            break


def test_a_share_that_is_imported(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transfer fails at once, the next one comes through, and the owner can take the memory back."""
    options = Options(providers=("shm",))
    here, there = open_context(options), open_context(options)
    target = there.alloc(NBYTES)
    memory, handle = here.alloc(NBYTES), target.share("rw")
    failures = _fail_once(monkeypatch, Imports, "_part_of")
    error = here.write(memory, handle).exception(PATIENCE_S)
    assert isinstance(error, zh.RegistrationFailed)
    assert "out of memory" in str(error)
    assert not failures
    for share in (handle, target.share("rw")):
        assert here.write(memory, share).result(PATIENCE_S) == NBYTES
    target.revoke(timeout=PATIENCE_S)


@pytest.mark.parametrize("part", ["lanes", "_imports", "_exports", "_rpc"])
def test_the_end_of_a_conversation(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The parts that there was no memory to end are ended soon, and nothing of the conversation stays."""
    here, there = open_context(Options()), open_context(Options())
    handle = there.alloc(NBYTES).share("rw")
    memory = here.alloc(NBYTES)
    here.write(memory, handle).result(PATIENCE_S)
    link = here.connections[0]._link
    session = link.session
    failures = _fail_once(monkeypatch, getattr(session, part), "end")
    here.connections[0].close()
    eventually(lambda: link.gone and not failures, "the link was never taken apart")
    assert link.session is None
    assert link.ending is None
    here.write(memory, handle).result(PATIENCE_S)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_atomic_is_not_posted_twice(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """The first use of a word ends with the failure, whether the failure comes before the post or after it."""
    here, there = open_context(Options(providers=("shm",))), open_context(Options(providers=("shm",)))
    word, other = there.alloc(8), there.alloc(8)
    here.fetch_add(other.share("rw"), 0).result(PATIENCE_S)
    launch: Any = posting.launch
    posts: list[int] = []

    def launch_failing(*arguments: Any, **named: Any) -> Any:
        *first, post = arguments

        def fail(route: int, nowait: bool) -> Any:
            posts.append(route)
            if when == "after":
                post(route, nowait)
            raise MemoryError

        return launch(*first, fail, **named)

    monkeypatch.setattr(transfer, "launch", launch_failing)
    assert here.fetch_add(word.share("rw"), 1).exception(PATIENCE_S) is not None
    assert len(posts) == 1
    assert word.read_bytes() == (when == "after").to_bytes(8, "little")


@pytest.mark.parametrize(
    ("owner", "name"), [(Imports, "_part_of"), (Allocations, "_check"), (Allocations, "take"), (Imports, "_accept")]
)
def test_an_import(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """It succeeds the long way or ends at once; so do later ones of the memory, and the owner gets its memory back."""
    here, there = open_context(Options(providers=("shm",))), open_context(Options(providers=("shm",)))
    target, other = there.alloc(NBYTES), there.alloc(NBYTES)
    memory, handle = here.alloc(NBYTES), target.share("rw")
    here.write(memory, other.share("rw")).result(PATIENCE_S)
    failures = _fail_once(monkeypatch, owner, name)
    error = here.write(memory, handle).exception(PATIENCE_S)
    assert not failures
    assert error is None or "out of memory" in str(error)
    _write_again(here, memory, handle)
    _write_again(here, memory, target.share("rw"))
    if name != "_accept":  # which fails as a whole, so that the link is lost, and with it what the peer would say
        target.revoke(timeout=PATIENCE_S)


@pytest.mark.parametrize("name", ["_allocation", "_import", "take"])
def test_taking_what_is_granted(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A share that cannot be taken for lack of memory is taken later, and its owner waits for nobody."""
    here, there = open_context(Options(providers=("shm",))), open_context(Options(providers=("shm",)))
    target, memory = there.alloc(2 * NBYTES), here.alloc(NBYTES)
    here.write(memory, target[NBYTES:].share("rw")).result(PATIENCE_S)
    handle = target[:NBYTES].share("rw")
    failures = _fail_once(monkeypatch, PeerGrants, name)
    with pytest.raises((MemoryError, zh.RegistrationFailed)):
        here.write(memory, handle).result(PATIENCE_S)
    assert not failures
    _write_again(here, memory, handle)
    target.revoke(timeout=PATIENCE_S)


@pytest.mark.parametrize(("owner", "name"), [(Imports, "begin"), (Imports, "_ask_soon"), (Releases, "asking")])
def test_asking_for_memory(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    """A request that finds no memory ends at once, and leaves nothing that later uses would wait for."""
    here, there = open_context(Options(providers=("shm",))), open_context(Options(providers=("shm",)))
    target = there.alloc(NBYTES)
    memory, handle = here.alloc(NBYTES), target.share("rw")
    here.write(memory, there.alloc(NBYTES).share("rw")).result(PATIENCE_S)
    failures = _fail_once(monkeypatch, owner, name)
    error = here.write(memory, handle).exception(PATIENCE_S)
    assert not failures
    assert error is None or "out of memory" in str(error)
    _write_again(here, memory, handle)
    target.revoke(timeout=PATIENCE_S)


@pytest.mark.parametrize("side", ["here", "there"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Lanes, "begin_messages"),
        (Lanes, "_open_for_messages"),
        (Lanes, "_open"),
        (Lanes, "came_up"),
        (LaneSetup, "begin"),
        (LaneSetup, "_answer"),
        (LaneSetup, "_guarded"),
        (Session, "_handle"),
        (Session, "_established"),
    ],
)
def test_the_first_lane(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, side: str
) -> None:
    """A connection that finds no memory while it opens is lost at once, at both ends; the next use connects anew."""
    here, there = open_context(Options(providers=("tcp",))), open_context(Options(providers=("tcp",)))
    memory, handle = here.alloc(NBYTES), there.alloc(NBYTES).share("rw")
    failing = (here if side == "here" else there)._core.control
    function, failures = getattr(owner, name), [MemoryError()]

    def fail_once(self: Any, *arguments: Any, **named: Any) -> Any:
        if failures and self._core.control is failing:
            raise failures.pop()
        return function(self, *arguments, **named)

    monkeypatch.setattr(owner, name, fail_once)
    error = here.write(memory, handle, timeout=PATIENCE_S).exception(PATIENCE_S)
    if failures:  # a step that this side does not take
        assert error is None
    elif side == "here":
        assert error is not None
        assert "out of memory" in str(error)
    else:  # the write may have ended before the other side failed, or its lane have ended before the goodbye came
        assert error is None or isinstance(error, zh.PeerLost)
    _write_again(here, memory, handle)
    for context in (here, there):  # a socket that comes all the same would belong to nobody
        assert not context._core.listeners._invited


def test_an_owner_that_cannot_answer(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The importer loses it at once, or connects anew, in place of waiting for an answer."""
    here, there = open_context(Options(providers=("shm",))), open_context(Options(providers=("shm",)))
    memory, handle = here.alloc(NBYTES), there.alloc(NBYTES).share("rw")
    here.write(memory, there.register(np.zeros(NBYTES, np.uint8)).share("rw")).result(PATIENCE_S)
    failures = _fail_once(monkeypatch, Exports, "_answer")
    error = here.write(memory, handle, timeout=PATIENCE_S).exception(PATIENCE_S)
    assert not failures
    assert error is None or isinstance(error, zh.PeerLost)
    _write_again(here, memory, handle)


def test_a_task_of_no_link(open_context: OpenContext) -> None:
    """Lack of memory that ends a task of all peers ends all conversations, as that of a callback does."""
    here, there = open_context(Options()), open_context(Options())
    memory, handle = here.alloc(NBYTES), there.alloc(NBYTES).share("rw")
    here.write(memory, handle).result(PATIENCE_S)
    connection = here.connections[0]

    async def fail() -> None:
        raise MemoryError

    here._core.control.spawn(fail)
    eventually(lambda: not connection.alive, "the peers are not lost")
    _write_again(here, memory, handle)


def _write_again(here: zh.Context, memory: zh.Memory, handle: zh.RemoteBuffer) -> None:
    """Write until that succeeds: the connection may just be being lost, and nothing else may go wrong."""

    def written() -> bool:
        error = here.write(memory, handle, timeout=PATIENCE_S).exception(PATIENCE_S)
        assert error is None or isinstance(error, zh.PeerLost), error
        return error is None

    eventually(written, "no write succeeds")


def test_a_gate_whose_guests_fail() -> None:
    """Guests behind one that fails at its beginning are let in all the same."""
    entered: list[int] = []
    gate = Gate()

    def begin(number: int) -> None:
        entered.append(number)
        gate.leave()
        if number == 1:
            raise MemoryError

    def begin_first() -> None:
        for number in range(1, 10):
            gate.enter(begin, number)
        gate.leave()

    with pytest.raises(MemoryError):
        gate.enter(begin_first)
    assert entered == list(range(1, 10))


def test_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that could not ask the loop for its next turn lets the next ones in all the same."""
    import asyncio

    entered: list[int] = []

    async def enter_many() -> None:
        gate, loop = Gate(), asyncio.get_running_loop()
        _fail_once(monkeypatch, loop, "call_soon")

        def begin(number: int) -> None:
            entered.append(number)
            gate.leave()

        def begin_first() -> None:
            for number in range(1000):
                gate.enter(begin, number)
            gate.leave()

        with pytest.raises(MemoryError):
            gate.enter(begin_first)
        gate.enter(begin, 1000)
        while len(entered) < 1001:  # noqa: ASYNC110 - it takes a few turns of this loop
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(enter_many(), PATIENCE_S))
    assert entered == list(range(1001))
