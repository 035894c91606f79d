"""Measures the rows about handles: many at once, the first use of one more, and writes of unregistered memory."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop.cli.bench.gpu_floors import open_new
from zerohop.cli.bench.rows import Row, Samples, is_gpu
from zerohop.cli.bench.session import COMMAND_TIMEOUT, PEER, TIMEOUT, LocalMemory, memory_kind
from zerohop.cli.bench.tensors import gpu_array
from zerohop.cli.bench.transfers import measure_posts, slots_of
from zerohop.cli.payload import digest, random_bytes
from zerohop.cli.peer import PeerProcess, accept

if TYPE_CHECKING:
    from zerohop.cli.bench.rows import Case
    from zerohop.cli.bench.session import Session
    from zerohop.cli.bench.transfers import Pairs

# torch gives a tensor of this size an allocation of its own.
_OWN_BYTES: Final = 12 << 20
_FIRST_USES: Final = 50
_NEW_ALLOCATIONS: Final = 10
_TURNS: Final = 8  # of each side of a comparison in one round: a processor may be slow for longer than a turn
_WARM_UP: Final = 50


def measure_views(session: Session, case: Case) -> Row:
    """Share each part of one memory by a handle of its own, and have a fresh process read all of them at once.

    The memory belongs to the second process, and a third one connects to it with its first read. Each time is that of
    the sharing and of the reads; how the handles travel in between is not measured.
    """
    assert case.src is not None
    assert case.dst is not None
    total = case.bytes * case.batch
    owned = f"tensor {case.src}" if is_gpu(case.src) else memory_kind(case.src, None, alloc=case.form == "mapped")
    samples = Samples()
    remote = accept(session.peer.call("allocate", kind=owned, nbytes=total)["handle"])
    with session.local(case.dst, total) as local:
        explanation = session.context.explain(local.memory, remote)
    for seed in range(session.effort.rounds):
        payload = session.fill_remote(seed, total)
        shared = session.peer.call("share_views", count=case.batch, nbytes=case.bytes)
        with PeerProcess(PEER, timeout=COMMAND_TIMEOUT) as reader:
            reader.call("open", providers=[case.provider], sim_devices=0, spin_us=None)
            reader.call("allocate", kind=memory_kind(case.dst, None, alloc=case.form == "mapped"), nbytes=total)
            took = reader.call("read_views", handles=shared["handles"], nbytes=case.bytes)
            samples.times_ns.append(shared["ns"] + took["ns"])
            samples.cpu_ns += took["cpu_ns"]
            samples.verified &= reader.call("digest", nbytes=total)["digest"] == digest(payload)
            reader.call("close")
    session.peer.call("release")
    return samples.row(case, operations=case.batch, path=explanation)


def measure_first_use(session: Session, case: Case) -> Row:
    """Read through a handle of a connected peer for the first time, one after the other.

    Each handle is of an array of its own. Arrays on a GPU are parts of an allocation that is open already ("known"), or
    have an allocation each ("new").
    """
    assert case.src is not None
    assert case.dst is not None
    new = case.mode == "new"
    size = max(case.bytes, _OWN_BYTES) if new else case.bytes
    count = min(session.effort.most, _NEW_ALLOCATIONS if new else _FIRST_USES)
    kind = {None: "numpy", "known": f"parts {case.src}", "new": f"tensor {case.src}"}[case.mode]
    samples = Samples()
    explanation = None
    with session.local(case.dst, (count + 1) * case.bytes) as local:
        places = [local.memory[at * case.bytes : (at + 1) * case.bytes] for at in range(count + 1)]

        def read(number: int) -> None:
            session.context.read(handles[number], places[number]).result(TIMEOUT)

        for seed in range(session.effort.rounds):
            samples.floor_ns += open_new(session.peer, case, count, size, seed) if new else []
            shared = session.peer.call(
                "share_arrays", kind=kind, count=count + 1, nbytes=size, filled=case.bytes, seed=seed
            )
            handles = [accept(each)[: case.bytes] for each in shared["handles"]]
            read(0)  # the first connects, and opens the allocation that all parts share
            for number in range(1, count + 1):
                samples.measure(read, number)
            samples.verified &= local.holds(random_bytes(seed, (count + 1) * case.bytes))
            explanation = session.context.explain(places[0], handles[0])
            session.peer.call("release")
    return samples.row(case, floor="driver's open" if new else None, path=explanation)


def measure_raw(session: Session, case: Case) -> Row:
    """Write from arrays or tensors that the caller did not register, taking turns with Memories of the same ones."""
    assert case.src is not None
    assert case.dst is not None
    slots = slots_of(case)
    total = slots * case.bytes
    on_gpu = is_gpu(case.src)
    whole: Any = gpu_array(total, case.src) if on_gpu else np.zeros(total, np.uint8)
    arrays = [whole[at : at + case.bytes] for at in range(0, total, case.bytes)]
    samples = Samples(beside="Memories")
    context, limit = session.context, session.effort.limit
    with (
        closing(LocalMemory(context, "tensor" if on_gpu else "numpy", total, what=whole)) as source,
        session.remote(case.dst, case.form, total) as remote,
        ExitStack() as opened,
    ):
        targets = [remote[at : at + case.bytes] for at in range(0, total, case.bytes)]
        memories = [opened.enter_context(context.register(array)) for array in arrays]
        raw: Pairs = list(zip(arrays, targets, strict=True))
        registered: Pairs = list(zip(memories, targets, strict=True))
        explanation = context.explain(memories[0], targets[0])
        estimate = min(measure_posts(context.write, raw, 1, 3, 0.0, limit))
        count = session.effort.repetitions(2 * _TURNS * estimate, slots)

        def take(pairs: Pairs, seed: int) -> list[int]:
            measure_posts(context.write, pairs, 1, 1 + min(_WARM_UP, count // 10), 0.0, limit)
            payload = random_bytes(seed, total)
            source.put(payload)  # bytes that the warm-up moved would prove nothing
            times = measure_posts(context.write, pairs, 1, count, 0.0, limit)
            samples.verified &= session.arrived(payload[: min(total, len(times) * case.bytes)])
            return times

        for turn in range(session.effort.rounds * _TURNS):
            for is_raw in (True, False) if turn % 2 else (False, True):
                cpu = time.process_time_ns()
                times = take(raw if is_raw else registered, 2 * turn + is_raw)
                (samples.times_ns if is_raw else samples.beside_ns).extend(times)
                samples.cpu_ns += time.process_time_ns() - cpu if is_raw else 0
    return samples.row(case, path=explanation)
