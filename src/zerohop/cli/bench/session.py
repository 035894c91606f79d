"""Runs the two processes of a measurement: Contexts, memory of every kind, and fresh payload for every round."""

from __future__ import annotations

import secrets
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import zerohop
from zerohop.cli.bench.tensors import gpu_array, zeros
from zerohop.cli.payload import Octets, digest, random_bytes
from zerohop.cli.peer import accept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zerohop.cli.bench.floors import Floors
    from zerohop.cli.bench.rows import Case
    from zerohop.cli.peer import PeerProcess

STOP: Final = 0xFFFF_FFFF  # the notification that ends the other process's polling
POLLING_SPIN_US: Final = 5_000_000.0
TIMEOUT: Final = 60.0
PEER: Final = "zerohop.cli.bench._peer"  # the module that the other processes run
COMMAND_TIMEOUT: Final = 120.0


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits how much to measure.

    Attributes:
        rounds: rounds of one case; each has a fresh payload, is verified, and is preceded by a round of the floor.
        seconds: time to measure in one round.
        most: largest number of measurements of one round.
        limit: seconds after which a round ends with the measurements that it has, one at least.
        asleep: number of measurements of one round in which everything must fall asleep first.
        idle_seconds: duration of the idle row.
        imports: interpreters started for the import row.
        file_turns: turns of a row about files, which has more and shorter ones, because disks are not steady.
        file_seconds: duration of one turn.
        file_bytes: length of the file that they read.
        folder: the folder that this file is made in if it is on a disk.
    """

    rounds: int
    seconds: float
    most: int
    limit: float
    asleep: int
    idle_seconds: float
    imports: int
    file_turns: int
    file_seconds: float
    file_bytes: int
    folder: str = "/var/tmp"

    def repetitions(self, nanoseconds: float, least: int) -> int:
        """Return how often to measure an operation of about `nanoseconds` in one round; `least` times if possible."""
        wanted = max(3, min(least, self.most), min(self.most, int(self.seconds * 1e9 / max(nanoseconds, 1.0))))
        return self.within_limit(nanoseconds, wanted)

    def within_limit(self, nanoseconds: float, count: int) -> int:
        """Return `count`, or the number of operations of about `nanoseconds` that fit into a round; 1 at least."""
        return max(1, min(count, int(self.limit * 1e9 / max(nanoseconds, 1.0))))


FULL: Final = Effort(
    rounds=5,
    seconds=0.15,
    most=4000,
    limit=20.0,
    asleep=60,
    idle_seconds=10.0,
    imports=9,
    file_turns=25,
    file_seconds=0.5,
    file_bytes=1 << 30,
)
QUICK: Final = Effort(
    rounds=2,
    seconds=0.03,
    most=200,
    limit=1.0,
    asleep=15,
    idle_seconds=2.0,
    imports=3,
    file_turns=3,
    file_seconds=0.1,
    file_bytes=64 << 20,
)


class LocalMemory:
    """Holds memory of this process, with the means to fill and digest it, whatever its kind."""

    def __init__(self, context: zerohop.Context, kind: str, nbytes: int, *, what: Any = None) -> None:
        """Make memory of `kind`, or register `what`, an array or a tensor of that kind.

        A kind is "numpy", "alloc", a device's name, or a GPU's name after "expandable" or "tensor", which is in an
        allocation of cudaMalloc that no Context has made.
        """
        self.array: Octets | None = None
        how, _, device = kind.rpartition(" ")
        if what is not None:
            self.array = what if kind == "numpy" else None
            self.memory = context.register(what)
        elif how == "expandable":
            self.memory = context.register(zeros(nbytes, device, expandable=True))
        elif how == "tensor":
            self.memory = context.register(gpu_array(nbytes, device))
        elif kind == "numpy":
            self.array = np.zeros(nbytes, np.uint8)
            self.array.fill(1)  # touch every page now
            self.memory = context.register(self.array)
        else:
            self.memory = context.alloc(nbytes, device="host" if kind == "alloc" else kind)
            if kind == "alloc":
                self.array = self.memory.numpy()

    def put(self, data: Octets) -> None:
        """Fill the memory from its start."""
        if self.array is not None:
            self.array[: data.size] = data
        else:
            self.memory.write_bytes(0, data.tobytes())

    def flip(self, mask: int) -> None:
        """Replace every byte by its exclusive or with `mask`."""
        if self.array is not None:
            self.array ^= np.uint8(mask)
        else:
            held = np.frombuffer(self.memory.read_bytes(0, self.memory.nbytes), np.uint8)
            self.put(held ^ np.uint8(mask))

    def digest(self, nbytes: int) -> str:
        """Digest the first `nbytes`; device memory is copied back by its driver."""
        if self.array is not None:
            return digest(self.array[:nbytes])
        return digest(self.memory.read_bytes(0, nbytes))

    def holds(self, expected: Octets) -> bool:
        """Tell whether the memory begins with `expected`."""
        return self.digest(expected.size) == digest(expected)

    def close(self) -> None:
        """Close the memory."""
        self.array = None
        self.memory.close()


@dataclass(frozen=True, slots=True)
class Session:
    """Holds a Context in each of the two processes, and the connection between them."""

    peer: PeerProcess
    floors: Floors
    effort: Effort
    context: zerohop.Context
    connection: zerohop.Connection

    def local(self, place: str, nbytes: int, *, alloc: bool = False, mode: str | None = None) -> closing[LocalMemory]:
        """Allocate memory of this process at `place` (see `Case`); host memory is a numpy array unless `alloc`."""
        return closing(LocalMemory(self.context, memory_kind(place, mode, alloc=alloc), nbytes))

    @contextmanager
    def remote(
        self, place: str, form: str | None, nbytes: int, *, mode: str | None = None
    ) -> Iterator[zerohop.RemoteBuffer]:
        """Allocate memory of the second process: on a device, from `Context.alloc` if the form is mapped, else numpy.

        After an error, here and below, no command is sent to that process any more: it may be in the middle of another
        one, and is about to end.
        """
        kind = memory_kind(place, mode, alloc=form == "mapped")
        answer = self.peer.call("allocate", kind=kind, nbytes=nbytes)
        yield accept(answer["handle"])
        self.peer.call("release")

    @contextmanager
    def memories(self, case: Case, nbytes: int) -> Iterator[tuple[LocalMemory, zerohop.RemoteBuffer]]:
        """Allocate the memory of a case here and there: its source is here, or there if the case reads."""
        here, there = (case.dst, case.src) if case.reads else (case.src, case.dst)
        assert here is not None
        assert there is not None
        with (
            self.local(here, nbytes, mode=case.mode) as local,
            self.remote(there, case.form, nbytes, mode=case.mode) as remote,
        ):
            yield local, remote

    def arrived(self, expected: Octets, number: int = -1) -> bool:
        """Tell whether the second process's memory, or its memory of that number, begins with `expected`."""
        self.peer.begin("digest", nbytes=expected.size, number=number)
        wanted = digest(expected)  # computed while the other process digests its bytes
        return bool(self.peer.finish()["digest"] == wanted)

    def readable(self, handle: zerohop.RemoteBuffer, expected: Octets) -> bool:
        """Tell whether the second process reads `expected` through a handle."""
        return bool(self.peer.call("read_digest", handle=bytes(handle).hex())["digest"] == digest(expected))

    def fill_remote(self, seed: int, nbytes: int) -> Octets:
        """Fill the second process's memory; return its new content."""
        self.peer.call("fill", seed=seed, nbytes=nbytes)
        return random_bytes(seed, nbytes)

    @contextmanager
    def polling(self, target: str | None) -> Iterator[None]:
        """Have the second process poll while the block runs, if `target` says so."""
        if target != "polling":
            yield
            return
        self.peer.begin("poll", stop=STOP)
        yield
        self.context.notify(self.connection, STOP).result(TIMEOUT)
        self.peer.finish()


def cut(
    memory: zerohop.Memory, remote: zerohop.RemoteBuffer, nbytes: int, count: int
) -> list[tuple[zerohop.View, zerohop.RemoteBuffer]]:
    """Return the first `count` pieces of `nbytes` of both memories, in pairs."""
    pieces = [slice(i * nbytes, (i + 1) * nbytes) for i in range(count)]
    return [(memory[piece], remote[piece]) for piece in pieces]


def memory_kind(place: str, mode: str | None, *, alloc: bool = False) -> str:
    """Return the kind of LocalMemory that a case has at `place`."""
    if place == "host":
        return "alloc" if alloc else "numpy"
    device = "sim:0" if place == "sim" else place
    return f"expandable {device}" if mode == "expandable" else device


def protected(secret: str | None) -> dict[str, Any]:
    """Return the arguments of a Context with which everything is encrypted; none without a secret."""
    return {} if secret is None else {"secret": secret, "encryption": "all"}


@contextmanager
def open_session(
    peer: PeerProcess,
    floors: Floors,
    effort: Effort,
    provider: str | None,
    *,
    sim_devices: int = 0,
    polling: bool = False,
    tls: bool = False,
    flows: int = 1,
) -> Iterator[Session]:
    """Open Contexts in both processes, and connect them.

    Args:
        peer: the second process.
        floors: measures floors with it.
        effort: how much to measure.
        provider: the only provider to use, or None for all.
        sim_devices: number of simulated devices to open in each process.
        tls: whether both Contexts have encryption="all".
        flows: flows of a lane over TCP.
        polling: whether the second process's Context spins for as long as it waits; this one keeps the default.
    """
    providers = None if provider is None else [provider]
    spin = POLLING_SPIN_US if polling else None
    secret = secrets.token_hex() if tls else None
    there = peer.call("open", providers=providers, sim_devices=sim_devices, spin_us=spin, secret=secret, flows=flows)
    ours = zerohop.Context(providers=providers, sim_devices=sim_devices, tcp_flows=flows, **protected(secret))
    with ours as context:
        connection = context.connect(there["url"]).result(TIMEOUT)
        yield Session(peer, floors, effort, context, connection)
    peer.call("close")
