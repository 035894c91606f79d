"""Declares Statistics, the counters of a Context."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Statistics(NamedTuple):
    """Holds counters of a Context.

    Attributes:
        connections: peers that the Context is connected to.
        registrations: registered regions, cached ones included.
        pinned: Memories that are closed or dropped, and whose memory transfers, peers or devices still use.
        shares: handles that can be used.
        mapped: peers' memories that are mapped here, or that a NIC here reaches by their keys.
        routes: pairs (memory, remote memory) whose path is chosen.
        engine: counters of the data plane, by name.
    """

    connections: int
    registrations: int
    pinned: int
    shares: int
    mapped: int
    routes: int
    engine: Mapping[str, int]
