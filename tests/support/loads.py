"""Work that the other side does on its own for a while: streams, swarms, loops that end when they are refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import zerohop as zh
from support.buffers import Buffer, Kind
from support.outcomes import Outcome, outcome_of
from support.patience import PATIENCE_S
from support.pattern import pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.options import Options

    Post = Callable[[], zh.Operation[int]]

# A loop that is to end by a refusal gives up after this; its own operations have shorter deadlines.
REFUSAL_S = 1.5 * PATIENCE_S
# Operations that a looping peer has done before it says that it is under way.
UNDER_WAY = 10


class Refusal(NamedTuple):
    done: int
    outcome: Outcome


class Stream(NamedTuple):
    """A stream of notified writes into a ring of slots in the receiver's memory. Write `i` goes to slot
    `i % slots`, has length `sizes[i % len(sizes)]`, notifies `i`, and its first and last 8 bytes are `i`. The
    receiver notifies back the number of leading writes that it has checked, once for each `step` of them."""

    total: int
    sizes: tuple[int, ...]
    slots: int = 64

    @property
    def slot_bytes(self) -> int:
        return max(self.sizes)

    @property
    def window(self) -> int:
        return self.slots // 2

    @property
    def step(self) -> int:
        return self.window // 2

    def place(self, index: int) -> tuple[int, int]:
        """Start and stop of write `index` in the receiver's memory."""
        start = index % self.slots * self.slot_bytes
        return start, start + self.sizes[index % len(self.sizes)]


class Loads:
    """Mixed into Service."""

    context: zh.Context

    def buffer(self, number: int) -> Buffer:
        raise NotImplementedError

    def write_until_refused(self, handle: bytes, number: int, under_way: int) -> Refusal:
        """Write the whole buffer over and over, notify `under_way` once that goes on, end with the first error."""
        remote = zh.RemoteBuffer.from_bytes(handle)
        view = self.buffer(number).memory[: remote.nbytes]
        return self._until_refused(remote, lambda: self.context.write(view, remote), under_way)

    def read_until_refused(self, handle: bytes, number: int, under_way: int) -> Refusal:
        """The same, reading."""
        remote = zh.RemoteBuffer.from_bytes(handle)
        view = self.buffer(number).memory[: remote.nbytes]
        return self._until_refused(remote, lambda: self.context.read(remote, view), under_way)

    def _until_refused(self, remote: zh.RemoteBuffer, post: Post, under_way: int) -> Refusal:
        deadline = time.monotonic() + REFUSAL_S
        done = 0
        while time.monotonic() < deadline:
            try:
                post().result(REFUSAL_S)
            except zh.ZerohopError as error:
                return Refusal(done, outcome_of(error))
            done += 1
            if done == UNDER_WAY:
                self.context.notify(remote, under_way).result(REFUSAL_S)
        raise AssertionError(f"{done} operations, and none was refused")

    def stream(self, handle: bytes, kind: Kind, plan: Stream) -> int:
        """Send the stream; returns the number of writes, all of them done and checked by the receiver."""
        remote = zh.RemoteBuffer.from_bytes(handle)
        source = Buffer(self.context, kind, plan.slots * plan.slot_bytes)
        checked = answers = 0
        flying: dict[int, zh.Operation[int]] = {}
        try:
            for index in range(plan.total):
                while index - checked >= plan.window:
                    # Answers may overtake one another; each comes once.
                    checked = max(checked, self.context.notification(REFUSAL_S).result().value)
                    answers += 1
                start, stop = plan.place(index)
                before = flying.pop(index - plan.slots, None)
                if before is not None:
                    before.result(REFUSAL_S)
                stamp = np.frombuffer(index.to_bytes(8, "little"), np.uint8)
                source.put(start, stamp)
                source.put(stop - 8, stamp)
                flying[index] = self.context.write(source.memory[start:stop], remote[start:stop], notify=index)
            for _ in range(answers, -(-plan.total // plan.step)):
                checked = max(checked, self.context.notification(REFUSAL_S).result().value)
            assert checked == plan.total
            zh.wait_all(flying.values(), REFUSAL_S)
        finally:
            source.close()
        return plan.total

    def take_notifications(self, total: int) -> list[int]:
        """The values of the next `total` notifications."""
        return [self.context.notification(REFUSAL_S).result().value for _ in range(total)]

    def take_notifications_until(self, last: int) -> list[int]:
        """The values of the notifications before the one with the value `last`."""
        values = []
        while (value := self.context.notification(REFUSAL_S).result().value) != last:
            values.append(value)
        return values

    def add_many(self, handle: bytes, value: int, count: int) -> list[int]:
        """`count` times fetch_add of `value` on the first word; the old values in order."""
        remote = zh.RemoteBuffer.from_bytes(handle)
        return [self.context.fetch_add(remote, value).result(REFUSAL_S) for _ in range(count)]

    def swap_until_won(self, handle: bytes, count: int) -> int:
        """Increment the first word `count` times by compare_swap; returns how many attempts that took."""
        remote = zh.RemoteBuffer.from_bytes(handle)
        attempts = 0
        seen = 0
        for _ in range(count):
            while True:
                attempts += 1
                old = self.context.compare_swap(remote, seen, seen + 1).result(REFUSAL_S)
                if old == seen:
                    seen += 1
                    break
                seen = old
        return attempts

    def swarm(self, handle: bytes, options: Options, first: int, contexts: int, slot_bytes: int) -> list[str]:
        """Open that many Contexts at once; number `first + k` writes the stream of that seed into its own slot of
        the handle, notifies the number and reads the slot back. Returns their ids."""
        remote = zh.RemoteBuffer.from_bytes(handle)
        opened: list[zh.Context] = []
        try:
            opened.extend(options.open() for _ in range(contexts))
            slots = [remote[k * slot_bytes : (k + 1) * slot_bytes] for k in range(first, first + contexts)]
            sources = [pattern(k, slot_bytes) for k in range(first, first + contexts)]
            writes = [
                context.write(source, slot, notify=number)
                for number, (context, source, slot) in enumerate(zip(opened, sources, slots, strict=True), first)
            ]
            assert zh.wait_all(writes, REFUSAL_S) == [slot_bytes] * contexts
            back = [np.zeros(slot_bytes, np.uint8) for _ in range(contexts)]
            reads = [context.read(slot, into) for context, slot, into in zip(opened, slots, back, strict=True)]
            assert zh.wait_all(reads, REFUSAL_S) == [slot_bytes] * contexts
            for source, into in zip(sources, back, strict=True):
                assert np.array_equal(source, into)
            return [context.id for context in opened]
        finally:
            for context in opened:
                context.close()
