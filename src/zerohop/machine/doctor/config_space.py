"""Reads facts from the PCI configuration space of a function that sysfs shows nowhere else.

The layout is that of the PCI Express Base Specification: a list of capabilities in the first 256 bytes, and one of
extended capabilities from byte 256 on. The kernel shows the first 64 bytes to everyone, and the rest to root only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = 64  # bytes that everyone may read
_STATUS, _HAS_CAPABILITIES, _FIRST = 0x06, 0x10, 0x34
_EXPRESS, _EXPRESS_CONTROL = 0x10, 8
_EXTENDED, _ACS, _ACS_CONTROL = 0x100, 0x000D, 6
_MOST_CAPABILITIES = 64  # the end for a list that leads back into itself

# Bits of the ACS control register: send peer-to-peer requests, completions, or egress by control vector to the root.
ACS_REDIRECTS = 0x04 | 0x08 | 0x20


@dataclass(frozen=True, slots=True)
class ConfigSpace:
    """Holds the facts of one function; a fact is None if the function has no such register.

    Attributes:
        readable: whether the capabilities could be read; if not, all other facts are None.
        acs_control: Access Control Services of a bridge: the peer-to-peer traffic that it sends up to the root.
        read_request: largest read request that the function makes, in bytes.
        relaxed_ordering: whether it may mark its requests as free to overtake others.
    """

    readable: bool
    acs_control: int | None = None
    read_request: int | None = None
    relaxed_ordering: bool | None = None

    @property
    def redirects(self) -> bool:
        """Tell whether this bridge sends peer-to-peer traffic up to the root complex."""
        return bool((self.acs_control or 0) & ACS_REDIRECTS)


def read_config_space(function: Path) -> ConfigSpace:
    """Read the file `config` of a function's sysfs folder."""
    try:
        return decode((function / "config").read_bytes())
    except OSError:
        return ConfigSpace(readable=False)


def decode(data: bytes) -> ConfigSpace:
    """Read the registers from the bytes of a configuration space; a register that is not there is None."""
    if len(data) <= _HEADER:
        return ConfigSpace(readable=False)
    control = None
    express = _capability(data, _EXPRESS)
    if express is not None:
        control = _word(data, express + _EXPRESS_CONTROL)
    acs = _extended_capability(data, _ACS)
    return ConfigSpace(
        readable=True,
        acs_control=None if acs is None else _word(data, acs + _ACS_CONTROL),
        read_request=None if control is None else 128 << (control >> 12 & 7),
        relaxed_ordering=None if control is None else bool(control & 0x10),
    )


def _word(data: bytes, at: int) -> int | None:
    return int.from_bytes(data[at : at + 2], "little") if at + 2 <= len(data) else None


def _capability(data: bytes, wanted: int) -> int | None:
    if not data[_STATUS] & _HAS_CAPABILITIES:
        return None
    at = data[_FIRST] & ~3
    for _ in range(_MOST_CAPABILITIES):
        if at < _HEADER or at + 2 > min(len(data), _EXTENDED):
            return None
        if data[at] == wanted:
            return at
        at = data[at + 1] & ~3
    return None


def _extended_capability(data: bytes, wanted: int) -> int | None:
    at = _EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        if at < _EXTENDED or at + 4 > len(data):
            return None
        header = int.from_bytes(data[at : at + 4], "little")
        if header & 0xFFFF == wanted:
            return at
        at = header >> 20 & ~3
    return None
