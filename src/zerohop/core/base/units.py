"""Writes sizes, durations and rates for people."""

from __future__ import annotations

from typing import Final

# Bytes. A smaller transfer gets no rate, because latency alone would determine it.
HAS_A_RATE: Final = 4096


def size_text(nbytes: int) -> str:
    """Write a number of bytes for people: ``8 B``, ``64.0 MiB``."""
    if nbytes < 1024:
        return f"{nbytes} B"
    value = float(nbytes)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024 or unit == "GiB":
            break
    return f"{value:.1f} {unit}"


def duration_text(nanoseconds: int) -> str:
    """Write a duration for people: ``684 µs``, ``3.4 ms``."""
    value = nanoseconds / 1e3
    for unit in ("µs", "ms", "s"):
        if value < 1000 or unit == "s":
            break
        value /= 1e3
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def transfer_text(nbytes: int, nanoseconds: int) -> str:
    """Write size, duration and rate of a transfer: ``64.0 MiB in 3.4 ms, 19.7 GB/s``; no rate if it is small."""
    text = f"{size_text(nbytes)} in {duration_text(nanoseconds)}"
    if nbytes >= HAS_A_RATE and nanoseconds > 0:
        text += f", {nbytes / nanoseconds:.3g} GB/s"
    return text
