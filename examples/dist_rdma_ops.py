#!/usr/bin/env python3
"""Runs writes and reads of many sizes between two processes over several queue pairs; verifies and measures them.

    python examples/dist_rdma_ops.py                          # starts the second process by itself
    python examples/dist_rdma_ops.py --listen 0.0.0.0:7000    # on one host, and on the other:
    python examples/dist_rdma_ops.py --connect HOST:7000

The connecting process posts all requests; the other one serves. Over TCP they exchange only what it takes to connect.
Everybody who reaches the port may connect, so use it among hosts that trust each other. The serving process checks its
bytes itself: it gets the seed of the expected bytes with an RDMA send, and answers with one.

Needs an RDMA device, as gpu_data_interchange.py does. Exits with 1 if there is none, or if a byte is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

import zerohop as zh
from zerohop import fabric
from zerohop.fabric import Access, EndpointConfig, EndpointHandle, Read, RemoteMemory, Write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from zerohop.fabric import Endpoint, MemoryRegion, SendRequest

SIZES = (8, 4096, 65536, 1 << 20)
WINDOW = 16  # outstanding on each queue pair while rates are measured
LEAST_BYTES = 1 << 22  # moved for a rate, at least
TIMEOUT = 60.0
# Content of the sends: the number of bytes to check, and the seed that they were made from. No bytes: the end.
QUESTION = struct.Struct("!QQ")
ANSWER = struct.Struct("!Q")  # number of wrong bytes


class Side:
    """Holds this process's end: its endpoints, a buffer that the peer may read and write, and one for messages."""

    def __init__(self, nic: str | None, queue_pairs: int) -> None:
        self.rdma = fabric.Context()
        port = self.rdma.choose_port(nic)
        self.name = port.name
        device = self.rdma.open(port)
        config = EndpointConfig(max_messages=WINDOW, max_receives=4)
        self.endpoints: list[Endpoint] = [device.create_endpoint(config) for _ in range(queue_pairs)]
        self.data: NDArray[np.uint8] = np.zeros(max(SIZES), np.uint8)
        self.region: MemoryRegion = device.register(
            self.data, Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.RELAXED_ORDERING
        )
        self.message: NDArray[np.uint8] = np.zeros(QUESTION.size, np.uint8)
        self.inbox: MemoryRegion = device.register(self.message)
        # Posted before anybody connects, so that the first message finds a receive.
        self.endpoints[0].post_recv(self.inbox)

    def meet(self, peer: socket.socket) -> RemoteMemory:
        """Exchange handles, connect every pair, and return the peer's buffer."""
        put(peer, *(bytes(endpoint.handle) for endpoint in self.endpoints), bytes(self.region.remote()))
        for endpoint in self.endpoints:
            endpoint.connect(EndpointHandle.from_bytes(get(peer)))
        remote = RemoteMemory.from_bytes(get(peer))
        # Wait until both sides are connected: neither may post before.
        put(peer, b"ready")
        get(peer)
        return remote

    def send(self, message: bytes) -> None:
        """Send a message, unsignalled, so that the next wait does not return its completion."""
        self.endpoints[0].post_send(message, inline=True, signalled=False)

    def receive(self) -> bytes:
        """Return the next message. The receive for the one after it is posted before anybody can answer."""
        (arrived,) = self.endpoints[0].wait(timeout=TIMEOUT)
        message = self.message[: arrived.byte_len].tobytes()
        self.endpoints[0].post_recv(self.inbox)
        return message


def put(peer: socket.socket, *messages: bytes) -> None:
    for message in messages:
        peer.sendall(struct.pack("!H", len(message)) + message)


def get(peer: socket.socket) -> bytes:
    (nbytes,) = struct.unpack("!H", exactly(peer, 2))
    return exactly(peer, nbytes)


def exactly(peer: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        more = peer.recv(nbytes - len(data))
        if not more:
            raise SystemExit("Error: the other process hung up")
        data += more
    return data


def pattern(nbytes: int, seed: int) -> NDArray[np.uint8]:
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), np.uint8)


def serve(side: Side) -> None:
    """Check the bytes that the peer asks about, and put new ones there for the peer to read, until it sends nothing."""
    while question := side.receive():
        nbytes, seed = QUESTION.unpack(question)
        wrong = int(np.count_nonzero(side.data[:nbytes] != pattern(nbytes, seed)))
        side.data[:nbytes] = pattern(nbytes, seed + 1)
        side.send(ANSWER.pack(wrong))


def drive(side: Side, remote: RemoteMemory, iterations: int) -> None:
    print(f"{len(side.endpoints)} queue pairs on {side.name}, host memory")
    print(f"{'bytes':>10} {'write µs p50':>14} {'write MB/s':>12} {'read µs p50':>13} {'read MB/s':>11}   verified")
    for seed, nbytes in enumerate(SIZES):
        local, there = side.region[:nbytes], remote[:nbytes]
        side.data[:nbytes] = pattern(nbytes, 2 * seed)
        writing = measure(side, Write(local, there), iterations)
        side.send(QUESTION.pack(nbytes, 2 * seed))
        (wrong,) = ANSWER.unpack(side.receive())
        reading = measure(side, Read(local, there), iterations)
        wrong += int(np.count_nonzero(side.data[:nbytes] != pattern(nbytes, 2 * seed + 1)))
        if wrong:
            raise SystemExit(f"Error: {wrong} of {nbytes} bytes are wrong")
        print(f"{nbytes:10} {writing[0]:14.1f} {writing[1]:12.1f} {reading[0]:13.1f} {reading[1]:11.1f}   yes")
    side.endpoints[0].post_send(wr_id=1)
    side.endpoints[0].wait(timeout=TIMEOUT)
    print("All bytes verified on both sides")


def measure(side: Side, request: SendRequest, iterations: int) -> tuple[float, float]:
    """Return the median microseconds of single requests on one queue pair, and the MB/s of many on all of them."""
    first, times = side.endpoints[0], []
    for _ in range(iterations):
        began = time.perf_counter()
        first.post(request)
        first.wait(timeout=TIMEOUT)
        times.append(time.perf_counter() - began)
    count = max(iterations, LEAST_BYTES // max(request.nbytes, LEAST_BYTES // 256))
    began = time.perf_counter()
    flood(side.endpoints, request, count)
    return float(np.median(times)) * 1e6, count * request.nbytes / (time.perf_counter() - began) / 1e6


def flood(endpoints: list[Endpoint], request: SendRequest, count: int) -> None:
    """Post a request `count` times over all queue pairs, as many at once as they take."""
    turns = deque(endpoints)
    posted = ended = 0
    while ended < count:
        endpoint = turns[0]
        turns.rotate()
        room = min(WINDOW - endpoint.outstanding[0], count - posted)
        endpoint.post(*[request] * room)
        posted += room
        # Sleep on one queue pair only if no other one has work.
        busy = endpoint.outstanding[0] > 0
        ended += len(endpoint.wait(WINDOW, timeout=TIMEOUT) if busy else endpoint.poll(WINDOW))


@contextlib.contextmanager
def second_process(port: int, arguments: argparse.Namespace) -> Iterator[None]:
    command = [sys.executable, __file__, "--connect", f"127.0.0.1:{port}", "--iterations", str(arguments.iterations)]
    command += ["--queue-pairs", str(arguments.queue_pairs)] + (["--nic", arguments.nic] if arguments.nic else [])
    with subprocess.Popen(command) as process:
        try:
            yield
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise SystemExit(process.returncode)


def dial(where: tuple[str, int]) -> socket.socket:
    """Connect as soon as the other process listens."""
    until = time.monotonic() + TIMEOUT
    while True:
        try:
            return socket.create_connection(where, timeout=TIMEOUT)
        except OSError as error:
            if time.monotonic() > until:
                raise SystemExit(f"Error: nobody listens at {where[0]}:{where[1]}: {error}") from None
            time.sleep(0.2)


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes and reads between two processes, over several queue pairs.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--listen", type=address, metavar="HOST:PORT", help="wait for the other process there")
    where.add_argument("--connect", type=address, metavar="HOST:PORT", help="the other process waits there")
    parser.add_argument("--nic", help="such as mlx5_0:1; default: the best port that works")
    parser.add_argument("--queue-pairs", type=int, default=2, help="the same number on both sides (default: 2)")
    parser.add_argument("--iterations", type=int, default=200, help="of each measurement (default: 200)")
    arguments = parser.parse_args()
    side = Side(arguments.nic, arguments.queue_pairs)
    if arguments.connect:
        with dial(arguments.connect) as peer:
            drive(side, side.meet(peer), arguments.iterations)
            put(peer, b"bye")
    else:
        with socket.create_server(arguments.listen or ("127.0.0.1", 0)) as listener:
            alone = not arguments.listen
            with second_process(listener.getsockname()[1], arguments) if alone else contextlib.nullcontext():
                listener.settimeout(TIMEOUT if alone else None)
                peer, _ = listener.accept()
                with peer:
                    side.meet(peer)
                    serve(side)
                    get(peer)  # this side stays until the other one knows that its last message arrived
    side.rdma.close()


if __name__ == "__main__":
    try:
        main()
    except zh.ZerohopError as error:
        sys.exit(f"Error: {error}")
