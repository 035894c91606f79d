#!/usr/bin/env python3
"""Runs every RDMA operation on one host, over two connected queue pairs of one port, and checks every result.

    python examples/local_rdma_ops.py [--nic mlx5_0:1] [--bytes 65536]

Needs an RDMA device, as gpu_data_interchange.py does. Exits with 1 if there is none, or if a byte is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

import numpy as np

import zerohop as zh
from zerohop import fabric
from zerohop.fabric import Access, CompareSwap, EndpointConfig, FetchAdd, Write

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zerohop.fabric import Completion, DeviceContext, Endpoint, MemoryRegion

TIMEOUT = 20.0
MESSAGE = b"twelve bytes"


class Pair:
    """Holds two connected endpoints, each with a buffer: a posts the operations, b is their target."""

    def __init__(self, device: DeviceContext, nbytes: int) -> None:
        config = EndpointConfig(max_sge=2)
        self.a: Endpoint = device.create_endpoint(config)
        self.b: Endpoint = device.create_endpoint(config)
        self.a.connect(self.b.handle)
        self.b.connect(self.a.handle)
        self.mine: NDArray[np.uint8] = np.zeros(nbytes, np.uint8)
        self.theirs: NDArray[np.uint8] = np.zeros(nbytes, np.uint8)
        everything = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
        if device.device.limits.atomics != "none":
            everything |= Access.REMOTE_ATOMIC
        self.region_a: MemoryRegion = device.register(self.mine, everything)
        self.region_b: MemoryRegion = device.register(self.theirs, everything)

    def refill(self) -> None:
        """Put new random bytes into a's buffer, and their complement into b's."""
        self.mine[:] = np.frombuffer(os.urandom(self.mine.nbytes), np.uint8)
        self.theirs[:] = ~self.mine

    def done(self, opcode: str) -> Completion:
        """Wait for a's one completion, and return it."""
        (completion,) = self.a.wait(timeout=TIMEOUT)
        expect(completion.opcode == opcode, f"a completion of {opcode}, not {completion}")
        return completion

    def arrived(self, opcode: str) -> Completion:
        """Wait for b's one completion, and return it."""
        (completion,) = self.b.wait(timeout=TIMEOUT)
        expect(completion.opcode == opcode, f"an arrival by {opcode}, not {completion}")
        return completion


def send_and_receive(pair: Pair) -> None:
    pair.b.post_recv(pair.region_b)
    pair.a.post_send(pair.region_a)
    pair.done("SEND")
    got = pair.arrived("RECV")
    expect(got.byte_len == pair.mine.nbytes, "the length of the message")
    expect(np.array_equal(pair.mine, pair.theirs), "every byte")


def write(pair: Pair) -> None:
    pair.a.post_write(pair.region_a, pair.region_b.remote())
    pair.done("RDMA_WRITE")
    # A completion says that the other device has the bytes; on one host, with one device, they are visible then.
    expect(np.array_equal(pair.mine, pair.theirs), "every byte")


def inline_write(pair: Pair) -> None:
    """Write bytes that go with the request: they need no registration, and may change as soon as it is posted."""
    nbytes = min(len(MESSAGE), pair.a.max_inline)
    pair.a.post_write(MESSAGE[:nbytes], pair.region_b.remote()[:nbytes], inline=True)
    pair.done("RDMA_WRITE")
    expect(pair.theirs[:nbytes].tobytes() == MESSAGE[:nbytes], "the bytes that were written")
    expect(np.array_equal(pair.theirs[nbytes:], ~pair.mine[nbytes:]), "nothing else was touched")


def write_with_immediate(pair: Pair) -> None:
    pair.b.post_recv(wr_id=7)
    pair.a.post_write(pair.region_a, pair.region_b.remote(), imm=0xC0FFEE)
    pair.done("RDMA_WRITE")
    got = pair.arrived("RECV_RDMA_WITH_IMM")
    expect((got.imm, got.wr_id) == (0xC0FFEE, 7), "the immediate, and the receive that it took")
    expect(np.array_equal(pair.mine, pair.theirs), "every byte")


def read(pair: Pair) -> None:
    wanted = pair.theirs.copy()
    pair.a.post_read(pair.region_a, pair.region_b.remote())
    pair.done("RDMA_READ")
    expect(np.array_equal(pair.mine, wanted), "every byte")


def gathering_write(pair: Pair) -> None:
    """Write two local ranges to one remote range."""
    half = pair.mine.nbytes // 2
    expected = np.concatenate([pair.mine[half:], pair.mine[:half]])
    pair.a.post_write([pair.region_a[half:], pair.region_a[:half]], pair.region_b.remote())
    pair.done("RDMA_WRITE")
    expect(np.array_equal(pair.theirs, expected), "every byte")


def chained_writes(pair: Pair) -> None:
    """Post sixteen requests with one doorbell and one completion: if the last succeeded, the others did, too."""
    size = pair.mine.nbytes // 16
    remote = pair.region_b.remote()
    chain = [
        Write(pair.region_a[at : at + size], remote[at : at + size], wr_id=at, signalled=at == 15 * size)
        for at in range(0, 16 * size, size)
    ]
    pair.a.post(*chain)
    expect(pair.done("RDMA_WRITE").wr_id == 15 * size, "the completion of the last request")
    expect(np.array_equal(pair.theirs[: 16 * size], pair.mine[: 16 * size]), "every byte")


def atomics(pair: Pair) -> None:
    word, before = pair.theirs[:8].view(np.uint64), pair.mine[:8].view(np.uint64)
    into, remote = pair.region_a[:8], pair.region_b.remote()[:8]
    word[0] = 1
    pair.a.post(CompareSwap(into, remote, compare=1, swap=2))
    pair.done("COMP_SWAP")
    expect((before[0], word[0]) == (1, 2), "compare-and-swap of 1, for 2")
    pair.a.post(CompareSwap(into, remote, compare=1, swap=3))
    pair.done("COMP_SWAP")
    expect((before[0], word[0]) == (2, 2), "compare-and-swap of a value that is not there")
    pair.a.post(FetchAdd(into, remote, add=2))
    pair.done("FETCH_ADD")
    expect((before[0], word[0]) == (2, 4), "fetch-and-add of 2")


OPERATIONS = {
    "send and receive": send_and_receive,
    "write": write,
    "inline write": inline_write,
    "write with immediate": write_with_immediate,
    "read": read,
    "gathering write": gathering_write,
    "chain of 16 writes": chained_writes,
    "atomics": atomics,
}


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"Error: wrong: {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Every RDMA operation on one host, verified.")
    parser.add_argument("--nic", help="such as mlx5_0:1; default: the best port that works")
    parser.add_argument("--bytes", type=int, default=65536, help="of each transfer, at least 16 (default: 65536)")
    arguments = parser.parse_args()
    with fabric.Context() as rdma:
        port = rdma.choose_port(arguments.nic)
        print(f"{port.name}, {port.port.link_layer}, {arguments.bytes} bytes, host memory")
        with rdma.open(port) as device:
            pair = Pair(device, arguments.bytes)
            for name, operation in OPERATIONS.items():
                if operation is atomics and port.device.limits.atomics == "none":
                    print(f"  {name:22} not done: the device has none")
                    continue
                pair.refill()
                operation(pair)
                print(f"  {name:22} verified")
    print("All operations verified")


if __name__ == "__main__":
    try:
        main()
    except zh.ZerohopError as error:
        sys.exit(f"Error: {error}")
