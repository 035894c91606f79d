"""Sends, receives, puts and gets memory of GPUs by LCI's names, between two ranks or more.

    zerohop run -n 2 examples/lci_gpu_direct.py --device cuda

Each rank works with the next one, on the GPU of its own number where there are several. ``--device`` is cuda, sim (a
device in software) or host. Every byte is checked; a wrong one ends the program with an error.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import zerohop as zh
from zerohop.compat import lci

SIZE = 1 << 20
OFFSET, PART = 4096, 65_536
TAG, RAW_TAG = 7, 8


def pattern(rank: int, seed: int, nbytes: int) -> bytes:
    """Return bytes that tell a rank and a seed."""
    return np.random.default_rng([rank, seed]).integers(0, 256, nbytes, np.uint8).tobytes()


def check(what: str, found: bytes, expected: bytes) -> None:
    """Say that bytes are right, or end the program."""
    if found != expected:
        raise SystemExit(f"rank {lci.get_rank_me()}: {what}: wrong bytes")
    sys.stdout.write(f"rank {lci.get_rank_me()}: {what}: {len(found)} bytes are right\n")  # in one piece


def wait_for(status: lci.Status, sync: zh.group.Synchronizer) -> lci.Status:
    """Return the status of an operation once it has ended."""
    return status if status.is_done() else lci.sync_wait(sync)[0]


def main() -> None:
    """Run the examples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "hip", "sim", "host"], default="host")
    kind = parser.parse_args().device
    with zh.Group.from_env(sim_devices=1) as group:
        run(group, kind)


def run(group: zh.Group, kind: str) -> None:
    """Send, receive, put and get, each in two ways, and an active message."""
    lci.g_runtime_init(group)
    rank, size = lci.get_rank_me(), lci.get_rank_n()
    following, before = (rank + 1) % size, (rank - 1) % size
    places = [device.name for device in group.context.devices if device.kind == kind] or ["host"]
    if kind != "host" and places == ["host"]:
        raise SystemExit(f"this process has no device of the kind {kind}; zerohop doctor shows why")
    place = places[rank % len(places)]
    outgoing, incoming = (group.context.alloc(SIZE, place) for _ in range(2))
    outgoing.write_bytes(0, pattern(rank, 0, SIZE))
    incoming.fill(0xA5)

    # Both ends registered, and a part of a region.
    mr, into = lci.register_memory(outgoing), lci.register_memory(incoming)
    sent, received = lci.alloc_sync(), lci.alloc_sync()
    receiving = lci.post_recv(before, incoming.address + OFFSET, PART, TAG, received, mr=into)
    sending = lci.post_send(following, outgoing.address + OFFSET, PART, TAG, sent, mr=mr)
    wait_for(sending, sent)
    status = wait_for(receiving, received)
    assert (status.rank, status.tag, status.size) == (before, TAG, PART)
    check(f"send from {place} by a region", incoming.read_bytes(OFFSET, PART), pattern(before, 0, SIZE)[OFFSET:][:PART])

    # Addresses alone: what kind of memory they are is said, or found out.
    hint = lci.MR_HOST if place == "host" else lci.MR_DEVICE
    receiving = lci.post_recv(lci.ANY_SOURCE, incoming.address, SIZE, RAW_TAG, received, mr=lci.MR_UNKNOWN)
    sending = lci.post_send(following, outgoing.address, SIZE, RAW_TAG, sent, mr=hint)
    wait_for(sending, sent)
    wait_for(receiving, received)
    check(f"send from {place} by its address", incoming.read_bytes(0, SIZE), pattern(before, 0, SIZE))

    # Put to the next rank, which is told, and get from it.
    arrived = lci.alloc_cq()
    rcomp = lci.register_rcomp(arrived)
    rmrs = lci.allgather(lci.get_rmr(into))
    incoming.fill(0xA5)
    lci.barrier()
    done = lci.alloc_sync()
    wait_for(
        lci.post_put(following, outgoing.address, PART, done, OFFSET, rmrs[following], mr=mr, tag=3, remote_comp=rcomp),
        done,
    )
    told = arrived.pop(timeout=60)
    assert (told.kind, told.rank, told.tag, told.nbytes) == ("put", before, 3, PART), told
    check(f"put to {place}", incoming.read_bytes(OFFSET, PART), pattern(before, 0, SIZE)[:PART])
    lci.barrier()
    landed = group.context.alloc(SIZE, place)
    wait_for(lci.post_get(following, landed, PART, done, OFFSET, rmrs[following]), done)
    check(f"get from {place}", landed.read_bytes(0, PART), pattern(rank, 0, SIZE)[:PART])

    # An active message whose bytes land in memory of the device.
    to_device = lci.register_rcomp(arrived, allocate=lambda arrival: landed[: arrival.nbytes])
    wait_for(lci.post_am(following, outgoing.address, SIZE, done, to_device, tag=9, mr=mr), done)
    told = arrived.pop(timeout=60)
    assert (told.kind, told.rank, told.tag, told.nbytes) == ("am", before, 9, SIZE), told
    check(f"active message into {place}", landed.read_bytes(0, SIZE), pattern(before, 0, SIZE))

    lci.barrier()
    lci.deregister_memory(mr)
    lci.deregister_memory(into)


if __name__ == "__main__":
    main()
