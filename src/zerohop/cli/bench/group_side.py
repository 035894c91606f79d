"""Runs one of the two ranks whose messages and collectives are measured."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final

import numpy as np

import zerohop
from zerohop.cli.bench.group_plan import HANDLED, ONE, THREADS
from zerohop.cli.bench.session import TIMEOUT
from zerohop.cli.payload import Octets, digest, random_bytes
from zerohop.group import CompletionList, Counter

AWAIT: Final = "await"
HOST: Final = "host"
# The numbers of the completion objects, in the order in which they are registered.
_COUNTER, _LIST = range(2)
_THREADS: Final = 8
_AT_ONCE: Final = 1250  # messages in one call


class GroupSide:
    """Holds a rank, and the memory that it sends from and receives into."""

    def __init__(self, context: zerohop.Context, rank: int, folder: str, nbytes: int, device: str = HOST) -> None:
        """Take a rank's place, with arrays or memory of a device; the two ranks connect at the first message."""
        self.group = zerohop.Group(rank, 2, folder, ctx=context, timeout=TIMEOUT)
        self._nbytes = nbytes
        self._other = 1 - rank
        self._memories = [
            context.register(np.ones(nbytes, np.uint8)) if device == HOST else context.alloc(nbytes, device)
            for _ in range(2)
        ]
        self._counter = Counter(self.group)
        self._listed = CompletionList(self.group)
        for told in (self._counter, self._listed):
            self.group.register(told)
        self._counted = 0

    def fill(self, seed: int) -> Octets:
        """Fill what is sent with random bytes, and return them; poison what is received."""
        payload = random_bytes(seed, self._nbytes)
        self._memories[0].write_bytes(0, payload.tobytes())
        self._memories[1].fill(0xA5)
        return payload

    def received(self) -> str:
        """Digest what was received."""
        return digest(np.frombuffer(self._memories[1].read_bytes(), np.uint8))

    def exchange(self, mode: str, rounds: int, *, first: bool) -> list[int]:
        """Send and receive in turn; return nanoseconds of each round."""
        if mode == AWAIT:
            return asyncio.run(self._exchange(rounds, first=first))
        (outgoing, incoming), other, group = self._memories, self._other, self.group
        times = [0] * rounds
        for index in range(rounds):
            start = time.perf_counter_ns()
            if first:
                group.send(outgoing, other).result()
            group.recv(incoming, other, timeout=TIMEOUT).result()
            if not first:
                group.send(outgoing, other).result()
            times[index] = time.perf_counter_ns() - start
        return times

    async def _exchange(self, rounds: int, *, first: bool) -> list[int]:
        (outgoing, incoming), other, group = self._memories, self._other, self.group
        times = [0] * rounds
        for index in range(rounds):
            start = time.perf_counter_ns()
            if first:
                await group.send(outgoing, other)
            await group.recv(incoming, other, timeout=TIMEOUT)
            if not first:
                await group.send(outgoing, other)
            times[index] = time.perf_counter_ns() - start
        return times

    def post(self, count: int, mode: str) -> None:
        """Send active messages, all of the memory in each, in one of the ways of AM_BATCHES."""
        if mode == ONE:
            for _ in range(count):
                self.group.am(self._memories[0], self._other, _COUNTER)
            return
        target = _LIST if mode == HANDLED else _COUNTER
        threads = _THREADS if mode == THREADS else 1
        share = [self._memories[0]] * min(count // threads, _AT_ONCE)

        def send() -> None:
            for _ in range(count // threads // len(share)):
                self.group.am_many(share, self._other, target).result()

        others = [threading.Thread(target=send) for _ in range(threads - 1)]
        for each in others:
            each.start()
        send()
        for each in others:
            each.join()

    def count(self, more: int, mode: str) -> int:
        """Wait for so many more active messages; return how many have come in all."""
        if mode == HANDLED:
            return sum(self._listed.pop(TIMEOUT).kind == "am" for _ in range(more))
        self._counted += more
        return self._counter.wait(self._counted, TIMEOUT) - self._counted + more

    def meet(self, rounds: int) -> list[int]:
        """Wait for the other rank in each round; return nanoseconds of each."""
        times = [0] * rounds
        for index in range(rounds):
            start = time.perf_counter_ns()
            self.group.barrier().result()
            times[index] = time.perf_counter_ns() - start
        return times

    def reduce(self, rounds: int, seed: int) -> tuple[list[int], bool]:
        """Add arrays of float32; return nanoseconds of each round, and whether all sums were right."""
        count = self._nbytes // 4
        own, other = (
            np.arange(count, dtype=np.float32) % 1000 + seed + rank for rank in (self.group.rank, self._other)
        )
        into, memory = np.zeros(count, np.float32), own.copy()
        times, right = [0] * rounds, True
        for index in range(rounds):
            into.fill(-1)
            start = time.perf_counter_ns()
            self.group.allreduce(memory, out=into).result()
            times[index] = time.perf_counter_ns() - start
            right = right and bool((into == own + other).all())
        return times, right

    def close(self) -> None:
        """Leave the group."""
        self.group.close()
        for memory in self._memories:
            memory.close()
