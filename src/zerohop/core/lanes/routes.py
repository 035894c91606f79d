"""Makes routes, once for each pair (memory, remote memory), so that an operation is one native call."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, PeerMemory, Reason, Status
from zerohop.core.base import closed_engine
from zerohop.core.control import auth
from zerohop.core.lanes import path_choice, reachability
from zerohop.core.lanes.device_registration import register_with_devices
from zerohop.core.lanes.gpu_links import link_between
from zerohop.core.lanes.link import Route, lane_error
from zerohop.core.runtime.deferred_post import lane_was_reset
from zerohop.core.runtime.devices import HOST
from zerohop.errors import Closed, Unsupported, ZerohopError, from_native

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from typing import Any

    from zerohop._native import Domain, Engine
    from zerohop.core.kernels.loading import CopyKernels
    from zerohop.core.lanes.imported import Import
    from zerohop.core.lanes.lane import Lane
    from zerohop.core.lanes.link import Link
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.remote_buffer import Share
    from zerohop.core.memory.retention import Retention
    from zerohop.core.runtime.explanation import Explanation

# Beyond this number the oldest routes are dropped. They are made anew when they are needed.
_MAX_ROUTES: Final = 1 << 16
# Situations for which the choice of a path is remembered.
_MAX_CHOSEN: Final = 1024
# Memory no longer than this is registered with a NIC by the call that first uses it: pinning its pages takes some tens
# of microseconds, no more than handing the call to the control thread.
_PINNED_AT_ONCE_BYTES: Final = 1 << 20


class Routes:
    """Makes routes over the connections that exist."""

    def __init__(self, engine: Engine, require: str | None, kernels: CopyKernels, retention: Retention) -> None:
        self._engine = engine
        self._require = require
        self._kernels = kernels
        self._retention = retention
        self._warned: set[tuple[str, str, str]] = set()
        # The paths chosen, by situation.
        self._chosen: dict[Hashable, Explanation] = {}
        # All routes, in the order in which they were made.
        self._all: OrderedDict[weakref.ref[Route], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def make_ready(self, imported: Import, registration: Registration) -> None:
        """Let a device reach both memories, which takes milliseconds the first time. Any thread may call this.

        Raises:
            NativeError: no device reaches both.
            Closed: the Memory was closed meanwhile.
        """
        allocation = imported.allocation
        assert allocation is not None
        assert isinstance(allocation.whole, PeerMemory)
        with _unless_closed(registration):
            device = self._reach(registration, allocation.whole)
            index = registration.region.device
        self._kernels.wait(device)
        if index not in allocation.links:
            on_host = index < 0
            identity = self._engine.devices()[device]["identity"]
            allocation.links[index] = link_between(identity, "" if on_host else allocation.device)
        allocation.ready.add(registration)

    def _reach(self, registration: Registration, memory: PeerMemory) -> int:
        if registration.region.device < 0:
            register_with_devices(self._engine, self._retention, registration)
        return self._engine.reach_peer(registration.region, memory)[0]

    def explain(self, link: Link, registration: Registration, remote: Share) -> Explanation:
        """Return the path of a pair of memories over a Connection; raise Unsupported if there is none.

        A provider of which no lane could be opened just now is passed over as long as there is another path.
        """
        key = self._situation_of(link, registration, remote)
        if key is None:
            return self._choose(link, registration, remote)
        chosen = self._chosen.get(key)
        if chosen is None:
            if len(self._chosen) >= _MAX_CHOSEN:
                self._chosen.clear()
            chosen = self._chosen[key] = self._choose(link, registration, remote)
        return chosen

    def _situation_of(self, link: Link, registration: Registration, remote: Share) -> Hashable:
        """Return all that the choice of a path depends on; None if failures or NICs make it depend on more.

        Thousands of pairs of memories of two Contexts are in one situation, and a choice takes some 50 µs.
        """
        if link.failed or link.unreachable or registration.unregistrable:
            return None
        side = link.side()
        if side is None:
            return None
        devices = registration.device, remote.device
        hardware = no_kernels = ""
        if devices != (HOST, HOST):
            hardware, no_kernels = reachability.device_link(link, registration, remote), self._kernels.why_not
        return devices, remote.mappable, side, hardware, no_kernels

    def _choose(self, link: Link, registration: Registration, remote: Share) -> Explanation:
        missing, possible = link.missing, link.possible
        lanes = {lane.provider: lane.cost for lane in link.lanes.values()}
        situation = path_choice.Situation(
            local_device=registration.device,
            remote_device=remote.device,
            lanes=lanes,
            missing=missing,
            not_mappable=reachability.why_not_mapped(link, remote),
            require=self._require,
            possible={provider: cost for provider, cost in possible.items() if provider not in lanes},
            not_reachable=reachability.why_not_reached(link, registration, remote),
            registered=reachability.how_registered(link, registration, remote),
            rails=reachability.rails(link),
            no_peer_link=reachability.why_no_peer_link(link, registration, remote),
            link=reachability.device_link(link, registration, remote),
            no_kernels=self._kernels.why_not,
            control=link.control,
            encrypts=link.encrypts,
            tcp_flows=link.tcp_flows,
        )
        failed = link.failed.failing()
        if failed:
            try:
                return path_choice.choose(situation._replace(missing={**failed, **missing}))
            except Unsupported:
                pass
        return path_choice.choose(situation)

    def forget_no_kernels(self) -> None:
        """Drop the routes made without copy kernels, because there are kernels now. Any thread may call this."""
        for reference in list(self._all):
            route = reference()
            if route is not None and route.explanation.no_kernels:
                route.drop()

    def make(
        self, link: Link, registration: Registration, remote: Share, key: bytes, *, at_once: bool = False
    ) -> Route | None:
        """Return a route; None if first a lane must be opened, memory registered, or the peer asked for its memory.

        ``at_once``: the memory here is registered in this call, however long it is. A nowait call that comes with other
        memory each time would otherwise never be posted.

        Raises:
            Closed: the Memory was closed meanwhile.
            ZerohopError: there is no path.
        """
        # Not by `_unless_closed`, because thousands of routes may be made at once.
        try:
            return self._make(link, registration, remote, key, at_once=at_once)
        except (NativeError, ZerohopError):
            if registration.closed:
                raise _closed_meanwhile() from None
            raise

    def _make(
        self, link: Link, registration: Registration, remote: Share, key: bytes, *, at_once: bool
    ) -> Route | None:
        from zerohop.core.lanes.lane import State

        explanation = self.explain(link, registration, remote)
        provider = explanation.provider
        lane = link.lane_of(provider)
        if lane is None:
            return None
        imported = None
        access: dict[str, Any] = {"mapping": None}
        nbytes, rights = remote.nbytes, remote.rights
        if explanation.form in path_choice.IMPORTED:
            imported = link.imports.get((provider, remote.share_id))
            if imported is None and link.grants is not None:
                imported = link.grants.take(link, provider, remote)
            if imported is None or imported.rails != lane.rails:
                return None
            if explanation.form == path_choice.PEER and not is_ready(imported, registration):
                # A device that has reached the peer's memory reaches it at once; memory here may need pinning.
                index, allocation = registration.region.device, imported.allocation
                at_once_here = at_once or registration.nbytes <= _PINNED_AT_ONCE_BYTES
                if allocation is None or index not in allocation.links or not at_once_here:
                    return None
                try:
                    self.make_ready(imported, registration)
                except NativeError as error:
                    if error.args[0] == Status.CLOSED.value:
                        raise lane_error(link, error, "", provider) from None
                    reachability.note_no_peer_link(link, registration, remote, error)
                    return self._make(link, registration, remote, key, at_once=at_once)
            if not is_registered(registration, lane):
                if not (at_once or registration.nbytes <= _PINNED_AT_ONCE_BYTES):
                    return None
                try:
                    done = all(register(self._engine, registration, domain) for domain in lane.domains)
                except NativeError as error:
                    raise lane_error(link, error, "", provider) from None
                if not done:  # register() has recorded the failure, so another path is found
                    return self._make(link, registration, remote, key, at_once=at_once)
            # The target does not check direct accesses, so a route must not get more than the owner gave.
            nbytes, rights = imported.nbytes, imported.rights
            if not auth.same(imported.capability, remote.capability):
                raise from_native(
                    Status.ACCESS_DENIED.value, Reason.CAPABILITY.value, peer=link.peer, provider=provider
                )
            access = imported.access_over(registration, lane)
        try:
            native_id = self._engine.route(
                lane.endpoint, registration.region, remote.share_id, remote.capability, nbytes, rights, **access
            )
        except NativeError as error:
            if lane_was_reset(error):
                return None
            raise lane_error(link, error, "", provider) from None
        route = Route(self._engine, native_id, link, lane.number, explanation, registration, key)
        link.routes[route] = None
        other: Route = registration.routes.setdefault(key, route)
        if other is not route:
            # Another thread has made a route meanwhile. A route that is in no dictionary would never be dropped.
            if not other.stale and other.link is link:
                route.drop()
                return other
            other.drop()
            registration.routes[key] = route
        self._remember(route)
        if imported is not None:
            route.imported = imported
            imported.routes[route] = None
            if route.stale:  # another thread has dropped it meanwhile
                imported.routes.pop(route, None)
        # Check again: the link, the lane or the memory may have closed meanwhile, and did not know of this route.
        gone = link.lost is not None or lane.state is not State.UP or registration.closed
        if gone or (imported is not None and imported.closed):
            route.drop()
            link.check_alive()
            return None
        if explanation.no_kernels and explanation.no_kernels != self._kernels.why_not:
            # The kernels have come meanwhile, and `forget_no_kernels` did not know of this route.
            route.drop()
            return self._make(link, registration, remote, key, at_once=at_once)
        wait_s = (
            math.inf
            if explanation.form in path_choice.IMPORTED
            else reachability.try_again_in(link, registration, remote)
        )
        if wait_s != math.inf:
            link.core.control.call(_drop_later, weakref.ref(route), wait_s)
        path_choice.warn_if_staged(explanation, self._warned)
        # Imported here because `import zerohop` alone needs no logging.
        from zerohop.core.base.log import logger

        logger.debug("path: %s", explanation)
        return route

    def close(self) -> None:
        """Release the engine."""
        self._engine = closed_engine.ENGINE

    def _remember(self, route: Route) -> None:
        self._all[weakref.ref(route, self._forget)] = None
        while len(self._all) > _MAX_ROUTES:
            try:
                oldest = self._all.popitem(last=False)[0]()
            except KeyError:  # other threads have dropped routes meanwhile
                return
            if oldest is not None:
                oldest.drop()

    def _forget(self, reference: weakref.ref[Route]) -> None:
        self._all.pop(reference, None)


def _drop_later(reference: weakref.ref[Route], seconds: float) -> None:
    """Drop a route later, on the control thread, because a better path may work again by then.

    The timer does not keep the route, which may go before with its memory.
    """
    import asyncio

    def drop() -> None:
        route = reference()
        if route is not None:
            route.drop()

    asyncio.get_running_loop().call_later(seconds, drop)


def is_registered(registration: Registration, lane: Lane) -> bool:
    """Tell whether the NICs of a lane have registered the memory here; true for a lane without NICs."""
    return all(domain.number in registration.local_keys for domain in lane.domains)


def is_ready(imported: Import, registration: Registration) -> bool:
    """Tell whether a device here copies between the peer's memory and the memory here."""
    return imported.allocation is not None and registration in imported.allocation.ready


@contextlib.contextmanager
def _unless_closed(registration: Registration) -> Iterator[None]:
    """Raise Closed for any failure of a block if the memory here was closed meanwhile: that is its cause."""
    try:
        yield
    except (NativeError, ZerohopError):
        if registration.closed:
            raise _closed_meanwhile() from None
        raise


def _closed_meanwhile() -> Closed:
    return Closed("this Memory was closed meanwhile")


def register(engine: Engine, registration: Registration, domain: Domain) -> bool:
    """Register memory with a NIC; return False, and record why, if that is impossible. Any thread may call this.

    Raises:
        NativeError: the memory or the engine is closed.
    """
    if domain.number in registration.local_keys:
        return True
    try:
        key, registration.how[domain.number] = engine.register_local(registration.region, domain)
        registration.local_keys[domain.number] = key
        registration.unregistrable.record_success(domain.number)
    except NativeError as error:
        if error.args[0] == Status.CLOSED.value:
            raise
        registration.refused(domain.number, error)
        return False
    return True
