"""Measures the `write_pages` and `read_pages` rows: one call moves a list of random pages within 64 MiB."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from zerohop.cli.bench.arrived import placed
from zerohop.cli.bench.case import is_gpu
from zerohop.cli.bench.floors import MOST
from zerohop.cli.bench.gpu_floors import GpuFloors, page_kernel
from zerohop.cli.bench.rows import Row, Samples
from zerohop.cli.payload import Octets, digest, random_bytes
from zerohop.core.transfers.context_transfers import core_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.cli.bench.arrived import Pages
    from zerohop.cli.bench.case import Case
    from zerohop.cli.bench.session import Session

_SPAN: Final = 64 << 20
_GPU_LISTS: Final = 4
_GPU_SPAN: Final = 256 << 20  # several times a GPU's cache; more takes long to compare
_LISTS: Final = 64  # calls take turns over as many lists, so that no call finds its pages in a near cache


def measure_pages(session: Session, case: Case) -> Row:
    """Measure one page-list case. The lists share no page of the target, so that their order does not matter."""
    assert case.src is not None
    assert case.dst is not None
    writing = case.name == "write_pages"
    here, there = (case.src, case.dst) if writing else (case.dst, case.src)
    whole = case.bytes * case.batch
    on_gpus = is_gpu(here) or is_gpu(there)
    span = max(_SPAN, min(_GPU_LISTS * whole, _GPU_SPAN) if on_gpus else 0, whole)
    lists = max(1, min(_LISTS, span // whole))
    shuffle = np.random.default_rng(case.bytes).permutation
    used = lists * case.batch
    sources = shuffle(span // case.bytes)[:used].astype(np.int64)
    targets = shuffle(span // case.bytes)[:used].astype(np.int64)
    samples = Samples()
    with (
        session.local(here, span, mode=case.mode) as local,
        session.remote(there, case.form, span, mode=case.mode) as remote,
    ):
        cuts = [slice(i * case.batch, (i + 1) * case.batch) for i in range(lists)]
        pairs = [(sources[cut], targets[cut]) for cut in cuts]
        context = session.context

        def write(index: int) -> None:
            origin, destination = pairs[index % lists]
            context.write_pages(local.memory, remote, origin, destination, page_bytes=case.bytes).result()

        def read(index: int) -> None:
            origin, destination = pairs[index % lists]
            context.read_pages(remote, local.memory, origin, destination, page_bytes=case.bytes).result()

        once = write if writing else read
        once(0)  # connects
        explanation = context.explain(local.memory, remote)
        start = time.perf_counter_ns()
        once(1)
        estimate = time.perf_counter_ns() - start
        # Every list is written in each round, so that all can be verified.
        lists = session.effort.within_limit(estimate, lists)
        sources, targets = sources[: lists * case.batch], targets[: lists * case.batch]
        floor_name, floor = page_floor(session, case, sources, targets, span)
        for round_number in range(session.effort.rounds):
            payload = random_bytes(round_number, span)
            count = session.effort.repetitions(estimate, lists)
            samples.floor_ns += floor(payload, min(count, MOST)) if floor is not None else []
            if writing:
                local.put(payload)
                session.peer.call("clear")
            else:
                session.fill_remote(round_number, span)
                local.put(np.zeros(span, np.uint8))
            with session.polling(case.target):
                once(0)
                _run(once, count, samples)
            expected = digest(placed(payload, sources, targets, case.bytes))
            found = session.peer.call("digest", nbytes=span)["digest"] if writing else local.digest(span)
            samples.verified &= found == expected
    return samples.row(case, floor=floor_name, path=explanation)


def _run(once: Callable[[int], None], count: int, samples: Samples) -> None:
    clock = time.perf_counter_ns
    times = [0] * count
    cpu = time.process_time_ns()
    for index in range(1, count + 1):
        start = clock()
        once(index)
        times[index - 1] = clock() - start
    samples.cpu_ns += time.process_time_ns() - cpu
    samples.times_ns += times


def page_floor(
    session: Session, case: Case, sources: Pages, targets: Pages, span: int
) -> tuple[str | None, Callable[[Octets, int], list[int]] | None]:
    """Return the floor of a case that moves lists of `batch` pages: its name, and its measurement (source, lists).

    Both are None if there is no floor: between host memory and a GPU, or for pages on GPUs of no multiple of 16 bytes.
    """
    floors, nbytes, batch = session.floors, case.bytes, case.batch
    if case.provider == "p2p" and (is_gpu(case.src) or is_gpu(case.dst)):
        return _gpu_floor(session, case, sources, targets, span)
    if case.form == "mapped" or case.provider == "p2p":
        copy = floors.copy_pages_out if case.reads else floors.copy_pages
        return "memcpy per page", lambda payload, n: copy(payload, sources, targets, nbytes, batch, n)
    if case.form == "ring" and nbytes <= 1 << 16:
        return "C++ ring", lambda payload, n: floors.ring_pages(payload, sources, targets, nbytes, batch, n)
    if case.form == "ring":
        return "memcpy", lambda payload, n: floors.copy_in(payload[: nbytes * batch], n)
    return "TCP socket stream", lambda payload, n: floors.tcp_stream(payload[: nbytes * batch], n)


def _gpu_floor(
    session: Session, case: Case, sources: Pages, targets: Pages, span: int
) -> tuple[str | None, Callable[[Octets, int], list[int]] | None]:
    if not (is_gpu(case.src) and is_gpu(case.dst)) or case.bytes % 16:
        return None, None
    devices = core_of(session.context).engine.devices()
    number = next(each["index"] for each in devices if each["name"] == case.src)
    image, _ = page_kernel(core_of(session.context).engine.capability(number))
    if image is None:
        return None, None
    copies = GpuFloors(case, span)
    return "C++ kernel", lambda payload, n: copies.pages(image, payload, sources, targets, case.bytes, case.batch, n)
