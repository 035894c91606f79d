"""A peer that speaks the control protocol as it should and means harm: it asks for what is not meant for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.raw_control import RawControl
from zerohop._native import Grants, Reason, Status
from zerohop.core.control import wire
from zerohop.core.control.address import parse
from zerohop.core.control.channel import Channel
from zerohop.core.peers.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.fixtures import OpenContext

# Where a client that only pretends to be a Context says that it can be reached.
NOWHERE = f"zerohop:///{'0' * 32}?unix=/nowhere"


@pytest.mark.parametrize("provider", ["shm", "verbs", "tcp", "none of them"])
@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_importing_over_a_provider_that_it_does_not_have(open_context: OpenContext, unix: bool, provider: str) -> None:
    """Only a peer that can be given something, and use it, becomes one that a revocation waits for."""
    context = open_context(Options())
    memory = context.alloc(4096)
    share = memory.share("rw")._share
    with contextlib.closing(RawControl(context.url, unix=unix)) as client:
        client.shake_hands()
        client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="hostile"))
        wanted = [wire.Wanted(share.share_id, share.capability)]
        client.send(wire.ImportRequest(request=1, provider=provider, wanted=wanted))
        message: wire.Message | None = None
        while not isinstance(message, wire.ImportReply):
            received = client.receive()
            assert received is not None, "hung up without an answer"
            message, fds = received
            for fd in fds:
                os.close(fd)
        assert [answer.status for answer in message.answers] == [Status.UNSUPPORTED.value]
        assert "shm" in message.answers[0].text
        # The client would ignore Release.
        memory.revoke(timeout=PATIENCE_S)
        memory.close()


FIRST = wire.Lane(number=0, provider="tcp", address=b"", messages=True)
INVITE = wire.LaneInvite(number=0, tokens=[bytes(16)])


@pytest.mark.parametrize(
    "said",
    [
        # A peer cannot have sockets opened at will, for no lane or for one to which it was invited itself.
        [INVITE],
        [FIRST, INVITE],
        # The name of a lane says who has opened it, and is its own.
        [msgspec.structs.replace(FIRST, number=1)],
        [FIRST, msgspec.structs.replace(FIRST, number=0)],
        [msgspec.structs.replace(FIRST, number=8), msgspec.structs.replace(FIRST, number=6, messages=False)],
        # One of each provider, and of those that both have.
        [FIRST, msgspec.structs.replace(FIRST, number=2)],
        [msgspec.structs.replace(FIRST, provider="shm")],
        [msgspec.structs.replace(FIRST, provider="verbs", rails=[(0, 0)])],
        [msgspec.structs.replace(FIRST, provider="quic")],
        [msgspec.structs.replace(FIRST, rails=[(0, 0)])],
        # About lanes that there are not, or that are not up.
        [wire.LaneReady(number=0)],
        [wire.LaneReady(number=1)],
        [wire.LaneFailed(number=4, text="")],
        [wire.LaneDown(number=0, text="")],
        [FIRST, wire.LaneDown(number=0, text="")],
        # What only the other side says.
        [wire.LaneWanted(text=""), wire.LaneMissing(text=""), wire.Accept(proof=bytes(32))],
        [FIRST, wire.Setup(providers=["tcp"], url=NOWHERE, name="twice")],
    ],
    ids=lambda said: "+".join(type(message).__name__ for message in said),
)
@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_lanes_that_nobody_agreed_on(open_context: OpenContext, unix: bool, said: list[wire.Message]) -> None:
    context = open_context(Options())
    with contextlib.closing(RawControl(context.url, unix=unix)) as client:
        client.shake_hands()
        client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="hostile"))
        client.send_together(said)
        assert client.hung_up()
    eventually(lambda: not context._core.listeners._invited, "its own invitation outlives the Connection")


def test_descriptors_beside_a_message_without_end(open_context: OpenContext) -> None:
    """A peer that is introduced begins a message, and puts descriptors beside each of its bytes: it is disconnected."""
    context = open_context(Options())
    frame = wire.encode(wire.Call(number=1, service="x", body=bytes(60_000)))
    with contextlib.closing(RawControl(context.url, unix=True)) as client, socket.socket() as file:
        client.shake_hands()
        client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="hostile"))
        client.socket.sendall(frame[:100])
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for place in range(100, 104):
                socket.send_fds(client.socket, [frame[place : place + 1]], [file.fileno()] * 100)
        assert client.hung_up()


def test_more_descriptors_than_any_message_has(open_context: OpenContext, caplog: pytest.LogCaptureFixture) -> None:
    """The sender is to blame, and not the limit of the process that received some of them."""
    context = open_context(Options())
    memory = os.memfd_create("memory")
    try:
        with contextlib.closing(RawControl(context.url, unix=True)) as client:
            client.shake_hands()
            client.send(wire.Setup(providers=["shm"], url=NOWHERE, name="hostile"))
            lane = wire.Lane(number=0, provider="shm", address=b"a", messages=True, nfds=wire.MAX_FDS)
            client.send(lane, [memory] * (wire.MAX_FDS + 1))
            assert client.hung_up()
    finally:
        os.close(memory)
    eventually(lambda: any("more descriptors than" in said for said in caplog.messages), "the log does not say why")


def test_a_message_that_cannot_be_decoded(open_context: OpenContext, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once what was wrong, and the log has one line of it."""
    context = open_context(Options())
    with contextlib.closing(RawControl(context.url, unix=True)) as client:
        client.shake_hands()
        client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="hostile"))
        frame = wire.encode(wire.Bye(text="x"))
        client.shout(frame[: wire.HEADER.size] + bytes(len(frame) - wire.HEADER.size))
        said = ""
        while (received := client.receive()) is not None:
            for fd in received[1]:
                os.close(fd)
            said = received[0].text if isinstance(received[0], wire.Bye) else said
    assert said.startswith("malformed message: ")
    eventually(lambda: any("malformed message" in each for each in caplog.messages), "the log does not say why")
    context.close()
    assert sum("malformed" in each for each in caplog.messages) == 1


@pytest.mark.parametrize("kind", ["none", "pipe", "unsealed", "short", "twice"])
def test_a_table_of_grants_that_is_none(open_context: OpenContext, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    context, table = open_context(Options()), Grants()
    files: list[int] = []
    if kind == "pipe":
        files = list(os.pipe())
    elif kind != "none":
        files = [os.memfd_create("table", os.MFD_ALLOW_SEALING)]
        os.truncate(files[0], 4096 if kind == "short" else os.fstat(table.fd).st_size)
        if kind != "unsealed":
            fcntl.fcntl(files[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with contextlib.closing(RawControl(context.url, unix=True)) as client:
        client.shake_hands()
        client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="hostile"))
        for _ in range(2 if kind == "twice" else 1):
            client.send(wire.GrantTable(nfds=len(files[:1])), files[:1])
        assert client.hung_up()
    for fd in files:
        os.close(fd)
    eventually(lambda: any("table of grants" in each for each in caplog.messages), "the log does not say why")


@pytest.mark.parametrize("count", [1, 3])
def test_a_setup_with_another_number_of_descriptors(
    open_context: OpenContext, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    context = open_context(Options())
    with contextlib.closing(RawControl(context.url, unix=True)) as client, socket.socket() as file:
        client.shake_hands()
        setup = wire.Setup(providers=["tcp"], url=NOWHERE, name="hostile", nfds=count)
        client.send(setup, [file.fileno()] * count)
        assert client.hung_up()
    why = "Setup with 1 descriptors in place of 2 or none" if count == 1 else "more descriptors than the message"
    eventually(lambda: any(why in said for said in caplog.messages), "the log does not say why")


def test_the_log_names_a_peer_that_does_not_get_through(
    open_context: OpenContext, caplog: pytest.LogCaptureFixture
) -> None:
    """By its whole id, of which no other connected peer has the same."""
    context = open_context(Options(providers=("tcp",)))
    with contextlib.closing(RawControl(context.url, unix=True)) as client:
        client.shake_hands()
        client.send(wire.Setup(providers=["verbs"], url=NOWHERE, name="trainer-3"))
        said = re.compile(r"'trainer-3' \([0-9a-f]{32}\) did not get through its setup: .*no provider in common")
        eventually(lambda: any(map(said.match, caplog.messages)), "the log does not name the peer")


def test_strangers_do_not_silence_the_log_about_peers(
    open_context: OpenContext, caplog: pytest.LogCaptureFixture
) -> None:
    context = open_context(Options(providers=("tcp",)))
    place = parse(context.url)
    for number in range(2, 30):
        with socket.create_connection((place.host, place.port), source_address=(f"127.0.0.{number}", 0)) as stranger:
            stranger.settimeout(PATIENCE_S)
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            # It is hung up on, at once or after a greeting.
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass
    for number in range(2, 30):
        with contextlib.closing(RawControl(context.url, unix=False, source=f"127.0.0.{number}")) as client:
            client.send(client.hello())
            client.receive()
            client.send(wire.Refuse(version=wire.VERSION, code=("protocol", f"{number}")[number % 2], text="forged"))
            assert client.hung_up()
    assert len(caplog.messages) < 20
    assert not any("refused" in said for said in caplog.messages)
    with contextlib.closing(RawControl(context.url, unix=False)) as client:
        hello = client.shake_hands()
        client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="liar"))
        client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="liar"))
        assert client.hung_up()
        liar = f"disconnected 'liar' ({hello.context})"
    eventually(lambda: any(liar in said for said in caplog.messages), "the log does not name the peer")


FORGED = "x\n2026-01-01 00:00:00 ERROR zerohop: 'forged'\x1b[31m\u202e"


@pytest.mark.parametrize("last", [wire.Bye(text=FORGED), wire.Refuse(version=wire.VERSION, code="secret", text=FORGED)])
@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_texts_that_forge_a_log(
    open_context: OpenContext, caplog: pytest.LogCaptureFixture, unix: bool, last: wire.Message
) -> None:
    """What a peer says is in its line and in its quotes, in each log and each error."""
    caplog.set_level("DEBUG", "zerohop")
    context = open_context(Options(providers=("tcp",)))
    with contextlib.closing(RawControl(context.url, unix=unix)) as client:
        client.shake_hands()
        client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name=FORGED))
        client.send(last)
        assert client.hung_up()
    with contextlib.closing(RawControl(context.url, unix=unix)) as client:
        client.send(client.hello())
        client.receive()
        client.send(wire.Refuse(version=wire.VERSION, code="secret", text=FORGED))
        assert client.hung_up()
    eventually(lambda: any("has given up" in said for said in caplog.messages), "nothing was logged")
    said = [said for said in caplog.messages if "forged" in said]
    assert len(said) >= 2
    for line in said:
        assert line.isprintable()
        assert "'forged'" not in line.replace("\\'", "")


def test_a_peer_that_is_lost_with_its_answer(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor has come, and nobody is left to map it: it is closed, as the leak check sees."""
    context, owner = open_context(Options(providers=("shm",))), open_context(Options(providers=("shm",)))
    memory = owner.alloc(64)
    handle = Session._handle

    def lost(self: Session, message: wire.Message, fds: list[int]) -> None:
        handle(self, message, fds)
        if isinstance(message, wire.Allocation):
            assert fds
            self._fail(zh.PeerLost("the peer is gone"), Reason.STREAM_CLOSED)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "_handle", lost)
        with pytest.raises(zh.PeerLost):
            context.write(pattern(1, 64), memory.share("rw")).result(PATIENCE_S)
    context.write(pattern(1, 64), memory.share("rw")).result(PATIENCE_S)


@pytest.mark.parametrize(
    "status",
    [Status.CLOSED, Status.DEADLINE, Status.WOULD_BLOCK, Status.CANCELLED, Status.PENDING, Status.FILE_ERROR, 200],
)
def test_a_refusal_that_says_nothing_of_a_peer(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The owner of memory does not choose between this side's own errors."""
    context, owner = open_context(Options(providers=("shm",))), open_context(Options(providers=("shm",)))
    post = Channel.post

    def lie(self: Channel, message: wire.Message, fds: Sequence[int] = ()) -> None:
        if isinstance(message, wire.ImportReply):
            message.answers = [wire.Imported(status=int(status), reason=0) for _ in message.answers]
        post(self, message, fds)

    monkeypatch.setattr(Channel, "post", lie)
    memory = owner.alloc(64)
    with pytest.raises(zh.ProtocolError, match=f"malformed: an answer of status {int(status)}"):
        context.write(pattern(1, 64), memory.share("rw")).result(PATIENCE_S)


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_a_peer_that_always_has_something_to_say(open_context: OpenContext, unix: bool) -> None:
    """It does not keep the control thread from others, nor from its end."""
    context, healthy = open_context(Options()), open_context(Options())
    idle = wire.encode(wire.ImportReply(request=12345, answers=[])) * 100
    over = threading.Event()
    with contextlib.closing(RawControl(context.url, unix=unix)) as client:
        client.shake_hands()
        client.send(wire.Setup(providers=["tcp"], url=NOWHERE, name="hostile"))

        def talk() -> None:
            with contextlib.suppress(OSError):
                while not over.is_set():
                    client.socket.sendall(idle)

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            for _ in range(3):
                target = context.alloc(64)
                healthy.write(bytes(64), target.share("rw")).result(PATIENCE_S)
                target.close()
            began = context._core.control
            context.close(PATIENCE_S)
            assert not began._thread.is_alive()
        finally:
            over.set()
            thread.join(PATIENCE_S)


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_one_that_says_to_be_this_very_context(open_context: OpenContext, unix: bool) -> None:
    context = open_context(Options())
    with contextlib.closing(RawControl(context.url, unix=unix)) as client:
        hello = client.hello(context=context.id)
        client.send(wire.Prove(proof=client.introduce(hello).proof(b"", "client")))
        received = client.receive()
        assert received is not None
        assert isinstance(received[0], wire.Refuse)
    memory = context.alloc(64)
    context.write(bytes(64), memory.share("rw")).result(PATIENCE_S)


@pytest.mark.parametrize("secret", [None, "sesame"])
@pytest.mark.parametrize("name", ["zwnj\u200cx", "\u202eright to left", "a\nb", "x" * 300 + "\u200c"])
def test_names_that_are_not_printed(open_context: OpenContext, name: str, secret: str | None) -> None:
    """Both sides prove the same, whatever the name looks like in a log."""
    there = open_context(Options(providers=("tcp",), secret=secret))
    here = open_context(Options(providers=("tcp",), secret=secret, name=name))
    url = there.url.partition("?")[0]  # by TCP
    assert here.connect(url).result(PATIENCE_S).alive
