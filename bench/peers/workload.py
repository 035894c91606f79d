"""Defines the work of every peer: the cases, their payloads, and the measuring of one case by two processes.

Rank 0 calls, rank 1 owns the memory at the other end. In each round the payload is new, and every byte to be written
holds its complement before; afterwards the whole range is compared, including pages that were in no list.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

Octets: TypeAlias = NDArray[np.uint8]
Pages: TypeAlias = NDArray[np.int64]

KI, MI = 1 << 10, 1 << 20
# Sizes in the table of RdmaTransport's documentation.
SIZES: Final = (8 * KI, 64 * KI, 512 * KI, 1 * MI, 4 * MI, 16 * MI, 64 * MI, 256 * MI)
QUICK_SIZES: Final = (64 * KI, 1 * MI, 64 * MI)
PAGES: Final = 4096
PAGE_SIZES: Final = (16 * KI, 1 * KI)
LIST: Final = "write_list"
# Ranges of one list, their mean length, and the lengths of the shortest and of the longest.
RANGES: Final = 120_000
RANGE_BYTES: Final = 7680
_SHORTEST, _LONGEST = 16, 64 * KI
_PAGES_WITHIN: Final = 64 * MI
_UNTOUCHED: Final = 0xA5


@dataclass(frozen=True)
class Case:
    """Describes one row to measure.

    Attributes:
        name: `write`, `read`, `write_pages`, `write_list`, or a name that only one peer has.
        bytes: of one operation, or of one page, which then divides 64 MiB; of ranges, about their mean.
        batch: pages or ranges in one operation.
        memory: "expandable" if the memory must be of that kind, else "".
    """

    name: str
    bytes: int
    batch: int = 1
    memory: str = ""

    @property
    def span(self) -> int:
        """Return the number of bytes of memory that the case uses, in each process."""
        if self.name == LIST:
            return int(self.lengths().sum())
        return self.bytes if self.batch == 1 else max(_PAGES_WITHIN, self.bytes * self.batch)

    @property
    def row_name(self) -> str:
        """Return the name of the row in the results."""
        return f"{self.name}_{self.memory}" if self.memory else self.name

    def lengths(self) -> Pages:
        """Return the lengths of the ranges of a list: mixed, and equal in both processes."""
        # Most are short: their logarithms are spread evenly, and then all are stretched to the mean.
        low, high = np.log2((_SHORTEST, _LONGEST))
        chance = np.random.default_rng(self.batch)
        raw = np.exp2(chance.uniform(low, high, self.batch)) * (self.bytes / np.mean(np.exp2(np.linspace(low, high))))
        clipped: Pages = np.clip(raw.astype(np.int64) // _SHORTEST * _SHORTEST, _SHORTEST, _LONGEST)
        return clipped

    def pages(self) -> tuple[Pages, Pages]:
        """Return page numbers, or the offsets of ranges, of source and target; random, and equal in both processes."""
        if self.name == LIST:
            lengths = self.lengths()
            return _scattered(lengths, seed=1), _scattered(lengths, seed=2)
        shuffle = np.random.default_rng(self.bytes).permutation
        count = self.span // self.bytes
        return shuffle(count)[: self.batch].astype(np.int64), shuffle(count)[: self.batch].astype(np.int64)


def cases(*, quick: bool = False) -> tuple[Case, ...]:
    """Return all cases, the most important first: a peer that hangs keeps the rows that it had."""
    sizes = QUICK_SIZES if quick else SIZES
    lists = [Case(name, page, PAGES) for name in ("write_pages", "write_pages_reposted") for page in PAGE_SIZES]
    lists.append(Case(LIST, RANGE_BYTES, RANGES // 10 if quick else RANGES))
    return (*(Case("write", nbytes) for nbytes in sizes), *lists, *(Case("read", nbytes) for nbytes in sizes))


def _scattered(lengths: Pages, seed: int) -> Pages:
    """Return offsets at which ranges of these lengths lie one behind the other, in random order."""
    order = np.random.default_rng(seed).permutation(lengths.size)
    offsets = np.empty_like(lengths)
    offsets[order] = np.cumsum(lengths[order]) - lengths[order]
    return offsets


EXPANDABLE_CASES: Final = (Case("write", 64 * MI, memory="expandable"),)


@dataclass(frozen=True)
class Effort:
    """Limits how much to measure.

    Attributes:
        rounds: number of rounds of one case.
        seconds: time to measure in one round.
        most: largest number of operations in one round.
        limit: seconds after which a case begins no other round.
    """

    rounds: int
    seconds: float
    most: int
    limit: float

    def count(self, seconds: float) -> int:
        """Return how often to measure an operation of about `seconds` in one round."""
        least = 5 if seconds < self.seconds else 1
        return max(least, min(self.most, int(self.seconds / max(seconds, 1e-9))))


FULL: Final = Effort(rounds=5, seconds=0.1, most=200, limit=6.0)
QUICK: Final = Effort(rounds=2, seconds=0.03, most=50, limit=2.0)


@dataclass(frozen=True)
class Spec:
    """Tells the two processes of a peer their devices by rank ("cuda:0" or "cpu"), the cases and the effort."""

    devices: tuple[str, str]
    cases: tuple[Case, ...]
    effort: Effort


@dataclass(frozen=True)
class Side:
    """Holds one process's instructions, and its connections to the other process and to its parent."""

    rank: int
    spec: Spec
    link: Connection
    results: Connection

    @property
    def device(self) -> str:
        """Return the device of this process's memory."""
        return self.spec.devices[self.rank]

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of memory that each process needs for all cases."""
        return max(case.span for case in self.spec.cases)

    def report(
        self, case: Case, seconds: Sequence[float], *, verified: bool | None, note: str = "", name: str | None = None
    ) -> None:
        """Send one row to the parent process. `verified` is None if nobody compared the bytes."""
        median = statistics.median(seconds)
        row = {
            "name": name or case.row_name,
            "bytes": case.bytes,
            "batch": case.batch,
            "p50_us": round(median * 1e6, 3),
            "GBps": round((case.span if case.name == LIST else case.bytes * case.batch) / median / 1e9, 4),
            "verified": verified,
            "note": note,
        }
        self.results.send(("row", row))


class Half(ABC):
    """Declares one process's half of a peer that this file measures."""

    names: ClassVar[frozenset[str]] = frozenset({"write"})
    note: str = ""

    @abstractmethod
    def put(self, data: Octets) -> None:
        """Fill this process's memory from its start; on return the bytes are there."""

    @abstractmethod
    def holds(self, data: Octets) -> bool:
        """Tell whether this process's memory begins with these bytes."""

    @abstractmethod
    def once(self, case: Case, sources: Pages, targets: Pages) -> Callable[[], object]:
        """Return, on rank 0, a callable that runs the case's operation once, and returns when it is done."""

    def answer(self, case: Case, count: int) -> None:
        """Do rank 1's part in `count` operations; by default nothing, as in peers where only the caller works."""
        del case, count


@dataclass(frozen=True)
class Payload:
    """Holds the bytes of one round: those of the source, and those of the target before and after."""

    source: Octets
    before: Octets
    after: Octets

    @classmethod
    def of(cls, case: Case, seed: int) -> Payload:
        """Make the payload; equal arguments give equal bytes in every process."""
        words = np.random.Generator(np.random.SFC64(seed)).integers(0, 1 << 64, (case.span + 7) // 8, dtype=np.uint64)
        source = words.view(np.uint8)[: case.span]
        if case.batch == 1:
            return cls(source, ~source, source)
        sources, targets = case.pages()
        if case.name == LIST:
            # The ranges cover all of the target.
            after = np.empty_like(source)
            for at, to, length in zip(sources.tolist(), targets.tolist(), case.lengths().tolist(), strict=True):
                after[to : to + length] = source[at : at + length]
            return cls(source, ~after, after)
        pages = source.reshape(-1, case.bytes)[sources]
        before = np.full(case.span, _UNTOUCHED, np.uint8)
        after = before.copy()
        before.reshape(-1, case.bytes)[targets] = ~pages
        after.reshape(-1, case.bytes)[targets] = pages
        return cls(source, before, after)


def run(half: Half, side: Side) -> None:
    """Measure all cases that the half supports: rank 0 leads, rank 1 follows its commands."""
    if side.rank:
        _follow(half, side)
        return
    for case in side.spec.cases:
        if case.name in half.names:
            _measure(half, side, case)
    side.link.send(("end",))


def _measure(half: Half, side: Side, case: Case) -> None:
    effort, link = side.spec.effort, side.link
    begun = time.monotonic()
    once = half.once(case, *case.pages())

    def operations(count: int) -> list[float]:
        link.send(("run", case, count))
        taken = [_timed(once) for _ in range(count)]
        link.recv()
        return taken

    operations(2)  # connects, maps, compiles
    count = effort.count(min(operations(3)))
    taken: list[float] = []
    verified = True
    for seed in range(effort.rounds):
        if seed and time.monotonic() - begun > effort.limit:
            break
        payload = Payload.of(case, seed)
        link.send(("place", case, seed))
        half.put(payload.before if case.name == "read" else payload.source)
        link.recv()
        taken += operations(count)
        link.send(("verify",))
        there: bool = link.recv()
        verified &= there and (case.name != "read" or half.holds(payload.after))
    side.report(case, taken, verified=verified, note=half.note)


def _follow(half: Half, side: Side) -> None:
    link = side.link
    expected: Octets | None = None
    while True:
        command, *arguments = link.recv()
        if command == "end":
            return
        answer: bool | None = None
        if command == "run":
            half.answer(*arguments)
        elif command == "place":
            case, seed = arguments
            payload = Payload.of(case, seed)
            half.put(payload.source if case.name == "read" else payload.before)
            # A read must leave its source unchanged.
            expected = payload.source if case.name == "read" else payload.after
        else:
            assert expected is not None
            answer = half.holds(expected)
        link.send(answer)


def _timed(once: Callable[[], object]) -> float:
    start = time.perf_counter()
    once()
    return time.perf_counter() - start
