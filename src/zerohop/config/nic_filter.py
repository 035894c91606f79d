"""Parses the setting ``ZEROHOP_NICS``, which names the RDMA ports to use, or the ones not to use.

The form is that of ``NCCL_IB_HCA``, which many scripts already set, with shell wildcards added. Names are separated by
commas. A name is a device (``mlx5_0``), one port of it (``mlx5_0:1``) or a pattern (``mlx5_*``, ``mlx5_[0-3]``,
``mlx5_*:1``). A ``^`` before the list means all ports but these. Unlike in ``NCCL_IB_HCA``, a name is not a prefix:
``mlx5_1`` does not match ``mlx5_10``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from zerohop.shown import shown

_PATTERN = re.compile(r"[\w.\-*?\[\]!]+(:\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class NicFilter:
    """Selects the RDMA ports that may be used.

    Attributes:
        include: patterns, at least one of which must match; empty: every port may be used.
        exclude: patterns, none of which may match.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def why_not(self, device: str, port: int) -> str:
        """Return the reason why a port may not be used; "" if it may."""
        for pattern in self.exclude:
            if matches(pattern, device, port):
                return f"left out by the filter: {pattern} is excluded"
        if self.include and not any(matches(pattern, device, port) for pattern in self.include):
            return f"left out by the filter: not among {', '.join(self.include)}"
        return ""


def parse_nic_filter(text: str) -> NicFilter:
    """Parse a setting such as "mlx5_0,mlx5_1:1", "mlx5_*" or "^mlx5_2,mlx5_3". Spaces around names do not matter.

    Raises:
        ValueError: the text cannot be understood; the message names the part.
    """
    stripped = text.strip()
    excluding = stripped.startswith("^")
    names = [name.strip() for name in stripped.removeprefix("^").split(",")]
    if names == [""]:
        raise ValueError(f"{shown(text)} names no NIC; leave it unset to use all of them")
    for name in names:
        if not name:
            raise ValueError(f"{shown(text)} has an empty name between its commas")
        if name.startswith("^"):
            raise ValueError(f"{shown(text)}: ^ stands once, before the whole list, and leaves all of its names out")
        if not _PATTERN.fullmatch(name):
            raise ValueError(
                f"{shown(text)}: {shown(name)} is no NIC; "
                "one is written mlx5_0, with a port mlx5_0:1, or as a pattern mlx5_*"
            )
    return NicFilter(exclude=tuple(names)) if excluding else NicFilter(include=tuple(names))


def matches(pattern: str, device: str, port: int) -> bool:
    """Tell whether a pattern of a filter matches a port."""
    name, _, number = pattern.partition(":")
    return fnmatchcase(device, name) and number in ("", str(port))
