"""Measures the `write` and `read` rows from Python: from the call that posts to the end of the operation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

import zerohop
from zerohop.cli.bench.floors import MOST, transfer_floor
from zerohop.cli.bench.rows import Row, Samples
from zerohop.cli.bench.session import TIMEOUT
from zerohop.cli.payload import digest, random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop.cli.bench.case import Case
    from zerohop.cli.bench.session import Session

    Pairs: TypeAlias = Sequence[tuple[object, object]]

_SLOT_BYTES: Final = 256 << 10  # small operations take turns over this much memory
_SLOTS: Final = 4096
_WARM_UP: Final = 50  # largest number of measurements that do not count
_FALL_ASLEEP: Final = 0.003  # seconds; a Context spins for 50 µs by default


def measure_transfer(session: Session, case: Case) -> Row:
    """Measure one `write` or `read` case, interleaved with its floor, a fresh payload in every round."""
    slots = slots_of(case)
    total = slots * case.bytes
    writing = case.name == "write"
    here, there = (case.src, case.dst) if writing else (case.dst, case.src)
    assert here is not None
    assert there is not None
    with (
        session.local(here, total, mode=case.mode) as local,
        session.remote(there, case.form, total, mode=case.mode) as remote,
    ):
        cuts = [(i * case.bytes, (i + 1) * case.bytes) for i in range(slots)]
        views = [local.memory[first:end] for first, end in cuts]
        handles = [remote[first:end] for first, end in cuts]
        pairs: Pairs = list(zip(views, handles, strict=True) if writing else zip(handles, views, strict=True))
        post = session.context.write if writing else session.context.read
        pause = _FALL_ASLEEP if case.target == "asleep" else 0.0
        floor_name, floor = transfer_floor(session.floors, case, pause)
        explanation = session.context.explain(local.memory, remote)
        zeros = np.zeros(total, np.uint8)
        samples = Samples()
        limit = session.effort.limit
        estimate = min(measure_posts(post, pairs, case.batch, 3, pause, limit))
        for round_number in range(session.effort.rounds):
            seed = round_number * 1000 + case.bytes % 997
            payload = random_bytes(seed, total)
            if pause:
                count = session.effort.within_limit(estimate + pause * 1e9, session.effort.asleep)
            else:
                count = session.effort.repetitions(estimate, slots // case.batch)
            samples.floor_ns += floor(payload, min(count, MOST)) if floor is not None else []
            if not writing:
                session.fill_remote(seed, total)
            with session.polling(case.target):
                measure_posts(post, pairs, case.batch, 1 + min(_WARM_UP, count // 10), pause, limit)
                local.put(payload if writing else zeros)  # bytes that the warm-up moved would prove nothing
                cpu = time.process_time_ns()
                times = measure_posts(post, pairs, case.batch, count, pause, limit)
                samples.cpu_ns += time.process_time_ns() - cpu
            samples.times_ns += times
            written = min(total, len(times) * case.batch * case.bytes)
            found = session.peer.call("digest", nbytes=written)["digest"] if writing else local.digest(written)
            samples.verified &= found == digest(payload[:written])
    return samples.row(case, operations=case.batch, floor=floor_name, path=explanation)


def slots_of(case: Case) -> int:
    """Return the number of operations of a case that have their own memory; later ones take turns over it."""
    slots = max(case.batch, min(_SLOTS, max(1, _SLOT_BYTES // case.bytes)))
    return slots - slots % case.batch  # every slot is written, so that all can be verified


def measure_posts(
    post: Callable[..., zerohop.Operation[int]], pairs: Pairs, batch: int, count: int, pause: float, limit: float
) -> list[int]:
    """Return the nanoseconds of each measurement: from the call to the end of one operation, or of `batch` at once.

    It takes `count` measurements, or as many as began within `limit` seconds.
    """
    clock = time.perf_counter_ns
    times = [0] * count
    slots = len(pairs)
    end = clock() + int(limit * 1e9)
    for index in range(count):
        if clock() > end and index:
            return times[:index]
        if pause:
            time.sleep(pause)
        if batch == 1:
            source, target = pairs[index % slots]
            start = clock()
            post(source, target).result()
            times[index] = clock() - start
        else:
            first = index % (slots // batch) * batch
            group = pairs[first : first + batch]
            start = clock()
            operations = [post(source, target) for source, target in group]
            zerohop.wait_all(operations).result(TIMEOUT)
            times[index] = clock() - start
    return times
