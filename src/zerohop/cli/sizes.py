"""Reads sizes in bytes as people write them."""

from __future__ import annotations

from typing import Final

_UNITS: Final = {
    "": 1,
    "k": 1000,
    "ki": 1 << 10,
    "m": 10**6,
    "mi": 1 << 20,
    "g": 10**9,
    "gi": 1 << 30,
    "t": 10**12,
    "ti": 1 << 40,
}


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse sizes such as "8,64Ki,64Mi": numbers above 0 with k, M, G, T (thousands) or Ki, Mi, Gi, Ti (1024).

    Raises:
        ValueError: a part of the text is no size.
    """
    sizes = []
    for word in text.split(","):
        number = word.strip().rstrip("kKmMgGtTiI")
        unit = word.strip()[len(number) :].lower()
        if not number.isdigit() or unit not in _UNITS or int(number) == 0:
            raise ValueError(f"{word.strip()!r} is not a size such as 8, 64Ki or 64Mi")
        sizes.append(int(number) * _UNITS[unit])
    return tuple(sizes)
