"""Counts the instructions of zerohop's own code per small write, by callgrind: the post, and the poll that reaps it.

    python bench/lab/instructions.py [--json FILE]

The native program posts and reaps COUNT writes with a pause after each post, so that no poll is empty, once with few
and once with many. The difference of both counts, by the object file of the instructions, is the cost of a write.
Zerohop's own are those in the program itself, less its benchmark loop; the C library, libibverbs and the device's
library are shown beside.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from pairs import DEVICE, GID_INDEX, perf

NBYTES, FEW, MANY = 8, 20, 120
TARGET = 700
LOOP = "post_and_reap"  # the benchmark itself


def by_object(profile: Path) -> collections.Counter[str]:
    """Return the instructions by object file: those of each cost line, without the lines that sum up a call's cost."""
    counts: collections.Counter[str] = collections.Counter()
    name, inclusive, loop = "", False, False
    for line in profile.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("ob="):
            name = Path(line[3:]).name
        elif line.startswith("fn="):
            loop = LOOP in line
        elif line.startswith("calls="):
            inclusive = True
        elif line[:1].isdigit() or line[:1] in "+-*":
            words = line.split()
            if not inclusive and not loop and len(words) > 1:  # a cost of nothing is left out
                counts[name] += int(words[1])
            inclusive = False
    return counts


def counted(count: int) -> collections.Counter[str]:
    """Run the program under callgrind, and return the counts of the process that writes."""
    with tempfile.TemporaryDirectory() as folder:
        options = [
            "--tool=callgrind",
            "--compress-strings=no",
            "--compress-pos=no",
            "--separate-threads=yes",
            f"--callgrind-out-file={folder}/%p",
        ]
        command = ["valgrind", *options, perf(), "steps", DEVICE, str(GID_INDEX), str(NBYTES), str(count)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
            _, errors = run.communicate(timeout=300)
        if run.returncode:
            sys.exit(f"{' '.join(command)}: {errors[-500:]}")
        # The first thread posts and reaps; the engine's own thread only polls now and then, and finds nothing.
        return by_object(Path(folder) / f"{run.pid}-01")


def main() -> None:
    """Measure, and print one row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the row there")
    options = parser.parse_args()
    few, many = counted(FEW), counted(MANY)
    each = {name: (many[name] - few[name]) / (MANY - FEW) for name in many}
    program = Path(perf()).name
    ours = each.pop(program)
    others = {name: round(count, 1) for name, count in sorted(each.items(), key=lambda item: -item[1]) if count >= 1}
    verdict = "holds" if ours <= TARGET else "MISSED"
    print(f"instructions per write of {NBYTES} B: {ours:.0f}, target <= {TARGET}: {verdict}")
    print("  beside: " + ", ".join(f"{name} {count:.0f}" for name, count in others.items()))
    if options.json:
        row = {"name": "instructions per small write", "ours": round(ours, 1), "target": TARGET, "others": others}
        Path(options.json).write_text(json.dumps([row], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
