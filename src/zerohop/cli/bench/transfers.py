"""Measures the rows that write or read, single ranges or lists of random pages: from the call to its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

import zerohop
from zerohop.cli.bench.floors import MOST, transfer_floor
from zerohop.cli.bench.gpu_floors import GpuFloors, copy_kernels
from zerohop.cli.bench.rows import Row, Samples
from zerohop.cli.bench.session import TIMEOUT, cut
from zerohop.cli.payload import Octets, PageLists, RangeLists, mixed_ranges, random_bytes
from zerohop.core.transfers.context_transfers import core_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop.cli.bench.rows import Case
    from zerohop.cli.bench.session import LocalMemory, Session

    Pairs: TypeAlias = Sequence[tuple[object, object]]
    Post: TypeAlias = Callable[..., zerohop.Operation[int]]

_SLOT_BYTES: Final = 256 << 10  # small operations take turns over this much memory
_SLOTS: Final = 4096
_SPAN: Final = 64 << 20
_GPU_LISTS: Final = 4
_GPU_SPAN: Final = 256 << 20  # several times a GPU's cache; more takes long to compare
_LISTS: Final = 64  # calls take turns over as many lists, so that no call finds its pages in a near cache
_WARM_UP: Final = 50  # largest number of measurements that do not count
_FALL_ASLEEP: Final = 0.003  # seconds; a Context spins for 50 µs by default


def measure_transfer(session: Session, case: Case) -> Row:
    """Measure one `write` or `read` case, interleaved with its floor, a fresh payload in every round."""
    slots = slots_of(case)
    total = slots * case.bytes
    with session.memories(case, total) as (local, remote):
        pieces = cut(local.memory, remote, case.bytes, slots)
        pairs: Pairs = [(handle, view) for view, handle in pieces] if case.reads else pieces
        post: Post = session.context.read if case.reads else session.context.write
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
            if case.reads:
                session.fill_remote(seed, total)
            with session.polling(case.target):
                measure_posts(post, pairs, case.batch, 1 + min(_WARM_UP, count // 10), pause, limit)
                local.put(zeros if case.reads else payload)  # bytes that the warm-up moved would prove nothing
                cpu = time.process_time_ns()
                times = measure_posts(post, pairs, case.batch, count, pause, limit)
                samples.cpu_ns += time.process_time_ns() - cpu
            samples.times_ns += times
            moved = payload[: min(total, len(times) * case.batch * case.bytes)]
            samples.verified &= local.holds(moved) if case.reads else session.arrived(moved)
    return samples.row(case, operations=case.batch, floor=floor_name, path=explanation)


def slots_of(case: Case) -> int:
    """Return the number of operations of a case that have their own memory; later ones take turns over it."""
    slots = max(case.batch, min(_SLOTS, max(1, _SLOT_BYTES // case.bytes)))
    return slots - slots % case.batch  # every slot is written, so that all can be verified


def measure_posts(post: Post, pairs: Pairs, batch: int, count: int, pause: float, limit: float) -> list[int]:
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
            zerohop.wait_all(operations, TIMEOUT)
            times[index] = clock() - start
    return times


def measure_pages(session: Session, case: Case) -> Row:
    """Measure one page-list case. The lists share no page of the target, so that their order does not matter."""
    whole = case.bytes * case.batch
    span = max(_SPAN, min(_GPU_LISTS * whole, _GPU_SPAN) if case.on_gpu else 0, whole)
    lists = max(1, min(_LISTS, span // whole))
    shuffle = np.random.default_rng(case.bytes).permutation
    used = lists * case.batch
    sources = shuffle(span // case.bytes)[:used].astype(np.int64)
    targets = shuffle(span // case.bytes)[:used].astype(np.int64)
    with session.memories(case, span) as (local, remote):
        cuts = [slice(i * case.batch, (i + 1) * case.batch) for i in range(lists)]
        pairs = [(sources[cut], targets[cut]) for cut in cuts]
        context = session.context

        move: Post = context.read_pages if case.reads else context.write_pages
        ends = (remote, local.memory) if case.reads else (local.memory, remote)

        def once(index: int) -> None:
            move(*ends, *pairs[index % lists], page_bytes=case.bytes).result()

        estimate = _estimated(once)
        explanation = context.explain(local.memory, remote)
        # Every list is written in each round, so that all can be verified.
        lists = session.effort.within_limit(estimate, lists)
        sources, targets = sources[: lists * case.batch], targets[: lists * case.batch]
        moved = PageLists(sources, targets, case.bytes, case.batch)
        floor_name, samples = _measure_lists(session, case, local, once, moved, span, estimate, lists)
    return samples.row(case, floor=floor_name, path=explanation)


def measure_list(session: Session, case: Case) -> Row:
    """Measure one list of ranges of mixed lengths, which the arrays of the caller hold; all of it in every round."""
    ranges = mixed_ranges(case.batch, case.bytes)
    total = case.bytes * case.batch
    with session.memories(case, total) as (local, remote):
        context = session.context
        move: Post = context.read_list if case.reads else context.write_list
        ends = (remote, local.memory) if case.reads else (local.memory, remote)

        def once(_: int) -> None:
            move(*ends, *ranges).result()

        estimate = _estimated(once)
        explanation = context.explain(local.memory, remote)
        floor_name, samples = _measure_lists(session, case, local, once, ranges, total, estimate, 1)
    return samples.row(case, floor=floor_name, path=explanation)


def _estimated(once: Callable[[int], None]) -> int:
    """Return the nanoseconds of a call that comes after another one, which connects."""
    once(0)
    start = time.perf_counter_ns()
    once(1)
    return time.perf_counter_ns() - start


def _measure_lists(
    session: Session,
    case: Case,
    local: LocalMemory,
    once: Callable[[int], None],
    moved: PageLists | RangeLists,
    span: int,
    estimate: int,
    lists: int,
) -> tuple[str | None, Samples]:
    """Measure `once(index)`, interleaved with the floor, a fresh payload in every round; return the floor's name, too.

    Each of the `lists` is moved in each round, so that all bytes can be verified.
    """
    samples = Samples()
    floor_name, floor = page_floor(session, case, moved, span)
    for round_number in range(session.effort.rounds):
        payload = random_bytes(round_number, span)
        count = session.effort.repetitions(estimate, lists)
        samples.floor_ns += floor(payload, min(count, MOST)) if floor is not None else []
        if case.reads:
            session.fill_remote(round_number, span)
            local.put(np.zeros(span, np.uint8))
        else:
            local.put(payload)
            session.peer.call("clear")
        with session.polling(case.target):
            once(0)
            for index in range(1, count + 1):
                samples.measure(once, index)
        expected = moved.placed(payload)
        samples.verified &= local.holds(expected) if case.reads else session.arrived(expected)
    return floor_name, samples


def page_floor(
    session: Session, case: Case, pages: PageLists | RangeLists, span: int
) -> tuple[str | None, Callable[[Octets, int], list[int]] | None]:
    """Return the floor of a case that moves lists of pages or ranges: its name, and its measurement (source, lists).

    Both are None if there is no floor: between host memory and a GPU, or for pages on GPUs of no multiple of 16 bytes.
    """
    floors, whole = session.floors, case.bytes * case.batch
    if case.provider == "p2p" and case.on_gpu:
        image = _copy_kernels(session, case)
        if image is None:
            return None, None
        copies = GpuFloors(case, span)
        if isinstance(pages, RangeLists):
            return "C++ kernel", lambda payload, n: copies.ranges(image, payload, pages, n)
        return "C++ kernel", lambda payload, n: copies.pages(image, payload, pages, n)
    if case.form == "mapped" or case.provider == "p2p":
        copy = floors.copy_out if case.reads else floors.copy_in
        name = f"memcpy per {'range' if isinstance(pages, RangeLists) else 'page'}"
        return name, lambda payload, n: copy(payload, n, pages)
    if case.form == "ring" and case.bytes <= 1 << 16 and isinstance(pages, PageLists):
        return "C++ ring", lambda payload, n: floors.ring(payload, n, pages)
    if case.form == "ring":
        return "memcpy", lambda payload, n: floors.copy_in(payload[:whole], n)
    return "TCP socket stream", lambda payload, n: floors.tcp_stream(payload[:whole], n)


def _copy_kernels(session: Session, case: Case) -> bytes | None:
    """Return the floors' kernels for a case between GPUs; None if there is none for its lengths, or for the device."""
    if not case.between_gpus or case.bytes % 16:
        return None
    engine = core_of(session.context).engine
    number = next(each["index"] for each in engine.devices() if each["name"] == case.src)
    image, _ = copy_kernels(engine.capability(number))
    return image
