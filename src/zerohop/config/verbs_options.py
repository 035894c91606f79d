"""Declares VerbsOptions: the options of RDMA lanes, and the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from zerohop.config.checks import check_int
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

# Smallest and largest value of each option of a queue pair, whoever makes it.
QUEUE_PAIR_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "read_credit": (1, 255),
    "timeout": (1, 31),
    "retry_count": (0, 7),
    "rnr_retry": (0, 7),
    "min_rnr_timer": (0, 31),
    "service_level": (0, 15),
    "traffic_class": (0, 255),
    "hop_limit": (1, 255),
    "pkey_index": (0, 32767),
}
# Ranges of all options of this file; native/provider/verbs/options.cpp has the same table.
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    **QUEUE_PAIR_RANGES,
    "queue_pairs": (1, 16),
    "send_depth": (32, 4096),
    "max_inline": (0, 1024),
    "mtu": (0, 4096),
    "relaxed_ordering": (0, 1),
    "stripe_bytes": (4096, 1 << 30),
    "rail_bytes": (4096, 1 << 40),
    "rails": (1, 8),
}
_MTUS: Final = (0, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class VerbsOptions:
    """Holds the options of RDMA lanes. A plain value: hashable, comparable, picklable.

    Set them with ``Context(verbs=VerbsOptions(traffic_class=106))``, or in the environment with
    ``ZEROHOP_VERBS="traffic_class=106,gid_index=3"``. The two ends of a lane may have different options; the smaller
    value counts if they must agree (queue pairs, MTU, read credit).

    Attributes:
        queue_pairs: queue pairs on each NIC port of a lane. 2: one pipeline of the NIC serves a queue pair, and two
            keep a port busy while one waits for an acknowledgement; more cost set-up time and NIC cache.
        send_depth: work requests in flight on a queue pair. 128: enough for 4 MB in 32 KiB pieces at any distance
            within a data centre, and small enough that a thousand lanes fit into memory.
        max_inline: bytes of a small host write that go to the NIC with the request itself. 220: that fits into the four
            64-byte blocks that common NICs take at once; if a NIC takes less, the lane asks for less.
        read_credit: RDMA reads and atomics in flight on a queue pair. 16: the limit of most NICs; with 1, reads wait
            for each other's round trip.
        timeout: exponent t of the time that an acknowledgement may take, 4.096 µs times 2 to the t. 14, 67 ms: longer
            than a congested switch holds a packet, short enough that `retry_count` of them pass in about half a second.
        retry_count: how often an unacknowledged request is sent again before the lane is lost. 6: some
            devices (Soft-RoCE) take 7 for "for ever".
        rnr_retry: how often a request is sent again if the peer has no receive posted. 7, for ever: that is
            back-pressure, not a failure; deadlines and the peer's life are watched elsewhere.
        min_rnr_timer: time that a sender waits in that case, as the code of the InfiniBand specification. 12, 0.64 ms.
        mtu: bytes of a packet; 0: the largest that both ports have.
        gid_index: index in the port's GID table; None: chosen by rule (docs/nics.md).
        service_level: 0. InfiniBand: virtual lane; RoCE: priority, where the network has priorities.
        traffic_class: 0. RoCE: DSCP times 4 (plus ECN), as the network's operator prescribes.
        hop_limit: number of routers on the way. 64: RoCE v2 is routed; 1 would keep it within a subnet.
        pkey_index: 0, the default partition.
        relaxed_ordering: whether a NIC may write a transfer's bytes to memory in any order. 1: much faster on some
            processors, and notifications stay ordered behind data. NICs and kernels without it ignore it.
        stripe_bytes: a longer transfer is cut into pieces of this size, which all queue pairs share. 1 MiB: tens of
            microseconds on the wire, so that the cost of cutting does not matter.
        rail_bytes: a transfer at least this long is shared by all NIC ports of the lane. 4 MiB: a tenth of a
            millisecond at 400 Gb/s, below which one port is done before the others have begun.
        rails: largest number of NIC ports of a lane, all as near and as fast as the best one. 4: the ports that
            share a memory node in common servers.

    Raises:
        TypeError, ValueError: a value is no integer, or is out of range.
    """

    queue_pairs: int = 2
    send_depth: int = 128
    max_inline: int = 220
    read_credit: int = 16
    timeout: int = 14
    retry_count: int = 6
    rnr_retry: int = 7
    min_rnr_timer: int = 12
    mtu: int = 0
    gid_index: int | None = None
    service_level: int = 0
    traffic_class: int = 0
    hop_limit: int = 64
    pkey_index: int = 0
    relaxed_ordering: int = 1
    stripe_bytes: int = 1 << 20
    rail_bytes: int = 4 << 20
    rails: int = 4

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            check_int(f"the verbs option {name}", getattr(self, name), least, most)
        if self.mtu not in _MTUS:
            raise ValueError(f"the verbs option mtu must be one of {', '.join(map(str, _MTUS))}, not {shown(self.mtu)}")
        index = self.gid_index
        if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
            raise TypeError(f"the verbs option gid_index must be an int or None, not {type(index).__name__}")
        if index is not None and not 0 <= index <= 255:
            raise ValueError(f"the verbs option gid_index must be from 0 to 255, or None, not {shown(index)}")

    def __str__(self) -> str:
        """Return the text for ``ZEROHOP_VERBS``; empty for the defaults."""
        changed = [field for field in fields(self) if getattr(self, field.name) != field.default]
        return ",".join(f"{field.name}={getattr(self, field.name)}" for field in changed)

    def native(self, gid_index: int) -> dict[str, int]:
        """Return the options for the data plane, with the index of the chosen GID (-1: none)."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        values["gid_index"] = gid_index
        del values["rails"]  # Python chooses the ports
        return values


def parse_verbs_options(text: str) -> VerbsOptions:
    """Parse a text such as ``"traffic_class=106,gid_index=3"``.

    Raises:
        ValueError: there is no such option, or a value is not allowed.
    """
    known = {field.name for field in fields(VerbsOptions)}
    values: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = (each.strip() for each in part.partition("="))
        if name not in known:
            raise ValueError(f"there is no verbs option {shown(name)}; there are {', '.join(sorted(known))}")
        try:
            values[name] = int(value, 0) if equals else int("")
        except ValueError:
            raise ValueError(f"{shown(part)} should be name=number") from None
    return VerbsOptions(**values)
