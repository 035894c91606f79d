"""Opens the NIC ports of a Context when they are first needed, and pairs them with a peer's ports.

On the control thread. A port whose device or link is down counts as not there, and is there again when it has come
back; its place in the list stays its own, because peers name ports by their places. A device that has failed for good
is opened anew when its port is next needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zerohop._native import NativeError
from zerohop.config.providers import VERBS
from zerohop.core.base import closed_engine
from zerohop.core.control import wire
from zerohop.errors import Unsupported, copy_of, from_native

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from zerohop._native import Domain, Engine
    from zerohop.core.control.wire import Nic
    from zerohop.errors import ZerohopError

    Pairs = list[tuple[int, int]]


class Port(NamedTuple):
    """Describes a NIC port that a Context is to use; facts that are missing are asked of the opened port."""

    device: str
    port: int
    # Options of the port's domain, by the names that the provider gives them.
    options: Mapping[str, int]
    # "Ethernet" or "InfiniBand".
    link: str = ""
    gbytes_per_s: float = 0.0
    # The prefix of the port's GID as text; empty if it is not known.
    subnet: str = ""

    def __str__(self) -> str:
        return f"{self.device} port {self.port}"


class NicPorts:
    """Holds the NIC ports of a Context."""

    def __init__(
        self, engine: Engine, choose: Callable[[], Sequence[Port]], keys_lost: Callable[[], None] = lambda: None
    ) -> None:
        """Open no port yet; ``choose()`` returns the ports, the best first, or raises Unsupported, at each call.

        ``keys_lost()`` is called before a lost port is opened anew, because the keys that peers have become invalid.
        """
        self._engine = engine
        self._choose = choose
        self._keys_lost = keys_lost
        self._ports: tuple[Port, ...] | None = None
        # The reason why there are no ports.
        self._none: ZerohopError = Unsupported("no port of a NIC was found that can be used")
        # Open domains, and the errors of the last failed attempts to open one, by the place of the port.
        self._domains: dict[int, Domain] = {}
        self._failures: dict[int, ZerohopError] = {}
        # The state, alive and lost, that `noticed` last saw of each domain, by the domain's number.
        self._states: dict[int, tuple[bool, bool]] = {}

    def nics(self) -> list[Nic]:
        """Describe the ports to a peer; ports that cannot be used now have no link layer."""
        return [self._nic(place, port) for place, port in enumerate(self._all())]

    def why_not(self) -> str:
        """Return why no NIC can be used; empty if one can."""
        reasons = [self.port_down(place) for place in range(len(self._all()))]
        if not reasons:
            return self._none.reason + (f" (fix: {self._none.fix})" if self._none.fix else "")
        return "" if "" in reasons else "; ".join(reasons)

    def fix(self) -> str:
        """Return how to repair the NICs that ``why_not`` and ``port_down`` call unusable."""
        failures = self._failures.values() if self._ports else [self._none]
        return "; ".join(dict.fromkeys(each.fix for each in failures if each.fix)) or "bring a port of a NIC up"

    def port_down(self, place: int) -> str:
        """Return why the port at a place cannot be used; empty if it can. Opens the port at the first call."""
        ports = self._all()
        if not 0 <= place < len(ports):
            return f"there is no NIC number {place}"
        domain = self._domains.get(place)
        if domain is not None and domain.lost:
            # Registrations with a lost domain are useless and go with their memory; its lanes have ended.
            del self._domains[place]
            domain.close()
            domain = None
            self._keys_lost()
        domain = domain or self._open(place, ports[place])
        if domain is None:
            return f"{ports[place]}: {self._failures[place].reason}"
        return "" if domain.alive else f"{ports[place]}: the port or its device is down"

    def domains(self, places: Sequence[int]) -> list[Domain]:
        """Return the opened ports at these places, for which ``port_down`` was empty."""
        return [self._domains[place] for place in places]

    def domain(self, number: int) -> Domain | None:
        """Return the domain with this native number."""
        return next((domain for domain in self._domains.values() if domain.number == number), None)

    def noticed(self, domain: Domain) -> bool:
        """Tell whether a port's state has changed since the last call."""
        before, now = self._states.get(domain.number), (domain.alive, domain.lost)
        self._states[domain.number] = now
        return now != before

    def choose_again(self) -> Sequence[Port]:
        """Return the ports that would be chosen now, perhaps none. Reads many files; any thread may call it."""
        try:
            return self._choose()
        except Unsupported:  # ports that are open stay open
            return ()

    def use(self, ports: Sequence[Port]) -> None:
        """Let new lanes over the ports that are open use the addresses that ``ports`` have now."""
        found = {(port.device, port.port): port for port in ports}
        for place, domain in self._domains.items():
            old = (self._ports or ())[place]
            new = found.get((old.device, old.port), old)
            if new.options == old.options or domain.lost:
                continue
            try:
                domain.retune(dict(new.options))
            except NativeError:
                # The new address cannot be used. New lanes keep the old one, and fail with a reason if it is gone.
                continue
            self._ports = tuple(new if port is old else port for port in self._ports or ())

    def close(self) -> None:
        """Close all ports, whose lanes and registrations are gone already."""
        domains, self._domains = list(self._domains.values()), {}
        self._ports, self._choose, self._keys_lost = (), tuple, lambda: None
        self._engine = closed_engine.ENGINE
        for domain in domains:
            domain.close()

    def _all(self) -> tuple[Port, ...]:
        if self._ports is None:
            try:
                self._ports = tuple(self._choose())[: wire.MAX_NICS]
            except Unsupported as error:
                # A port may come up later.
                self._none = copy_of(error)
                return ()
        return self._ports

    def _open(self, place: int, port: Port) -> Domain | None:
        try:
            domain = self._engine.open_domain(VERBS, port.device, port.port, dict(port.options))
        except NativeError as error:
            self._failures[place] = from_native(*error.args)
            return None
        self._failures.pop(place, None)
        self._domains[place] = domain
        return domain

    def _nic(self, place: int, port: Port) -> Nic:
        link, gbytes_per_s = port.link, port.gbytes_per_s
        if not link or place in self._domains:
            if self.port_down(place):
                link = ""
            else:
                facts = self._domains[place].facts()
                link, gbytes_per_s = str(facts["link_layer"]), float(facts["gbps"])
        return wire.Nic(name=port.device, port=port.port, link=link, gbps=gbytes_per_s, subnet=port.subnet)


def pair(
    mine: Sequence[Nic], theirs: Sequence[Nic], without: Collection[int] = (), without_theirs: Collection[int] = ()
) -> Pairs:
    """Pair the NICs of two sides that have the same place and link layer, because racks are cabled like that.

    If there is no such pair, return one pair of the same link layer, and of the same subnet if possible. ``without``
    and ``without_theirs`` are the places of ports that cannot be used now.
    """
    here = [(place, nic) for place, nic in enumerate(mine) if nic.link and place not in without]
    there = {place: nic for place, nic in enumerate(theirs) if nic.link and place not in without_theirs}
    rails = [(place, place) for place, nic in here if place in there and there[place].link == nic.link]
    if rails:
        return rails
    crossed = [(a, b, nic) for a, nic in here for b, other in there.items() if nic.link == other.link]
    near = [(a, b) for a, b, nic in crossed if nic.subnet and nic.subnet == there[b].subnet]
    return near[:1] or [(a, b) for a, b, _ in crossed[:1]]


def rate(mine: Sequence[Nic], theirs: Sequence[Nic], rails: Pairs) -> float:
    """Return GB/s of all rails together, by what both ends state."""
    return sum(min(mine[a].gbps, theirs[b].gbps) for a, b in rails)
