"""Chooses peer, proxy or mlx5 for each peer of a Queue."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from zerohop.core.face import HOST, start_of
from zerohop.device.descriptor import MLX5, PEER, PROXY, PeerEntry
from zerohop.device.pairs import ConnectedPair, check_handle, open_pair
from zerohop.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from zerohop._native import Reached
    from zerohop.core.face import Memory, RemoteBuffer, Route, View
    from zerohop.device.pairs import Pair

Mode = Literal["auto", "peer", "proxy", "mlx5"]
MODES: Final = get_args(Mode)
# Lanes may be replaced while a queue pair is agreed on.
_TRIES: Final = 3


class Way(NamedTuple):
    """Holds how kernels reach one peer.

    Attributes:
        mode: "peer", "proxy" or "mlx5".
        reached: of "peer", the memory itself.
        routes: of "peer" one, else one from each local and from the scratch memory.
        told: the text that `explain` shows.
        connected: of "mlx5", the queue pair.
    """

    mode: Mode
    reached: Any
    routes: list[Route]
    told: str
    connected: ConnectedPair | None = None

    def entry(self, remote: RemoteBuffer, rights: int, place: int, pair: Pair | None) -> PeerEntry:
        """Return what the descriptor says of the peer.

        Args:
            remote: the handle.
            rights: its rights, as bits.
            place: of "peer", where the GPU reaches the memory that the handle is a part of.
            pair: of "mlx5", the queue.
        """
        size_and_rights = remote.nbytes, rights
        if pair is not None and self.connected is not None:
            base = self.connected.base + start_of(remote)
            return PeerEntry(MLX5, base, *size_and_rights, pair.address, pair.queue.state_address)
        if self.reached:
            return PeerEntry(PEER, place + start_of(remote), *size_and_rights)
        return PeerEntry(PROXY, start_of(remote), *size_and_rights)


class WayFinder:
    """Finds how kernels of one Queue reach handles. On the control thread."""

    def __init__(
        self,
        reach: Callable[[Memory | View, RemoteBuffer], Awaitable[tuple[Route, Reached | None]]],
        mode: Mode,
        device: str,
        index: int,
        views: Sequence[Memory | View],
        counters: Memory,
    ) -> None:
        """Keep the arguments of `find`.

        Args:
            reach: returns the route between two memories, and the remote one if it is reached without a lane.
            mode: how peers are to be reached.
            device: where the kernels run.
            index: the number of that device; -1: the host.
            views: the locals, and the scratch memory behind them.
            counters: memory of that device.
        """
        self._reach = reach
        self._mode = mode
        self._device = device
        self._index = index
        self._views = views
        self._counters = counters

    async def find(self, number: int, remote: RemoteBuffer) -> Way:
        """Return how kernels reach a handle; ``number``: its index in the list.

        Raises:
            Unsupported: they do not reach it in the mode that is asked for.
            ZerohopError: there is no route.
        """
        if self._mode == "mlx5":
            return await self._by_nic(number, remote)
        why = 'mode="proxy"'
        if self._mode != "proxy":
            # Memory of the kernels' own GPU leads to the path by which that GPU reaches the peer.
            own = [view for view in self._views if view.device == self._device]
            route, reached = await self._reach(own[0] if own else self._views[0], remote)
            # A GPU's atomics on memory of the host may not be atomic for the host.
            foreign = self._index >= 0 and remote.device == HOST
            if reached is not None and not foreign and reached.place()[0] == self._index:
                return Way("peer", reached, [route], f"peer, {route.explanation}")
            why = f"{route.explanation.provider} does not map memory of {remote.device} for kernels"
            if reached is not None:
                why = f"kernels on {self._device} do not reach memory of {remote.device}"
        if self._mode == "peer":
            raise Unsupported(
                f"no kernel on {self._device} reaches peer {number} by itself: {why}",
                fix='mode="auto", which goes through this process where it must',
            )
        routes = await self._routes_to(remote)
        if self._index >= 0 and remote.device != HOST:
            # The kernels' GPU copies signals, too. The peer's GPU would, and keep this process waiting while it runs
            # kernels of the peer's process: it takes turns of a millisecond.
            with suppress(Unsupported):  # where that GPU reaches nothing, the way from the host will do
                by_device = (await self._reach(self._counters, remote))[0]
                if by_device.explanation.direct:
                    routes[-1] = by_device
        return Way("proxy", None, routes, f"proxy, {routes[0].explanation}; not peer: {why}")

    async def _by_nic(self, number: int, remote: RemoteBuffer) -> Way:
        check_handle(number, remote)
        for _ in range(_TRIES):
            routes = await self._routes_to(remote)
            connected = await open_pair(number, remote, routes)
            if connected is not None:
                return Way("mlx5", None, routes, f"mlx5, {routes[0].explanation}", connected)
        raise Unsupported(
            f"the lane to peer {number} goes down again and again",
            fix="check the NICs' ports; zerohop doctor",
            peer=remote.owner,
        )

    async def _routes_to(self, remote: RemoteBuffer) -> list[Route]:
        return [(await self._reach(view, remote))[0] for view in self._views]
