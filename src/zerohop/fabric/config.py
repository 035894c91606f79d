"""Declares EndpointConfig: the options of an endpoint, and the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zerohop.config.checks import check_flag, check_int
from zerohop.config.verbs_options import QUEUE_PAIR_RANGES
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zerohop.fabric.devices import DeviceLimits

_MOST: Final = 1 << 30
# Smallest and largest value of each option.
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "max_messages": (1, _MOST),
    "max_receives": (1, _MOST),
    "max_completions": (2, _MOST),
    "max_sge": (1, 1024),
    "max_inline": (0, 1 << 16),
    "gid_index": (0, 255),
    "port": (1, 255),
    "mtu": (256, 4096),
    **QUEUE_PAIR_RANGES,
}
_OPTIONAL: Final = ("max_receives", "max_completions", "gid_index", "port", "mtu")
_MTUS: Final = (256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """Holds the options of an endpoint. A plain value: hashable, comparable, picklable.

    Attributes:
        max_messages: requests outstanding in the send queue. 128: as in MORI; with messages of 4 KiB it covers the
            10 µs that a round trip takes at 400 Gb/s.
        max_receives: requests outstanding in the receive queue. None: as many as ``max_messages``, so that a peer with
            the same configuration cannot outrun it.
        max_completions: entries of the completion queue. None: one for each place of both queues, so that it cannot
            overrun, which would end the queue pair. Fewer entries are refused for that reason.
        max_sge: local ranges that one request gathers or scatters. 1: a higher limit makes every request larger.
        max_inline: bytes that are copied into a request itself, which saves the device a read of memory. 220: that fits
            into the four 64-byte blocks that common NICs take at once. If the device takes less, the endpoint asks for
            less; ``Endpoint.max_inline`` has the result.
        gid_index: entry of the port's GID table; None: chosen by rule (docs/nics.md), since the order of the table
            differs from host to host.
        port: number of a port, which must be the device context's; None: the port of the device context.
        read_credit: RDMA reads and atomics in flight. 16: the limit of most NICs; with 1, reads wait for each other's
            round trip. The smallest of both ends' values and the devices' limits counts.
        timeout: exponent t of the time that an acknowledgement may take, 4.096 µs times 2 to the t. 14, 67 ms: longer
            than a congested switch holds a packet.
        retry_count: how often an unacknowledged request is sent again before it fails. 6, half a second
            with that timeout; some devices (Soft-RoCE) take 7 for "for ever".
        rnr_retry: how often a request is sent again if the peer has no receive posted. 7, for ever: that is
            back-pressure, not a failure, and ``wait`` has its own timeout.
        min_rnr_timer: time that a sender waits in that case, as the code of the InfiniBand specification. 12, 0.64 ms.
        mtu: largest payload of one packet, in bytes; None: the largest that both ports have.
        service_level: 0. InfiniBand: virtual lane; RoCE: priority, where the network has priorities.
        traffic_class: 0. RoCE: DSCP times 4 (plus ECN), as the network's operator prescribes.
        hop_limit: number of routers on the way. 64: RoCE v2 is routed; 1 would keep it within a subnet.
        pkey_index: 0, the default partition.
        on_gpu: whether kernels post, through ``Endpoint.kernel_queue``. The endpoint's own ``post``, ``post_recv`` and
            ``poll`` then raise ValueError. False: the CPU posts.

    Raises:
        TypeError, ValueError: a value has the wrong type, or is out of range.
    """

    max_messages: int = 128
    max_receives: int | None = None
    max_completions: int | None = None
    max_sge: int = 1
    max_inline: int = 220
    gid_index: int | None = None
    port: int | None = None
    read_credit: int = 16
    timeout: int = 14
    retry_count: int = 6
    rnr_retry: int = 7
    min_rnr_timer: int = 12
    mtu: int | None = None
    service_level: int = 0
    traffic_class: int = 0
    hop_limit: int = 64
    pkey_index: int = 0
    on_gpu: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                check_int(name, value, least, most)
        if self.mtu is not None and self.mtu not in _MTUS:
            raise ValueError(f"mtu must be one of {', '.join(map(str, _MTUS))}, not {shown(self.mtu)}")
        if self.max_completions is not None and self.max_completions < self.max_messages + self.receives:
            raise ValueError(
                f"max_completions must be at least {self.max_messages + self.receives}, one for each place of both "
                f"queues, not {self.max_completions}: a completion queue that overruns ends the queue pair"
            )
        check_flag("on_gpu", self.on_gpu)

    @property
    def receives(self) -> int:
        """Return the number of places of the receive queue."""
        return self.max_messages if self.max_receives is None else self.max_receives

    @property
    def completions(self) -> int:
        """Return the number of entries of the completion queue."""
        return self.max_messages + self.receives if self.max_completions is None else self.max_completions


def check(config: EndpointConfig, limits: DeviceLimits, port: int) -> None:
    """Raise ValueError if the configuration asks for more than an opened port can do."""
    if config.port not in (None, port):
        raise ValueError(f"this device context is of port {port}, not {config.port}; open another one for that port")
    for name, wanted, most in (
        ("max_messages", config.max_messages, limits.requests),
        ("max_receives", config.receives, limits.requests),
        ("max_completions", config.completions, limits.completions),
        ("max_sge", config.max_sge, limits.sge),
    ):
        if wanted > most:
            raise ValueError(f"{name} is {wanted}, and the device can do {most} at most")


def native_options(config: EndpointConfig, gid_index: int) -> dict[str, int]:
    """Return the options for the data plane, other than the sizes of the queues; ``gid_index`` -1: no GID."""
    options: dict[str, Any] = {name: getattr(config, name) for name in QUEUE_PAIR_RANGES}
    return {**options, "mtu": config.mtu or 0, "gid_index": gid_index}
