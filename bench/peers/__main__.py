"""Measures zerohop beside NCCL, torch's symmetric memory, UCX and NIXL, between two GPUs, or within one.

    python -m bench.peers [--only NAME]... [--json FILE] [--plot FILE] [--logs FOLDER] [--quick] [--limit SECONDS]

A peer that is not installed, does not start, hangs or crashes is listed with the reason. Its rows so far are kept, and
the other peers are measured. The file of --json is written anew after each peer, once there are rows.

Exit code: 0 when something was measured and every compared byte was right, 1 when bytes were wrong or the plot could
not be drawn, 2 when nothing was measured (then no file is written) or an argument makes no sense.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers import machine, plot, table, workload
from bench.peers.catalogue import EXPANDABLE, PEERS
from bench.peers.report import Missing, Report, Row
from bench.peers.runner import measure
from bench.peers.workload import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peers.catalogue import Peer
    from bench.peers.runner import Outcome

_LIMIT = 120.0
# Devices of the two processes; the second pair is for a machine with one GPU.
DEVICES = (("cuda:0", "cuda:1"), ("cuda:0", "cuda:0"))


def main(arguments: Sequence[str] | None = None, peers: Sequence[Peer] = PEERS) -> int:
    given = parser(peers).parse_args(arguments)
    for target in filter(None, (given.json, given.plot)):
        if not target.parent.is_dir():
            parser(peers).error(f"there is no folder {target.parent}")
    if given.logs:
        given.logs.mkdir(parents=True, exist_ok=True)
    described = machine.describe()
    devices = tuple(given.devices.split(",")) if given.devices else DEVICES[len(described["gpus"]) == 1]
    effort = workload.QUICK if given.quick else workload.FULL
    spec = Spec(devices, workload.cases(quick=given.quick), effort)
    report = Report(described)
    for peer in peers:
        if given.only and peer.name not in given.only:
            continue
        outcome = measure(peer, spec, given.limit, logs=given.logs)
        take(report, peer, peer.name, outcome)
        if peer.expandable and outcome.rows and devices[0] != "cpu":
            # PyTorch's allocator is chosen at the start of a process, so this needs two new ones.
            own = Spec(devices, workload.EXPANDABLE_CASES, effort)
            outcome = measure(peer, own, given.limit, environment=EXPANDABLE, logs=given.logs)
            take(report, peer, f"{peer.name}, expandable segments", outcome)
        if given.json and report.rows:
            report.write(given.json)
    show(report)
    if not report.rows:
        print("nothing was measured", file=sys.stderr)
        return 2
    drawn = draw(report, given.plot) if given.plot else True
    return 1 if report.wrong or not drawn else 0


def parser(peers: Sequence[Peer]) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("bench.peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    found.add_argument("--only", action="append", choices=[peer.name for peer in peers], help="this peer; repeatable")
    found.add_argument("--json", type=Path, help="write the results into this file")
    found.add_argument("--plot", type=Path, help="draw them into this file")
    found.add_argument("--logs", type=Path, help="keep what the peers print in this folder")
    found.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    found.add_argument("--limit", type=float, default=_LIMIT, help=f"seconds for each peer ({_LIMIT:g})")
    # Two of "cpu" try the program without a GPU; its numbers mean nothing then.
    found.add_argument("--devices", help=argparse.SUPPRESS)
    return found


def take(report: Report, peer: Peer, name: str, outcome: Outcome) -> None:
    """Add the outcome of a peer to the report, and print it."""
    rows = [Row(peer=peer.name, version=outcome.version, **row) for row in outcome.rows]
    report.rows += rows
    said = f"{len(rows)} rows"
    if outcome.reason is not None:
        reason = f"after {len(rows)} rows: {outcome.reason}" if rows else outcome.reason
        report.missing.append(Missing(name, reason))
        said = f"missing: {reason}"
    print(f"{name}: {said}", file=sys.stderr, flush=True)


def show(report: Report) -> None:
    """Print the tables."""
    for title, text in table.sections(report):
        print(f"\n{title}\n\n{text}", end="")
    if any(row.verified is None for row in report.rows):
        print("\n† measured by the peer's own tool, which compares no bytes")
    for each in report.missing:
        print(f"\nmissing: {each.peer}: {each.reason}", end="")
    print()


def draw(report: Report, target: Path) -> bool:
    """Draw the plot; a failure must not lose results that took minutes."""
    if not plot.available():
        print("no plot: matplotlib is not installed: pip install 'zerohop[plot]'", file=sys.stderr)
        return False
    try:
        plot.draw(report, target)
    except Exception:  # noqa: BLE001 - any error: the tables and the JSON exist already
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
