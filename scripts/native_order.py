#!/usr/bin/env python3
"""Checks that the rooms of native/ include each other in one direction only.

A room is a folder, or a file directly in native/. A file may include files of its own room, and of rooms of lower
rank. The native parts of faces include no provider's implementation.

Usage: native_order.py [FOLDER]; by default native/.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "native"
_FACE = 9
RANKS = {
    "base": 0,
    "shim": 1,
    "accel": 2,
    "accel/gpu": 3,
    "accel/sim": 3,
    "memory": 4,
    "operation": 5,
    "provider": 6,
    "engine": 7,
    "provider/framed": 8,
    "storage": _FACE,
    "group": _FACE,
    "device": _FACE,
    "provider/shm": 9,
    "provider/tcp": 9,
    "provider/p2p": 9,
    "provider/verbs": 9,
    "fabric": 10,
    "providers": 10,
    "bind": 11,
}
_FACES = ("storage", "group", "device")
_INCLUDE = re.compile(r'\s*#include "([^"]+)"')


def room_of(file: str) -> str:
    """Return the room of a file, given by its path below native/."""
    folder = str(Path(file).parent)
    return Path(file).stem if folder == "." else folder


def find_violations(root: Path) -> list[tuple[str, str]]:
    """Return the pairs of a file and a file that it includes against the rules."""
    found = []
    for path in sorted([*root.rglob("*.hpp"), *root.rglob("*.cpp")]):
        file = str(path.relative_to(root))
        here = room_of(file)
        for line in path.read_text(encoding="utf-8").splitlines():
            match = _INCLUDE.match(line)
            if match is None or not (root / match[1]).exists():
                continue
            there = room_of(match[1])
            peeks = here in _FACES and there.startswith("provider/")
            if here != there and (RANKS[there] >= RANKS[here] or peeks):
                found.append((file, match[1]))
    return found


def main() -> int:
    found = find_violations(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    for file, included in found:
        print(f"native/{file} may not include {included}: {room_of(included)} is not below {room_of(file)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
