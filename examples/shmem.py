#!/usr/bin/env python3
"""Shows SHMEM-style programming with kernels: each rank puts blocks into the memory of others, and waits for signals.

Every rank is a process with a heap of its own, which the others reach by a handle. One kernel for each rank passes a
block around the ring, and then sends a block of its own to every rank ("all to all"). A signal follows each block, and
the kernel waits for the signals of the blocks that come; then it checks every byte where it has arrived.

    python examples/shmem.py [--ranks 4] [--device host|cuda] [--mode auto|peer|proxy]

Needs Triton. On the host Triton's interpreter runs the kernels, so no GPU is needed. It exits with 1 if a byte is
wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

BLOCK = 4096  # bytes
# A heap: two signals for each rank, then the block of the ring, then a block from each rank.
PLACES = 64
RING_AT = 16 * PLACES


def rank_main(rank: int, arguments: argparse.Namespace, pipe: Connection) -> None:
    """Run one rank."""
    if arguments.device == "host":
        os.environ["TRITON_INTERPRET"] = "1"
    import zerohop as zh

    try:
        with zh.Context() as ctx:
            run_rank(ctx, rank, arguments, pipe)
    except (zh.ZerohopError, ImportError) as error:
        pipe.send(f"rank {rank}: {error}")
    except EOFError:
        pass  # another rank has failed, and was heard


def run_rank(ctx: Any, rank: int, arguments: argparse.Namespace, pipe: Connection) -> None:
    """Exchange handles, run the kernel, and send what is wrong, or None."""
    from shmem_kernels import exchange

    from zerohop.device import Queue

    ranks, device = arguments.ranks, "host"
    wait: Any = lambda: None  # noqa: E731 - a GPU's is another library's function
    if arguments.device == "cuda":
        import torch

        device, wait = f"cuda:{rank % torch.cuda.device_count()}", torch.cuda.synchronize
        torch.cuda.set_device(device)
    heap = ctx.alloc(RING_AT + BLOCK * (ranks + 1), device)
    source = ctx.alloc(BLOCK * ranks, device)
    report = ctx.alloc(16, device)
    heap.fill(0)
    source.write_bytes(0, b"".join(bytes([pattern(rank, to)]) * BLOCK for to in range(ranks)))
    pipe.send(heap.share("rw"))
    handles = pipe.recv()
    with Queue(ctx, handles, [source, heap], mode=arguments.mode, device=device, timeout=60) as queue:
        if rank == 0:
            print(queue.explain())
        with queue.active():
            exchange[(1,)](queue.pointer, report.address, heap.address, rank, ranks)
            wait()
        queue.check()
        status, wrong = (int.from_bytes(report.read_bytes(at, 8), "little") for at in (0, 8))
    pipe.send(f"rank {rank}: status {status}, {wrong} bytes are wrong" if status or wrong else None)
    pipe.recv()  # the others may still reach this heap


def pattern(sender: int, receiver: int) -> int:
    """Return the value of the bytes that one rank sends to another."""
    return (sender * 16 + receiver * 3 + 1) % 251


def answer(rank: int, pipe: Connection) -> Any:
    """Return what a rank sends, or that it has ended."""
    try:
        return pipe.recv()
    except EOFError:
        return f"rank {rank} has ended"


def main() -> int:
    parser = argparse.ArgumentParser(description="Ranks exchange blocks by kernels.")
    parser.add_argument("--ranks", type=int, default=4, help=f"2 to {PLACES}")
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--mode", choices=("auto", "peer", "proxy"), default="auto")
    arguments = parser.parse_args()
    if not 2 <= arguments.ranks <= PLACES:
        parser.error(f"--ranks is 2 to {PLACES}")
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(arguments.ranks):
        ours, theirs = spawn.Pipe()
        processes.append(spawn.Process(target=rank_main, args=(rank, arguments, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    found = [answer(rank, pipe) for rank, pipe in enumerate(pipes)]
    errors = [each for each in found if isinstance(each, str)]
    if not errors:
        for pipe in pipes:
            pipe.send(found)
        errors = [each for each in map(answer, range(len(pipes)), pipes) if each is not None]
        for pipe in pipes:
            pipe.send(None)
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(10)
    for error in errors:
        print(f"Error: {error}", file=sys.stderr)
    if errors:
        return 1
    print(f"{arguments.ranks} ranks: the ring and all to all, every byte verified by the receivers' kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
