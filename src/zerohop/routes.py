"""Routes: what is chosen once for a pair (memory, remote memory), so that an operation is one native call."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from . import auth, closed, paths
from ._native import NativeError, Reason, Status
from .errors import from_native

if TYPE_CHECKING:
    from ._native import Engine, Mapping
    from .connection import Connection
    from .paths import Explanation
    from .registry import Registration
    from .remote_buffer import Share

# Beyond this many the oldest go, and come back when they are needed again.
_MAX_ROUTES: Final = 16384


class Route:
    """A native route, and what Python must know of it. Stale once its lane or mapping is gone: then it is replaced."""

    __slots__ = ("__weakref__", "_engine", "_key", "_registration", "connection", "explanation", "id", "stale")

    def __init__(
        self,
        engine: Engine,
        native_id: int,
        connection: Connection,
        explanation: Explanation,
        registration: Registration,
        key: bytes,
    ) -> None:
        self.id = native_id
        self.connection = connection
        self.explanation = explanation
        self.stale = False
        self._engine = engine
        self._key = key
        self._registration = weakref.ref(registration)

    def drop(self) -> None:
        """Give the native route back; operations under way are not disturbed. Idempotent, and takes no lock."""
        if self.stale:
            return
        self.stale = True
        registration = self._registration()
        if registration is not None and registration.routes.get(self._key) is self:
            registration.routes.pop(self._key, None)
        self.connection._routes.pop(self, None)
        engine, self._engine = self._engine, closed.ENGINE
        try:
            engine.drop_route(self.id)
        except NativeError:
            # The engine is closed or abandoned, and its routes with it.
            pass


class Import:
    """A peer's shared memory, mapped here, as the peer described it when it gave it out."""

    __slots__ = ("capability", "closed", "mapping", "nbytes", "rights", "routes")

    def __init__(self, mapping: Mapping, capability: bytes, nbytes: int, rights: int) -> None:
        self.mapping = mapping
        self.capability = capability
        self.nbytes = nbytes
        self.rights = rights
        self.routes: weakref.WeakSet[Route] = weakref.WeakSet()
        self.closed = False

    def close(self) -> bool:
        """Let no new operation use it and unmap it; False while one still does. Call again then."""
        self.closed = True
        for route in list(self.routes):
            route.drop()
        return self.mapping.close()


class Routes:
    """Makes routes over the connections that exist."""

    def __init__(self, engine: Engine, require: str | None) -> None:
        self._engine = engine
        self._require = require
        self._warned: set[tuple[str, str, str]] = set()
        # In the order in which they were made.
        self._all: dict[weakref.ref[Route], None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def explain(self, connection: Connection, local_device: str, remote: Share) -> Explanation:
        """The path that a pair of memories takes over this connection; Unsupported when there is none."""
        return paths.choose(
            paths.Situation(
                local_device=local_device,
                remote_device=remote.device,
                lanes=connection._lane_costs,
                missing=connection._missing,
                not_mappable=connection._why_not_mapped(remote),
                require=self._require,
            )
        )

    def make(self, connection: Connection, registration: Registration, remote: Share, key: bytes) -> Route | None:
        """The route, or None when the peer must be asked first for its memory."""
        from .connection import lane_error

        explanation = self.explain(connection, registration.device, remote)
        imported = None
        nbytes, rights = remote.nbytes, remote.rights
        if explanation.form == paths.MAPPED:
            imported = connection._imports.get(remote.share_id)
            if imported is None:
                return None
            # Nobody at the target checks a mapped copy, so a handle must not get more than the owner gave.
            nbytes, rights = imported.nbytes, imported.rights
            if not auth.same(imported.capability, remote.capability):
                raise from_native(
                    Status.ACCESS_DENIED.value, Reason.CAPABILITY.value, peer=connection.peer, provider="shm"
                )
        try:
            native_id = self._engine.route(
                connection._endpoint,
                registration.region,
                remote.share_id,
                remote.capability,
                nbytes,
                rights,
                None if imported is None else imported.mapping,
            )
        except NativeError as error:
            raise lane_error(connection, error, "") from None
        route = Route(self._engine, native_id, connection, explanation, registration, key)
        connection._routes[route] = None
        registration.routes[key] = route
        self._remember(route)
        if imported is not None:
            imported.routes.add(route)
        # Both may have gone while this was under way, and would not have seen this route.
        if connection._lost is not None or (imported is not None and imported.closed):
            route.drop()
            connection._check_alive()
            return None
        paths.warn_if_staged(explanation, self._warned)
        return route

    def close(self) -> None:
        """Let go of the engine."""
        self._engine = closed.ENGINE

    def _remember(self, route: Route) -> None:
        self._all[weakref.ref(route, self._forget)] = None
        while len(self._all) > _MAX_ROUTES:
            oldest = next(iter(self._all))()
            self._all.pop(next(iter(self._all)), None)
            if oldest is not None:
                oldest.drop()

    def _forget(self, reference: weakref.ref[Route]) -> None:
        self._all.pop(reference, None)
