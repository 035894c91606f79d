"""Bytes into a Context's TCP port and Unix socket: it hangs up, and goes on serving others."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

import zerohop as zh
from support.fuzzing import fuzz
from support.raw_control import RawControl
from zerohop.core.control import auth, wire

CONTEXT = zh.Context(providers=["tcp"])
FRIEND = zh.Context(providers=["tcp"])
MEMORY = CONTEXT.alloc(64)
HANDLE = MEMORY.share("rw")
CHECK_EVERY = 500
_turn = 0


def one_input(data: bytes) -> None:
    """The first byte says where to, and whether the handshake is done properly before the rest is sent."""
    global _turn
    how, said = (data[0], data[1:]) if data else (0, b"")
    client = RawControl(CONTEXT.url, unix=bool(how & 1))
    try:
        if how & 2:
            client.shake_hands()
        client.shout(said)
        if not client.hung_up():
            raise AssertionError("the listener holds on to a client that has ended its stream")
    finally:
        client.close()
    _turn += 1
    if _turn % CHECK_EVERY == 0:
        expected = _turn.to_bytes(8, "little") * 8
        FRIEND.write(expected, HANDLE).result(5)
        if MEMORY.read_bytes() != expected:
            raise AssertionError("a friend's bytes did not arrive")


if __name__ == "__main__":
    hello = wire.Hello(
        version=wire.VERSION,
        magic="zerohop",
        context="0" * 32,
        host="1" * 32,
        pid=1,
        name="fuzz",
        purpose="control",
        nonce=auth.new_nonce(),
        has_secret=False,
    )
    locating = wire.encode(msgspec.structs.replace(hello, purpose="locate")) + wire.encode(wire.Prove(proof=bytes(32)))
    setup = wire.encode(wire.Setup(providers=["tcp"], url="zerohop://127.0.0.1:1/", name="fuzz"))
    asking = wire.encode(wire.ImportRequest(request=1, provider="shm", wanted=[wire.Wanted(1, bytes(16))]))
    opening = wire.encode(wire.Lane(number=0, provider="tcp", address=b"", messages=True))
    fuzz(
        one_input,
        [
            b"\0" + wire.encode(hello),
            b"\1" + wire.encode(hello),
            b"\0" + locating,
            b"\2" + setup + asking,
            b"\3" + setup + asking,
            b"\3" + setup + opening + asking,
        ],
    )
