"""The control plane's decoders and its URLs: a message, an Address, or the error that the documentation names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import zerohop as zh
from support.fuzzing import fuzz
from zerohop.core.control import address, wire

URL, HELLO, MESSAGE = range(3)


def one_input(data: bytes) -> None:
    which, body = (data[0] % 3, data[1:]) if data else (MESSAGE, b"")
    try:
        if which == URL:
            text = body.decode(errors="replace")
            if address.parse(address.parse(text).url()) != address.parse(text):
                raise AssertionError("a URL that does not give its Address back")
        elif which == HELLO:
            wire.decode_hello(body)
        else:
            message = wire.decode(body)
            if wire.decode(wire.encode(message)[wire.HEADER.size :]) != message:
                raise AssertionError("a message that does not survive its own bytes")
    except (zh.ProtocolError, ValueError):
        return


if __name__ == "__main__":
    messages: list[wire.Message] = [
        wire.Hello(
            version=wire.VERSION,
            magic="zerohop",
            context="0" * 32,
            host="1" * 32,
            pid=1,
            name="fuzz",
            purpose="control",
            nonce=bytes(32),
            has_secret=False,
        ),
        wire.Challenge(context="0" * 32, host="1" * 32, nonce=bytes(32)),
        wire.Location(proof=bytes(32), socket_path=b"/tmp/zerohop-0-x/s"),
        wire.Setup(
            providers=["shm", "verbs", "tcp"],
            url="zerohop://h:1/",
            name="fuzz",
            nics=[wire.Nic(name="mlx5_0", port=1, link="Ethernet", gbps=50.0, subnet="10.0.0")],
            nfds=2,
        ),
        wire.Lane(number=0, provider="shm", address=b"ring", messages=True, nfds=1),
        wire.Lane(number=3, provider="verbs", address=b"queue pairs", rails=[(0, 1)]),
        wire.LaneFailed(number=3, text="port down", down=[1]),
        wire.LaneDown(number=3, text="no answer"),
        wire.ImportRequest(request=1, provider="verbs", wanted=[wire.Wanted(1 << 40, bytes(16))], rails=[1]),
        wire.Allocation(number=1, provider="shm", nbytes=4096, writable=True, nfds=1),
        wire.ImportReply(request=1, answers=[wire.Imported(status=0, nbytes=4096, rights=1, allocation=1)]),
        wire.ImportReply(request=1, answers=[wire.Imported(0, nbytes=4096, address=1 << 47, keys=[7], atomics=True)]),
        wire.Released(provider="verbs", shares=[1], allocations=[1]),
        wire.Bye(text="no more"),
    ]
    bodies = [wire.encode(message)[wire.HEADER.size :] for message in messages]
    url = f"zerohop://127.0.0.1:4000/{'a' * 32}?host={'b' * 32}&unix=/run/zerohop/s"
    fuzz(
        one_input,
        [bytes([MESSAGE]) + body for body in bodies] + [bytes([HELLO]) + bodies[0], bytes([URL]) + url.encode()],
    )
