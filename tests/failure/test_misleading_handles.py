"""Handles that name a healthy owner and lie otherwise: they hold up nobody whose handle is right."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support import tamper
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.raw_control import ANSWER_S, RawControl
from zerohop.core.control import address, auth, wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext

NBYTES = 4096
# More than may prepare their first use at the same time.
CROWD = 400


class _Impostor(RawControl):
    """Does the handshake as the Context that it was taken for, which needs no secret, and says nothing more."""

    def __init__(self, sock: socket.socket, context: str) -> None:
        sock.settimeout(ANSWER_S)
        self.socket = sock
        said = self.receive()
        assert said is not None
        hello = said[0]
        assert isinstance(hello, wire.Hello)
        challenge = wire.Challenge(context=context, host="0" * 32, nonce=auth.new_nonce())
        self.send(challenge)
        self.receive()
        self.send(wire.Accept(proof=auth.Transcript(hello, challenge).proof(b"", "server")))


@pytest.fixture
def hole() -> Iterator[socket.socket]:
    """A listener whose connections are accepted by the kernel, and never spoken to."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listening:
        yield listening


def _astray(owner: zh.Context, hole: socket.socket) -> str:
    return f"zerohop://127.0.0.1:{hole.getsockname()[1]}/{owner.id}?host={'0' * 32}"


def _handles(owner: zh.Context, hole: socket.socket) -> tuple[zh.RemoteBuffer, zh.RemoteBuffer]:
    """The right one, and a forged one that says the same but for the address."""
    memory = owner.register(pattern(1, NBYTES))
    right = memory.share("r")
    return right, tamper.forge(right, {tamper.URL: _astray(owner, hole)})


def _dialling(context: zh.Context) -> None:
    eventually(lambda: bool(context._core.peers._dials), "nobody dials")


def test_the_first_dial_that_succeeds_serves_all(open_context: OpenContext, hole: socket.socket) -> None:
    owner, context = open_context(Options()), open_context(Options())
    right, forged = _handles(owner, hole)
    misled = context.read(forged, into=np.zeros(NBYTES, np.uint8))
    _dialling(context)
    assert not misled.done()
    got = np.zeros(NBYTES, np.uint8)
    context.read(right, into=got).result(PATIENCE_S)
    assert got.tobytes() == pattern(1, NBYTES).tobytes()
    misled.result(PATIENCE_S)
    eventually(lambda: not context._core.peers._dials, "a dial goes on for which nobody waits")


def test_each_fails_by_its_own_address(open_context: OpenContext, hole: socket.socket) -> None:
    """One that leads nowhere fails for itself, while another is still dialled."""
    owner, context = open_context(Options()), open_context(Options())
    right, forged = _handles(owner, hole)
    with socket.create_server(("127.0.0.1", 0)) as closing:
        nowhere = tamper.forge(right, {tamper.URL: _astray(owner, closing)})
    silent = context.read(forged, into=np.zeros(NBYTES, np.uint8), timeout=0.5)
    with pytest.raises(zh.PeerLost, match="nobody listens"):
        context.read(nowhere, into=np.zeros(NBYTES, np.uint8)).result(PATIENCE_S)
    with pytest.raises(zh.DeadlineExceeded):
        silent.result()


def test_many_leave_room_for_one(open_context: OpenContext, hole: socket.socket) -> None:
    owner, context = open_context(Options()), open_context(Options())
    right, forged = _handles(owner, hole)
    misled = [context.read(forged, into=np.zeros(NBYTES, np.uint8)) for _ in range(CROWD)]
    context.read(right, into=np.zeros(NBYTES, np.uint8)).result(PATIENCE_S)
    for operation in misled:
        operation.result(PATIENCE_S)


@pytest.mark.parametrize("kind", ["read", "notify"])
def test_calls_that_do_not_wait(open_context: OpenContext, hole: socket.socket, kind: str) -> None:
    owner, context = open_context(Options()), open_context(Options())
    right, forged = _handles(owner, hole)
    into = np.zeros(NBYTES, np.uint8)

    def call(handle: zh.RemoteBuffer) -> bool:
        try:
            operation = context.notify_nowait(handle, 1) if kind == "notify" else context.read_nowait(handle, into=into)
        except zh.WouldBlock:
            return False
        operation.result(PATIENCE_S)
        return True

    assert not call(forged)
    _dialling(context)
    eventually(lambda: call(right), "the right handle waits for the forged one")


@pytest.mark.parametrize("smaller", [False, True])
def test_the_owner_is_let_in_meanwhile(open_context: OpenContext, hole: socket.socket, smaller: bool) -> None:
    """Whichever of the two would win if both dialled each other."""
    contexts = sorted((open_context(Options()) for _ in range(2)), key=lambda context: context.id)
    context, owner = contexts if smaller else reversed(contexts)
    misled = context.connect(_astray(owner, hole))
    _dialling(context)
    owner.connect(context.url).result(PATIENCE_S)
    assert misled.result(PATIENCE_S).peer == owner.id


def test_one_that_speaks_for_the_owner_and_falls_silent(open_context: OpenContext, hole: socket.socket) -> None:
    """Without a secret anybody can; the owner, who can be reached, is asked all the same."""
    owner, context = open_context(Options()), open_context(Options())
    right, forged = _handles(owner, hole)
    misled = context.read(forged, into=np.zeros(NBYTES, np.uint8))
    with contextlib.closing(_Impostor(hole.accept()[0], owner.id)):
        eventually(lambda: bool(context._core.young), "the impostor is not believed")
        context.read(right, into=np.zeros(NBYTES, np.uint8)).result(PATIENCE_S)
        misled.result(PATIENCE_S)


@pytest.mark.parametrize("itself", [False, True])
def test_one_context_at_several_right_addresses(open_context: OpenContext, itself: bool) -> None:
    for _ in range(5):
        context = open_context(Options())
        other = context if itself else open_context(Options())
        where = address.parse(other.url)
        tcp = where._replace(socket_path="")
        urls = [each.url() for each in (where, tcp, tcp._replace(host="127.1"), tcp._replace(context=""))]
        dials = [context.connect(url) for url in urls]
        assert {dial.result(PATIENCE_S).peer for dial in dials} == {other.id}
        assert len({id(dial.result()) for dial in dials}) == 1
        target = other.register(np.zeros(NBYTES, np.uint8))
        context.write(pattern(2, NBYTES), target.share("rw")).result(PATIENCE_S)
        assert target.read_bytes() == pattern(2, NBYTES).tobytes()


@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_a_wrong_capability_used_first(open_context: OpenContext, provider: str) -> None:
    owner, context = open_context(Options()), open_context(Options(providers=(provider,)))
    memories = [owner.alloc(NBYTES) for _ in range(8)]
    for number, memory in enumerate(memories):
        np.from_dlpack(memory)[:] = pattern(number, NBYTES)
    rights = [memory.share("r") for memory in memories]
    forged = [tamper.forge(right, {tamper.CAPABILITY: os.urandom(16)}) for right in rights]
    into = np.zeros((2, len(rights), NBYTES), np.uint8)
    refused, read = [], []
    for number, (wrong, right) in enumerate(zip(forged, rights, strict=True)):
        refused.append(context.read(wrong, into[0, number]))
        read.append(context.read(right, into[1, number]))
    for operation in refused:
        with pytest.raises(zh.AccessDenied, match="capability"):
            operation.result(PATIENCE_S)
    for number, operation in enumerate(read):
        operation.result(PATIENCE_S)
        assert np.array_equal(into[1, number], pattern(number, NBYTES))
    assert not into[0].any()
