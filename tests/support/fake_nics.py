"""NICs that are none: a Context that believes to have some, so that the control plane of their lanes can be tested.

What is faked is what a NIC's driver would say: ports that open or do not, memory that can be registered or not, lanes
that break. The bytes of a fake lane are carried by a tcp endpoint of the real engine, so both Contexts must be in this
process. What the data plane does with what is in flight on a lane that breaks is not shown by this; its own tests do
that.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import pytest

from support.lanes import eventually, tcp_pair
from support.options import Options
from support.patience import PATIENCE_S
from zerohop._native import NativeError, Reason, Status, stop_posting
from zerohop.core.base import backoff
from zerohop.core.control.channel import Channel
from zerohop.core.lanes import lane_setup
from zerohop.core.lanes.nic_ports import Port
from zerohop.core.peers.session import Session

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    import zerohop as zh
    from support.fixtures import OpenContext
    from zerohop._native import Endpoint, Engine, Mapping, Region, RemoteKeys
    from zerohop.core.control import wire
    from zerohop.core.lanes.lane import Lane
    from zerohop.core.transfers.connection import Connection

NBYTES = 4096
LANE_DOWN, PORT_CHANGED = 1 << 62, 1 << 61
_numbers = itertools.count(1)


class FakeDomain:
    def __init__(self, device: str, port: int) -> None:
        self.device = device
        self.port = port
        self.number = next(_numbers)
        self.alive = True
        self.lost = False
        self.closed = False
        # What lanes that are made now are told.
        self.options: dict[str, int] = {}

    def facts(self) -> dict[str, float | int | str]:
        return {"gbps": 50.0, "link_layer": "Ethernet", "atomics": 1}

    def retune(self, options: dict[str, int]) -> None:
        if options.get("gid_index", 0) > 255:
            raise NativeError(Status.UNSUPPORTED.value, 0, "gid_index")
        self.options = options

    def close(self) -> None:
        self.closed = True


class FakeEndpoint:
    """One end of a lane between fake NICs."""

    provider = "verbs"
    # Sockets whose other end waits here to be connected, by the numbers of both ends.
    _waiting: ClassVar[dict[frozenset[int], socket.socket]] = {}
    _lock = threading.Lock()

    def __init__(self, engine: FakeEngine, peer: int, domains: Sequence[FakeDomain]) -> None:
        self.engine = engine
        self.peer = peer
        self.domains = list(domains)
        self.number = next(_numbers)
        self.native: Endpoint = engine.real.endpoint("tcp", peer)
        self.limits = {"fixed_us": 3.0, "gbps": 50.0 * len(domains)}
        self.closed = self.broken = False
        # Whether it has something under way.
        self.busy = False
        # Whether the NIC still has something of it once it is closed.
        self.holds_on = False
        self._meeting: frozenset[int] = frozenset()

    @property
    def alive(self) -> bool:
        return not self.closed and not self.broken and self.native.alive

    @property
    def quiet(self) -> bool:
        return not self.busy

    @property
    def in_device(self) -> bool:
        return self.busy

    @property
    def gone(self) -> bool:
        return self.closed and not self.holds_on

    @property
    def cause(self) -> tuple[Status, Reason]:
        return Status.PEER_LOST, Reason.NO_ANSWER

    def address(self) -> tuple[bytes, list[int]]:
        return bytes([len(self.domains)]) + self.number.to_bytes(4, "big"), []

    def connect(self, data: bytes, fds: Sequence[int]) -> None:
        assert data[0] == len(self.domains) > 0, "not the same rails at both ends"
        assert not fds
        self._meeting = frozenset((self.number, int.from_bytes(data[1:], "big")))
        with self._lock:
            mine = self._waiting.pop(self._meeting, None)
            if mine is None:
                mine, self._waiting[self._meeting] = tcp_pair()
        with mine:
            self.native.connect(b"", [mine.fileno()])

    def close(self, reset: bool = False) -> None:
        self.closed = True
        with self._lock:
            waiting = self._waiting.pop(self._meeting, None)
        if waiting is not None:
            waiting.close()

    def reset(self) -> None:
        """Break it, as a NIC tells of it. The other end hears nothing of that."""
        self.broken = True
        self.engine.real.events.push(LANE_DOWN | self.peer)

    def statistics(self) -> dict[str, int]:
        return self.native.statistics()


class FakeEngine:
    """A real engine and a number of NICs. What it does not fake it passes on."""

    def __init__(self, real: Engine, nics: int) -> None:
        self.real = real
        self.ports = [Port(f"fake{number}", 1, {"queue_pairs": 2}) for number in range(nics)]
        self.domains: dict[str, FakeDomain] = {}
        self.lanes: list[FakeEndpoint] = []
        # Why a port cannot be opened, by device; memory that cannot be registered here; and shares that cannot be
        # reached, each with why.
        self.broken_ports: dict[str, str] = {}
        self.unregistrable: dict[int, str] = {}
        self.unreachable = ""
        # Whether that is so for want of lockable memory.
        self.short_of_memory = False
        # How it says that it has registered the memory of a share.
        self.how = "dma-buf"
        # How often it was asked to register some.
        self.registered = 0
        # Whether lanes come up whose first bytes are lost; and shares that peers have asked the keys of.
        self.swallows = False
        self.reached: list[tuple[int, str, bool]] = []
        self._routes: dict[int, FakeEndpoint] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def open_domain(self, provider: str, device: str, port: int, options: dict[str, int]) -> FakeDomain:
        assert (provider, port, options) == ("verbs", 1, {"queue_pairs": 2})
        if why := self.broken_ports.get(device):
            raise self._refusal(why)
        assert device not in self.domains or self.domains[device].closed, "opened twice"
        domain = self.domains[device] = FakeDomain(device, port)
        return domain

    def endpoint(self, provider: str, peer: int, domains: Sequence[FakeDomain] = ()) -> Endpoint:
        if provider != "verbs":
            assert not domains
            return self.real.endpoint(provider, peer)
        lane = FakeEndpoint(self, peer, domains)
        self.lanes.append(lane)
        return cast("Endpoint", lane)

    def register_local(self, region: Region, domain: FakeDomain) -> tuple[int, str]:
        self.registered += 1
        if why := self.unregistrable.get(region.address):
            raise self._refusal(why)
        return domain.number, "plain address"

    def reach(self, share_id: int, domain: FakeDomain, own: bool) -> tuple[int, int, str]:
        self.reached.append((share_id, domain.device, own))
        if self.unreachable:
            raise self._refusal(self.unreachable)
        return 1 << 40, domain.number, self.how

    def _refusal(self, why: str) -> NativeError:
        if self.short_of_memory:
            return NativeError(Status.NO_MEMORY.value, Reason.MEMLOCK.value, why)
        return NativeError(Status.UNSUPPORTED.value, Reason.NONE.value, why)

    def route(
        self,
        endpoint: Endpoint | FakeEndpoint,
        region: Region,
        share: int,
        capability: bytes,
        nbytes: int,
        rights: int,
        mapping: Mapping | None,
        keys: RemoteKeys | None = None,
        local_keys: Sequence[int] = (),
    ) -> int:
        if not isinstance(endpoint, FakeEndpoint):
            return self.real.route(endpoint, region, share, capability, nbytes, rights, mapping)
        self._check(endpoint)
        assert mapping is None
        if keys is not None:
            assert list(local_keys) == [domain.number for domain in endpoint.domains]
        route = self.real.route(endpoint.native, region, share, capability, nbytes, rights, None)
        self._routes[route] = endpoint
        return route

    def post(self, route: int, *args: Any) -> Any:
        self._check(self._routes.get(route))
        return self.real.post(route, *args)

    def post_send(self, endpoint: Endpoint | FakeEndpoint, *args: Any) -> Any:
        return self.real.post_send(self._native(endpoint), *args)

    def post_recv(self, endpoint: Endpoint | FakeEndpoint, *args: Any) -> Any:
        return self.real.post_recv(self._native(endpoint), *args)

    def post_notify(self, endpoint: Endpoint | FakeEndpoint, *args: Any) -> Any:
        return self.real.post_notify(self._native(endpoint), *args)

    def post_flush(self, endpoint: Endpoint | FakeEndpoint, deadline_ns: int) -> Any:
        native = self._native(endpoint)
        if self.swallows and isinstance(endpoint, FakeEndpoint):
            raise NativeError(Status.PEER_LOST.value, Reason.NO_ANSWER.value, "")
        return self.real.post_flush(native, deadline_ns)

    def _native(self, endpoint: Endpoint | FakeEndpoint) -> Endpoint:
        if isinstance(endpoint, FakeEndpoint):
            self._check(endpoint)
            return endpoint.native
        return endpoint

    def _check(self, endpoint: FakeEndpoint | None) -> None:
        if endpoint is not None and not endpoint.alive:
            raise NativeError(Status.PEER_LOST.value, Reason.LANE_RESET.value, "")


def with_nics(context: zh.Context, nics: int = 2) -> FakeEngine:
    """Have a fresh Context believe that it has NICs."""
    fake = FakeEngine(context._core.engine, nics)
    engine = cast("Engine", fake)
    context._core.engine = context._core.routes._engine = context._core.nic_ports._engine = engine
    stop_posting(context)  # every write asks the fake
    context._core.nic_ports._choose = lambda: fake.ports
    providers = context._core.settings.providers or ("shm", "tcp")
    context._core.providers = tuple(name for name in ("shm", "verbs", "tcp") if name in (*providers, "verbs"))
    return fake


def lane_of(connection: Connection, provider: str) -> Lane:
    lane = connection._link.lane_of(provider)
    assert lane is not None, f"no lane over {provider}"
    return lane


def end_of(connection: Connection) -> FakeEndpoint:
    """This side's end of the fake lane."""
    endpoint = lane_of(connection, "verbs").endpoint
    assert isinstance(endpoint, FakeEndpoint)
    return endpoint


def other_end(context: zh.Context, peer: zh.Context) -> Connection:
    """What `context` knows as its Connection to `peer`."""
    eventually(lambda: peer.id in context._core.connected, "no Connection at the other side")
    connection: Connection = context._core.connections[context._core.connected[peer.id].native_id]
    return connection


def change_ports(fake: FakeEngine, *devices: str, alive: bool) -> None:
    """Their links go, or come back, at one moment."""
    domains = [fake.domains[device] for device in devices]
    for domain in domains:
        domain.alive = alive
    for domain in domains:
        fake.real.events.push(PORT_CHANGED | domain.number)


def lose_device(fake: FakeEngine, device: str) -> None:
    """It has failed for good, and its lanes end."""
    domain = fake.domains[device]
    domain.alive, domain.lost = False, True
    for lane in fake.lanes:
        if domain in lane.domains and not lane.closed:
            lane.reset()
    fake.real.events.push(PORT_CHANGED | domain.number)


class Pair(NamedTuple):
    """Two Contexts that believe to have NICs: the one that dials, and the one that is dialled."""

    here: zh.Context
    there: zh.Context
    nics: FakeEngine
    their_nics: FakeEngine

    def connect(self) -> tuple[Connection, Connection]:
        """Both ends."""
        return self.here.connect(self.there.url).result(PATIENCE_S), other_end(self.there, self.here)


class Heard(NamedTuple):
    """What went through the control conversations of a Context, in its order."""

    sent: list[wire.Message]
    received: list[wire.Message]


@pytest.fixture
def nic_pair(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pair]:
    # What did not work is not tried again, nor what works given up, because the test takes long.
    monkeypatch.setattr(backoff, "HOLD_OFF_S", 3600.0)
    monkeypatch.setattr(lane_setup, "_PROOF_NS", int(PATIENCE_S * 1e9))

    def open_pair(providers: tuple[str, ...] | None = ("tcp",), *, nics: int = 2, only: bool = False) -> Pair:
        here, there = open_context(Options(providers=providers)), open_context(Options(providers=providers))
        opened = Pair(here, there, with_nics(here, nics), with_nics(there, nics))
        if only:
            here._core.providers = there._core.providers = ("verbs",)
        return opened

    return open_pair


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What all sessions of this process say, from now on."""
    heard = Heard([], [])
    post, handle = Channel.post, Session._handle

    def posting(self: Channel, message: wire.Message, fds: tuple[int, ...] = ()) -> None:
        heard.sent.append(message)
        post(self, message, fds)

    def handling(self: Session, message: wire.Message, fds: list[int]) -> None:
        heard.received.append(message)
        handle(self, message, fds)

    monkeypatch.setattr(Channel, "post", posting)
    monkeypatch.setattr(Session, "_handle", handling)
    return heard


def of(kind: type[wire.T], messages: list[wire.Message]) -> list[wire.T]:
    return [message for message in messages if isinstance(message, kind)]


def numbers(connection: Connection) -> list[int]:
    return sorted(connection._link.lanes)


def write_over(context: zh.Context, memory: zh.Memory, handle: zh.RemoteBuffer) -> str:
    """Which path it took."""
    write = context.write(memory, handle)
    assert write.result(PATIENCE_S) == NBYTES
    return str(write.explain())
