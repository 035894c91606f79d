"""Measures the rows about ranks: messages, active messages, a receive that waits, and collectives, with two ranks."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from zerohop.cli.bench.group_plan import ALLREDUCE, AM, BARRIER, IDLE, SEND
from zerohop.cli.bench.group_side import HOST, GroupSide
from zerohop.cli.bench.rows import Row, Samples
from zerohop.cli.payload import digest, random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from zerohop.cli.bench.rows import Case
    from zerohop.cli.bench.session import Session

_US: Final = 1000  # nanoseconds
_BYTES_PER_US: Final = 2000  # about what messages move


@contextmanager
def both_ranks(session: Session, nbytes: int, src: str = HOST, dst: str = HOST) -> Iterator[GroupSide]:
    """Open a rank in each process, with memory of these devices."""
    with (
        tempfile.TemporaryDirectory(prefix="zerohop-bench-") as folder,
        closing(GroupSide(session.context, 0, folder, nbytes, src)) as side,
    ):
        session.peer.call("group_open", folder=folder, nbytes=nbytes, device=dst)
        yield side
        session.peer.call("group_close")


def measure_group(session: Session, case: Case) -> Row:
    """Measure one row."""
    return _MEASURES[case.name](session, case)


def _send(session: Session, case: Case) -> Row:
    samples = Samples()
    rounds = session.effort.repetitions(20 * _US + case.bytes / _BYTES_PER_US * _US, 100)
    with both_ranks(session, case.bytes, case.src or HOST, case.dst or HOST) as side:
        for number in range(-1, session.effort.rounds):
            payload = side.fill(2 * number + 3)
            session.peer.begin("group_exchange", seed=2 * number + 4, mode=case.mode, rounds=rounds)
            cpu = time.process_time_ns()
            times = side.exchange(case.mode or "", rounds, first=True)
            cpu = time.process_time_ns() - cpu
            samples.verified &= session.peer.finish()["digest"] == digest(payload)
            samples.verified &= side.received() == digest(random_bytes(2 * number + 4, case.bytes))
            if number >= 0:
                samples.times_ns += [each // 2 for each in times]
                samples.cpu_ns += cpu // 2
    return samples.row(case)


def _am(session: Session, case: Case) -> Row:
    samples = Samples()
    with both_ranks(session, case.bytes) as side:
        for number in range(-1, session.effort.rounds):
            session.peer.begin("group_count", count=case.batch, mode=case.mode)
            cpu, start = time.process_time_ns(), time.perf_counter_ns()
            side.post(case.batch, case.mode or "")
            counted = session.peer.finish()["count"]
            took = time.perf_counter_ns() - start
            samples.verified &= counted == case.batch
            if number >= 0:
                samples.times_ns.append(took // case.batch)
                samples.cpu_ns += (time.process_time_ns() - cpu) // case.batch
    return replace(samples.row(case), GBps=None)


def _idle(session: Session, case: Case) -> Row:
    seconds = session.effort.idle_seconds
    with both_ranks(session, 8) as side:
        side.fill(1)
        session.peer.begin("group_exchange", seed=2, mode="result", rounds=1)
        side.exchange("result", 1, first=True)
        session.peer.finish()
        session.peer.begin("group_exchange", seed=3, mode="result", rounds=1)
        cpu, start = time.process_time(), time.monotonic()
        time.sleep(seconds)  # the measured time, in which the other rank waits in its receive
        cpu, waited = time.process_time() - cpu, time.monotonic() - start
        side.exchange("result", 1, first=True)
        there = session.peer.finish()
        verified = side.received() == digest(random_bytes(3, 8))
    return replace(Row.of(case), seconds=waited, cpu_s=cpu, peer_cpu_s=there["cpu_s"], verified=verified)


def _barrier(session: Session, case: Case) -> Row:
    samples = Samples()
    rounds = session.effort.repetitions(100 * _US, 100)
    with both_ranks(session, 8) as side:
        for number in range(-1, session.effort.rounds):
            session.peer.begin("group_meet", rounds=rounds)
            cpu = time.process_time_ns()
            times = side.meet(rounds)
            session.peer.finish()
            if number >= 0:
                samples.times_ns += times
                samples.cpu_ns += time.process_time_ns() - cpu
    return replace(samples.row(case), GBps=None)


def _allreduce(session: Session, case: Case) -> Row:
    samples = Samples()
    rounds = session.effort.repetitions(200 * _US + 3 * case.bytes / _BYTES_PER_US * _US, 20)
    with both_ranks(session, case.bytes) as side:
        for number in range(-1, session.effort.rounds):
            session.peer.begin("group_reduce", rounds=rounds, seed=number + 2)
            cpu = time.process_time_ns()
            times, right = side.reduce(rounds, number + 2)
            samples.verified &= right
            samples.verified &= session.peer.finish()["right"]
            if number >= 0:
                samples.times_ns += times
                samples.cpu_ns += time.process_time_ns() - cpu
    return samples.row(case)


_MEASURES: Final[Mapping[str, Callable[[Session, Case], Row]]] = {
    SEND: _send,
    AM: _am,
    IDLE: _idle,
    BARRIER: _barrier,
    ALLREDUCE: _allreduce,
}
