"""One rank of a group in this process, or in another one that does what this one asks it to.

`python -m support.ranks FD` is the other process, which is driven over a pipe. It opens its Context only when it is
asked, so one process serves many tests, and what a test has opened in it is closed by the end of the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
import warnings
from contextlib import ExitStack, contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

import zerohop as zh
from support.patience import ANSWER_S, PATIENCE_S, patience
from support.pattern import POISON, expect_equal, pattern, poison
from zerohop.group import CompletionList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from support.options import Options

P = ParamSpec("P")
T = TypeVar("T")

_TESTS = Path(__file__).resolve().parents[1]
# A new process imports the library; in the lab that takes ten seconds.
_START_S = patience(20.0)
# Bytes around each message that nobody may touch.
MARGIN = 3


class Rank:
    """One rank. Every argument and result of its methods is a plain value. Operations and objects have numbers."""

    def __init__(self, folder: str, rank: int, size: int, options: Options) -> None:
        self._opened = ExitStack()
        self.context = self._opened.enter_context(options.open())
        self.group = self._opened.enter_context(zh.Group(rank, size, folder, ctx=self.context))
        self._kept: list[Any] = []
        self._lists: dict[int, CompletionList] = {}

    def close(self) -> None:
        self._opened.close()
        self._kept.clear()
        self._lists.clear()

    def provider(self, rank: int) -> str:
        """Connect to a rank, and return the provider of its messages."""
        return self.group.connect(rank).result(PATIENCE_S).provider

    # Messages

    def send(self, place: str, nbytes: int, seed: int, rank: int, tag: int) -> int:
        """Begin to send a pattern; return the number of the operation."""
        return self._keep(self.group.send(self._filled(place, nbytes, seed), rank, tag=tag))

    def recv(self, place: str, nbytes: int, source: int | None, tag: int | None) -> int:
        """Begin to receive into poisoned memory; return the number of the operation."""
        memory = self._poisoned(place, nbytes)
        return self._keep((memory, self.group.recv(memory[MARGIN : MARGIN + nbytes], source, tag=tag)))

    def probe(self, source: int | None, tag: int | None) -> int:
        """Begin to look for a message; return the number of the operation."""
        return self._keep(self.group.probe(source, tag=tag))

    def claim(self, number: int, place: str) -> tuple[int, tuple[int, int, int]]:
        """Begin to receive what a probe finds; return the number of the operation, and source, tag and length."""
        arrival = self._kept[number].result(PATIENCE_S)
        memory = self._poisoned(place, arrival.nbytes)
        receiving = arrival.recv(memory[MARGIN : MARGIN + arrival.nbytes])
        return self._keep((memory, receiving)), (arrival.source, arrival.tag, arrival.nbytes)

    def finish(self, number: int) -> int:
        """Wait for an operation that has no memory to be looked at; return its value."""
        value: int = self._kept[number].result(PATIENCE_S)
        return value

    def received(self, number: int, seed: int) -> tuple[int, int, int]:
        """Wait for a receive, check every byte of its memory, and return source, tag and length."""
        memory, operation = self._kept[number]
        message = operation.result(PATIENCE_S)
        self._expect(memory, message.nbytes, seed)
        return tuple(message)

    # Completion objects

    def register(self, place: str | None) -> int:
        """Register a list, for whose messages there is memory of a place; None: that which the library makes."""
        told = CompletionList(self.group)
        more: dict[str, Any] = {}
        if place is not None:
            more["allocate"] = lambda arrival: self._poisoned(place, arrival.nbytes)[MARGIN : MARGIN + arrival.nbytes]
        number = self.group.register(told, **more)
        self._lists[number] = told
        return number

    def am(self, place: str, nbytes: int, seed: int, rank: int, target: int, tag: int) -> int:
        """Begin to send an active message; return the number of the operation."""
        return self._keep(self.group.am(self._filled(place, nbytes, seed), rank, target, tag=tag))

    def told(self, number: int, seed: int | None = None) -> tuple[str, int, int, int]:
        """Wait until a list is told something; return its kind, rank, tag and length.

        With ``seed`` it is an active message, whose bytes are checked.
        """
        ended = self._lists[number].pop(PATIENCE_S)
        assert ended.error is None
        if seed is not None:
            data: Any = ended.data
            raw = data.read_bytes(0, ended.nbytes) if hasattr(data, "read_bytes") else bytes(data)
            expect_equal(np.frombuffer(raw, np.uint8), pattern(seed, ended.nbytes), "an active message")
        return ended[:4]

    def told_no_more(self, number: int) -> None:
        assert self._lists[number].poll() is None

    # Memory of others

    def share(self, place: str, nbytes: int) -> tuple[int, bytes]:
        """Share memory of zeros; return its number, and its handle."""
        memory = self.context.alloc(max(1, nbytes), place)
        memory.fill(0)
        return self._keep(memory), bytes(memory.share("rw"))

    def read(self, number: int, offset: int, nbytes: int) -> bytes:
        data: bytes = self._kept[number].read_bytes(offset, nbytes)
        return data

    def expect(self, number: int, offset: int, nbytes: int, seed: int) -> None:
        """Check the bytes of shared memory, and that those beside them are zeros still."""
        found = np.frombuffer(self._kept[number].read_bytes(0, self._kept[number].nbytes), np.uint8)
        expect_equal(found[offset : offset + nbytes], pattern(seed, nbytes), "what was put")
        assert not found[:offset].any()
        assert not found[offset + nbytes :].any()
        self._kept[number].fill(0)

    def expect_part(self, number: int, offset: int, nbytes: int, seed: int) -> None:
        """Check bytes of shared memory."""
        found = np.frombuffer(self._kept[number].read_bytes(offset, nbytes), np.uint8)
        expect_equal(found, pattern(seed, nbytes), "what was put")

    def fill(self, number: int, offset: int, nbytes: int, seed: int) -> None:
        self._kept[number].write_bytes(offset, pattern(seed, nbytes).tobytes())

    def put(
        self, place: str, nbytes: int, seed: int, rank: int, handle: bytes, offset: int, target: int, tag: int
    ) -> int:
        """Begin to put a pattern; return the number of the operation."""
        remote = zh.RemoteBuffer.from_bytes(handle)
        source = self._filled(place, nbytes, seed)
        return self._keep(self.group.put(source, rank, remote, offset=offset, target=target, tag=tag))

    def get(
        self, place: str, nbytes: int, seed: int, rank: int, handle: bytes, offset: int, target: int, tag: int
    ) -> int:
        """Get bytes, and check all of them; return how many they were."""
        memory = self._poisoned(place, nbytes)
        remote = zh.RemoteBuffer.from_bytes(handle)
        into = memory[MARGIN : MARGIN + nbytes]
        got = self.group.get(into, rank, remote, offset=offset, target=target, tag=tag).result(PATIENCE_S)
        self._expect(memory, nbytes, seed)
        return got

    def fetch_add(self, handle: bytes, value: int, offset: int) -> int:
        return self.group.fetch_add(zh.RemoteBuffer.from_bytes(handle), value, offset=offset).result(PATIENCE_S)

    def compare_swap(self, handle: bytes, compare: int, swap: int, offset: int) -> int:
        remote = zh.RemoteBuffer.from_bytes(handle)
        return self.group.compare_swap(remote, compare, swap, offset=offset).result(PATIENCE_S)

    # Collectives

    def sum_of_ranks(self, nbytes: int) -> bool:
        """Sum arrays in which each rank has its number and one more, then meet all; tell whether the sum is right."""
        values = np.full(nbytes // 8, self.group.rank + 1, np.int64)
        self.group.allreduce(values).result(PATIENCE_S)
        self.group.barrier().result(PATIENCE_S)
        return bool((values == sum(range(self.group.size + 1))).all())

    def _keep(self, thing: object) -> int:
        self._kept.append(thing)
        return len(self._kept) - 1

    def _filled(self, place: str, nbytes: int, seed: int) -> Any:
        """Return memory with a pattern, not at its start."""
        memory = self.context.alloc(nbytes + 1, place)
        memory.write_bytes(1, pattern(seed, nbytes).tobytes())
        return memory[1:]

    def _poisoned(self, place: str, nbytes: int) -> Any:
        memory = self.context.alloc(nbytes + 2 * MARGIN, place)
        memory.fill(POISON)
        return memory

    def _expect(self, memory: Any, nbytes: int, seed: int) -> None:
        """Check a message in the middle of poison."""
        expected = poison(memory.nbytes)
        expected[MARGIN : MARGIN + nbytes] = pattern(seed, nbytes)
        expect_equal(np.frombuffer(memory.read_bytes(0, memory.nbytes), np.uint8), expected, "what was received")


class RankProcess:
    """A process that is a rank of one group after another. One call at a time."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        self._answers_due = 0
        path = os.pathsep.join([str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-X", "faulthandler", "-m", "support.ranks", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            )

    def begin(self, method: Callable[Concatenate[Rank, P], T], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Begin a call there."""
        self._ask(method.__name__, args, kwargs)

    def _ask(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._answers_due += 1
        self._pipe.send((method, args, kwargs))

    def end(self, limit: float = ANSWER_S) -> Any:
        """Return what the call returned; AssertionError if it raised, or the process says nothing in time."""
        assert self._pipe.poll(limit), "the other process gives no answer"
        value, error = self._pipe.recv()
        self._answers_due -= 1
        assert error is None, f"in the other process:\n{error}"
        return value

    def call(self, method: Callable[Concatenate[Rank, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.begin(method, *args, **kwargs)
        value: T = self.end()
        return value

    @contextmanager
    def opened(self, folder: Path, rank: int, size: int, options: Options) -> Iterator[RankProcess]:
        """Be a rank. After a failure there is another process, so that the next test has one in order."""
        try:
            self.open(folder, rank, size, options)
            yield self
            assert not self._answers_due
            self.call(Rank.close)
        except BaseException:
            self.kill()
            self._start()
            raise

    def open(self, folder: Path, rank: int, size: int, options: Options) -> None:
        """Be a rank until the process ends."""
        self._ask("", (str(folder), rank, size, options), {})
        self.end(_START_S)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def finish(self) -> None:
        """Have the process end in order."""
        self._pipe.close()
        try:
            assert self._process.wait(ANSWER_S) == 0
        finally:
            self._process.kill()
            self._process.wait()


class RankHere:
    """A rank in this process, which is used as one in another process is."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def call(self, method: Callable[Concatenate[Rank, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self.rank, *args, **kwargs)


Side = RankHere | RankProcess


@contextmanager
def ranks(folder: Path, processes: Sequence[RankProcess], options: Options) -> Iterator[list[Side]]:
    """Open a group whose first rank is in this process, and each other one in a process of its own."""
    size = len(processes) + 1
    with ExitStack() as opened:
        here = Rank(str(folder), 0, size, options)
        opened.callback(here.close)
        others = [
            opened.enter_context(process.opened(folder, number, size, options))
            for number, process in enumerate(processes, 1)
        ]
        yield [RankHere(here), *others]


def _serve(pipe: Connection) -> None:
    """Do what is asked for until the other end is closed."""
    # What is staged between real GPUs says so; all other warnings are errors.
    warnings.simplefilter("ignore", zh.StagedPathWarning)
    rank: Any = None
    while True:
        try:
            method, args, kwargs = pipe.recv()
        except EOFError:
            break
        value = error = None
        try:
            if method:
                value = getattr(rank, method)(*args, **kwargs)
            else:
                rank = Rank(*args)
        except Exception:
            error = traceback.format_exc()
        pipe.send((value, error))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
