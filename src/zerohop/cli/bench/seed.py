"""Holds the numbers of torchcomms' RdmaTransport's documentation: two hosts with H100 GPUs and NICs of 400 Gb/s."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from zerohop.cli.bench.case import Case

_KI, _MI = 1 << 10, 1 << 20
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


def seed_us(case: Case) -> float | None:
    """Return the documented median for a row of a Transport; None if there is none, as for reads."""
    table = {"transport_write": SEED_US, "transport_register": _REGISTER_US}.get(case.name, {})
    return table.get(case.bytes)
