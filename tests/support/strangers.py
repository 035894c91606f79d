"""Peers that talk to Transports by hand, and the pair of Transports that they would like to disturb."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.raw_control import RawControl
from zerohop.core.control import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext
    from zerohop._native import Status

SERVICE: Final = "transport"
# Where a client that only pretends to be a Context says that it can be reached.
NOWHERE = f"zerohop:///{'0' * 32}?unix=/nowhere"
STRANGER = b"a stranger's id."


class Pair:
    """Two Transports, joined, of two Contexts of this process: ``there`` is what others would like to disturb."""

    def __init__(self, open_context: OpenContext, provider: str) -> None:
        # All have tcp, or a raw peer would be one with which they have nothing in common.
        options = Options(providers=tuple(dict.fromkeys((provider, "tcp"))))
        self.contexts = [open_context(options) for _ in range(2)]
        self.here, self.there = (zh.Transport(ctx=context) for context in self.contexts)
        self.here.connect(self.there.bind()).result(PATIENCE_S)

    def expect_use(self) -> None:
        """They reach each other's memory, both ways, and hear of it and of nothing else."""
        for one, other in ((self.here, self.there), (self.there, self.here)):
            memory = other.register(np.zeros(64, np.uint8))
            assert one.write(pattern(1, 64), memory.share("rw"), notify=5).result(PATIENCE_S) == 64
            note = other.wait_for_write(PATIENCE_S).result()
            assert note[:2] == (5, 64)
            assert note.peer.peer == one.context.id
            assert memory.read_bytes() == pattern(1, 64).tobytes()
            memory.close()
            assert one.connected()

    def close(self) -> None:
        self.here.close()
        self.there.close()


@contextlib.contextmanager
def raw_peer(context: zh.Context) -> Iterator[RawControl]:
    """One that is introduced, and has no lane."""
    with contextlib.closing(RawControl(context.url, unix=False)) as client:
        client.shake_hands()
        client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="hostile"))
        yield client


def answer_to(client: RawControl, number: int) -> wire.Answer | None:
    """What a Call comes to; None: the Context has hung up. Whatever else it says is passed over."""
    while True:
        received = client.receive()
        if received is None:
            return None
        message, fds = received
        for fd in fds:
            os.close(fd)
        if isinstance(message, wire.Answer):
            assert message.number == number
            return message


def said(what: str, to: bytes, me: bytes, **more: object) -> bytes:
    """As pairing.py says it, with any values."""
    return msgspec.msgpack.encode({"type": what, "to": to, "me": me, **more})


def ask(client: RawControl, body: bytes, number: int = 1, service: str = SERVICE) -> wire.Answer:
    client.send(wire.Call(number=number, service=service, body=body))
    answer = answer_to(client, number)
    assert answer is not None, "hung up without an answer"
    return answer


def expect_refused(answer: wire.Answer, status: Status, text: str) -> None:
    assert answer.status == status.value, answer
    assert text in answer.text
    assert answer.body == b""
