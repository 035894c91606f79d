#!/usr/bin/env python3
"""Two Transports, a server's and a client's: the server writes 8 KiB, the client hears of it, looks, and writes back.

    python examples/ping_pong.py                  # between GPUs where there are some, else between simulated ones
    python examples/ping_pong.py --device host    # or sim, or cuda; or one for both, such as cuda:1

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


def choose(wanted: str) -> tuple[str, str]:
    """The server's device and the client's: two of a kind, or the one that is named; nothing is said: the best here.

    Raises:
        ValueError: there is no such device, and what to do about it.
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
    # One GPU is both ends.
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
