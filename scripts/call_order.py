#!/usr/bin/env python3
"""Count the calls against the order of the rooms in a first write over shm, and print them.

A call is a pair of functions of different rooms, one of which called the other, on the caller's thread or on a control
thread of either side. It is against the order if the room of the called function lies above that of its caller; such a
call must go to a callback, or a Protocol's method, that was handed in. Imports cannot show this: import-linter checks
those.

Usage: call_order.py [--most N]; exits with 1 if there are more than N.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import tomllib

import zerohop
from zerohop.core.transfers.context_transfers import core_of

if TYPE_CHECKING:
    from types import CodeType, FrameType

PACKAGE = Path(zerohop.__file__).parent
PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
NBYTES = 8


class Function(NamedTuple):
    """Names a function of the package."""

    room: str
    name: str


def read_ranks() -> dict[str, int]:
    """Return the rank of each room, the lowest first, from the contracts of import-linter."""
    contracts = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = {contract["id"]: contract["layers"] for contract in contracts if contract["type"] == "layers"}
    ranks: dict[str, int] = {}
    for layer in reversed(layers["house"]):
        for part in reversed(layers["core"]) if layer == "core" else [layer]:
            rank = len(set(ranks.values()))
            for room in part.replace("(", "").replace(")", "").split("|"):
                ranks[f"core/{room.strip()}" if layer == "core" else room.strip()] = rank
    return ranks


def function_of(code: CodeType) -> Function | None:
    """Return the function that code belongs to; None if it is not of the package."""
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return None
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    room = "/".join(parts[:2]) if parts[0] == "core" else parts[0]
    return Function(room, f"{'/'.join(parts)}.{getattr(code, 'co_qualname', code.co_name)}")


def trace_first_write() -> set[tuple[Function, Function]]:
    """Return the pairs (caller, called) of a first write between two Contexts of this process."""
    pairs: set[tuple[Function, Function]] = set()

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_back is not None:
            caller, called = function_of(frame.f_back.f_code), function_of(frame.f_code)
            if caller is not None and called is not None and caller.room != called.room:
                pairs.add((caller, called))

    with zerohop.Context(providers=["shm"]) as here, zerohop.Context(providers=["shm"]) as there:
        handle = there.alloc(NBYTES).share("rw")
        memory = here.alloc(NBYTES)
        controls = [core_of(context).control for context in (here, there)]
        for control in controls:
            control.call(sys.setprofile, profile)
        sys.setprofile(profile)
        here.write(memory, handle).result()
        sys.setprofile(None)
        for control in controls:
            ended = threading.Event()
            control.call(sys.setprofile, None)
            control.call(ended.set)
            ended.wait()
    return pairs


def main() -> int:
    """Print the calls against the order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=10, help="calls against the order that are allowed; default: 10")
    most = parser.parse_args().most
    ranks = read_ranks()
    pairs = trace_first_write()
    against = sorted(pair for pair in pairs if ranks[pair[0].room] < ranks[pair[1].room])
    for caller, called in against:
        print(f"{caller.name} -> {called.name}")
    print(f"{len(against)} of {len(pairs)} calls between rooms are against the order")
    return int(len(against) > most)


if __name__ == "__main__":
    sys.exit(main())
