#!/usr/bin/env python3
"""Exchanges 8 KiB between two Transports: the server writes, the client is notified, checks, and writes back.

    python examples/ping_pong.py                  # between GPUs where there are some, else between simulated ones
    python examples/ping_pong.py --device host    # or sim, or cuda; or one for both, such as cuda:1

Both ends live in one process here. In two processes, on one host or on two, you would use them in the same way: each
sends the other its URL, and the handle of its memory, which pickles.

Exits with 1 if a byte is wrong.
"""

from __future__ import annotations

import argparse
import sys

import zerohop as zh

NBYTES = 8192
PING, PONG = 0xAB, 0xCD
TIMEOUT = 10.0


def rdma_ping_pong(server_device: str, client_device: str, *, corrupt: bool = False) -> bool:
    """Return whether every byte arrived, both ways."""
    with zh.Transport(server_device) as server, zh.Transport(client_device) as client:
        # Each side gets the other's URL; a connect of one side would suffice.
        server_url, client_url = server.bind(), client.bind()
        server.connect(client_url, timeout=TIMEOUT).result()
        client.connect(server_url, timeout=TIMEOUT).result()

        server_memory = server.context.alloc(NBYTES, server.device)
        client_memory = client.context.alloc(NBYTES, client.device)
        server_memory.fill(PING)

        # Server to client. The remote buffer is a value: one process uses it directly, two would send it first.
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


def choose(wanted: str) -> tuple[str, str]:
    """Return the server's device and the client's: two of a kind, or the named one twice; by default the best here.

    Raises:
        ValueError: there is no such device; the message says what to do about it.
    """
    if not wanted:
        why_not = zh.Transport.why_unsupported("cuda:0")
        if why_not:
            print(f"no GPU: {why_not}")
        wanted = "sim" if why_not else "cuda"
    if wanted in ("sim", "cuda", "hip"):
        first, second = f"{wanted}:0", f"{wanted}:1"
    else:
        first = second = wanted
    if why_not := zh.Transport.why_unsupported(first):
        raise ValueError(f"cannot use {first}: {why_not}")
    # With one GPU, both ends use it.
    return first, first if zh.Transport.why_unsupported(second) else second


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="", help="where the memory is: host, sim, cuda, sim:0, cuda:1, ...")
    parser.add_argument("--corrupt", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        devices = choose(arguments.device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    right = rdma_ping_pong(*devices, corrupt=arguments.corrupt)
    print(f"{devices[0]} and {devices[1]}: {'every byte verified' if right else 'BYTES ARE WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
