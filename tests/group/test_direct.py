"""Long messages of a GPU's memory: the receiver reads them where they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zerohop as zh
from support.direct import NBYTES, Ends, before_reading, read_by_devices
from support.patience import PATIENCE_S
from support.sizes import MIB
from zerohop._native import DIRECT_BYTES
from zerohop.group import direct


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


def test_memory_that_cannot_be_read_any_more(both: list[zh.Group], gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane carries the message, as its sender still has it."""
    ends = Ends(both, gpu)
    refused: list[zh.RemoteBuffer] = []

    def refuse(remote: zh.RemoteBuffer) -> None:
        refused.append(remote)
        ends.source.revoke(remote)

    before_reading(monkeypatch, refuse)
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
