"""Which combinations of a world and the memories at its two sides the fast suite goes through; the slow one goes
through all of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from support.buffers import KINDS
from support.world import WORLDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from _pytest.mark import ParameterSet

    from support.buffers import Kind

# Every way that bytes can take, on each provider: mapped, through a ring, or through a stream; and staged at either
# side, at both or at none. Which host memory it is matters only at the target.
_FAST: dict[str, set[tuple[Kind, Kind]]] = {
    "other": {
        ("numpy", "numpy"),
        ("numpy", "alloc"),
        ("alloc", "shared_memory"),
        ("numpy", "sim"),
        ("sim", "numpy"),
        ("sim", "alloc"),
        ("sim", "sim"),
    },
    # The same code, but for who polls: one process has both ends.
    "same": {("numpy", "numpy"), ("numpy", "alloc"), ("sim", "sim")},
}
# Where that is less: what has no device at either end goes through the same ring as over shm.
_FAST_ON: dict[str, set[tuple[Kind, Kind]]] = {
    "p2p-other": {("numpy", "sim"), ("sim", "numpy"), ("sim", "alloc"), ("sim", "sim"), ("numpy", "numpy")},
    "p2p-same": {("sim", "sim")},
    # A NIC does not see which host memory it is, and everything takes long in the lab.
    "verbs-other": {("numpy", "numpy"), ("numpy", "sim"), ("sim", "numpy"), ("sim", "sim")},
}


def every_pair(sources: Sequence[Kind], targets: Sequence[Kind]) -> list[ParameterSet]:
    """Parameters (world, source_kind, target_kind), `world` being indirect."""
    return [
        _param(world, (world, source, target), fast=(source, target) in _fast(world))
        for world in WORLDS
        for source in sources
        for target in targets
    ]


def every_target(targets: Sequence[Kind]) -> list[ParameterSet]:
    """Parameters (world, target_kind), for sources in plain host memory; `world` being indirect."""
    return [
        _param(world, (world, target), fast=("numpy", target) in _fast(world)) for world in WORLDS for target in targets
    ]


def each_way() -> list[ParameterSet]:
    """Parameters (world, target_kind) of the fast suite alone: for tests that take long and look for races, which are
    those of a way and not of a kind of host memory."""
    return [parameters for parameters in every_target(KINDS) if not parameters.marks]


def each_once(*values: Iterable[object]) -> list[ParameterSet]:
    """Return the product of the values as parameters, of which the fast suite takes each value at least once.

    It is for tests that cost much and whose parameters have little to do with each other.
    """
    lists = [list(each) for each in values]
    if not all(lists):
        return []
    fast = {tuple(each[i % len(each)] for each in lists) for i in range(max(map(len, lists)))}
    return [
        pytest.param(*chosen, marks=() if chosen in fast else pytest.mark.slow) for chosen in itertools.product(*lists)
    ]


# Of real GPUs: what goes by their own links and copy engines, and what is staged.
_FAST_ON_GPUS: dict[str, set[tuple[Kind, Kind]]] = {
    "p2p-other": {("cuda", "cuda"), ("cuda", "numpy"), ("numpy", "cuda"), ("cuda", "alloc"), ("alloc", "cuda")},
    "p2p-same": {("cuda", "cuda"), ("numpy", "cuda")},
    "shm-other": {("cuda", "cuda")},
    "tcp-other": {("cuda", "cuda"), ("numpy", "cuda")},
}


def _fast(world: str) -> set[tuple[Kind, Kind]]:
    return _FAST_ON.get(world, _FAST[world.partition("-")[2]]) | _FAST_ON_GPUS.get(world, set())


def _param(world: str, values: tuple[str, ...], *, fast: bool) -> ParameterSet:
    on_gpu = (pytest.mark.cuda,) if "cuda" in values else ()
    return pytest.param(*values, id="-".join(values), marks=on_gpu if fast else (*on_gpu, pytest.mark.slow))
