"""Long messages of a GPU that are given up, cancelled, too late or too long, and ranks that are gone meanwhile."""

from __future__ import annotations

import math
import tempfile
import threading
import weakref
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.direct import NBYTES, Ends, before_reading
from support.groups import groups
from support.lanes import eventually, eventually_freed
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.ranks import Rank, RankProcess
from support.sizes import MIB
from zerohop.group import direct

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = patience(0.2)


def test_one_that_is_too_long(both: list[zh.Group], gpu: str) -> None:
    ends = Ends(both, gpu)
    receiving = both[1].recv(ends.target[: 2 * MIB], 0)
    sending = both[0].send(ends.source, 1)
    for operation in (receiving, sending):
        with pytest.raises(zh.ProtocolError, match="rank"):
            operation.result(PATIENCE_S)
    ends.expect(0)


def test_a_receive_that_ends_before_leaves_it(both: list[zh.Group], gpu: str) -> None:
    ends = Ends(both, gpu)
    late = both[1].recv(ends.target, 0, timeout=TIMEOUT_S)
    with pytest.raises(zh.DeadlineExceeded, match="rank 0") as caught:
        late.result(PATIENCE_S)
    assert caught.value.ranks == (0,)
    assert both[1].recv(ends.target, 0).cancel()
    sending = both[0].send(ends.source, 1)
    assert both[1].recv(ends.target, 0).result(PATIENCE_S).nbytes == NBYTES
    sending.result(PATIENCE_S)
    ends.expect()


def test_a_receive_that_is_cancelled_while_it_reads_gives_it_back(
    both: list[zh.Group], gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends(both, gpu)
    reading = both[1].context.recv(bytearray(8))  # it does not end
    with monkeypatch.context() as patched:
        patched.setattr(direct, "read", lambda *_: reading)
        receiving: Any = both[1].recv(ends.target)
        sending = both[0].send(ends.source, 1)
        eventually(lambda: receiving._part is reading, "it does not read")
        assert receiving.cancel()
    assert reading.done()
    assert not sending.done()
    both[1].recv(ends.target).result(PATIENCE_S)
    sending.result(PATIENCE_S)
    ends.expect()


def test_a_message_that_has_come_is_not_lost_by_cancelling(both: list[zh.Group], gpu: str) -> None:
    """The receive has ended, though the thread that says so has not come to it."""
    ends, goes_on = Ends(both, gpu), threading.Event()
    receiving = both[1].recv(ends.target)
    both[1].context._core.control.call(goes_on.wait)
    try:
        assert both[0].send(ends.source[:9000], 1).result(PATIENCE_S) == 9000
        assert not receiving.cancel()
    finally:
        goes_on.set()
    assert receiving.result(PATIENCE_S).nbytes == 9000
    ends.expect(9000)


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_sender_that_gives_it_up_meanwhile(
    tmp_path: Path, gpu: str, monkeypatch: pytest.MonkeyPatch, is_connected: bool
) -> None:
    """It may have changed its memory, so that what was read is no message. The first message connects."""
    sending: list[zh.Operation[int]] = []
    goes_on = threading.Event()
    with groups(tmp_path, 2, "p2p") as two:
        if is_connected:
            two[0].connect(1).result(PATIENCE_S)
        ends = Ends(two, gpu)

        def give_up(_: zh.RemoteBuffer) -> None:
            two[0].context._core.control.call(goes_on.wait)
            assert sending[0].cancel()
            assert sending[0].memory_in_use  # until the receiver has agreed
            goes_on.set()
            eventually(lambda: not sending[0].memory_in_use, "the sender's memory is in use")
            ends.source.fill(0x11)

        before_reading(monkeypatch, give_up)
        sending.append(two[0].send(ends.source, 1))
        receiving = two[1].recv(ends.target)
        try:
            with pytest.raises(zh.PeerLost, match="given up"):
                receiving.result(PATIENCE_S)
        finally:
            goes_on.set()


def test_a_rank_that_is_gone_meanwhile(both: list[zh.Group], gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(both, gpu)
    begun: list[zh.RemoteBuffer] = []

    def leave(remote: zh.RemoteBuffer) -> None:
        begun.append(remote)
        both[0].context.close()

    before_reading(monkeypatch, leave)
    sending = both[0].send(ends.source, 1)
    with pytest.raises(zh.PeerLost, match="rank 0") as caught:
        both[1].recv(ends.target, 0).result(PATIENCE_S)
    assert caught.value.ranks == (0,)
    with pytest.raises(zh.Closed):
        sending.result(PATIENCE_S)
    assert begun


def test_a_group_that_is_closed_while_it_waits(both: list[zh.Group], gpu: str) -> None:
    ends = Ends(both, gpu)
    receiving = both[1].recv(ends.target)
    both[1].close()
    with pytest.raises(zh.Closed):
        receiving.result(PATIENCE_S)
    sending = both[0].send(ends.source, 1)
    with pytest.raises(zh.PeerLost):
        sending.result(PATIENCE_S)


def test_a_message_that_waits_is_not_lost_by_cancelling(both: list[zh.Group], gpu: str) -> None:
    """The receive takes it at once, whatever the control thread does."""
    ends = Ends(both, gpu)
    both[0].send(ends.bytes[:100], 1, tag=1)
    arrival = both[1].probe(0).result(PATIENCE_S)  # it is here
    del arrival
    for _ in range(20):
        receiving = both[1].recv(ends.target)
        if not receiving.cancel():
            break
    else:
        receiving = both[1].recv(ends.target)
    assert receiving.result(PATIENCE_S).nbytes == receiving.nbytes == 100
    ends.expect(100)


def test_a_send_that_is_cancelled_before_it_is_posted(tmp_path: Path, gpu: str) -> None:
    """The control thread finds it cancelled, and posts nothing of memory that the caller may change."""
    goes_on = threading.Event()
    with groups(tmp_path, 2, "p2p") as two:
        ends = Ends(two, gpu)
        two[0].context._core.control.call(goes_on.wait)
        try:
            sending = two[0].send(ends.source, 1)
            assert sending.cancel()
            assert not sending.memory_in_use
        finally:
            goes_on.set()
        receiving = two[1].recv(ends.target, 0)
        two[0].send(ends.source[: 2 * MIB], 1).result(PATIENCE_S)
        assert receiving.result(PATIENCE_S).nbytes == 2 * MIB


def test_a_group_that_is_dropped_while_it_waits(tmp_path: Path, gpu: str) -> None:
    with Options(providers=("p2p",), sim_devices=1).open() as ctx:
        group = zh.Group(0, 2, tmp_path, ctx=ctx)
        target, alive = ctx.alloc(NBYTES, gpu), weakref.ref(group)
        receiving = group.recv(target)
        del group
        eventually_freed(alive)
        with pytest.raises(zh.Closed):
            receiving.result(PATIENCE_S)


@pytest.mark.parametrize("source", [None, 0])
def test_the_time_is_up_while_it_reads(
    both: list[zh.Group], gpu: str, monkeypatch: pytest.MonkeyPatch, source: int | None
) -> None:
    """The message stays."""
    ends = Ends(both, gpu)
    with monkeypatch.context() as patched:
        context = both[1].context
        patched.setattr(direct, "read", lambda *given: context.recv(bytearray(8), timeout=given[3]))  # nothing comes
        late = both[1].recv(ends.target, source, timeout=TIMEOUT_S)
        sending = both[0].send(ends.source, 1)
        with pytest.raises(zh.DeadlineExceeded, match="rank 0") as caught:
            late.result(PATIENCE_S)
    assert caught.value.ranks == (0,)
    assert not late.memory_in_use
    ends.expect(0)
    assert both[1].recv(ends.target).result(PATIENCE_S).nbytes == NBYTES
    sending.result(PATIENCE_S)
    ends.expect()


def test_a_receive_without_a_limit_reads_without_one(tmp_path: Path, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    read = direct.read

    def noting(core: Any, remote: zh.RemoteBuffer, into: Any, timeout: float) -> zh.Operation[int]:
        limits.append(timeout)
        return read(core, remote, into, timeout)

    monkeypatch.setattr(direct, "read", noting)
    with groups(tmp_path, 2, "p2p") as two:
        ends = Ends(two, gpu)
        for timeout in (None, math.inf):
            receiving = two[1].recv(ends.target, timeout=timeout)
            two[0].send(ends.source, 1).result(PATIENCE_S)
            receiving.result(PATIENCE_S)
    assert limits == [math.inf] * 2


def test_memory_that_is_closed_while_it_is_waited_for(both: list[zh.Group], gpu: str) -> None:
    """The message is for the next receive."""
    ends = Ends(both, gpu)
    other = both[1].context.alloc(NBYTES, gpu)
    receiving = both[1].recv(other)
    other.close()
    sending = both[0].send(ends.source, 1)
    with pytest.raises(zh.Closed, match="rank 0"):
        receiving.result(PATIENCE_S)
    assert both[1].recv(ends.target).result(PATIENCE_S).nbytes == NBYTES
    sending.result(PATIENCE_S)
    ends.expect()


def test_a_cancel_that_a_signal_interrupts(both: list[zh.Group], gpu: str) -> None:
    """It has cancelled the receive in the mailbox, and not the Operation of the caller."""
    receiving: Any = both[1].recv(both[1].context.alloc(NBYTES, gpu))
    assert receiving._part.cancel()
    with pytest.raises(CancelledError):
        receiving.result(PATIENCE_S)


def test_a_cancel_in_a_forked_child(both: list[zh.Group], gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that the child does not have may have been about to post a part."""
    receiving: Any = both[1].recv(both[1].context.alloc(NBYTES, gpu))
    held, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        with receiving._turn:
            held.set()
            goes_on.wait(PATIENCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(PATIENCE_S)
    with monkeypatch.context() as patched:
        patched.setattr(both[1].context._core, "forked", True)
        assert not receiving.cancel()
        assert holder.is_alive(), "it has waited for that thread"
    goes_on.set()
    holder.join()
    assert receiving.cancel()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[RankProcess]:
    """Starts a process that leaves its sockets behind when it is killed."""
    with tempfile.TemporaryDirectory(prefix="zh-") as left:
        with monkeypatch.context() as patched:
            patched.setenv("XDG_RUNTIME_DIR", left)
            started = RankProcess()
        yield started
        started.kill()


def test_a_sender_that_is_killed_while_it_is_read(
    tmp_path: Path, process: RankProcess, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(providers=("p2p",), sim_devices=1)
    with options.open() as ctx, zh.Group(0, 2, tmp_path, ctx=ctx) as here:
        before_reading(monkeypatch, lambda _: process.kill())
        process.open(tmp_path, 1, 2, options)
        process.begin(Rank.send, gpu, NBYTES, 5, 0, 0)
        with pytest.raises(zh.PeerLost, match="rank 1") as caught:
            here.recv(ctx.alloc(NBYTES, gpu), 1).result(PATIENCE_S)
        assert caught.value.ranks == (1,)


def test_a_receiver_that_is_killed(tmp_path: Path, process: RankProcess, gpu: str) -> None:
    options = Options(providers=("p2p",), sim_devices=1)
    with options.open() as ctx, zh.Group(0, 2, tmp_path, ctx=ctx) as here:
        process.open(tmp_path, 1, 2, options)
        process.call(Rank.probe, 0, None)
        sending = here.send(ctx.alloc(NBYTES, gpu), 1)
        process.kill()
        with pytest.raises(zh.PeerLost, match="rank 1"):
            sending.result(PATIENCE_S)
        eventually(lambda: not sending.memory_in_use, "the memory is in use")
