"""Opens the parts of a Context in order, closes them in reverse, and abandons them in a forked child."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, cast

from zerohop._native import (
    Engine,
    NativeError,
    Op,
    Reason,
    Status,
    Transfers,
    interpreter_exits,
    interpreter_forked,
    providers,
)
from zerohop.config.providers import VERBS
from zerohop.core.base import closed_engine
from zerohop.core.base.deadlines import deadline_after, seconds_of
from zerohop.core.base.resource import Closeable
from zerohop.core.control import address
from zerohop.core.lanes.nic_ports import NicPorts
from zerohop.core.lanes.routes import Routes
from zerohop.core.memory.registry import Registry
from zerohop.core.memory.retention import Retention
from zerohop.core.memory.shares import Shares
from zerohop.core.runtime.devices import Devices
from zerohop.errors import (
    NO_MEMORY,
    OUT_OF_DESCRIPTORS,
    Closed,
    Unsupported,
    ZerohopError,
    from_native,
    out_of_descriptors,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from zerohop.config.settings import Settings
    from zerohop.core.context import Context
    from zerohop.core.lanes.nic_ports import Port
    from zerohop.core.memory.memory import Memory
    from zerohop.core.peers.service import Service
    from zerohop.core.runtime.deferred import Deferred
    from zerohop.core.transfers.connection import Connection

_NS: Final = 1_000_000_000
# How often memory is looked at that was closed while operations used it.
_DRAIN_S: Final = 0.02
# Contexts that were not closed get this long each when the interpreter exits.
_EXIT_S: Final = 1.0
# And threads that wait in native code, to come out of it.
_LEAVE_NS: Final = 200_000_000
# For a forked child to find them; holds nothing alive.
_contexts: weakref.WeakSet[Lifecycle] = weakref.WeakSet()


class Poster(Closeable, Transfers):
    """Has native write(), write_many() and read(), and closes at the end of `with`."""

    if TYPE_CHECKING:  # native: what these post with, and from when on they post nothing themselves

        def _begin_posting(
            self,
            engine: Engine | None,
            in_flight: type,
            finished: type,
            write: object,
            write_many: object,
            read: object,
            timeout_ns: int,
            /,
            *of_an_owner: object,
        ) -> None: ...
        def _stop_posting(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        # It may wait for peers, and the loop has other things to do.
        await asyncio.to_thread(self.close)


class Owner(Poster):
    """Posts through a Context that others use, too, and hears of lost Connections."""

    def _connection_lost(self, connection: Connection, error: ZerohopError) -> None:
        """Hear, on the control thread, that a Connection is lost."""
        raise NotImplementedError


class Lifecycle(Poster):
    """Holds the parts of a Context; context.py has the methods for users."""

    # Until it is open. An argument that makes no sense ends the constructor before this one begins.
    _closed = True
    # Whether nothing is left of it to close, and who closes it.
    _gone = True
    _forked = False

    def __init__(self, settings: Settings) -> None:
        # Not with the package: it brings in logging.
        from zerohop.core.base import log

        log.begin()
        self.id: Final = os.urandom(16).hex()
        self.name: Final = settings.name
        self._settings = settings
        self._providers = _usable(settings)
        # Why not the others, of those that would be used if they worked here.
        probed = {} if settings.providers else _probed(settings)
        self._unusable = {name: why for name, (usable, why, _) in probed.items() if not usable}
        self._timeout_ns = int(settings.timeout * _NS)
        self._spin_ns = int(settings.spin_us * 1000)
        self._scratch: Memory | None = None
        self._draining = False
        self._closing = threading.Lock()
        # What the control thread has still to post, by the peer that it goes to.
        self._deferred: dict[Deferred[Any], str] = {}
        # What _nowait calls have asked for, by handle or peer: None while it is being prepared, else why it failed.
        self._preparing: dict[object, Exception | None] = {}
        # What peers may ask of what is built on this Context, by name; and who posts through it.
        self._services: dict[str, Service] = {}
        self._owners: weakref.WeakValueDictionary[bytes, Owner] = weakref.WeakValueDictionary()
        # Until when an event loop may go on without turning to its other tasks.
        self._turn_ends_ns = 0
        self._start()

    def _start(self) -> None:
        # asyncio and all that speaks to peers: not needed by whoever only imports.
        from zerohop.core.control.handshake import Identity
        from zerohop.core.control.listener import Listeners
        from zerohop.core.kernels.loading import CopyKernels
        from zerohop.core.peers.peers import Peers
        from zerohop.core.runtime.control_thread import ControlThread
        from zerohop.core.runtime.event_loops import Loops

        settings = self._settings
        self._listeners = Listeners(settings)
        try:
            self.url = address.Address(
                self._listeners.host,
                self._listeners.port,
                self.id,
                address.host_id(),
                self._listeners.socket_path,
            ).url()
            self._identity = Identity(
                self.id,
                address.host_id(),
                os.getpid(),
                self.name[:256],
                settings.secret,
                self._listeners.socket_path,
            )
            self._engine = Engine(
                self._spin_ns, settings.sim_devices, int(settings.heartbeat * _NS), settings.sim_peermem
            )
        except BaseException as error:
            self._listeners.close()
            if isinstance(error, NativeError):
                raise from_native(*error.args, operation="open") from None
            raise
        self._kernels = CopyKernels(self._engine, self._kernels_came_late)
        self._retention = Retention(self._drain_soon)
        self._devices = Devices(self._engine)
        self._registry = Registry(self._engine, self._devices, self._retention, self._kernels.begin)
        self._shares = Shares(self._engine, self.id, self.url, self._ask_back)
        self._routes = Routes(self._engine, settings.require, self._kernels, self._retention)
        self._nic_ports = NicPorts(self._engine, self._ports, self._keys_lost)
        self._loops = Loops(self._engine)
        self._peers = Peers(cast("Context", self))
        control = None
        try:
            control = self._control = ControlThread()
            control.run(self._begin, timeout=_EXIT_S)
        except BaseException as error:
            self._engine.close(time.monotonic_ns() + _NS)
            self._loops.close()
            if control is not None:
                control.stop(_EXIT_S)
            self._listeners.close()
            self._let_go_of_engine(time.monotonic())
            if isinstance(error, NativeError):
                raise from_native(*error.args, operation="open") from None
            if isinstance(error, OSError) and out_of_descriptors(error):
                raise from_native(NO_MEMORY, OUT_OF_DESCRIPTORS, operation="open") from None
            raise
        self._closed = self._gone = False
        _contexts.add(self)

    async def _begin(self) -> None:
        # Now, so that no descriptor comes later, when a transfer happens to need it.
        self._loops.running()
        self._peers.start()
        self._listeners.start(self._control, self._identity, self._peers.admit, self._peers.enter)

    def close(self, timeout: float = 5.0) -> None:
        """End everything, in ``timeout`` seconds whatever the peers do; idempotent.

        Operations in flight end with Closed, those of the peers with PeerLost; handles of this Context are dead.
        Every Memory is closed. Arrays from ``Memory.numpy`` stay valid.

        Args:
            timeout: seconds; ``math.inf``: as long as it takes.

        Raises:
            ValueError: ``timeout`` is negative or NaN. The Context stays open.
            TypeError: it is not a number, None included. The Context stays open.
        """
        # While one thread closes it, there is nothing to do for others.
        if self._gone or not self._closing.acquire(blocking=False):
            return
        try:
            seconds = seconds_of(timeout)
            self._closed = True
            deadline = time.monotonic() + seconds
            try:
                self._control.wait(self._say_goodbye, timeout=min(seconds, 1.0))
            finally:
                # After Ctrl-C, too. Where another one interrupts this, the next close goes on.
                self._end(deadline)
        finally:
            self._closing.release()

    def _end(self, deadline: float) -> None:
        control = self._control
        self._engine.close(time.monotonic_ns() + int(max(0.0, deadline - time.monotonic()) * _NS))
        control.wait(self._let_go, timeout=max(0.1, deadline - time.monotonic()))
        self._loops.close()
        self._kernels.join(max(0.0, min(_EXIT_S, deadline - time.monotonic())))
        control.stop(max(0.1, deadline - time.monotonic()))
        self._let_go_of_engine(deadline)
        _contexts.discard(self)
        self._gone = True

    def _let_go_of_engine(self, deadline: float) -> None:
        """Release everything native now, and not when the garbage is collected."""
        self._shares.close(self._retention.get_kept)
        self._routes.close()
        self._registry.close(deadline)
        for part in (self._nic_ports, self._kernels, self._devices):
            part.close()
        self._deferred.clear()
        self._preparing.clear()
        self._engine = closed_engine.ENGINE
        for poster in (self, *self._owners_now()):
            poster._stop_posting()

    async def _say_goodbye(self) -> None:
        self._listeners.close()
        await self._peers.close("the peer closed its Context")

    async def _let_go(self) -> None:
        self._listeners.close()
        self._peers.lose_all()

    def __repr__(self) -> str:
        return f"<Context {self.name} at {self.url}{', closed' if self._closed else ''}>"

    def _check_open(self) -> None:
        if self._closed or self._forked:
            raise self._closed_error()

    def _check_process(self) -> None:
        """Raise in a forked child, before something there waits for threads that it does not have."""
        if self._forked:
            raise self._closed_error()

    def _closed_error(self) -> ZerohopError:
        if self._forked:
            return Closed("this Context was created before fork()", fix="create a new Context in the child")
        return Closed("this Context is closed")

    def _deadline(self, timeout: float | None) -> int:
        """Return an absolute deadline in native nanoseconds; 0: none."""
        if timeout is None:
            return time.monotonic_ns() + self._timeout_ns if self._timeout_ns else 0
        return deadline_after(timeout)

    def _owners_now(self) -> list[Owner]:
        """Return the owners, read in one step, because others come and go meanwhile."""
        return [owner for reference in self._owners.valuerefs() if (owner := reference()) is not None]

    def _connection_of(self, native_id: int) -> Connection:
        return self._peers.of_native(native_id)

    def _ask_back(self, connection: Connection, provider: str, share_id: int) -> None:
        session = connection._session
        if session is not None:
            self._control.call(session.exports.ask_back, provider, share_id)

    def _keys_lost(self) -> None:
        """Ask peers to give up keys that became invalid, before a new lane is set up. On the control thread."""
        for connection, share_id in self._shares.holders(VERBS):
            if connection._session is not None:
                connection._session.exports.ask_back(VERBS, share_id)

    def _ports(self) -> Sequence[Port]:
        """Return the NIC ports that verbs is to use, the best first; raise Unsupported if there are none."""
        # What reads /sys: not needed where no lane over a NIC is thought of.
        from zerohop.core.lanes.nic_choice import choose

        near = next((device["pci_address"] for device in self._engine.devices() if device["pci_address"]), None)
        return choose(self._settings, near)

    def _kernels_came_late(self) -> None:
        """Make routes anew that say that there are no copy kernels. Any thread may call this."""
        self._routes.forget_no_kernels()

    def _drain_soon(self) -> None:
        """Look again soon whether closed memory is still in use. Any thread may call this."""
        if not self._closed and not self._draining:
            self._draining = True
            self._control.call(self._control.loop.call_later, _DRAIN_S, self._drain)

    def _drain(self) -> None:
        self._draining = False
        if not self._closed:
            self._retention.drain()

    def _complete(self, native: Op, status: Status, reason: Reason, nbytes: int) -> None:
        """End an operation of ours; one that its deadline or a cancellation has ended stays as it is."""
        try:
            native.complete(status, reason, 0, nbytes)
        except NativeError:
            # The engine is closed, and has ended it.
            pass

    def _abandon(self) -> None:
        """Abandon everything in a forked child."""
        self._forked = self._closed = self._gone = True
        # The hot path looks at nothing else.
        for poster in (self, *self._owners_now()):
            poster._stop_posting()
        self._engine.abandon()
        self._control.abandon()
        self._retention.abandon()


def _usable(settings: Settings) -> tuple[str, ...]:
    """Return the providers that this Context may use; raise Unsupported if one that was asked for does not work."""
    probed = _probed(settings)
    if settings.providers is None:
        return tuple(name for name, (usable, _, _) in probed.items() if usable)
    others = " or ".join(name for name, (usable, _, _) in probed.items() if usable)
    for name in settings.providers:
        usable, reason, fix = probed.get(name, (False, "this build does not have it", f"use {others}"))
        if not usable:
            raise Unsupported(reason, fix=fix, provider=name)
    return settings.providers


def _probed(settings: Settings) -> dict[str, tuple[bool, str, str]]:
    """Return for each provider of this build whether a Context with these settings can use it, why not, and the fix."""
    probed = {name: (usable, reason, fix) for name, usable, reason, fix in providers()}
    if settings.sim_devices:
        probed["p2p"] = True, "", ""
    return probed


def _after_fork() -> None:
    interpreter_forked()
    for context in list(_contexts):
        context._abandon()
    _contexts.clear()


def _at_exit() -> None:
    for context in list(_contexts):
        context.close(_EXIT_S)
    interpreter_exits(_LEAVE_NS)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
