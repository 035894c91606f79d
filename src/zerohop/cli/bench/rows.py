"""Declares a case, which is a row to measure, and the row itself: its numbers, its floor, and its form in JSON."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from zerohop.core.runtime.devices import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop.core.runtime.explanation import Explanation

_KI, _MI = 1 << 10, 1 << 20
# The documentation of torchcomms' RdmaTransport: two hosts with H100 GPUs and NICs of 400 Gb/s.
# Median microseconds of a write, by number of bytes.
SEED_US: Final = {
    8 * _KI: 27.0,
    16 * _KI: 27.4,
    32 * _KI: 27.1,
    64 * _KI: 29.2,
    128 * _KI: 33.7,
    256 * _KI: 33.2,
    512 * _KI: 38.6,
    1 * _MI: 49.2,
    2 * _MI: 70.7,
    4 * _MI: 113.0,
    8 * _MI: 200.0,
    16 * _MI: 371.0,
    32 * _MI: 717.0,
    64 * _MI: 1409.0,
    128 * _MI: 2790.0,
    256 * _MI: 5552.0,
}
# Median microseconds to register 8 KiB and to deregister it.
_REGISTER_US: Final = {8 * _KI: 54.5}
SEED_SIZES: Final = tuple(SEED_US)
# Operations posted together, writes or tensors of one list, bytes of each such tensor, and pages of one list on a GPU.
TOGETHER: Final = 1000
LIST: Final = 10_000
TENSOR_BYTES: Final = 200_000
PAGES: Final = 4096
# Ranges of one list and their mean length, of which the longest have 64 KiB.
RANGES: Final = 120_000
RANGE_BYTES: Final = 7680
ENCRYPTED: Final = "encrypted"
# Numbers of flows that large transfers over TCP are measured with, beside one.
FLOWS: Final = (4, 16)
_FLOWS: Final = " flows"
_CLIENTS: Final = " clients"
_OBJECTS_BYTES: Final = 512
_NO_RATE: Final = frozenset(("views", "first_use"))  # what they take hardly depends on the bytes
_READS: Final = frozenset(("read", "read_pages", "read_list", "transport_read", "views", "first_use"))


def several_flows(count: int) -> str:
    """Return the mode of a case whose lane over TCP has `count` flows."""
    return f"{count}{_FLOWS}"


def several_clients(count: int) -> str:
    """Return the mode of a case in which `count` processes read from one server."""
    return f"{count}{_CLIENTS}"


def is_gpu(place: str | None) -> bool:
    """Tell whether a place is a real GPU."""
    return place is not None and place.partition(":")[0] in ("cuda", "hip")


@dataclass(frozen=True, slots=True)
class Case:
    """Describes one row to measure.

    Attributes:
        name: one of `plan.NAMES`, or "wheel".
        provider: one of `plan.PROVIDERS`, or None if no transfer is measured.
        src: place of the source: "host", "sim" or "sim:1", a GPU such as "cuda:0", or "file".
        dst: place of the target.
        bytes: size of one operation, or of one page; of ranges, their mean.
        batch: operations in flight, or pages or ranges in one operation.
        form: "mapped" (memory from `Context.alloc`), "ring" (any other host memory), "stream" (TCP) or "staged"
            (device memory); of files "disk" (past the page cache), "cached" (in it) or "tmpfs" (in memory).
        mode: how the callers wait ("result", "await", "await-asleep"); "cold", "cached", or a "list" of tensors;
            "expandable" for memory of PyTorch's expandable segments, where callers wait as in "result"; "encrypted" for
            Contexts with encryption="all"; for a first use on GPUs, whether the allocation is "known" or "new"; "4
            flows" for Contexts with tcp_flows=4, and so on; elsewhere there is one flow; "8 clients" of a server.
        target: "polling" if the target's Python waits while its Context spins, "asleep" if everything there sleeps;
            None: not controlled.
    """

    name: str
    provider: str | None = None
    src: str | None = None
    dst: str | None = None
    bytes: int = 0
    batch: int = 1
    form: str | None = None
    mode: str | None = None
    target: str | None = None

    @property
    def reads(self) -> bool:
        """Tell whether the bytes come to the process that asks for them."""
        return self.name in _READS

    @property
    def of_file(self) -> bool:
        """Tell whether a file is read, which needs none of the processes that transfers need."""
        return self.src == "file"

    @property
    def flows(self) -> int:
        """Return the number of flows of a lane over TCP."""
        return int(self.mode.removesuffix(_FLOWS)) if self.mode is not None and self.mode.endswith(_FLOWS) else 1

    @property
    def clients(self) -> int:
        """Return the number of processes that read from a server at once."""
        several = self.mode is not None and self.mode.endswith(_CLIENTS)
        return int(self.mode.removesuffix(_CLIENTS)) if self.mode is not None and several else 1

    @property
    def on_gpu(self) -> bool:
        """Tell whether the bytes come from a real GPU, or go to one."""
        return is_gpu(self.src) or is_gpu(self.dst)

    @property
    def between_gpus(self) -> bool:
        """Tell whether the bytes come from a real GPU and go to one, possibly the same."""
        return is_gpu(self.src) and is_gpu(self.dst)

    @property
    def seed_us(self) -> float | None:
        """Return the documented median for a row of a Transport; None if there is none, as for reads."""
        table = {"transport_write": SEED_US, "transport_register": _REGISTER_US}.get(self.name, {})
        return table.get(self.bytes)

    @property
    def sim_devices(self) -> int:
        """Return the number of simulated GPUs that each process needs."""
        places = [place.partition(":") for place in (self.src, self.dst) if place is not None]
        return max((int(number or 0) + 1 for kind, _, number in places if kind == "sim"), default=0)

    @property
    def memory_bytes(self) -> int:
        """Return the least memory that measuring takes, in both processes together."""
        if self.of_file:
            return self.bytes * self.batch * self.clients
        if self.provider is None:
            return self.bytes if self.name.endswith("register") else 0
        # The source, the target and the payload that they are compared with; and an object or two per operation.
        many = ("write", "read", "transport_write_many")
        objects = _OBJECTS_BYTES * self.batch if self.name in many else 0
        return 3 * self.bytes * self.batch + objects


Argument = TypeVar("Argument")
Result = TypeVar("Result")

_OPTIONAL = (
    *("form", "mode", "target", "path", "samples", "seconds", "cpu_s", "peer_cpu_s"),
    *("beside", "beside_p50_us", "seed_us", "missing"),
    *("of_other", "cpu_s_per_gb", "server_cpu_s_per_gb", "other_cpu_s_per_gb", "floor_cpu_s_per_gb"),
)
_HAS_A_RATE = 4096  # bytes; below, a rate is the latency in disguise


@dataclass(slots=True)
class Row:
    """Holds one row. Times are microseconds, rates are 10^9 bytes a second; None if a number has no meaning.

    Attributes:
        name, provider, src, dst, bytes, batch, form, mode, target: see `Case`.
        direct: whether the fabric reads and writes the memory itself.
        p50_us, p99_us, p999_us: percentiles of a measurement: one operation, or `batch` operations posted together and
            waited for. `write_notify` is one way: half a round trip, or with both sides asleep the difference of the
            two processes' clocks, which on one host are one clock. None if too few samples lie beyond it.
        GBps: bytes × batch over the median; None below 4 KiB.
        cpu_us_per_op: processor time of the initiator, all threads, per operation.
        floor: the machine's raw limit, measured in the same run without zerohop.
        verified: every byte arrived as sent.
        path: the library's explanation of the path that it took.
        samples: number of measurements.
        seconds, cpu_s, peer_cpu_s: numbers of the `idle` row.
        beside, beside_p50_us: another measurement of zerohop that took turns with this one, and its median.
        seed_us: median in the documentation of torchcomms' RdmaTransport, over a NIC of 400 Gb/s.
        of_other: median, over the turns, of the rate as a multiple of that of the floor, or of `beside`.
        cpu_s_per_gb, other_cpu_s_per_gb: processor seconds for 10^9 bytes, of this and of the floor or `beside`.
        server_cpu_s_per_gb, floor_cpu_s_per_gb: the same of the server of a file, the first being its clients', and of
            a floor that there is beside `beside`.
        missing: why nothing was measured.
    """

    name: str
    provider: str | None
    direct: bool | None
    src: str | None
    dst: str | None
    bytes: int
    batch: int
    p50_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    GBps: float | None = None
    cpu_us_per_op: float | None = None
    floor: str | None = None
    floor_p50_us: float | None = None
    floor_GBps: float | None = None  # noqa: N815 - the schema's name
    verified: bool = False
    form: str | None = None
    mode: str | None = None
    target: str | None = None
    path: str | None = None
    samples: int | None = None
    seconds: float | None = None
    cpu_s: float | None = None
    peer_cpu_s: float | None = None
    beside: str | None = None
    beside_p50_us: float | None = None
    seed_us: float | None = None
    of_other: float | None = None
    cpu_s_per_gb: float | None = None
    server_cpu_s_per_gb: float | None = None
    other_cpu_s_per_gb: float | None = None
    floor_cpu_s_per_gb: float | None = None
    missing: str | None = None

    @classmethod
    def of(cls, case: Case, path: Explanation | None = None) -> Row:
        """Make the row of a case, without numbers yet; `path` is the library's explanation, or None."""
        if path is None:
            return cls(**asdict(case), direct=None)
        # A row names the form that was taken and not the planned one; but of a device's memory "staged" says more.
        on_host = path.local_device == path.remote_device == HOST
        form = path.form if path.direct or on_host else case.form
        return cls(**asdict(replace(case, form=form)), direct=path.direct, path=str(path))

    def to_json(self) -> dict[str, Any]:
        """Return the row; optional keys are left out if they are None."""
        return {key: value for key, value in asdict(self).items() if value is not None or key not in _OPTIONAL}


@dataclass(slots=True)
class Samples:
    """Collects the measurements of one case over its rounds.

    Attributes:
        times_ns: duration of each measurement.
        floor_ns: duration of each measurement of the floor.
        cpu_ns: processor time of this process over all of them.
        verified: whether no wrong byte has arrived so far.
        beside, beside_ns: the measurement that took turns with it, and its durations.
    """

    times_ns: list[int] = field(default_factory=list)
    floor_ns: list[int] = field(default_factory=list)
    cpu_ns: int = 0
    verified: bool = True
    beside: str | None = None
    beside_ns: list[int] = field(default_factory=list)

    def measure(self, call: Callable[[Argument], Result], argument: Argument) -> Result:
        """Make a call, note the time and the processor time that it took, and return its result."""
        cpu, start = time.process_time_ns(), time.perf_counter_ns()
        result = call(argument)
        self.times_ns.append(time.perf_counter_ns() - start)
        self.cpu_ns += time.process_time_ns() - cpu
        return result

    def row(self, case: Case, *, operations: int = 1, floor: str | None = None, path: Explanation | None = None) -> Row:
        """Make the row of `case`.

        Args:
            case: the measured case.
            operations: number of operations in one measurement.
            floor: name of the floor, or None.
            path: the library's explanation of the path, or None.
        """
        has_rate = case.of_file or (case.provider is not None and case.name not in _NO_RATE)
        moved = case.bytes * case.batch if has_rate else 0
        median = percentile(self.times_ns, 0.5)
        floor_median = percentile(self.floor_ns, 0.5) if self.floor_ns else None
        return replace(
            Row.of(case, path),
            p50_us=_us(median),
            p99_us=_us(self._beyond(0.99)),
            p999_us=_us(self._beyond(0.999)),
            GBps=_rate(moved, median),
            cpu_us_per_op=_us(self.cpu_ns / (len(self.times_ns) * operations)),
            floor=floor,
            floor_p50_us=_us(floor_median),
            floor_GBps=_rate(moved, floor_median),
            verified=self.verified,
            samples=len(self.times_ns),
            beside=self.beside,
            beside_p50_us=_us(percentile(self.beside_ns, 0.5)) if self.beside_ns else None,
            seed_us=case.seed_us,
        )

    def _beyond(self, fraction: float) -> float | None:
        """Return the percentile, or None if there are too few samples for one to lie beyond it."""
        return percentile(self.times_ns, fraction) if len(self.times_ns) * (1 - fraction) > 0.999 else None


def percentile(samples: Sequence[float], fraction: float) -> float:
    """Return the smallest sample that at least `fraction` of the samples do not exceed.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = -(-len(ordered) * round(fraction * 1000) // 1000)  # ceiling, in integers: 0.999 × 1000 is 999
    return ordered[max(0, rank - 1)]


def _us(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else round(nanoseconds / 1000, 3)


def _rate(nbytes: int, nanoseconds: float | None) -> float | None:
    return round(nbytes / nanoseconds, 4) if nbytes >= _HAS_A_RATE and nanoseconds else None
