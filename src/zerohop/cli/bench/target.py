"""Declares a limit that the library promises to keep."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    max_cpu: float | None = None
    max_bytes: int | None = None
