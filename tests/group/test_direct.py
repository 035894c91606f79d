"""Long messages of a GPU's memory: the receiver reads them where they are, and gets the right bytes or an error."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.groups import PLACES, groups
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.pattern import pattern
from support.ranks import Rank, RankProcess
from support.sizes import MIB
from zerohop._native import DIRECT_BYTES
from zerohop.group import direct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GPUS = PLACES[1:]
NBYTES = 3 * MIB + 5
TIMEOUT_S = patience(0.2)


@pytest.fixture(params=GPUS)
def gpu(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[list[zh.Group]]:
    """Opens two ranks, whose GPUs reach each other's memory."""
    with groups(tmp_path, 2, "p2p") as two:
        zh.wait_all([two[0].connect(1), two[1].connect(0)], PATIENCE_S)
        yield two


class Ends:
    """Memory of a GPU at two ranks: the source is full of a pattern, and the target of something else."""

    def __init__(self, both: list[zh.Group], gpu: str, nbytes: int = NBYTES) -> None:
        self.source = both[0].context.alloc(nbytes, gpu)
        self.target = both[1].context.alloc(nbytes, gpu)
        self.bytes = pattern(7, nbytes).tobytes()
        self.source.write_bytes(0, self.bytes)
        self.target.fill(0xEE)

    def expect(self, nbytes: int = NBYTES) -> None:
        assert self.target.read_bytes(0, nbytes) == self.bytes[:nbytes]
        assert self.target.read_bytes(nbytes) == b"\xee" * (self.target.nbytes - nbytes)


def read_by_devices(group: zh.Group) -> int:
    connection = group.connect(1 - group.rank).result(PATIENCE_S)
    return connection.statistics().get("bytes_copied_by_devices", 0)


def before_reading(monkeypatch: pytest.MonkeyPatch, group: zh.Group, act: Callable[[zh.RemoteBuffer], object]) -> None:
    """Have something done when the group is about to read a message."""
    read = group.context.read

    def acting(remote: zh.RemoteBuffer, *arguments: Any, **options: Any) -> zh.Operation[int]:
        act(remote)
        return read(remote, *arguments, **options)

    monkeypatch.setattr(group.context, "read", acting)


@pytest.mark.parametrize("first", ["send", "recv"])
@pytest.mark.parametrize("source", [None, 0])
def test_the_receiver_reads_it(both: list[zh.Group], gpu: str, first: str, source: int | None) -> None:
    ends = Ends(both, gpu)
    for nbytes in (NBYTES, DIRECT_BYTES):
        before = read_by_devices(both[1])
        ends.target.fill(0xEE)
        if first == "send":
            sending = both[0].send(ends.source[:nbytes], 1, tag=4)
            receiving = both[1].recv(ends.target, source)
        else:
            receiving = both[1].recv(ends.target, source)
            sending = both[0].send(ends.source[:nbytes], 1, tag=4)
        assert receiving.result(PATIENCE_S) == (0, 4, nbytes)
        assert sending.result(PATIENCE_S) == nbytes
        ends.expect(nbytes)
        assert read_by_devices(both[1]) - before == nbytes


def test_a_shorter_one_comes_over_the_lane(both: list[zh.Group], gpu: str) -> None:
    ends = Ends(both, gpu)
    receiving = both[1].recv(ends.target)
    assert both[0].send(ends.source[: DIRECT_BYTES - 1], 1).result(PATIENCE_S) == DIRECT_BYTES - 1
    assert receiving.result(PATIENCE_S).nbytes == DIRECT_BYTES - 1
    ends.expect(DIRECT_BYTES - 1)
    assert read_by_devices(both[1]) == 0


def test_between_views(both: list[zh.Group], gpu: str) -> None:
    ends = Ends(both, gpu)
    for at in (1, 4096):
        ends.target.fill(0xEE)
        receiving = both[1].recv(ends.target[at : at + 2 * MIB], 0)
        both[0].send(ends.source[3 * at : 3 * at + 2 * MIB], 1).result(PATIENCE_S)
        receiving.result(PATIENCE_S)
        assert ends.target.read_bytes(at, 2 * MIB) == ends.bytes[3 * at : 3 * at + 2 * MIB]
        assert ends.target.read_bytes(0, at) == b"\xee" * at
        assert ends.target.read_bytes(at + 2 * MIB) == b"\xee" * (NBYTES - at - 2 * MIB)


def test_in_the_order_of_sending(both: list[zh.Group], gpu: str) -> None:
    """Short ones, which come over the lane, do not overtake, nor do long ones."""
    ends = Ends(both, gpu)
    lengths = (100, NBYTES, 8193, MIB, 0, 2 * MIB)
    targets = [both[1].context.alloc(NBYTES, gpu) for _ in lengths]
    receiving = [both[1].recv(target, 0) for target in targets[:3]]
    sending = [both[0].send(ends.source[:nbytes], 1, tag=tag) for tag, nbytes in enumerate(lengths)]
    receiving += [both[1].recv(target) for target in targets[3:]]
    for tag, (operation, target, nbytes) in enumerate(zip(receiving, targets, lengths, strict=True)):
        assert operation.result(PATIENCE_S) == (0, tag, nbytes)
        assert target.read_bytes(0, nbytes) == ends.bytes[:nbytes]
    zh.wait_all(sending, PATIENCE_S)


def test_on_an_event_loop(both: list[zh.Group], gpu: str) -> None:
    ends = Ends(both, gpu)

    async def exchange() -> list[Any]:
        return list(await asyncio.gather(both[1].recv(ends.target), both[0].send(ends.source, 1)))

    assert asyncio.run(exchange()) == [(0, 0, NBYTES), NBYTES]
    ends.expect()


@pytest.mark.parametrize("at_host", ["source", "target"])
def test_the_other_end_is_memory_of_the_host(both: list[zh.Group], gpu: str, at_host: str) -> None:
    ends = Ends(both, gpu)
    setattr(ends, at_host, both[at_host == "target"].context.alloc(NBYTES))
    ends.source.write_bytes(0, ends.bytes)
    receiving = both[1].recv(ends.target)
    both[0].send(ends.source, 1).result(PATIENCE_S)
    receiving.result(PATIENCE_S)
    ends.expect()


def test_one_that_is_probed(both: list[zh.Group], gpu: str) -> None:
    ends = Ends(both, gpu)
    sending = both[0].send(ends.source, 1, tag=9)
    arrival = both[1].probe().result(PATIENCE_S)
    assert (arrival.tag, arrival.nbytes, arrival.header) == (9, NBYTES, b"")
    arrival.recv(ends.target).result(PATIENCE_S)
    sending.result(PATIENCE_S)
    ends.expect()


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
        patched.setattr(both[1].context, "read", lambda *_, **__: reading)
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
    eventually(lambda: not receiving.done() and bool(receiving._part), "it has not begun")  # type: ignore[attr-defined]
    both[1].context._core.control.call(goes_on.wait)
    try:
        assert both[0].send(ends.source[:9000], 1).result(PATIENCE_S) == 9000
        assert not receiving.cancel()
    finally:
        goes_on.set()
    assert receiving.result(PATIENCE_S).nbytes == 9000
    ends.expect(9000)


def test_a_sender_that_gives_it_up_meanwhile(both: list[zh.Group], gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have changed its memory, so that what was read is no message."""
    ends = Ends(both, gpu)
    sending: list[zh.Operation[int]] = []

    def give_up(_: zh.RemoteBuffer) -> None:
        assert sending[0].cancel()
        eventually(lambda: not sending[0].memory_in_use, "the sender's memory is in use")
        ends.source.fill(0x11)

    before_reading(monkeypatch, both[1], give_up)
    sending.append(both[0].send(ends.source, 1))
    receiving = both[1].recv(ends.target)
    with pytest.raises(zh.PeerLost, match="given up"):
        receiving.result(PATIENCE_S)


def test_memory_that_cannot_be_read_any_more(both: list[zh.Group], gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane carries the message, as its sender still has it."""
    ends = Ends(both, gpu)
    refused: list[zh.RemoteBuffer] = []

    def refuse(remote: zh.RemoteBuffer) -> None:
        refused.append(remote)
        ends.source.revoke(remote)

    before_reading(monkeypatch, both[1], refuse)
    sending = both[0].send(ends.source, 1)
    assert both[1].recv(ends.target).result(PATIENCE_S).nbytes == NBYTES
    sending.result(PATIENCE_S)
    ends.expect()
    assert refused
    assert read_by_devices(both[1]) == 0


def test_memory_that_is_named_for_one_message(both: list[zh.Group], gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a tensor, which is registered for the message alone."""
    ends = Ends(both, gpu)
    named = direct.offer
    monkeypatch.setattr(direct, "offer", lambda lend, _, view: named(lend, object(), view))
    for _ in range(3):
        ends.target.fill(0xEE)
        sending = both[0].send(ends.source, 1)
        assert both[1].recv(ends.target).result(PATIENCE_S).nbytes == NBYTES
        sending.result(PATIENCE_S)
        ends.expect()
    assert read_by_devices(both[1]) == 3 * NBYTES


def test_memory_of_somebody_else_is_not_read(both: list[zh.Group], gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(both, gpu)
    with zh.Context(sim_devices=1) as third:
        foreign = bytes(third.alloc(NBYTES, gpu).share("r"))
        for header in (foreign, b"no handle", b""):
            monkeypatch.setattr(direct, "offer", lambda *_, header=header: header)
            ends.target.fill(0xEE)
            sending = both[0].send(ends.source, 1)
            assert both[1].recv(ends.target).result(PATIENCE_S).nbytes == NBYTES
            sending.result(PATIENCE_S)
            ends.expect()
    assert read_by_devices(both[1]) == 0


def test_a_rank_that_is_gone_meanwhile(both: list[zh.Group], gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(both, gpu)
    begun: list[zh.RemoteBuffer] = []

    def leave(remote: zh.RemoteBuffer) -> None:
        begun.append(remote)
        both[0].context.close()

    before_reading(monkeypatch, both[1], leave)
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
        before_reading(monkeypatch, here, lambda _: process.kill())
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
