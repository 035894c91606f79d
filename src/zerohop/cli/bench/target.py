"""A limit that the library promises to keep."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Target:
    """A limit for the rows whose fields are as in `fields`; exactly one kind of limit is set.

    Attributes:
        fields: field name -> value.
        max_us: limit of the median.
        max_times_floor: limit of the median as a multiple of the floor's.
        min_gbps: lower limit of the rate.
        min_of_floor: lower limit of the rate as a part of the floor's.
        max_cpu_us: limit of the processor time of an operation.
        min_of_row: lower limit of the speed as a part of that of the first row whose fields are as in `row`.
        row: that row's fields.
        times_faster: lower limit of how much faster it is than `than_us`.
        than_us: microseconds of the same operation elsewhere.
        max_times_beside: limit of the median as a multiple of what was measured beside it.
        min_times_beside: lower limit of how much faster it is than that.
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
