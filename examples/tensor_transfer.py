#!/usr/bin/env python3
"""Pushes a trainer's weights to a worker: all tensors as one operation, with a notification of the new version.

    python examples/tensor_transfer.py                   # two processes on this machine, host memory
    python examples/tensor_transfer.py --device cuda:0   # the worker's tensors on a GPU; or sim:0, a simulated one

The worker sends its tensors' handles once, and the trainer writes to them as often as it likes. The worker takes no
part in a write. It waits for the notification that comes after the last byte, and answers with a notification of its
own, so that the trainer does not write while the worker reads.

Exits with 1 if a byte is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import sys
from typing import TYPE_CHECKING

import numpy as np

import zerohop as zh

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    Weights = dict[str, NDArray[np.float32]]

SHAPES = {
    "embedding": (1000, 256),
    "attention.q": (256, 256),
    "attention.bias": (256,),
    "norm": (1,),
    "head": (256, 1000),
}
TIMEOUT = 30.0


def make(version: int) -> Weights:
    """Return the weights of a version, in place of training."""
    rng = np.random.default_rng(version)
    return {name: rng.random(shape, np.float32) for name, shape in SHAPES.items()}


def digest(weights: Weights) -> str:
    """Return the digest of every byte, in the order of SHAPES."""
    return hashlib.sha256(b"".join(weights[name].tobytes() for name in SHAPES)).hexdigest()


def work(pipe: Connection, device: str, versions: int) -> None:
    """Run the worker process: receive each version, and send its digest to the trainer."""
    with zh.Transport(device, timeout=TIMEOUT) as transport:
        context = transport.context
        memories = {name: context.alloc(4 * int(np.prod(shape)), device) for name, shape in SHAPES.items()}
        go_on = context.register(np.zeros(1, np.uint8), "r")  # the answer is a write of no bytes, with a notification
        pipe.send((transport.bind(), {name: memory.share("rw") for name, memory in memories.items()}))
        token: zh.RemoteBuffer = pipe.recv()
        for _ in range(versions):
            note = transport.wait_for_write(TIMEOUT).result()
            weights = {}
            for name, memory in memories.items():
                weights[name] = np.empty(SHAPES[name], np.float32)
                context.read(memory.share("r"), into=weights[name]).result()  # to the host, for the digest
            pipe.send((note.value, note.nbytes, digest(weights)))
            transport.write(go_on[:0], token, notify=note.value).result()
        pipe.recv()  # the trainer is done


def train(pipe: Connection, versions: int, corrupt: bool) -> int:
    """Run the trainer, in this process; return the number of versions that arrived wrong."""
    wrong, way = 0, ""
    with zh.Transport(timeout=TIMEOUT) as transport:
        context = transport.context
        url, targets = pipe.recv()
        transport.connect(url).result()
        token = context.register(np.zeros(1, np.uint8)).share("w")
        pipe.send(token[:0])
        for version in range(1, versions + 1):
            weights = make(version)
            memories = dict(zip(weights, context.register(list(weights.values())), strict=True))
            pairs = [(memories[name], targets[name]) for name in SHAPES]
            operation = transport.write_many(pairs, notify=version)
            nbytes, way = operation.result(), str(operation.explain())
            if corrupt:
                weights["norm"][0] += 1
            value, announced, got = pipe.recv()
            right = (value, announced, got) == (version, nbytes, digest(weights))
            wrong += not right
            print(f"version {version}: {len(pairs)} tensors, {nbytes} bytes {'verified' if right else 'WRONG'}")
            transport.wait_for_write(TIMEOUT).result()  # the worker has read them: its tensors may be written again
        print(way)
        pipe.send(None)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host", help="where the worker's tensors are: host, sim:0, cuda:0, ...")
    parser.add_argument("--versions", type=int, default=3, help="how often the weights are pushed")
    parser.add_argument("--corrupt", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if why := zh.Transport.why_unsupported(arguments.device):
        print(f"cannot use {arguments.device}: {why}", file=sys.stderr)
        return 1
    here, there = multiprocessing.get_context("spawn").Pipe()
    worker = multiprocessing.get_context("spawn").Process(
        target=work, args=(there, arguments.device, arguments.versions), daemon=True
    )
    worker.start()
    there.close()
    wrong = train(here, arguments.versions, arguments.corrupt)
    worker.join(TIMEOUT)
    return 1 if wrong or worker.exitcode else 0


if __name__ == "__main__":
    sys.exit(main())
