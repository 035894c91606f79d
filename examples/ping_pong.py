#!/usr/bin/env python3
"""Two Transports, a server's and a client's: the server writes 8 KiB, the client hears of it, looks, and writes back.

    python examples/ping_pong.py                  # between GPUs where there are some, else between simulated ones
    python examples/ping_pong.py --device host    # or sim, or cuda

Both ends live in one process here; in two, on one host or on two, they would be used in the same way: the URLs, and the
handle of the memory, which pickles, are all that one has to tell the other.

Exits with 1 when a byte is wrong.
"""

from __future__ import annotations

import argparse
import sys

import zerohop as zh

NBYTES = 8192
PING, PONG = 0xAB, 0xCD
TIMEOUT = 10.0


def rdma_ping_pong(server_device: str, client_device: str, *, corrupt: bool = False) -> bool:
    """Whether every byte arrived, both ways."""
    with zh.Transport(server_device) as server, zh.Transport(client_device) as client:
        # Each side is told the other's URL; either's connect would be enough.
        server_url, client_url = server.bind(), client.bind()
        server.connect(client_url, timeout=TIMEOUT).result()
        client.connect(server_url, timeout=TIMEOUT).result()

        server_memory = server.context.alloc(NBYTES, server.device)
        client_memory = client.context.alloc(NBYTES, client.device)
        server_memory.fill(PING)

        # Server to client. The remote buffer is a value: here it is used as it is, else it is sent first.
        ping = server.write(server_memory.view(0, NBYTES), client_memory.share("rw"), notify=1, timeout=TIMEOUT)
        note = client.wait_for_write(TIMEOUT).result()
        print(f"ping: {ping.result()} bytes written, {note.nbytes} announced, {ping.explain()}")
        if corrupt:
            client_memory.write_bytes(NBYTES // 2, b"\x00")
        right = client_memory.read_bytes() == bytes([PING]) * NBYTES

        # And back.
        client_memory.fill(PONG)
        pong = client.write(client_memory, server_memory.share("rw"), notify=2, timeout=TIMEOUT)
        note = server.wait_for_write(TIMEOUT).result()
        print(f"pong: {pong.result()} bytes written, {note.nbytes} announced, {pong.explain()}")
        return right and server_memory.read_bytes() == bytes([PONG]) * NBYTES


def choose(kind: str) -> tuple[str, str]:
    """Two devices of that kind; of the best that works here where none is named. One GPU is both."""
    if kind in ("", "cuda"):
        why_not = zh.Transport.why_unsupported("cuda:0")
        if not why_not:
            return "cuda:0", "cuda:0" if zh.Transport.why_unsupported("cuda:1") else "cuda:1"
        print(f"no GPU: {why_not}", file=sys.stderr if kind else sys.stdout)
        if kind:
            sys.exit(1)
    return ("host", "host") if kind == "host" else ("sim:0", "sim:1")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="", choices=["host", "sim", "cuda"], help="where the memory is")
    parser.add_argument("--corrupt", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    devices = choose(arguments.device)
    right = rdma_ping_pong(*devices, corrupt=arguments.corrupt)
    print(f"{devices[0]} and {devices[1]}: {'every byte verified' if right else 'BYTES ARE WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
