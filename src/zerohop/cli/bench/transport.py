"""Measures the rows of a Transport: writes and reads beside the Context's own, registration, many writes as one."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import zerohop
from zerohop.cli.bench.floors import MOST, transfer_floor
from zerohop.cli.bench.rows import Row, Samples, is_gpu
from zerohop.cli.bench.session import TIMEOUT, cut
from zerohop.cli.bench.tensors import import_torch, set_expandable
from zerohop.cli.bench.transfers import measure_posts, page_floor, slots_of
from zerohop.cli.payload import PageLists, random_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zerohop.cli.bench.rows import Case
    from zerohop.cli.bench.session import LocalMemory, Session
    from zerohop.cli.bench.transfers import Pairs, Post
    from zerohop.cli.payload import Octets

_WARM_UP: Final = 50
# Number of turns that each side of a comparison has in one round: a processor may be slow for longer than a turn.
# There are fewer if all turns together renew and compare more memory than this, which takes longer than measuring.
_TURNS: Final = 8
_RENEWED: Final = 32 << 20
_CACHED: Final = 2000
_COLD: Final = 50
# Number of lists in one round; each is timed as a whole.
_LISTS: Final = 20


@contextmanager
def _joined(session: Session) -> Iterator[zerohop.Transport]:
    """Open a Transport whose peer is a Transport of the second process."""
    with zerohop.Transport(ctx=session.context) as transport:
        transport.connect(session.peer.call("transport")["url"]).result(TIMEOUT)
        yield transport


class _Source:
    """Holds the source of a case, in this process or the other one, with a copy of it here.

    Attributes:
        content: the source's bytes.
    """

    def __init__(self, session: Session, local: LocalMemory, case: Case, nbytes: int) -> None:
        """Fill the source with random bytes."""
        self._flip = self._flip_there if case.reads else local.flip
        self._session = session
        self._number = 0
        if case.reads:
            self.content = session.fill_remote(case.bytes, nbytes)
        else:
            self.content = random_bytes(case.bytes, nbytes)
            local.put(self.content)

    def _flip_there(self, mask: int) -> None:
        self._session.peer.call("flip", mask=mask)

    def renew(self) -> None:
        """Change every byte to a value that it had in none of the last 255 rounds, so that stale bytes are wrong."""
        after = (self._number + 1) % 256
        mask = self._number ^ after
        self._number = after
        self.content ^= np.uint8(mask)
        self._flip(mask)


def measure_transport(session: Session, case: Case) -> Row:
    """Measure `transport_write` or `transport_read`, taking turns with the Context's own calls on the same memory.

    The two begin in turn, and each turn is prepared alike: a call compared with itself must come out equally fast.
    Verified: the bytes that each turn of the Transport has moved, none of which equals the byte that was there before.
    """
    slots = slots_of(case)
    total = slots * case.bytes
    with session.memories(case, total) as (local, remote), _joined(session) as transport:
        pairs = cut(local.memory, remote, case.bytes, slots)
        context, limit = session.context, session.effort.limit
        post: Post = transport.read if case.reads else transport.write
        core: Post = context.read if case.reads else context.write
        core_pairs: Pairs = [(handle, view) for view, handle in pairs] if case.reads else pairs
        floor_name, floor = transfer_floor(session.floors, case, 0.0)
        samples = Samples(beside="Context.read" if case.reads else "Context.write")
        source = _Source(session, local, case, total)
        turns = max(1, min(_TURNS, _RENEWED // total))
        estimate = min(measure_posts(post, pairs, 1, 3, 0.0, limit))
        count = session.effort.repetitions(2 * turns * estimate, slots)

        def prepare(post: Post, pairs: Pairs) -> None:
            measure_posts(post, pairs, 1, 1 + min(_WARM_UP, count // 10), 0.0, limit)
            source.renew()  # bytes that the warm-up moved would prove nothing

        def take_core_turn() -> None:
            prepare(core, core_pairs)
            samples.beside_ns += measure_posts(core, core_pairs, 1, count, 0.0, limit)

        def take_own_turn() -> None:
            prepare(post, pairs)
            cpu = time.process_time_ns()
            times = measure_posts(post, pairs, 1, count, 0.0, limit)
            samples.cpu_ns += time.process_time_ns() - cpu
            samples.times_ns += times
            moved = source.content[: min(total, len(times) * case.bytes)]
            samples.verified &= local.holds(moved) if case.reads else session.arrived(moved)

        both = (take_core_turn, take_own_turn)
        for round_number in range(session.effort.rounds):
            samples.floor_ns += floor(source.content[: case.bytes], min(count, MOST)) if floor is not None else []
            for turn in range(turns):
                for take in both if (round_number * turns + turn) % 2 else both[::-1]:
                    take()
        return samples.row(case, floor=floor_name, path=context.explain(local.memory, remote))


def measure_write_many(session: Session, case: Case) -> Row:
    """Measure one `write_many` of `batch` writes beside as many single ones, which are waited for together.

    Verified: every byte of the last list of a round.
    """
    total = case.bytes * case.batch
    samples = Samples(beside="single writes")
    with session.memories(case, total) as (local, remote), _joined(session) as transport:
        pairs = cut(local.memory, remote, case.bytes, case.batch)
        numbers = np.arange(case.batch, dtype=np.int64)
        floor_name, floor = page_floor(session, case, PageLists(numbers, numbers, case.bytes, case.batch), total)

        def once(pairs: Any) -> None:
            transport.write_many(pairs).result(TIMEOUT)

        once(pairs)
        measure_posts(transport.write, pairs, case.batch, 1, 0.0, session.effort.limit)
        for round_number in range(session.effort.rounds):
            payload = random_bytes(round_number, total)
            samples.floor_ns += floor(payload, _LISTS) if floor is not None else []
            local.put(np.zeros(total, np.uint8))
            samples.beside_ns += measure_posts(transport.write, pairs, case.batch, 3, 0.0, session.effort.limit)
            local.put(payload)
            ends = time.perf_counter() + session.effort.limit
            for _ in range(_LISTS):
                samples.measure(once, pairs)
                if time.perf_counter() > ends:
                    break
            samples.verified &= session.arrived(payload)
        path = session.context.explain(local.memory, remote)
        return samples.row(case, operations=case.batch, floor=floor_name, path=path)


def measure_transport_register(session: Session, case: Case) -> Row:
    """Register and deregister memory: with a known allocation ("cached"), or new each time ("cold").

    Verified: the other process reads the last memory through a handle, and gets the right bytes.
    """
    if is_gpu(case.src):
        set_expandable(on=False)
    samples = Samples()
    with zerohop.Transport(ctx=session.context) as transport:
        register = transport.register

        def once(memory: Any) -> None:
            register(memory).close()

        what, payload = _fresh(case)
        kept: Any = register(what)
        for _ in range(_CACHED if case.mode == "cached" else _COLD):
            if case.mode == "cold":
                kept.close()
                # While the last tensor exists, the next one would come from the same allocation, which is known.
                kept = what = None
                what, payload = _fresh(case)
            samples.measure(once, what)
            if case.mode == "cold":
                kept = register(what)
        samples.verified = session.readable(kept.share("r"), payload)
        kept.close()
    return samples.row(case)


def _fresh(case: Case) -> tuple[Any, Octets]:
    """Return new memory to register, an array or a tensor in a new allocation, and its bytes."""
    payload = random_bytes(case.bytes, case.bytes)
    if not is_gpu(case.src):
        return payload.copy(), payload
    torch = import_torch()
    torch.cuda.empty_cache()  # so that the allocation is new
    tensor = torch.from_numpy(payload.copy()).to(case.src)
    torch.cuda.synchronize()
    return tensor, payload
