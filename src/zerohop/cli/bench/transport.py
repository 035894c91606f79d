"""The rows of a Transport: its writes and reads beside the Context's own, registering, and many writes as one."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import zerohop
from zerohop.cli.bench.floors import MOST, transfer_floor
from zerohop.cli.bench.gpu_plan import is_gpu
from zerohop.cli.bench.rows import Row, Samples
from zerohop.cli.bench.session import TIMEOUT, import_torch, set_expandable
from zerohop.cli.bench.transfers import measure_posts, slots_of
from zerohop.cli.payload import digest, random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from zerohop.cli.bench.case import Case
    from zerohop.cli.bench.session import Session
    from zerohop.cli.bench.transfers import Pairs

    Post: TypeAlias = Callable[..., zerohop.Operation[int]]

_WARM_UP: Final = 50
_CACHED: Final = 2000
_COLD: Final = 50
# Lists in one round: each is timed as a whole.
_LISTS: Final = 20


@contextmanager
def _joined(session: Session) -> Iterator[zerohop.Transport]:
    """A Transport here, whose peer is one of the second process's."""
    with zerohop.Transport(context=session.context) as transport:
        transport.connect(session.peer.call("transport")["url"]).result(TIMEOUT)
        yield transport


def measure_transport(session: Session, case: Case) -> Row:
    """Measures `transport_write` or `transport_read`, a round of the Context's own between two of them.

    Verified: what the Transport has moved in a round, which differs from what the Context has.
    """
    slots = slots_of(case)
    total = slots * case.bytes
    writing = case.name == "transport_write"
    here, there = (case.src, case.dst) if writing else (case.dst, case.src)
    assert here is not None
    assert there is not None
    with (
        session.local(here, total) as local,
        session.remote(there, case.form, total) as remote,
        _joined(session) as transport,
    ):
        cuts = [(i * case.bytes, (i + 1) * case.bytes) for i in range(slots)]
        pairs: Pairs = [(local.memory[first:end], remote[first:end]) for first, end in cuts]
        context = session.context
        post: Post = transport.write if writing else transport.read
        core: Post = context.write if writing else context.read
        core_pairs: Pairs = pairs if writing else [(handle, view) for view, handle in pairs]
        floor_name, floor = transfer_floor(session.floors, case, 0.0)
        zeros = np.zeros(total, np.uint8)
        samples, limit = Samples(beside="Context.write" if writing else "Context.read"), session.effort.limit
        estimate = min(measure_posts(post, pairs, 1, 3, 0.0, limit))
        measure_posts(core, core_pairs, 1, 3, 0.0, limit)
        for round_number in range(session.effort.rounds):
            seed = round_number * 1000 + case.bytes % 997
            payload = random_bytes(seed, total)
            count = session.effort.repetitions(estimate, slots)
            warm_up = 1 + min(_WARM_UP, count // 10)
            samples.floor_ns += floor(payload[: case.bytes], min(count, MOST)) if floor is not None else []
            if writing:
                local.put(zeros)
            else:
                session.peer.call("clear")
            measure_posts(core, core_pairs, 1, warm_up, 0.0, limit)
            samples.beside_ns += measure_posts(core, core_pairs, 1, count, 0.0, limit)
            measure_posts(post, pairs, 1, warm_up, 0.0, limit)  # of zeros, still
            if writing:
                local.put(payload)
            else:
                session.fill_remote(seed, total)
            cpu = time.process_time_ns()
            times = measure_posts(post, pairs, 1, count, 0.0, limit)
            samples.cpu_ns += time.process_time_ns() - cpu
            samples.times_ns += times
            moved = min(total, len(times) * case.bytes)
            found = session.peer.call("digest", nbytes=moved)["digest"] if writing else local.digest(moved)
            samples.verified &= found == digest(payload[:moved])
        return samples.row(case, floor=floor_name, path=context.explain(local.memory, remote))


def measure_write_many(session: Session, case: Case) -> Row:
    """Measures one `write_many` of `batch` writes beside as many single ones, which are waited for together.

    Verified: every byte of the last list of a round.
    """
    assert case.src is not None
    assert case.dst is not None
    total = case.bytes * case.batch
    samples = Samples(beside="single writes")
    with (
        session.local(case.src, total) as local,
        session.remote(case.dst, case.form, total) as remote,
        _joined(session) as transport,
    ):
        cuts = [(i * case.bytes, (i + 1) * case.bytes) for i in range(case.batch)]
        pairs = [(local.memory[first:end], remote[first:end]) for first, end in cuts]
        clock, limit = time.perf_counter_ns, int(session.effort.limit * 1e9)
        transport.write_many(pairs).result(TIMEOUT)
        measure_posts(transport.write, pairs, case.batch, 1, 0.0, session.effort.limit)
        for round_number in range(session.effort.rounds):
            payload = random_bytes(round_number, total)
            local.put(np.zeros(total, np.uint8))
            samples.beside_ns += measure_posts(transport.write, pairs, case.batch, 3, 0.0, session.effort.limit)
            local.put(payload)
            ends = clock() + limit
            cpu = time.process_time_ns()
            for _ in range(_LISTS):
                start = clock()
                transport.write_many(pairs).result(TIMEOUT)
                samples.times_ns.append(clock() - start)
                if clock() > ends:
                    break
            samples.cpu_ns += time.process_time_ns() - cpu
            samples.verified &= session.peer.call("digest", nbytes=total)["digest"] == digest(payload)
        path = session.context.explain(local.memory, remote)
        return samples.row(case, operations=case.batch, path=path)


def measure_transport_register(session: Session, case: Case) -> Row:
    """Registers and gives back memory: whose allocation is known ("cached"), or new each time ("cold").

    Verified: the other process reads the last of it through a handle, and has the right bytes.
    """
    make = _tensors(case) if is_gpu(case.src) else _arrays(case)
    samples, clock = Samples(), time.perf_counter_ns
    with zerohop.Transport(context=session.context) as transport:
        register = transport.register
        what, payload = make()
        kept = register(what)
        for _ in range(_CACHED if case.mode == "cached" else _COLD):
            if case.mode == "cold":
                kept.close()
                what, payload = make()
            cpu, start = time.process_time_ns(), clock()
            register(what).close()
            samples.times_ns.append(clock() - start)
            samples.cpu_ns += time.process_time_ns() - cpu
            if case.mode == "cold":
                kept = register(what)
        answer = session.peer.call("read_digest", handle=bytes(kept.share("r")).hex())
        samples.verified = answer["digest"] == digest(payload)
        kept.close()
    return samples.row(case)


def _arrays(case: Case) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        payload = random_bytes(case.bytes, case.bytes)
        return payload.copy(), payload

    return make


def _tensors(case: Case) -> Callable[[], tuple[Any, Any]]:
    torch = import_torch()
    set_expandable(on=False)

    def make() -> tuple[Any, Any]:
        torch.cuda.empty_cache()  # so that the allocation is new
        payload = random_bytes(case.bytes, case.bytes)
        tensor = torch.from_numpy(payload.copy()).to(case.src)
        torch.cuda.synchronize()
        return tensor, payload

    return make
