"""Host names that a name server takes long to answer for: peers that say them bind no threads here."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.raw_control import RawControl
from zerohop.core.control import name_lookup, wire
from zerohop.core.control.address import parse
from zerohop.core.control.descriptors import close_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext

SLOW = "zerohop://slow.example.org:99/" + "ab" * 16
ROUNDS = 20


class NameServer:
    """A name server that answers nothing for so long as a test likes; `asked` has the names, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.error: OSError = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._find)

    def _find(self, host: str, port: int, *, flags: int = 0, **kinds: Any) -> Any:
        if flags & socket.AI_NUMERICHOST or not host.endswith("example.org"):
            return self._real(host, port, flags=flags, **kinds)
        self.asked.append(host)
        assert self.answers.wait(PATIENCE_S)
        raise self.error


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer(monkeypatch)
    yield server
    server.answers.set()
    eventually(lambda: all(thread.name != "zerohop-aside" for thread in threading.enumerate()), "a lookup goes on")


def _introduce(context: zh.Context, url: str) -> RawControl:
    client = RawControl(context.url, unix=True)
    client.shake_hands()
    client.send(wire.Setup(providers=["tcp"], url=url, name="hostile"))
    return client


def _invite(client: RawControl, number: int) -> None:
    """Open a lane whose socket the Context has to bring."""
    client.send(wire.Lane(number=number, provider="tcp", address=b"", messages=True))
    client.send(wire.LaneInvite(number=number, tokens=[bytes(16)]))
    while (said := client.receive()) is not None and not isinstance(said[0], wire.Lane):
        close_all(said[1])


def test_lanes_that_are_given_up(open_context: OpenContext, name_server: NameServer) -> None:
    """A lookup cannot be ended: those that come later wait for the one that is under way."""
    context = open_context(Options(listen=None))
    for _ in range(2):
        with contextlib.closing(_introduce(context, SLOW)) as client:
            for number in range(0, 2 * ROUNDS, 2):
                _invite(client, number)
                eventually(lambda: bool(name_server.asked), "nothing is looked up")
                client.send(wire.LaneFailed(number=number, text="no"))
    assert name_server.asked == ["slow.example.org"]


def test_many_names(open_context: OpenContext, name_server: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many are looked up at the same time, and those of peers hold up no dial of the program."""
    monkeypatch.setattr(name_lookup, "_MOST_AT_ONCE", 3)
    monkeypatch.setattr(name_lookup, "_LONG_S", 1e6)
    context = open_context(Options(listen=None))
    with contextlib.ExitStack() as clients:
        for number in range(10):
            client = _introduce(context, SLOW.replace("slow", f"slow{number}"))
            clients.enter_context(contextlib.closing(client))
            _invite(client, 0)
        eventually(lambda: len(context._core.peers._lane_names._lookups) == 10, "each has a lookup")
        eventually(lambda: len(name_server.asked) == 3, "three are looked up")
        dialled = context.connect(SLOW.replace("slow", "dialled"), timeout=PATIENCE_S)
        eventually(lambda: "dialled.example.org" in name_server.asked, "the program's own is looked up")
        assert len(name_server.asked) == 4
    eventually(lambda: not context._core.young, "the peers are gone")
    name_server.answers.set()
    with pytest.raises(zh.PeerLost, match=r"no host is called 'dialled.example.org' here"):
        dialled.result(PATIENCE_S)
    eventually(lambda: not context._core.peers._lane_names._lookups, "all have ended")
    assert len(name_server.asked) == 4, "nobody waits for the others any more"


def test_slow_names_make_room(
    open_context: OpenContext, name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that no name server answers for hold up another one for a moment; a host with many ports is one name."""
    monkeypatch.setattr(name_lookup, "_MOST_AT_ONCE", 2)
    monkeypatch.setattr(name_lookup, "_LONG_S", 0.1)
    context, peer = open_context(Options()), open_context(Options())
    slow = [
        context.connect(f"zerohop://slow{number // 2}.example.org:{100 + number}/{number:032x}", timeout=PATIENCE_S)
        for number in range(12)
    ]
    where = parse(peer.url)
    dialled = context.connect(f"zerohop://localhost:{where.port}", timeout=PATIENCE_S)
    assert dialled.result(PATIENCE_S).peer == peer.id
    assert len(name_server.asked) == len(set(name_server.asked)) <= 6
    for each in slow:
        each.cancel()


def test_a_context_that_closes_meanwhile(
    open_context: OpenContext,
    name_server: NameServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing more is looked up, and the log has no error of it."""
    monkeypatch.setattr(name_lookup, "_MOST_AT_ONCE", 2)
    context = open_context(Options())
    dials = [
        context.connect(f"zerohop://slow{number}.example.org:99/{number:032x}", timeout=PATIENCE_S)
        for number in range(6)
    ]
    eventually(lambda: len(name_server.asked) == 2, "two are looked up")
    context.close()
    for each in dials:
        with pytest.raises(zh.Closed):
            each.result(PATIENCE_S)
    del context, dials, each
    gc.collect()
    assert len(name_server.asked) == 2
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_waits_for_a_name(open_context: OpenContext, name_server: NameServer) -> None:
    """The error names the name server, and not a peer that nobody has asked."""
    with pytest.raises(zh.DeadlineExceeded, match=r"the host 'slow.example.org' is being looked up"):
        open_context(Options()).connect(SLOW, timeout=0.3).result(PATIENCE_S)


def test_no_descriptor_for_a_lookup(open_context: OpenContext, name_server: NameServer) -> None:
    """That is a limit of this process, and no fault of the peer's."""
    name_server.answers.set()
    name_server.error = OSError(24, "Too many open files")
    with pytest.raises(zh.LimitReached, match="descriptors"):
        open_context(Options(listen=None)).connect(SLOW, timeout=PATIENCE_S).result(PATIENCE_S)
