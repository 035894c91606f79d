"""Graphs: what begins when, what a failure ends, and who is told."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import groups
from support.patience import PATIENCE_S
from zerohop.group import CompletionList, Graph

if TYPE_CHECKING:
    from pathlib import Path


def test_steps_follow_each_other(two: list[zh.Group]) -> None:
    """Receive from a rank, compute, and send the result back: twice."""
    graph = Graph(two[1])
    numbers, sums = np.zeros(2, np.int64), np.zeros(1, np.int64)

    def receive(at: int) -> zh.Operation[Any]:
        return two[1].recv(numbers[at : at + 1], tag=at)

    receives = [graph.add(functools.partial(receive, at)) for at in range(2)]
    add = graph.add(lambda: sums.__setitem__(0, numbers.sum()), after=receives)
    send = graph.add(lambda: two[1].send(sums, 0), after=[add])
    for turn in range(2):
        graph.start()
        assert not graph.test()
        two[0].send(np.array([10 + turn]), 1, tag=1)
        two[0].send(np.array([3]), 1, tag=0)
        graph.wait(PATIENCE_S)
        assert send.value == 8
        assert [each.value.tag for each in receives] == [0, 1]
        found = np.zeros(1, np.int64)
        two[0].recv(found, 1).result(PATIENCE_S)
        assert found[0] == 13 + turn


def test_a_failure_ends_what_comes_after_it(tmp_path: Path) -> None:
    with groups(tmp_path, 2) as ranks:
        graph, told = Graph(ranks[1]), CompletionList(ranks[1])
        ran: list[str] = []
        lost = graph.add(lambda: ranks[1].recv(bytearray(1), 0))
        after = graph.add(lambda: ran.append("after"), after=[lost])
        last = graph.add(lambda: ran.append("last"), after=[after])

        def run_beside() -> int:
            ran.append("beside")
            return 5

        beside = graph.add(run_beside)
        graph.start(comp=told, context="mine")
        assert ran == ["beside"]
        ranks[0].connect(1).result(PATIENCE_S)
        ranks[0].context.close()
        with pytest.raises(zh.PeerLost, match="rank 0"):
            graph.wait(PATIENCE_S)
        assert ran == ["beside"]
        assert beside.value == 5
        assert isinstance(lost.error, zh.PeerLost)
        assert after.error is not None
        assert last.error is not None
        ended = told.pop(PATIENCE_S)
        assert (ended.kind, ended.context) == ("graph", "mine")
        assert isinstance(ended.error, zh.PeerLost)


def test_an_exception_of_a_function(two: list[zh.Group]) -> None:
    graph = Graph(two[0])
    first = graph.add(lambda: 1 // 0)
    second = graph.add(lambda: 5, after=[first])
    graph.start()
    with pytest.raises(ZeroDivisionError):
        graph.wait(PATIENCE_S)
    assert second.value is None
    assert graph.test()


def test_on_an_event_loop_and_by_threads(two: list[zh.Group]) -> None:
    graph, told = Graph(two[1]), CompletionList(two[1])
    receive = graph.add(lambda: two[1].recv(bytearray(8), tag=4))

    async def main() -> None:
        graph.start(comp=told)
        waiting = asyncio.create_task(graph.until(PATIENCE_S))
        await asyncio.sleep(0)
        await two[0].send(b"1", 1, tag=4)
        await waiting

    asyncio.run(main())
    assert receive.value.nbytes == 1
    assert told.pop(PATIENCE_S)[:4] == ("graph", -1, 0, 0)
    graph.start()
    threads = [threading.Thread(target=graph.wait, args=(PATIENCE_S,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    two[0].send(b"22", 1, tag=4)
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert receive.value.nbytes == 2


def test_an_empty_graph_and_what_is_refused(two: list[zh.Group]) -> None:
    graph, other, told = Graph(two[0]), Graph(two[0]), CompletionList(two[0])
    graph.start(comp=told)
    graph.wait(PATIENCE_S)
    assert told.pop(PATIENCE_S).kind == "graph"
    wrong: Any = two[0].send(b"", 0)
    with pytest.raises(TypeError, match="a step is a function"):
        graph.add(wrong)
    strange = other.add(lambda: None)
    with pytest.raises(ValueError, match="another graph"):
        graph.add(lambda: None, after=[strange])
    with pytest.raises(ValueError, match="another Context"):
        graph.start(comp=CompletionList(two[1]))
    for given in (lambda: two[0].register(other), lambda: two[0].post_recv(bytearray(1), comp=other)):
        with pytest.raises(TypeError, match="given to no operation"):
            given()
    graph.add(lambda: two[0].recv(bytearray(1), 1))
    graph.start()
    for call in (graph.start, lambda: graph.add(lambda: None)):
        with pytest.raises(ValueError, match="running"):
            call()
    with pytest.raises(zh.DeadlineExceeded):
        graph.wait(0.01)
    two[1].send(b"1", 0).result(PATIENCE_S)
    graph.wait(PATIENCE_S)
    graph.close()
    with pytest.raises(zh.Closed):
        graph.start()
