"""Declares Link, the state of the connection to one peer, the routes over it, and the errors of a broken one."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from zerohop._native import NativeError, Reason, RemoteKeys, Status
from zerohop.config.providers import VERBS
from zerohop.core.base import closed_engine
from zerohop.core.base.backoff import Backoff
from zerohop.core.base.peer_text import quoted
from zerohop.core.lanes.path_choice import IMPORTED, RING, STREAM, protection
from zerohop.core.runtime.explanation import Explanation
from zerohop.errors import LANE_RESET, ZerohopError, copy_of, from_native

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Hashable

    from zerohop._native import Endpoint, Engine
    from zerohop.core.control.wire import Nic
    from zerohop.core.lanes.imported import Allocation, Import
    from zerohop.core.lanes.lane import Lane
    from zerohop.core.lanes.path_choice import Cost
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.remote_buffer import Share
    from zerohop.core.runtime.runtime import Runtime

_PEER: Final = "peer"


class Grantor(Protocol):
    """Stands for a peer that has granted shares, which may be used without asking it (peer_grants.py)."""

    def take(self, link: Link, provider: str, share: Share) -> Import | None:
        """Import a share; return None if its owner has to be asked. Any thread may call this."""

    def cut_short(self, link: Link) -> list[tuple[str, int]]:
        """Return what was taken and is in no import: a signal's handler has cut that short, or its import ends."""

    def give_back(self, link: Link, key: tuple[str, int]) -> Import | None:
        """Give a share back of which no import is left here; do nothing if there is one, or if it was not taken.

        Return an import that a signal's handler has cut short: give the share back once that is released.
        """


class LanePath(NamedTuple):
    """Describes the path of operations that take the lane for messages, such as ``send``."""

    peer: str
    explanation: Explanation

    def endpoint(self) -> Endpoint | None:
        """Return None: the lane may have been replaced since."""
        return None


class Link(ABC):
    """Holds the state of the connection to one peer Context. Changed on the control thread; any thread reads it.

    Attributes:
        core: the core of this side's Context.
        peer: id of the peer Context.
        url: the address at which the peer can be reached.
        name: the name that the peer gives itself.
        native_id: the engine's id of the peer; -1 until both sides have introduced themselves.
        ready: whether there has been a lane for messages.
        message_lane: the lane that messages and notifications take; None while there is none.
        provider: provider of that lane, or of the last one.
        lanes: the lanes that are up, by number. Replaced as a whole and never changed, because any thread reads it.
        their_nics: the NIC ports that the peer has named.
        tcp_flows: as many flows as both sides allow a tcp lane to have.
        possible: providers that both sides have, with their costs as far as these are known.
        missing: for each other provider, why there can be no lane of it.
        failed: providers of which a lane could not be opened just now.
        imports: the peer's shares that are imported here, by provider and share, in the order of their imports.
        imports_lock: held while an import is entered or taken out, because any thread may take a share.
        grants: takes shares that the peer has granted; None if it has granted none.
        allocations: the peer's allocations that these lie in, by the peer's number.
        unreachable: shares that cannot be imported, by provider, share, and NICs of the peer or device here.
        routes: the routes over this link.
        control: how the control channel is protected, in words.
        lost: the error with which the peer was lost; None while it is not lost.
        closing: the error with which the peer will be lost, once this side has begun to close the link.
        late: deferred operations that no later one may overtake, by the kind of room that they wait for.
    """

    __slots__ = (
        "__weakref__",
        "_lines",
        "_paths",
        "_side",
        "allocations",
        "closing",
        "control",
        "core",
        "failed",
        "grants",
        "imports",
        "imports_lock",
        "lanes",
        "late",
        "lost",
        "message_lane",
        "missing",
        "name",
        "native_id",
        "peer",
        "possible",
        "provider",
        "ready",
        "routes",
        "tcp_flows",
        "their_nics",
        "unreachable",
        "url",
    )

    def __init__(self, core: Runtime, peer: str) -> None:
        self.core = core
        self.peer = peer
        self.url = ""
        self.name = ""
        self.native_id = -1
        self.ready = False
        self.message_lane: Lane | None = None
        self.provider = ""
        self.lanes: dict[int, Lane] = {}
        self.their_nics: tuple[Nic, ...] = ()
        self.tcp_flows = 1
        self.possible: dict[str, Cost | None] = {}
        self.missing: dict[str, str] = {}
        self.failed: Backoff[str] = Backoff()
        self.imports: OrderedDict[tuple[str, int], Import] = OrderedDict()
        self.imports_lock = threading.RLock()
        self.grants: Grantor | None = None
        self.allocations: dict[int, Allocation] = {}
        self.unreachable: Backoff[tuple[str, int, tuple[int, ...]]] = Backoff()
        self.routes: dict[Route, None] = {}
        self.control = ""
        self.lost: ZerohopError | None = None
        self.closing: ZerohopError | None = None
        self.late: dict[str, set[object]] = {}
        # Paths of messages, by the provider of the lane and the device of the memory at this end.
        self._paths: dict[tuple[str, str], LanePath] = {}
        # The numbers of the lanes, and the table, of which `side` was made last, and what it was.
        self._side: tuple[tuple[int, ...], dict[str, Cost | None], Hashable] = (), {}, None
        # Locks at which deferred operations queue, by the kind of room that they wait for.
        self._lines: dict[str, asyncio.Lock] = {}

    @property
    def encrypts(self) -> bool:
        """Tell whether sockets of tcp lanes go through TLS."""
        return self.core.settings.encryption == "all"

    @property
    def label(self) -> str:
        """Return what logs call the peer: its id, and before that its name, if it has one.

        The name is in quotes, because the peer chose it, and may have chosen that of another one, or an id that begins
        like another one's. No two peers that are connected have the same id.
        """
        return f"{quoted(self.name)} ({self.peer})" if self.name else self.peer

    @property
    def alive(self) -> bool:
        """Tell whether operations can be posted: the link is neither closed here nor known to be lost."""
        if self.core.forked or not self.ready:
            return False
        try:
            self.check_alive()
        except ZerohopError:
            return False
        return True

    def check_alive(self) -> None:
        """Raise how the peer was lost; the data plane knows it before the control thread does."""
        lost = self.lost or self.closing
        if lost is not None:
            raise copy_of(lost)
        if self.native_id < 0:
            return
        try:
            # The peer is asked about, and not its lane, because a lane may be down while the peer is well.
            status, reason = self.core.engine.peer_status(self.native_id)
        except NativeError:
            raise self.core.closed_error() from None
        if status != Status.OK:
            raise lost_error(self, status, reason)

    @property
    def endpoint(self) -> Endpoint:
        """Return this side's end of the lane for messages; raise NativeError (LANE_RESET) if there is none."""
        lane = self.message_lane
        if lane is None:
            self.check_alive()
            raise NativeError(Status.WOULD_BLOCK.value, LANE_RESET, "")
        return lane.endpoint

    def start(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> asyncio.Task[None]:
        """Run a task of this link on the control thread; an error that it does not handle loses the link."""
        return self.core.control.start(work, *args, failed=self.step_failed)

    @abstractmethod
    def step_failed(self, error: BaseException) -> None:
        """Lose the link, because an error, mostly lack of memory, has cut short what somebody may wait for."""

    def lane_of(self, provider: str) -> Lane | None:
        """Return the lane of a provider that is up; None if there is none."""
        for lane in self.lanes.values():
            if lane.provider == provider:
                return lane
        return None

    def side(self) -> Hashable:
        """Return all of the link that the choice of a path depends on; None if it has NICs, which are more than that.

        The tables are replaced and never changed, so that thousands of pairs of memories are one look at them.
        """
        numbers, possible, side = self._side
        lanes = self.lanes
        if numbers != tuple(lanes) or possible is not self.possible:
            possible = self.possible
            costs = {lane.provider: lane.cost for lane in lanes.values()}
            side = None if VERBS in costs else (*costs.items(), *self.missing.items(), *possible.items())
            self._side = tuple(lanes), possible, side
        return side

    def line(self, room: str) -> asyncio.Lock:
        """Return the lock at which operations queue that wait for the same kind of room. On the control thread."""
        import asyncio

        return self._lines.setdefault(room, asyncio.Lock())

    def path(self, device: str) -> LanePath:
        """Return the path of messages to or from memory of this device, which is the lane itself."""
        provider = self.provider
        path = self._paths.get((provider, device))
        if path is None:
            form = RING if provider in ("shm", "p2p") else STREAM
            # Messages pass through the lane's ring, socket or buffers, so that they are not direct.
            covers = protection(provider, self.control, encrypts=self.encrypts)
            path = LanePath(self.peer, Explanation(provider, form, False, device, _PEER, (), protection=covers))
            self._paths[provider, device] = path
        return path

    def reconsider(self) -> None:
        """Drop routes for which no memory was imported, because there may be a better path now."""
        self.failed.retry_all()
        self.unreachable.retry_all()
        for route in list(self.routes):
            if route.explanation.form not in IMPORTED:
                route.drop()


class Route:
    """Holds the native route between two memories over a link. It is stale once its lane or mapping is gone."""

    __slots__ = (
        "__weakref__",
        "_engine",
        "_key",
        "_registration",
        "explanation",
        "id",
        "imported",
        "lane",
        "link",
        "stale",
    )

    def __init__(
        self,
        engine: Engine,
        native_id: int,
        link: Link,
        lane: int,
        explanation: Explanation,
        registration: Registration,
        key: bytes,
    ) -> None:
        self.id = native_id
        self.link = link
        # Only the lane's number is kept: operations keep their routes, and a lane would keep the engine alive.
        self.lane = lane
        self.explanation = explanation
        self.stale = False
        # The import that it uses, until it is dropped.
        self.imported: Import | None = None
        self._engine = engine
        self._key = key
        self._registration = weakref.ref(registration)

    @property
    def peer(self) -> str:
        """Return the id of the peer."""
        return self.link.peer

    def endpoint(self) -> Endpoint | None:
        """Return this side's end of the lane; None once the lane is down."""
        lane = self.link.lanes.get(self.lane)
        return None if lane is None else lane.endpoint

    def nic_keys(self, domain: int) -> tuple[int, RemoteKeys] | None:
        """Return the local key of the memory here at a NIC port of this Context, and the keys of the peer's memory.

        Return None if the route is stale or does not use NICs.
        """
        registration, imported = self._registration(), self.imported
        access = None if imported is None else imported.access
        if registration is None or not isinstance(access, RemoteKeys) or domain not in registration.local_keys:
            return None
        return registration.local_keys[domain], access

    def drop(self) -> None:
        """Give the native route back; operations under way are not disturbed. Idempotent, and takes no lock."""
        if self.stale:
            return
        self.stale = True
        registration = self._registration()
        if registration is not None and registration.routes.get(self._key) is self:
            registration.routes.pop(self._key, None)
        self.link.routes.pop(self, None)
        imported, self.imported = self.imported, None
        if imported is not None:
            imported.routes.pop(self, None)
        engine, self._engine = self._engine, closed_engine.ENGINE
        try:
            engine.drop_route(self.id)
        except NativeError:  # the engine is closed or abandoned, and its routes with it
            pass


def lane_error(link: Link, error: NativeError, operation: str, provider: str) -> ZerohopError:
    """Return the error of a native call over a lane.

    A lane that is closed, although this side did not close it, has lost its peer.
    """
    status, reason, text = error.args
    where: dict[str, Any] = {"operation": operation, "peer": link.peer, "provider": provider}
    if status == Status.CLOSED.value:
        link.core.check_open()
        if link.lost is not None:
            return from_native(Status.PEER_LOST.value, 0, link.lost.reason, **where)
        found = link.core.engine.peer_status(link.native_id)
        if found[0] != Status.OK:
            status, reason, text = found[0].value, found[1].value, ""
    return from_native(status, reason, text, **where)


def lost_error(link: Link, status: Status, reason: Reason) -> ZerohopError:
    """Return the error for a peer that the engine found dead."""
    return from_native(status.value, reason.value, peer=link.peer, provider=link.provider)
