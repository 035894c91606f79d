"""Measures the `write_notify` rows: one way, from the call in one Python to the notification in the other."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from zerohop.cli.bench.floors import MOST, one_way
from zerohop.cli.bench.gpu_floors import GpuFloors
from zerohop.cli.bench.rows import Row, Samples, is_gpu
from zerohop.cli.bench.session import cut, memory_kind
from zerohop.cli.payload import random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import zerohop
    from zerohop.cli.bench.rows import Case
    from zerohop.cli.bench.session import Session

    Outlets = list[tuple[zerohop.View, zerohop.RemoteBuffer]]

BLOCKING: Final = ("result", "expandable")  # modes whose callers wait without asyncio
FALL_ASLEEP: Final = 0.004  # seconds between two messages if both sides are to sleep; spinning lasts 50 µs
_WARM_UP: Final = 30


class WrongNotification(RuntimeError):
    """Raised if a notification carried another value than the sent one."""


def measure_notify(session: Session, case: Case) -> Row:
    """Measure one `write_notify` case: a ping-pong, each message in its own place, all of them compared at the end."""
    assert case.src is not None
    assert case.dst is not None
    asleep = case.mode == "await-asleep"
    count = session.effort.asleep if asleep else session.effort.repetitions(20_000, 100)
    nbytes = count * case.bytes
    floor_name, floor = _floor(session, case)
    samples = Samples()
    with (
        session.memories(case, nbytes) as (source, remote),
        session.local(case.src, nbytes, alloc=case.form == "mapped", mode=case.mode) as inbox,
    ):
        answer_to = bytes(inbox.memory.share("w")).hex()
        outlets = cut(source.memory, remote, case.bytes, count)
        explanation = session.context.explain(source.memory, remote)
        for round_number in range(-1, session.effort.rounds):
            rounds = min(count, _WARM_UP) if round_number < 0 else count
            samples.floor_ns += floor(min(rounds, MOST)) if round_number >= 0 else []
            payload = random_bytes(round_number + 1, nbytes)
            source.put(payload)
            seed = 1000 + round_number
            request = {"mode": case.mode, "rounds": rounds, "message_bytes": case.bytes, "total": nbytes}
            request["kind"] = memory_kind(case.dst, case.mode)
            session.peer.begin("pong", **request, seed=seed, handle=answer_to)
            cpu = time.process_time_ns()
            if case.mode in BLOCKING:
                times = ping(session.context, outlets[:rounds])
            else:
                times = asyncio.run(ping_async(session.context, outlets[:rounds], asleep=asleep))
            cpu = time.process_time_ns() - cpu
            there = session.peer.finish()
            if asleep:
                times = one_way(times, there["times"])
            moved = rounds * case.bytes
            samples.verified &= session.arrived(payload[:moved])
            samples.verified &= inbox.holds(random_bytes(seed, nbytes)[:moved])
            if round_number >= 0:
                samples.cpu_ns += cpu // 2 if asleep else cpu  # two samples per ping-pong
                samples.times_ns += times if asleep else [time // 2 for time in times]
    return samples.row(case, floor=floor_name, path=explanation)


def ping(context: zerohop.Context, outlets: Outlets) -> list[int]:
    """Send each message with its number, and wait for the same number; return round trips in nanoseconds."""
    write, notification, clock = context.write, context.notification, time.perf_counter_ns
    times = [0] * len(outlets)
    for index, (source, target) in enumerate(outlets):
        start = clock()
        write(source, target, notify=index).result()
        note = notification().result()
        times[index] = clock() - start
        _check(note.value, index)
    return times


def pong(context: zerohop.Context, outlets: Outlets) -> None:
    """Answer each message."""
    write, notification = context.write, context.notification
    for index, (source, target) in enumerate(outlets):
        note = notification().result()
        write(source, target, notify=index).result()
        _check(note.value, index)


async def ping_async(context: zerohop.Context, outlets: Outlets, *, asleep: bool) -> list[int]:
    """Send each message like `ping`, but with `await`.

    Returns:
        Round trips in nanoseconds; with `asleep`, where each message waits for a pause, departure and arrival times
        in turn.
    """
    write, notification, clock = context.write, context.notification, time.monotonic_ns
    times = []
    for index, (source, target) in enumerate(outlets):
        if asleep:
            await asyncio.sleep(FALL_ASLEEP)
        start = clock()
        await write(source, target, notify=index)
        note = await notification()
        end = clock()
        times += [start, end] if asleep else [end - start]
        _check(note.value, index)
    return times


async def pong_async(context: zerohop.Context, outlets: Outlets, *, asleep: bool) -> list[int]:
    """Answer with `await`; with `asleep` after a pause, and return arrival and departure times in turn."""
    write, notification, clock = context.write, context.notification, time.monotonic_ns
    times = []
    for index, (source, target) in enumerate(outlets):
        note = await notification()
        if asleep:
            times.append(clock())
            await asyncio.sleep(FALL_ASLEEP)
            times.append(clock())
        await write(source, target, notify=index)
        _check(note.value, index)
    return times


def _check(value: int, expected: int) -> None:
    if value != expected:
        raise WrongNotification(f"notification {value} came where {expected} was sent")


def _floor(session: Session, case: Case) -> tuple[str | None, Callable[[int], list[int]]]:
    floors = session.floors
    if is_gpu(case.src) and case.src == case.dst:
        # Two processes take turns on a GPU that they share; a floor in one process would not show that.
        return None, lambda _: []
    if case.between_gpus:
        message = random_bytes(1, case.bytes)
        copies = GpuFloors(case, case.bytes)
        return "C++ copy and word", lambda rounds: copies.copy_word(message, rounds)
    which = "tcp" if case.provider == "tcp" else "unix"
    socket = f"{'TCP' if which == 'tcp' else 'Unix'} socket"
    if case.mode == "await-asleep":
        return f"asyncio, {socket}", lambda rounds: floors.asyncio_one_way(which, case.bytes, rounds, FALL_ASLEEP)
    if case.provider == "tcp" and case.mode == "result":
        # The caller and its Context spin, and so does the floor.
        return f"{socket}, spinning, half round trip", lambda rounds: [
            time // 2 for time in floors.spinning_round_trip(case.bytes, rounds)
        ]
    if case.provider == "tcp":
        message = random_bytes(1, 64 * case.bytes)
        return f"{socket}, blocking, half round trip", lambda rounds: [
            time // 2 for time in floors.round_trip(which, message, case.bytes, rounds)
        ]
    return "flag in shared memory", floors.flag
