"""Opens the parts of a Context in order, closes them in reverse, and abandons them in a forked child."""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from zerohop._native import Engine, interpreter_exits, interpreter_forked, stop_posting
from zerohop.config import protection
from zerohop.config.providers import VERBS
from zerohop.core import opening
from zerohop.core.base import closed_engine, threads
from zerohop.core.base.deadlines import seconds_of
from zerohop.core.base.importing import importing
from zerohop.core.base.peer_text import printable
from zerohop.core.control import address
from zerohop.core.lanes.nic_ports import NicPorts
from zerohop.core.lanes.routes import Routes
from zerohop.core.memory.registration_cache import RegistrationCache
from zerohop.core.memory.retention import Retention
from zerohop.core.memory.shares import Shares
from zerohop.core.peers.peer_core import CLOSES_CONTEXT, PeerCore
from zerohop.core.runtime import dropped
from zerohop.core.runtime.devices import Devices
from zerohop.errors import Unsupported, ZerohopError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop._native import Poster
    from zerohop.config.settings import Settings
    from zerohop.core.lanes.nic_ports import Port
    from zerohop.core.memory.memory import Memory
    from zerohop.core.peers.peer_link import Conversation, PeerLink
    from zerohop.core.peers.peers import Peers

_NS: Final = 1_000_000_000
# Seconds between two looks at memory that was closed while operations used it.
_DRAIN_S: Final = 0.02
# Seconds that closing a Context may take when the interpreter exits.
_EXIT_S: Final = 1.0
# Seconds for which a new Context waits for its own thread, which needs Python's lock.
_BEGINNING_S: Final = 30.0
# Nanoseconds that threads waiting in native code have to leave it when the interpreter exits.
_LEAVE_NS: Final = 200_000_000
_cores: weakref.WeakSet[Core] = weakref.WeakSet()


class Core(PeerCore):
    """Holds all parts of a Context; context.py has the methods for users.

    Attributes:
        peers: dials peers and lets peers in.
        scratch: the memory here of atomics' routes, which need one and touch none; made on first use.
        posters: the objects whose native methods post through this Context, by ``id()``.
    """

    peers: Peers

    def __init__(self, settings: Settings, make_connection: Callable[[Core, PeerLink], object]) -> None:
        """Open everything; ``make_connection`` makes the Connection of a link, which users see.

        Raises:
            Unsupported, RegistrationFailed, LimitReached: see Context.
        """
        # Imported here because `import zerohop` alone needs no logging.
        with importing():
            from zerohop.core.base import log

        log.begin()
        super().__init__(settings)
        self.make_connection = partial(make_connection, self)
        self.providers = opening.usable_providers(settings)
        if settings.nics is not None:
            with importing():
                from zerohop.core.lanes.nic_choice import check_names  # as in _ports

            check_names(settings.nics)
        # If providers were asked for, all of them work, because `usable_providers` would have raised.
        probed = {} if settings.providers else opening.probed_providers(settings)
        self.unusable = {name: why for name, (usable, why, _) in probed.items() if not usable}
        self.connected, self.introduced, self.connections, self.young = {}, {}, {}, set()
        self.services = {}
        self.watchers = weakref.WeakValueDictionary()
        self.posters: weakref.WeakValueDictionary[int, Poster] = weakref.WeakValueDictionary()
        self.scratch: Memory | None = None
        self._draining = False
        # Reentrant: of a close that was interrupted where nobody could release it, the next one of that thread goes on.
        self._closing = threading.RLock()
        self._abandoned = False  # whether no call of Context.close can begin any more
        self._open()

    def _open(self) -> None:
        # Imported here because `import zerohop` alone needs no asyncio, nor the modules that speak with peers.
        with importing():
            import encodings.ascii
            import encodings.idna  # noqa: F401 - like ascii, an encoding of addresses, which Python imports at its first use

            from zerohop.core.control.handshake import Identity
            from zerohop.core.control.listener import Listeners
            from zerohop.core.control.secret import Secret
            from zerohop.core.kernels.loading import CopyKernels
            from zerohop.core.peers.arrivals import Arrivals
            from zerohop.core.peers.peers import Peers
            from zerohop.core.runtime.control_thread import ControlThread
            from zerohop.core.runtime.event_loops import Loops

        settings = self.settings
        no_tls = protection.why_not(settings.encryption)
        if no_tls and settings.encryption == "all":
            raise Unsupported(f'encryption="all" is not to be had here: {no_tls}', fix=protection.fix())
        self.listeners = Listeners(settings)
        try:
            self.url = address.Address(
                self.listeners.host, self.listeners.port, self.id, address.host_id(), self.listeners.socket_path
            ).url()
            self.engine = Engine(
                self.spin_ns, settings.sim_devices, int(settings.heartbeat * _NS), settings.sim_peermem
            )
        except BaseException as error:  # noqa: BLE001 - it is raised again, by name
            self.listeners.close()
            raise opening.error_of_engine(error) from None
        self.kernels = CopyKernels(self.engine, self._kernels_came_late)
        self.retention = Retention(self._drain_soon)
        self.devices = Devices(self.engine)
        self.registration_cache = RegistrationCache(self.engine, self.devices, self.retention, self.kernels.begin)
        self.shares = Shares(self.engine, self.id, self.url, self.retention)
        self.routes = Routes(self.engine, settings.require, self.kernels, self.retention)
        self.nic_ports = NicPorts(self.engine, self._ports, self._keys_lost)
        self.loops = Loops(self.engine)
        self.arrivals = Arrivals(self)
        self.peers = Peers(self)
        self.open_lane = self.peers.open_lane
        control = None
        try:
            control = self.control = ControlThread()
            secret = Secret(settings.secret, control) if settings.secret is not None else None
            self.identity = Identity(
                self.id,
                address.host_id(),
                os.getpid(),
                printable(self.name)[:256],  # as peers read it, so that both sides prove the same
                self.listeners.socket_path,
                secret,
                settings.encryption,
                tls=settings.encryption != "none" and not no_tls,
            )
            self.lane_tls = self.identity.lane_tls
            control.run(self._begin, timeout=_BEGINNING_S)
        except BaseException as error:  # noqa: BLE001 - it is raised again, by name
            self.engine.close(time.monotonic_ns() + _NS)
            self.loops.close()
            if control is not None:
                control.stop(_EXIT_S)
            self.listeners.close()
            self._release_engine(time.monotonic())
            raise opening.error_of_parts(error, _BEGINNING_S) from None
        self.closed = self.gone = False
        _cores.add(self)

    async def _begin(self) -> None:
        # The loop's queue is made now, so that no transfer fails later for lack of a descriptor.
        self.loops.running()
        self.peers.start()
        if self.identity.secret is not None:
            self.identity.secret.begin()
        self.listeners.start(self.control, self.identity, self.peers.admit, self.peers.enter)

    def close(self, timeout: float = 5.0) -> None:
        """Do Context.close."""
        # It is closed, or another thread closes it, for which this does not wait.
        if self.gone:
            return
        mine = False
        closing = self._closing  # which a finalizer replaces
        try:
            mine = closing.acquire(blocking=False)
            if not mine:
                return
            seconds = seconds_of(timeout)
            self.closed = True
            deadline = time.monotonic() + seconds
            if self.control.descriptors_closed():
                self.listeners.close()  # by no other thread any more
            try:
                self.control.wait(self._say_goodbye, timeout=min(seconds, 1.0))
            finally:
                # This runs after Ctrl-C, too. If another Ctrl-C interrupts it, the next close goes on.
                self._end(deadline)
        finally:
            if mine:
                closing.release()

    def close_dropped(self) -> None:
        """Close on a thread of its own, for a finalizer: that may run on any thread, and must not wait."""
        self.dropped = self.dropped or not self.closed
        self.closed = True
        if not self._abandoned:
            # A close that runs would keep the Context. So one that holds this has been cut short, and lets go no more.
            self._closing = threading.RLock()
            self._abandoned = True
        if self.control.call(self._close_aside):
            return
        try:
            # The control thread was stopped by a close that was cut short, or cannot be woken. Not by threading, whose
            # locks the thread that the finalizer runs on may hold.
            _thread.start_new_thread(self.close, (_EXIT_S,))
        except RuntimeError:  # as in `_close_aside`
            pass

    def _close_aside(self) -> None:
        try:
            threads.Thread(self.close, _EXIT_S, name="zerohop-close").begin()
        except ZerohopError:  # there is no room for another thread; the end of the interpreter closes it
            pass

    def close_at_exit(self) -> None:
        """Close, or wait for the thread that is closing already."""
        self._abandoned = True  # so that no finalizer takes away what this thread holds
        self.close(_EXIT_S)
        if not self.gone and self._closing.acquire(timeout=_EXIT_S):
            self._closing.release()

    def _end(self, deadline: float) -> None:
        control = self.control
        if self.engine is closed_engine.ENGINE:  # a close before this one was interrupted at its end
            self._stop_posters()
            _cores.discard(self)
            self.gone = True
            return
        self.engine.close(time.monotonic_ns() + int(max(0.0, deadline - time.monotonic()) * _NS))
        control.wait(self._lose_peers, timeout=max(0.1, deadline - time.monotonic()))
        self.loops.close()
        self.kernels.join(max(0.0, min(_EXIT_S, deadline - time.monotonic())))
        control.stop(max(0.1, deadline - time.monotonic()))
        unseen = self.engine.unseen_failures()
        self._release_engine(deadline)
        _cores.discard(self)
        self.gone = True
        # Last, because a program may have made an error of the warning.
        dropped.report_unseen(self, *unseen)

    def _release_engine(self, deadline: float) -> None:
        """Release all native objects now, and not when the garbage is collected."""
        self.shares.close(self.retention.get_kept)
        self.routes.close()
        self.registration_cache.close(deadline)
        for part in (self.nic_ports, self.kernels, self.devices):
            part.close()
        self.deferred.clear()
        self.preparing.clear()
        self.engine = closed_engine.ENGINE
        self._stop_posters()

    def _stop_posters(self) -> None:
        # valuerefs() reads the table in one step, because other threads change it meanwhile.
        for reference in self.posters.valuerefs():
            poster = reference()
            if poster is not None:
                stop_posting(poster)

    async def _say_goodbye(self) -> None:
        self.listeners.close()
        await self.peers.close(CLOSES_CONTEXT)

    async def _lose_peers(self) -> None:
        self.listeners.close()
        self.peers.lose_all()

    def _keys_lost(self) -> None:
        """Ask peers to give up keys that became invalid, before a new lane is set up. On the control thread."""
        for link, share_ids in self.shares.holders(VERBS).items():
            session: Conversation | None = link.session
            if session is not None:
                # This is posted at once, not by link.ask_back(), because the peer must read it before the new lane.
                session.ask_back(VERBS, share_ids)

    def _ports(self) -> Sequence[Port]:
        """Return the NIC ports that verbs is to use, the best first; raise Unsupported if there are none."""
        # Imported here because it reads /sys, which a Context without NICs does not need.
        with importing():
            from zerohop.core.lanes.nic_choice import choose

        near = next((device["pci_address"] for device in self.engine.devices() if device["pci_address"]), None)
        return choose(self.settings, near)

    def _kernels_came_late(self) -> None:
        """Drop routes that were made without copy kernels, because these have come. Any thread may call this."""
        self.routes.forget_no_kernels()

    def _drain_soon(self) -> None:
        """Look again soon whether closed memory is still in use. Any thread may call this."""
        if not self.closed and not self._draining:
            try:
                self._draining = True
                self.control.call(self.control.loop.call_later, _DRAIN_S, self._drain)
            except BaseException:  # of a signal's handler: the next one asks again
                self._draining = False
                raise

    def _drain(self) -> None:
        self._draining = False
        if not self.closed:
            self.retention.drain()

    def abandon(self) -> None:
        """Abandon everything in a forked child."""
        self.forked = self.closed = self.gone = True
        # Native methods do not check `forked`, so they are stopped here.
        self._stop_posters()
        self.engine.abandon()
        self.control.abandon()
        self.retention.abandon()


def _after_fork() -> None:
    interpreter_forked()
    for core in list(_cores):
        core.abandon()
    _cores.clear()


def _at_exit() -> None:
    for core in list(_cores):
        core.close_at_exit()
    interpreter_exits(_LEAVE_NS)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
