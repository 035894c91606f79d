"""Chooses the path of a pair of memories: one table of candidates, one choice, and its explanation.

A path is a provider and the form in which it is used. Among the paths that reach both memories the cheapest is taken,
for a device's memory direct ones before staged ones. Direct means that the fabric reads and writes both memories by
itself. Staged means that the bytes pass through host buffers: a ring, a socket, or buffers for devices and NICs.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final, NamedTuple

from zerohop.core.runtime.devices import HOST
from zerohop.core.runtime.explanation import Explanation
from zerohop.errors import StagedPathWarning, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAPPED: Final = "mapped"
RING: Final = "ring"
STREAM: Final = "stream"
RDMA: Final = "rdma"
PEER: Final = "peer"
# Forms for which the peer is asked for its memory first.
IMPORTED: Final = (MAPPED, RDMA, PEER)
# The size at which candidates are compared; one choice serves all sizes of a pair.
_TYPICAL_BYTES: Final = 1 << 20
_SIM: Final = "sim:"


class Cost(NamedTuple):
    """Estimates the time of a transfer: a fixed part in microseconds, and a rate in GB/s."""

    fixed_us: float
    gbytes_per_s: float

    def microseconds(self, nbytes: int) -> float:
        """Return the microseconds of one transfer of this size."""
        return self.fixed_us + nbytes / (self.gbytes_per_s * 1e3)


# Costs of lanes that state none. Only their order matters.
_USUAL: Final = {
    ("shm", MAPPED): Cost(0.3, 18.0),
    ("shm", RING): Cost(2.0, 14.0),
    ("p2p", PEER): Cost(7.0, 300.0),
    ("p2p", RING): Cost(2.5, 13.0),
    ("verbs", RDMA): Cost(3.0, 12.0),
    ("verbs", STREAM): Cost(15.0, 3.0),
    ("tcp", STREAM): Cost(30.0, 4.0),
}
# By provider: the form for which its lane states the cost.
_STATED_FORM: Final = {"shm": RING, "p2p": PEER, "verbs": RDMA, "tcp": STREAM}
_NOTHING: Final[Mapping[str, Cost | None]] = {}


class Situation(NamedTuple):
    """Holds everything that the choice depends on."""

    local_device: str
    remote_device: str
    # Providers of the lanes that both sides hold, with the cost that each lane states.
    lanes: Mapping[str, Cost | None]
    # Providers without a lane, and why there is none.
    missing: Mapping[str, str]
    # Why the peer's memory cannot be mapped; empty when it can.
    not_mappable: str
    require: str | None = None
    # Providers that both sides have and of which a lane can be opened, with what is known of its cost.
    possible: Mapping[str, Cost | None] = _NOTHING
    # Why NICs cannot reach one of the memories themselves; empty when they can, or nobody has tried.
    not_reachable: str = ""
    # How NICs have registered the memories, as far as that is known: "here" or "there", and the way in words.
    registered: tuple[tuple[str, str], ...] = ()
    # The pairs of connected ports, here and there, of the verbs lane; empty without such a lane.
    rails: tuple[tuple[str, str], ...] = ()
    # Why no device here reaches both memories itself; empty when one does, or nobody has tried.
    no_peer_link: str = ""
    # The hardware link by which a device reaches them; empty if it is not known.
    link: str = ""
    # Why devices here have no kernels to copy page lists with; empty if they have them, or nobody has tried.
    no_kernels: str = ""
    # How the control channel is protected, and whether tcp lanes are, too: see `protection`.
    control: str = ""
    encrypts: bool = False
    # As many flows as a tcp lane has.
    tcp_flows: int = 0


class Candidate(NamedTuple):
    """Holds a row of the table: a path that works (``why_not`` is empty), or one that does not."""

    provider: str
    form: str
    direct: bool
    cost: Cost
    why_not: str = ""

    @property
    def name(self) -> str:
        """Return provider and form: ``shm (ring)``."""
        return f"{self.provider} ({self.form})" if self.form else self.provider


def candidates(situation: Situation) -> list[Candidate]:
    """Return every path there is or could be, and why some are impossible."""
    on_host = situation.local_device == HOST and situation.remote_device == HOST
    return [
        _lane_row(situation, "shm", MAPPED, direct=on_host),
        _lane_row(situation, "shm", RING, direct=False),
        _lane_row(situation, "p2p", PEER, direct=True),
        _lane_row(situation, "p2p", RING, direct=False),
        _lane_row(situation, "verbs", RDMA, direct=True),
        _lane_row(situation, "verbs", STREAM, direct=False),
        _lane_row(situation, "tcp", STREAM, direct=False),
    ]


def choose(situation: Situation) -> Explanation:
    """Choose the cheapest path that reaches both memories, for a device's memory direct before staged.

    Raises:
        Unsupported: there is none, or with ``require="direct"`` no direct one.
    """
    rows = candidates(situation)
    only_direct = situation.require == "direct"
    # A ring and a socket take host memory as it is, at the cost that they state. Devices and NICs stage what they do
    # not reach, which costs more than is stated.
    stages = only_direct or not situation.local_device == situation.remote_device == HOST
    usable = sorted(
        (row for row in rows if not row.why_not),
        key=lambda row: (
            not row.direct and (stages or row.provider == "verbs"),
            row.cost.microseconds(_TYPICAL_BYTES),
        ),
    )
    pair = f"{situation.local_device}→{situation.remote_device}"
    reasons = "; ".join(f"{row.name}: {row.why_not}" for row in rows if row.why_not)
    if not usable:
        raise Unsupported(f"no path {pair}: {reasons}", fix="allow more providers, or a path through another memory")
    best = usable[0]
    if only_direct and not best.direct:
        raise Unsupported(
            f'no direct path {pair}, and require="direct" forbids staging through host buffers: {best.name} would be '
            f"staged; {reasons}",
            fix="drop require; or, between processes of one host, take memory from ctx.alloc on both sides",
            provider=best.provider,
        )
    rejected = [(row.name, row.why_not or _costlier(row, best)) for row in rows if row is not best]
    return Explanation(
        best.provider,
        best.form,
        best.direct,
        situation.local_device,
        situation.remote_device,
        tuple(rejected),
        situation.registered if best.form == RDMA else (),
        situation.rails if best.provider == "verbs" else (),
        situation.link if best.form == PEER else "",
        situation.no_kernels if best.form == PEER else "",
        protection(best.provider, situation.control, encrypts=situation.encrypts),
        flows=situation.tcp_flows if best.provider == "tcp" else 0,
    )


def protection(provider: str, control: str, *, encrypts: bool) -> str:
    """Return what is encrypted on the way to a peer, and what is not; empty for providers that stay on the host.

    ``control`` says how the control channel is protected; ``encrypts``: sockets of tcp lanes go through TLS.
    """
    if provider not in ("tcp", "verbs"):
        return ""
    covered = provider == "tcp" and encrypts
    return f"control channel: {control}; bytes on this lane: {'through TLS' if covered else 'not encrypted'}"


def warn_if_staged(explanation: Explanation, warned: set[tuple[str, str, str]]) -> None:
    """Give StagedPathWarning, once per provider and kinds of device.

    There is no warning if either end is on a simulated device, whose user knows that this machine can only stage, or if
    both ends are host memory.
    """
    devices = (explanation.local_device, explanation.remote_device)
    if explanation.direct or devices == (HOST, HOST) or any(device.startswith(_SIM) for device in devices):
        return
    kind = (explanation.provider, devices[0].partition(":")[0], devices[1].partition(":")[0])
    if kind not in warned:
        warned.add(kind)
        warnings.warn(
            f"{explanation} passes through host buffers. {explanation.details()}\n"
            'Context(require="direct") makes this an error.',
            StagedPathWarning,
            stacklevel=2,
        )


def lane_cost(limits: Mapping[str, float]) -> Cost | None:
    """Return the cost that a lane states; None if it states none."""
    gbytes_per_s = limits.get("gbps", 0)
    return Cost(limits.get("fixed_us", 0), gbytes_per_s) if gbytes_per_s > 0 else None


def rdma_cost(gbytes_per_s: float) -> Cost:
    """Return the usual cost of a lane of NICs with a rate in GB/s."""
    usual = _USUAL["verbs", RDMA]
    return usual._replace(gbytes_per_s=gbytes_per_s) if gbytes_per_s > 0 else usual


def _lane_row(situation: Situation, provider: str, form: str, *, direct: bool) -> Candidate:
    why_not = situation.missing.get(provider, "")
    if not why_not and provider not in situation.lanes and provider not in situation.possible:
        why_not = "no lane to this peer"
    if not why_not and form == MAPPED:
        # The device comes first as the reason, because no shared file would make its memory mappable.
        why_not = situation.not_mappable if direct else "a device's memory cannot be copied to or from a peer's mapping"
    if not why_not and form == PEER:
        no_device = situation.local_device == situation.remote_device == HOST
        why_not = "no device is at either end" if no_device else situation.no_peer_link
    if not why_not and (provider, form) == ("p2p", RING) and {"shm"} & {*situation.lanes, *situation.possible}:
        why_not = "shm has the same ring"
    if not why_not and provider == "verbs":
        if "shm" in situation.lanes and situation.local_device == situation.remote_device == HOST:
            why_not = "between host memories of one machine shm needs no NIC"
        elif form == RDMA:
            why_not = situation.not_reachable
    cost = _USUAL[provider, form]
    if form == _STATED_FORM[provider]:
        cost = situation.lanes.get(provider) or situation.possible.get(provider) or cost
    if form == RDMA:
        # The rate that tcp states was measured on one host. Between hosts tcp uses NICs, too, and is no faster.
        tcp = situation.lanes.get("tcp") or _USUAL["tcp", STREAM]
        cost = cost._replace(gbytes_per_s=max(cost.gbytes_per_s, tcp.gbytes_per_s))
    return Candidate(provider, form, direct, cost, why_not)


def _costlier(row: Candidate, best: Candidate) -> str:
    if best.direct and not row.direct:
        return "it would be staged"
    times: Sequence[str] = [f"{each.cost.microseconds(_TYPICAL_BYTES):.0f} µs" for each in (row, best)]
    return (
        f"slower by the estimates by which a path is chosen, which are no measurements: {times[0]} against "
        f"{times[1]} for 1 MiB"
    )
