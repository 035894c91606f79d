"""Declares the targets of the library's numbers, and judges whether a run met them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from zerohop.cli.bench.device_plan import FIFO, FIFO_TARGET_US, LANGUAGES, PEER, PING, PING_BYTES, PUT, TURN, WAIT
from zerohop.cli.bench.group_plan import AM, IDLE, MANY, SEND, THREADS
from zerohop.cli.bench.rows import (
    ENCRYPTED,
    FLOWS,
    LIST,
    PAGES,
    RANGES,
    SEED_US,
    TENSOR_BYTES,
    TOGETHER,
    several_clients,
    several_flows,
)
from zerohop.cli.bench.storage_plan import (
    CACHED,
    CLIENTS,
    DISK,
    IN_ORDER,
    IN_ORDER_BYTES,
    IN_ORDER_DEPTH,
    RANDOM,
    RANDOM_BYTES,
    RANDOM_DEPTH,
    SERVED_IN_ORDER,
    SERVED_RANDOM,
    TMPFS,
)
from zerohop.cli.console import human_bytes, human_time, human_us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop.cli.bench.rows import Row

_KI, _MI = 1 << 10, 1 << 20
_HOST: Final = {"src": "host", "dst": "host"}
_PAIR: Final = {"provider": "p2p", "src": "cuda:0", "dst": "cuda:1"}
_SINGLE: Final = {**_PAIR, "batch": 1}
_EXPANDABLE: Final = "expandable"
_LARGE: Final = {"bytes": 256 * _MI, "batch": 1}
_TCP: Final = {"provider": "tcp", **_LARGE}
# Microseconds to share and read parts of one memory, by their number.
_VIEWS_US: Final = {10_000: 1_000_000, 20_000: 2_000_000}
_WITHIN: Final = 0.95  # of the speed of the same row on memory of cudaMalloc


@dataclass(frozen=True, slots=True)
class Target:
    """Holds a limit for the rows whose fields are as in `fields`; exactly one kind of limit is set.

    Attributes:
        fields: names and values of fields.
        max_us: limit of the median.
        max_times_floor: limit of the median as a multiple of the floor's median.
        min_gbps: lower limit of the rate.
        min_of_floor: lower limit of the rate as a fraction of the floor's rate.
        max_cpu_us: limit of the processor time of an operation.
        min_of_row: lower limit of the speed as a fraction of the speed of the first row whose fields are as in `row`.
        row: fields of that row.
        times_faster: least factor by which it is faster than `than_us`.
        than_us: microseconds of the same operation elsewhere.
        max_times_beside: limit of the median as a multiple of the median of the row's `beside`.
        min_times_beside: least factor by which it is faster than the row's `beside`.
        min_of_other: lower limit of the row's `of_other`.
        max_more_us: most microseconds that the median is longer than that of the row's `beside`.
        max_cpu: limit of processor seconds per second, in each of the two processes.
        max_bytes: limit of the size.
    """

    fields: dict[str, object] = field(default_factory=dict)
    max_us: float | None = None
    max_times_floor: float | None = None
    min_gbps: float | None = None
    min_of_floor: float | None = None
    max_cpu_us: float | None = None
    min_of_row: float | None = None
    row: dict[str, object] = field(default_factory=dict)
    times_faster: float | None = None
    than_us: float = 0.0
    max_times_beside: float | None = None
    min_times_beside: float | None = None
    min_of_other: float | None = None
    max_more_us: float | None = None
    max_cpu: float | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Compares a row with its target: the target and the measured value in words, and whether it was met."""

    target: str
    measured: str
    met: bool


def _target(name: str, provider: str | None = None, **rest: object) -> dict[str, object]:
    where = {} if provider is None else {"provider": provider, **_HOST}
    return {"name": name, **where, **rest}


TARGETS: Final = (
    Target(_target("write", "shm", bytes=8, batch=1, form="mapped"), max_us=1.5),
    Target(_target("write", "shm", bytes=8, batch=1, form="ring", target="polling"), max_us=2.5),
    Target(_target("write", "shm", bytes=8, batch=1, form="ring", target="asleep"), max_us=60),
    Target(_target("write_notify", "shm", bytes=8, mode="result", form="mapped"), max_us=1.6),
    Target(_target("write_notify", "shm", bytes=8, mode="result", form="ring"), max_us=2.6),
    Target(_target("write_notify", "shm", bytes=8, mode="await"), max_us=15),
    Target(_target("write_notify", "shm", bytes=8, mode="await-asleep"), max_times_floor=1.1),
    Target(_target("write", "shm", bytes=64 * _MI, batch=1, form="mapped"), min_of_floor=0.95),
    Target(_target("write", "shm", bytes=64 * _MI, batch=1, form="ring"), min_of_floor=0.9),
    Target(_target("write_pages", "shm", bytes=1024, batch=256, form="mapped"), min_gbps=8),
    Target(_target("write_pages", "shm", bytes=1024, batch=256, form="ring"), min_of_floor=0.9),
    *(
        Target(_target(name, "shm", batch=RANGES, form="mapped"), min_of_floor=0.8)
        for name in ("write_list", "read_list")
    ),
    *(
        Target(_target(name, "tcp", bytes=8, batch=1, mode=None, target=None), max_times_floor=1.5)
        for name in ("write", "read")
    ),
    Target(_target("write_notify", "tcp", bytes=8, mode="result"), max_times_floor=1.5),
    Target(_target("write", "tcp", bytes=64 * _MI, batch=1, mode=None), min_of_floor=0.9),
    Target(_target("write", "tcp", bytes=64 * _MI, batch=1, mode=ENCRYPTED), min_of_floor=0.9),
    *(
        Target(_target(name, "tcp", **_LARGE, mode=several_flows(FLOWS[0])), min_of_floor=0.9)
        for name in ("write", "read")
    ),
    Target(_target("register", bytes=1024 * _MI, mode="cold"), max_us=1000),
    Target(_target("register", bytes=1024 * _MI, mode="cached"), max_us=3),
    *(Target(_target("views", "shm", bytes=64, batch=count), max_us=most) for count, most in _VIEWS_US.items()),
    Target(_target("first_use", "shm", bytes=4 * _KI), max_us=100),
    Target(_target("transport_write"), max_times_beside=1.1),
    Target(_target("transport_register", bytes=8 << 10, mode="cached"), max_us=5),
    Target(_target("transport_register", bytes=8 << 10, mode="cold"), max_us=30),
    Target(_target("transport_write_many"), min_times_beside=5),
    Target(_target("idle"), max_cpu=0.005),
    Target(_target("import"), max_us=100_000),
    Target(_target("wheel"), max_bytes=3 * _MI),
)


def _times_faster(nbytes: int) -> float:
    return 3 if nbytes < 4 * _MI else 5 if nbytes < 256 * _MI else 8


def _row(name: str, **fields: object) -> dict[str, object]:
    return {"name": name, "mode": None, **_SINGLE, **fields}


def _expandable(name: str, nbytes: int, batch: int = 1, mode: str | None = None) -> Target:
    plain = _row(name, bytes=nbytes, batch=batch, mode=mode)
    return Target({**plain, "mode": _EXPANDABLE}, min_of_row=_WITHIN, row=plain)


GPU_TARGETS: Final = (
    Target(_row("write", bytes=8 * _KI), max_times_floor=1.15),
    Target(_row("write", bytes=8 * _KI), max_cpu_us=10),
    Target(_row("write", bytes=8 * _KI, batch=TOGETHER), max_cpu_us=3),
    *(Target(_row(name, bytes=256 * _MI), min_of_floor=0.98) for name in ("write", "read")),
    *(
        Target(_row(name, bytes=nbytes), times_faster=_times_faster(nbytes), than_us=seed_us)
        for name in ("write", "transport_write")
        for nbytes, seed_us in SEED_US.items()
    ),
    Target(_row("write_notify", bytes=8 * _KI, mode="result"), max_us=12),
    Target(_row("write_pages", bytes=16 * _KI, batch=PAGES), min_of_floor=0.9),
    Target(_row("write_pages", bytes=1 * _KI, batch=PAGES), max_us=45),
    *(Target(_row(name, batch=RANGES), min_of_floor=0.8) for name in ("write_list", "read_list")),
    *(_expandable(name, nbytes) for name in ("write", "read") for nbytes in (8 * _KI, 256 * _MI)),
    _expandable("write_notify", 8 * _KI, mode="result"),
    *(_expandable("write_pages", nbytes, PAGES) for nbytes in (1 * _KI, 16 * _KI)),
    Target({"name": "register", "src": "cuda:0", "mode": "cached", "bytes": TENSOR_BYTES}, max_us=3),
    Target({"name": "register", "src": "cuda:0", "mode": "list", "batch": LIST}, max_us=20_000),
    *(
        Target(
            {"name": name, **_TCP, "src": "cuda:0", "dst": "cuda:1", "mode": mode},
            min_of_row=0.85,
            row={"name": name, **_TCP, "src": "host", "dst": "host", "mode": mode},
        )
        for name in ("write", "read")
        for mode in (None, *map(several_flows, FLOWS))
    ),
    *(
        Target(_target(name, "tcp", **_LARGE, mode=several_flows(FLOWS[1])), min_of_floor=0.9)
        for name in ("write", "read")
    ),
    *(
        Target(
            _target(name, "tcp", **_LARGE, mode=several_flows(FLOWS[1])),
            min_of_row=4,
            row=_target(name, "tcp", **_LARGE, mode=None),
        )
        for name in ("write", "read")
    ),
    *(Target({**_PAIR, "name": "views", "bytes": 64, "batch": n}, max_us=most) for n, most in _VIEWS_US.items()),
    Target(_row("first_use", bytes=4 * _KI, mode="known"), max_us=150),
    Target(_row("first_use", bytes=4 * _KI, mode="new"), max_times_floor=1.5),
    Target(_row("raw", bytes=64 * _KI), max_more_us=3),
    Target({"name": "all_pairs", "bytes": 256 * _MI}, min_of_floor=0.9),
    Target({"name": IN_ORDER, "form": CACHED, "dst": "cuda:0", "bytes": IN_ORDER_BYTES}, min_of_other=0.9),
    Target({"name": "stream_wait"}, max_cpu=0.01),
)


def _in_order(dst: str) -> dict[str, object]:
    return {"name": IN_ORDER, "form": DISK, "dst": dst, "bytes": IN_ORDER_BYTES, "batch": IN_ORDER_DEPTH}


def _at_random(form: str) -> dict[str, object]:
    return {"name": RANDOM, "form": form, "dst": "host", "bytes": RANDOM_BYTES, "batch": RANDOM_DEPTH}


def _served(dst: str, provider: str, mode: str | None = None) -> dict[str, object]:
    where = {"name": SERVED_IN_ORDER, "form": TMPFS, "provider": provider, "mode": mode}
    return {**_in_order(dst), **where}


# Their rows are measured if they are named.
STORAGE_TARGETS: Final = (
    Target(_in_order("host"), min_of_other=0.97),
    Target(_at_random(DISK), min_of_other=0.8),
    Target(_at_random(TMPFS), min_of_other=0.6),
    Target(_in_order("sim"), min_of_other=0.85),
    Target(_served("host", "shm"), min_of_other=0.9),
    Target(_served("sim", "p2p"), min_of_other=0.85),
    Target(_served("host", "tcp"), min_of_other=0.9),
    *(Target(_served("host", "shm", several_clients(count)), min_of_other=0.9) for count in CLIENTS),
    Target({**_at_random(TMPFS), "name": SERVED_RANDOM}, min_of_other=0.5),
)
# Their rows are measured if they are named, too.
DEVICE_TARGETS: Final = (
    *(
        Target({"name": PING, "form": PEER, "bytes": nbytes, "mode": language}, max_times_floor=1.05)
        for nbytes in PING_BYTES
        for language in LANGUAGES
    ),
    *(Target({"name": WAIT, "mode": language}, max_times_beside=1.05) for language in LANGUAGES),
    *(Target({"name": PUT, "mode": language}, min_of_floor=0.95) for language in LANGUAGES),
    *(Target({"name": FIFO, "bytes": nbytes}, max_us=most) for nbytes, most in FIFO_TARGET_US.items()),
    Target({"name": TURN}, max_times_floor=1.3),
)
# Rows about ranks, which are measured only if somebody names them.
GROUP_TARGETS: Final = (
    Target(_target(IDLE), max_cpu=0.005),
    Target(_target(AM, "shm", bytes=8, mode=MANY), max_us=1 / 3),
    Target(_target(AM, "shm", bytes=8, mode=THREADS), min_of_row=1.0, row=_target(AM, "shm", bytes=8, mode=MANY)),
    Target(_target(SEND, "shm", bytes=8, mode="await"), max_us=5.7),
    Target(
        _target(SEND, "shm", bytes=8, mode="result"),
        min_of_row=1 / 1.15,
        row=_target("write_notify", "shm", bytes=8, mode="result", form="ring"),
    ),
)
_ALL_TARGETS: Final = (*TARGETS, *GPU_TARGETS, *STORAGE_TARGETS, *DEVICE_TARGETS, *GROUP_TARGETS)


def judge(row: Row, rows: Sequence[Row] = ()) -> list[Verdict]:
    """Compare a row with its targets, and with other rows of its run if a target says so."""
    found = [_verdict(row, target, rows) for target in _ALL_TARGETS if _fits(row, target.fields)]
    return [verdict for verdict in found if verdict is not None]


def _fits(row: Row, fields: dict[str, object]) -> bool:
    return all(getattr(row, key) == value for key, value in fields.items())


def _verdict(row: Row, target: Target, rows: Sequence[Row]) -> Verdict | None:
    if target.max_us is not None:
        return _at_most(row.p50_us, target.max_us, human_us)
    if target.max_cpu_us is not None:
        return _at_most(row.cpu_us_per_op, target.max_cpu_us, human_us, " of CPU")
    if target.max_bytes is not None:
        return _at_most(row.bytes, target.max_bytes, human_bytes)
    if target.max_cpu is not None and row.cpu_s is not None and row.seconds:
        most = max(row.cpu_s, row.peer_cpu_s or 0.0)
        return _at_most(most, target.max_cpu * row.seconds, human_time, f" in {human_time(row.seconds)}")
    if target.min_gbps is not None and row.GBps is not None:
        return Verdict(f"≥ {target.min_gbps:g} GB/s", f"{row.GBps:.2f} GB/s", row.GBps >= target.min_gbps)
    if target.max_times_floor is not None:
        return _ratio(row.p50_us, row.floor_p50_us, "≤", target.max_times_floor, "floor")
    if target.min_of_floor is not None:
        return _ratio(row.GBps, row.floor_GBps, "≥", target.min_of_floor, "floor")
    if target.max_times_beside is not None:
        return _ratio(row.p50_us, row.beside_p50_us, "≤", target.max_times_beside, f"{row.beside}")
    if target.min_times_beside is not None:
        other = f"as fast as {row.beside}"
        return _ratio(row.beside_p50_us, row.p50_us, "≥", target.min_times_beside, other, digits=1)
    if target.min_of_other is not None:
        return _ratio(row.of_other, 1.0, "≥", target.min_of_other, row.beside or "floor")
    if target.max_more_us is not None and row.p50_us is not None and row.beside_p50_us is not None:
        more = row.p50_us - row.beside_p50_us
        told = f"{human_us(abs(more))} {'less' if more < 0 else 'more'}"
        return Verdict(f"≤ {human_us(target.max_more_us)} more than {row.beside}", told, more <= target.max_more_us)
    if target.times_faster is not None:
        other = f"as fast as {human_us(target.than_us)} (RdmaTransport, different fabric)"
        return _ratio(target.than_us, row.p50_us, "≥", target.times_faster, other, digits=1)
    if target.min_of_row is not None:
        for each in rows:
            if _fits(each, target.row) and each.p50_us:
                return _ratio(each.p50_us, row.p50_us, "≥", target.min_of_row, each.mode or f"{each.src}→{each.dst}")
    return None


def _at_most(value: float | None, most: Any, tell: Callable[[Any], str], more: str = "") -> Verdict | None:
    return None if value is None else Verdict(f"≤ {tell(most)}{more}", tell(value), value <= most)


def _ratio(
    value: float | None, of: float | None, sign: str, limit: float, other: str, *, digits: int = 2
) -> Verdict | None:
    if value is None or not of:
        return None
    ratio = value / of
    met = ratio <= limit if sign == "≤" else ratio >= limit
    return Verdict(f"{sign} {limit:g} × {other}", f"{ratio:.{digits}f} ×", met)
