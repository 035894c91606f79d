"""The `write` and `read` rows: post to done, from Python."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import zerohop
from zerohop.cli.bench.floors import transfer_floor
from zerohop.cli.bench.rows import Row, Samples
from zerohop.cli.bench.session import TIMEOUT
from zerohop.cli.payload import digest, random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop.cli.bench.plan import Case
    from zerohop.cli.bench.session import Session

_SLOT_BYTES: Final = 256 << 10  # small operations take turns over this much memory
_SLOTS: Final = 64
_FALL_ASLEEP: Final = 0.003  # seconds; a Context spins for 50 µs by default


def measure_transfer(session: Session, case: Case) -> Row:
    """Measures one `write` or `read` case, interleaved with its floor, a fresh payload in every round."""
    slots = max(case.batch, min(_SLOTS, max(1, _SLOT_BYTES // case.bytes)))
    total = slots * case.bytes
    here, there = (case.src, case.dst) if case.name == "write" else (case.dst, case.src)
    assert here is not None
    assert there is not None
    with session.local(here, total) as local, session.remote(there, case.form, total) as remote:
        cuts = [(i * case.bytes, (i + 1) * case.bytes) for i in range(slots)]
        views = [local.memory[first:end] for first, end in cuts]
        handles = [remote[first:end] for first, end in cuts]
        pairs = list(zip(views, handles, strict=True) if case.name == "write" else zip(handles, views, strict=True))
        post = session.context.write if case.name == "write" else session.context.read
        once = _single(post, pairs) if case.batch == 1 else _batched(post, pairs, case.batch)
        samples = Samples()
        asleep = case.target == "asleep"
        floor_name, floor = transfer_floor(session.floors, case)
        once(0)  # connects
        explanation = session.context.explain(local.memory, remote)
        start = time.perf_counter_ns()
        once(0)
        estimate = time.perf_counter_ns() - start
        for round_number in range(session.effort.rounds):
            seed = round_number * 1000 + case.bytes % 997
            payload = random_bytes(seed, total)
            count = session.effort.asleep if asleep else session.effort.repetitions(estimate, slots // case.batch)
            samples.floor_ns += floor(payload, min(count, 1000))
            if case.name == "write":
                local.put(payload)
            else:
                session.fill_remote(seed, total)
            with session.polling(case.target):
                _run(once, count, samples, pause=_FALL_ASLEEP if asleep else 0.0)
            written = min(total, count * case.batch * case.bytes)
            expected = digest(payload[:written])
            there_now = session.peer.call("digest", nbytes=written)["digest"] if case.name == "write" else None
            samples.verified &= (there_now or local.digest(written)) == expected
    return samples.row(case, operations=case.batch, floor=floor_name, path=explanation)


def _run(once: Callable[[int], None], count: int, samples: Samples, pause: float) -> None:
    clock = time.perf_counter_ns
    times = [0] * count
    cpu = time.process_time_ns()
    for index in range(count):
        if pause:
            time.sleep(pause)
        start = clock()
        once(index)
        times[index] = clock() - start
    samples.cpu_ns += time.process_time_ns() - cpu
    samples.times_ns += times


def _single(
    post: Callable[..., zerohop.Operation[int]], pairs: Sequence[tuple[object, object]]
) -> Callable[[int], None]:
    slots = len(pairs)

    def once(index: int) -> None:
        source, target = pairs[index % slots]
        post(source, target).result()

    return once


def _batched(
    post: Callable[..., zerohop.Operation[int]], pairs: Sequence[tuple[object, object]], batch: int
) -> Callable[[int], None]:
    groups = [pairs[first : first + batch] for first in range(0, len(pairs) - batch + 1, batch)]

    def once(index: int) -> None:
        operations = [post(source, target) for source, target in groups[index % len(groups)]]
        zerohop.wait_all(operations).result(TIMEOUT)

    return once
