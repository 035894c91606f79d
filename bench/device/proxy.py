"""Measures how many entries a second the proxy of a Queue takes out of a full FIFO, and carries out.

    python bench/device/proxy.py [--rounds N] [--provider shm|tcp]

No kernel runs: the FIFO is filled beforehand, and the time is that from the moment at which the Queue becomes active
until the last entry has ended. The peer is another process. Of puts, every byte is compared.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from typing import TYPE_CHECKING, Final

import numpy as np

import zerohop as zh
from zerohop._native import Proxy
from zerohop.device import Queue

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

NBYTES: Final = 1 << 20
SLOTS: Final = 1 << 20
LAP: Final = 1 << 63
# Name, operation, and how many entries: an atomic changes a word that the next one wants.
KINDS: Final = (("fence, which only the proxy sees", 8, SLOTS), ("put of 8 bytes", 1, SLOTS), ("add", 4, SLOTS // 8))


def own(pipe: Connection, provider: str) -> None:
    """Share memory, and tell what it holds, until the other process has had enough."""
    with zh.Context(providers=[provider]) as context:
        memory = context.alloc(NBYTES)
        pipe.send(bytes(memory.share("rw")))
        while pipe.recv():
            pipe.send(memory.read_bytes())


def fill(queue: Queue, operation: int, count: int) -> tuple[np.ndarray, int]:
    """Write entries for peer 0 and local 0; return the control memory, and which word of it counts those that ended."""
    words = queue._words.memory.numpy().view("u8")  # noqa: SLF001 - kernels write these words, and this does in their place
    _, _, peers, _, _, fifo, _ = Proxy.control_layout(1, SLOTS)
    offsets = np.arange(count, dtype=np.uint64) % np.uint64(NBYTES // 8) * np.uint64(8)
    entries = words[fifo // 8 :][: 2 * count].reshape(count, 2)
    entries[:, 1] = LAP | (offsets << np.uint64(22) | np.uint64(8 >> 2) if operation == 1 else np.uint64(0))
    entries[:, 0] = np.uint64(LAP | operation << 59) | offsets << np.uint64(10)
    return words, peers // 8


def measure(context: zh.Context, handle: zh.RemoteBuffer, data: np.ndarray, operation: int, count: int) -> float:
    """Return millions of entries a second."""
    with Queue(context, [handle], [data], mode="proxy", slots=SLOTS) as queue:
        words, ended = fill(queue, operation, count)
        begin = time.perf_counter()
        with queue.active():
            while words[ended] < count:
                time.sleep(0.0002)  # it is the proxy that works: a loop would take a processor from it
        took = time.perf_counter() - begin
        queue.check()
    return count / took / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--provider", default="shm", choices=["shm", "tcp"])
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    peer = multiprocessing.get_context("spawn").Process(target=own, args=(theirs, given.provider), daemon=True)
    peer.start()
    with zh.Context(providers=[given.provider]) as context:
        handle = zh.RemoteBuffer.from_bytes(ours.recv())
        for name, operation, count in KINDS:
            rates = []
            for _ in range(given.rounds):
                data = np.random.default_rng().integers(0, 256, NBYTES, np.uint8)
                rates.append(measure(context, handle, data, operation, count))
                ours.send(True)
                if ours.recv() != data.tobytes() and operation == 1:
                    raise SystemExit("wrong bytes")
            print(f"{name}: {statistics.median(rates):.2f} million a second, best {max(rates):.2f}")
        ours.send(False)
    peer.join(10)


if __name__ == "__main__":
    main()
