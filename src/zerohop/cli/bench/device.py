"""Measures the rows about kernels that send: put and signal, bandwidth, entries of the FIFO, questions to the host."""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from zerohop._floors import echo_words
from zerohop.cli.bench.device_plan import FEW_BLOCKS as FEW
from zerohop.cli.bench.device_plan import FIFO, PEER, PING, PUT, TURN, WAIT, has_few_blocks, language_of
from zerohop.cli.bench.device_side import CPP, KernelSide
from zerohop.cli.bench.rows import Row, Samples
from zerohop.cli.bench.session import TIMEOUT
from zerohop.cli.payload import digest, random_bytes
from zerohop.cli.peer import accept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from zerohop.cli.bench.rows import Case
    from zerohop.cli.bench.session import Session
    from zerohop.cli.payload import Octets

# How a kernel waits and writes: see `device_kernels`.
QUEUE: Final = 0
UNTIMED: Final = 1
PLAIN: Final = 2
_LARGE: Final = 32 << 10
_STEP: Final = 1 << 32  # of the values of signals, from one run to the next
_FIFO_BLOCKS: Final = 132 * 16
_FIFO_ENTRIES: Final = 1 << 20
_PUT_BYTES: Final = 4 << 30  # in one run


class Shape(NamedTuple):
    """Holds how many warps a block has, and how many elements a Triton program copies at a time."""

    warps: int
    block: int


def shape_of(nbytes: int) -> Shape:
    """Return the shape of blocks that copy so many bytes each, by measurement."""
    if nbytes <= _LARGE // 32:
        return Shape(1, 128)
    return Shape(4, 1024) if nbytes < _LARGE else Shape(8, 8192)


@contextmanager
def both_sides(session: Session, case: Case, nbytes: int, *, on_host: bool = False) -> Iterator[KernelSide]:
    """Open a Queue in each process to the other's inbox; in the second one only if kernels run there, too."""
    src, dst = case.src, case.dst
    assert src is not None
    assert dst is not None
    with closing(KernelSide(session.context, src, nbytes, on_host=on_host)) as side:
        handle = bytes(side.inbox.share("rw")).hex()
        place = src if dst == "host" else dst
        there = session.peer.call("kernels_open", device=place, nbytes=nbytes, on_host=dst == "host")
        side.open(accept(there["handle"]), case.form)
        if dst != "host":
            session.peer.call("kernels_queue", handle=handle, mode=case.form)
        yield side
        session.peer.call("kernels_close")


def measure_device(session: Session, case: Case) -> Row:
    """Measure one row; each sample is a run of one kernel, or of two that answer each other."""
    return _MEASURES[case.name](session, case)


def _ping(session: Session, case: Case) -> Row:
    samples = Samples()
    rounds = _rounds(session, case)
    shape = shape_of(case.bytes)
    turn = 0

    def run(how: int) -> list[int]:
        nonlocal turn
        turn += 1
        payload = random_bytes(turn, case.bytes)
        side.put(payload)
        session.peer.call("kernels_fill", seed=turn + 1000, nbytes=case.bytes)
        block = shape.block
        cpp = language_of(case) == CPP
        arguments = [turn * _STEP, rounds, case.bytes]
        request = {"language": language_of(case), "name": "ping", "how": how, "block": 0 if cpp else block}
        session.peer.begin("kernels_run", **request, arguments=[0, *arguments], blocks=1, warps=shape.warps)
        took = side.run(language_of(case), "ping", 1, *arguments, warps=shape.warps, how=how, block=0 if cpp else block)
        session.peer.finish()
        samples.verified &= _arrived(session, payload) and side.digest(case.bytes) == digest(
            random_bytes(turn + 1000, case.bytes)
        )
        side.clear()
        session.peer.call("kernels_clear")
        return [took // (rounds - rounds // 8 + 1) // 2]

    with both_sides(session, case, case.bytes) as side:
        for how in (QUEUE, UNTIMED, PLAIN)[: 3 if case.form == PEER else 1]:
            run(how)  # compiles, and connects
        for _ in range(session.effort.rounds):
            cpu = time.process_time_ns()
            samples.times_ns += run(QUEUE)
            samples.cpu_ns += (time.process_time_ns() - cpu) // rounds
            if case.form == PEER:
                samples.floor_ns += run(PLAIN)
            if case.name == WAIT:
                samples.beside = "without a limit"
                samples.beside_ns += run(UNTIMED)
        explanation = side.queue.explain()
    row = samples.row(case, floor="kernels without a Queue" if case.form == PEER else None)
    row.path = explanation
    return row


def _put(session: Session, case: Case) -> Row:
    samples = Samples()
    language = language_of(case)
    rounds = max(4, min(400, session.effort.most, _PUT_BYTES // case.bytes))
    # Each thread of a Triton program reads the descriptor, so few threads put small parts best.
    shape = Shape(16, 4096) if language == CPP or has_few_blocks(case) else Shape(4, 1024)
    turn = 0

    def run(how: int) -> list[int]:
        nonlocal turn
        turn += 1
        payload = random_bytes(turn, case.bytes)
        side.put(payload)
        block = 0 if language == CPP else shape.block
        took = side.run(language, "put", case.bytes, rounds, blocks=blocks, warps=shape.warps, how=how, block=block)
        samples.verified &= _arrived(session, payload)
        session.peer.call("kernels_clear")
        return [took // rounds]

    with both_sides(session, case, case.bytes) as side:
        # The number is a power of two, so that parts of the table's sizes are equal and aligned.
        blocks = FEW if has_few_blocks(case) else 1 << (side.processors(language).bit_length() - 1)
        _alternate(session, samples, run)
        explanation = side.queue.explain()
    row = samples.row(case, floor="kernel without a Queue")
    row.path = explanation
    return row


def _fifo(session: Session, case: Case) -> Row:
    samples = Samples()
    language = language_of(case)
    threads = 256 if language == CPP else 1
    blocks = 132 if language == CPP else _FIFO_BLOCKS
    count = max(1, min(_FIFO_ENTRIES, session.effort.most * 256) // (blocks * threads))
    entries = blocks * threads * count
    nbytes = entries * case.bytes

    def run(number: int) -> list[int]:
        payload = random_bytes(number, nbytes)
        side.put(payload)
        took = side.run(language, "post", count, case.bytes, blocks=blocks, warps=max(1, threads // 32))
        samples.verified &= _arrived(session, payload) and side.queue.taken == entries * (number + 1)
        session.peer.call("kernels_clear")
        return [took // entries]

    with both_sides(session, case, nbytes, on_host=True) as side:
        run(0)
        for number in range(1, session.effort.rounds + 1):
            samples.times_ns += run(number)
        explanation = side.queue.explain()
    row = replace(samples.row(case), GBps=None)
    row.path = explanation
    return row


def _turn(session: Session, case: Case) -> Row:
    samples = Samples()
    language = language_of(case)
    rounds = min(4000, session.effort.most)

    def run(how: int) -> list[int]:
        side.put(np.zeros(8, np.uint8))
        side.clear()
        echo = threading.Thread(
            target=echo_words, args=(side.source.address, side.inbox.address, rounds, TIMEOUT), daemon=True
        )
        if how == PLAIN:
            echo.start()
        took = side.run(language, "turns", rounds, how=how, warps=1)
        if how == PLAIN:
            echo.join()
        return [took // (rounds - rounds // 8 + 1)]

    with both_sides(session, case, 64, on_host=True) as side:
        _alternate(session, samples, run)
        explanation = side.queue.explain()
    row = samples.row(case, floor="a word that a thread of the host echoes")
    row.path = explanation
    return row


def _alternate(session: Session, samples: Samples, run: Callable[[int], list[int]]) -> None:
    """Measure a Queue and the floor in turn, after one run of each that compiles and connects."""
    for how in (QUEUE, PLAIN):
        run(how)
    for _ in range(session.effort.rounds):
        samples.times_ns += run(QUEUE)
        samples.floor_ns += run(PLAIN)


def _rounds(session: Session, case: Case) -> int:
    most = 200 if case.provider == "tcp" else 2000 if case.bytes < _LARGE else 500
    return max(16, min(most, session.effort.most))


def _arrived(session: Session, payload: Octets) -> bool:
    wanted = digest(payload)
    return bool(session.peer.call("kernels_digest", nbytes=payload.size)["digest"] == wanted)


_MEASURES: Final[Mapping[str, Callable[[Session, Case], Row]]] = {
    PING: _ping,
    WAIT: _ping,
    PUT: _put,
    FIFO: _fifo,
    TURN: _turn,
}
