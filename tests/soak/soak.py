"""Runs four processes that write, read and send to each other for minutes, and checks every byte.

    make soak MINUTES=10

Each process has one Context and shares a slot of memory of each kind with each other process. Rounds of random kinds
and sizes go into these slots and come back; what is written is checked by its owner and by its reader. Every few
seconds one process is killed, and another takes its place. At the end memory, descriptors and threads of those that
lived long are compared with what they had after a minute.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import queue
import random
import sys
import threading
import time
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import zerohop as zh
from support.pattern import expect_equal, pattern, poison

if TYPE_CHECKING:
    from collections.abc import Callable

PROCESSES = 4
SLOT = 1 << 20
PAGE = 4096
KINDS = ("alloc", "numpy", "sim")
PROVIDERS = (("shm", "p2p"), ("shm",), ("tcp",))
ROUND_S = 30.0
# A notification carries the writer's place, the slot's kind and the seed, and comes back with this bit.
CHECKED = 1 << 31
# A process may have so much more at the end than it had after a minute.
MORE_MIB, MORE_DESCRIPTORS, MORE_THREADS = 24, 24, 4


class Hello(NamedTuple):
    """Introduces a process to another: its number, which is new for each process, and its slots for that one."""

    place: int
    number: int
    url: str
    slots: dict[str, bytes]


class Held(NamedTuple):
    """Counts what a process holds."""

    mib: int
    descriptors: int
    threads: int


def held() -> Held:
    """Return what this process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return Held(
        pages * os.sysconf("SC_PAGESIZE") >> 20, len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    )


class Worker:
    """Has the slots of one process, and those of the others that it knows."""

    def __init__(self, place: int, number: int, providers: tuple[str, ...], pipe: Pipe) -> None:
        self.place, self.number, self.pipe = place, number, pipe
        self.random = random.Random(number)
        self.context = zh.Context(providers=providers, sim_devices=1, timeout=ROUND_S, name=f"soak {number}")
        # By the place of the process that writes into them.
        self.slots: dict[int, dict[str, zh.Memory]] = {}
        self.peers: dict[int, tuple[Hello, zh.Connection]] = {}
        self.checked: queue.Queue[int] = queue.Queue()
        self.rounds = self.lost = 0
        self.failure = ""
        threading.Thread(target=self.listen, daemon=True).start()

    def slots_for(self, place: int) -> Hello:
        """Return an introduction with new slots for the process at a place."""
        for memory in self.slots.pop(place, {}).values():
            memory.close()
        made = {
            "alloc": self.context.alloc(SLOT),
            "numpy": self.context.register(poison(SLOT)),
            "sim": self.context.alloc(SLOT, "sim:0"),
        }
        self.slots[place] = made
        slots = {kind: bytes(memory.share("rw")) for kind, memory in made.items()}
        return Hello(self.place, self.number, self.context.url, slots)

    def listen(self) -> None:
        """Look at each slot that somebody has written to, and say so."""
        while True:
            try:
                note = self.context.notification(timeout=3600).result()
                if note.value & CHECKED:
                    self.checked.put(note.value)
                else:
                    self.look(note)
            except zh.Closed:
                return
            except (zh.PeerLost, zh.DeadlineExceeded):
                pass
            except BaseException as error:
                self.failure = f"{type(error).__name__}: {error}"
                return

    def look(self, note: zh.Notification) -> None:
        """Check what a peer has written to its slot, and answer."""
        place, kind, seed = note.value >> 28, KINDS[note.value >> 24 & 15], note.value & 0xFFFFFF
        got = np.frombuffer(self.slots[place][kind].read_bytes(0, note.nbytes), np.uint8)
        try:
            expect_equal(got, pattern(seed, note.nbytes), f"{kind} slot of process {self.number} for place {place}")
        except AssertionError:
            if note.peer.alive:  # else the slot may be that of the process after it
                raise
        note.peer.notify(note.value | CHECKED).result()

    def hear(self) -> bool:
        """Handle what the first process says; return False at the end."""
        while self.pipe.poll(0 if self.peers else 1.0):
            told = self.pipe.recv()
            if told is None:
                return False
            what, body = told
            if what == "introduce":
                self.pipe.send(("hello", body, self.slots_for(body)))
            elif what == "hello":
                self.peers.pop(body.place, None)
                try:
                    self.peers[body.place] = body, self.context.connect(body.url).result()
                except zh.ZerohopError:
                    self.lost += 1
        return True

    def round(self) -> None:
        """Do one thing with one peer, and check it."""
        place = self.random.choice(list(self.peers))
        hello, connection = self.peers[place]
        kind = self.random.choice(KINDS)
        remote = zh.RemoteBuffer.from_bytes(hello.slots[kind])
        seed = self.random.getrandbits(24)
        nbytes = self.random.choice((8, 100, PAGE, 70_000, 300_000, SLOT))
        data = pattern(seed, nbytes)
        act: Callable[..., None] = self.random.choice((self.whole, self.whole, self.pages, self.many, self.nowait))
        act(data, remote)
        into = poison(nbytes)
        self.context.read(remote[:nbytes], into).result()
        expect_equal(into, data, f"read of {kind} of {hello.number}")
        value = self.place << 28 | KINDS.index(kind) << 24 | seed
        self.context.write(data, remote[:nbytes], notify=value).result()
        self.wait_checked(value | CHECKED, connection)

    def wait_checked(self, value: int, connection: zh.Connection) -> None:
        """Wait until the owner of a slot has looked at it."""
        limit = time.monotonic() + ROUND_S
        while time.monotonic() < limit:
            try:
                if self.checked.get(timeout=0.2) == value:
                    return
                # Else it is of a round that was broken off.
            except queue.Empty:
                if not connection.alive:
                    raise zh.PeerLost("the peer was killed before it had looked") from None
        raise AssertionError("a notification was lost")

    def whole(self, data: np.ndarray[Any, Any], remote: zh.RemoteBuffer) -> None:
        """Write in one piece, from memory of a random kind."""
        with self.context.alloc(data.nbytes, self.random.choice(("host", "sim:0"))) as memory:
            memory.write_bytes(0, data.tobytes())
            self.context.write(memory, remote[: data.nbytes]).result()

    def pages(self, data: np.ndarray[Any, Any], remote: zh.RemoteBuffer) -> None:
        """Write in pages, in a random order."""
        if data.nbytes < PAGE or data.nbytes % PAGE:
            self.whole(data, remote)
            return
        order = list(range(data.nbytes // PAGE))
        self.random.shuffle(order)
        self.context.write_pages(data, remote, order, order, page_bytes=PAGE).result()

    def many(self, data: np.ndarray[Any, Any], remote: zh.RemoteBuffer) -> None:
        """Write in pieces of random lengths, as one operation."""
        cuts = sorted({0, data.nbytes, *(self.random.randrange(data.nbytes) for _ in range(7))})
        pairs = [(data[a:b], remote[a:b]) for a, b in itertools.pairwise(cuts)]
        self.context.write_many(pairs).result()

    def nowait(self, data: np.ndarray[Any, Any], remote: zh.RemoteBuffer) -> None:
        """Write in halves at once, and wait for both."""
        half = data.nbytes // 2
        zh.wait_all([self.context.write(data[a:b], remote[a:b]) for a, b in ((0, half), (half, data.nbytes))])

    def run(self) -> None:
        """Do rounds until told to end."""
        began, first, said = time.monotonic(), None, 0.0
        while self.hear():
            if self.failure:
                raise AssertionError(self.failure)
            if self.peers:
                try:
                    self.round()
                    self.rounds += 1
                except (zh.PeerLost, zh.AccessDenied):
                    self.lost += 1
                    gone = [place for place, (_, connection) in self.peers.items() if not connection.alive]
                    for place in gone:
                        del self.peers[place]
            now = time.monotonic()
            if first is None and now - began > 60:
                first = held()
            if now - said > 5:
                said = now
                self.pipe.send(("rounds", self.rounds, self.lost))
        self.pipe.send(("end", self.rounds, self.lost, first, held()))
        self.context.close()


def work(place: int, number: int, providers: tuple[str, ...], pipe: Pipe) -> None:
    """Be one of the processes."""
    try:
        Worker(place, number, providers, pipe).run()
    except BaseException as error:
        pipe.send(("failed", f"process {number}: {type(error).__name__}: {error}"))
        raise


class Soak:
    """Starts the processes, introduces them to each other, and kills some."""

    def __init__(self, providers: tuple[str, ...]) -> None:
        self.providers = providers
        self.spawn = multiprocessing.get_context("spawn")
        self.living: dict[int, tuple[Any, Pipe]] = {}
        self.started = self.killed = 0
        self.rounds: dict[int, tuple[int, int]] = {}
        self.failures: list[str] = []

    def start(self, place: int) -> None:
        """Start the process of a place, and have it and all others introduce themselves."""
        mine, its = self.spawn.Pipe()
        process = self.spawn.Process(target=work, args=(place, self.started, self.providers, its), daemon=True)
        self.started += 1
        process.start()
        its.close()
        self.living[place] = process, mine
        for other, (_, pipe) in self.living.items():
            if other != place:
                mine.send(("introduce", other))
                pipe.send(("introduce", place))

    def kill(self, place: int) -> None:
        """Kill the process of a place and start another."""
        process, pipe = self.living.pop(place)
        process.kill()
        process.join()
        pipe.close()
        self.killed += 1
        self.start(place)

    def listen(self, seconds: float) -> None:
        """Pass on what the processes say to each other for some seconds."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.failures:
            for pipe in wait([pipe for _, pipe in self.living.values()], left):
                assert isinstance(pipe, Pipe)
                try:
                    self.handle(pipe.recv())
                except (EOFError, OSError):
                    self.failures.append("a process ended by itself")

    def handle(self, told: tuple[Any, ...]) -> None:
        """Handle one message of a process."""
        if told[0] == "hello":
            _, to, hello = told
            if to in self.living and hello.number >= 0:
                self.living[to][1].send(("hello", hello))
        elif told[0] == "failed":
            self.failures.append(told[1])

    def end(self) -> list[tuple[int, int, Held | None, Held]]:
        """End all processes, and return what each said at its end."""
        said = []
        for process, pipe in self.living.values():
            pipe.send(None)
            while True:
                if not pipe.poll(2 * ROUND_S):
                    self.failures.append("a process does not end")
                    break
                told = pipe.recv()
                if told[0] == "end":
                    said.append(told[1:])
                    break
                if told[0] == "failed":
                    self.failures.append(told[1])
                    break
            process.join(ROUND_S)
            if process.exitcode != 0:
                self.failures.append(f"a process ended with {process.exitcode}")
        return said


def soak(providers: tuple[str, ...], seconds: float, kill_every: float) -> bool:
    """Run for some seconds; return whether all was right and flat."""
    run = Soak(providers)
    for place in range(PROCESSES):
        run.start(place)
    until = time.monotonic() + seconds
    while time.monotonic() < until and not run.failures:
        run.listen(min(kill_every, max(0.0, until - time.monotonic())))
        if time.monotonic() < until and not run.failures and kill_every < seconds:
            run.kill(PROCESSES - 1)  # the others stay, so that what they hold can be compared
    said = run.end()
    rounds, lost = sum(each[0] for each in said), sum(each[1] for each in said)
    for _, _, first, last in said:
        if first is not None and any(
            now - then > more
            for now, then, more in zip(last, first, (MORE_MIB, MORE_DESCRIPTORS, MORE_THREADS), strict=True)
        ):
            run.failures.append(f"it grows: {first} after a minute, {last} at the end")
    growth = ", ".join(f"{first} → {last}" for _, _, first, last in said if first is not None)
    print(f"{'+'.join(providers)}: {rounds} rounds, {lost} broken off by {run.killed} kills; {growth}", flush=True)
    for failure in run.failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return not run.failures


def main() -> int:
    """Run each set of providers for its part of the time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds; more than the minutes: never")
    options = parser.parse_args()
    each = 60 * options.minutes / len(PROVIDERS)
    results = [soak(providers, each, options.kill_every) for providers in PROVIDERS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
