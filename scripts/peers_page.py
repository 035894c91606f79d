"""Write docs/peers.md from bench/results/peers.json, or check that it is what the results give.

peers_page.py write|check

Where there are no results there is to be no page either: `check` is content with that, `write` has nothing to do.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.peers import table
from bench.peers.report import Report, read

ROOT = Path(__file__).parents[1]

HEAD = """# Beside other libraries

This page is made from [bench/results/peers.json](../bench/results/peers.json): `make bench-peers` measures, and writes
it.

{facts}

Two processes on one host, each with a GPU of its own; one operation at a time, from the call until the caller knows
that it is done, driven from Python. A time is the median over several rounds. In each round the payload is new, the
target holds other bytes before, and all of it is compared afterwards. The factor is the peer's time divided by
zerohop's: above 1 zerohop is faster.
"""
TOOL = "\n†: measured by the peer's own tool, which compares no bytes.\n"
PLOT = "\n![Times and rates over sizes, and page lists](../bench/results/peers.png)\n"


def page(report: Report, *, plot: bool) -> str:
    by_tool = any(row.verified is None for row in report.rows)
    parts = [HEAD.format(facts=facts(report)), TOOL if by_tool else "", PLOT if plot else ""]
    parts += [f"\n## {title}\n\n{text}" for title, text in table.sections(report)]
    parts.append("\n## How each was used\n\n")
    parts.append(table.markdown(("peer", "version", "rows", "how"), uses(report)))
    if report.missing:
        parts.append("\n## Missing\n\n")
        parts.append(table.markdown(("peer", "reason"), [(each.peer, each.reason) for each in report.missing]))
    return "".join(parts)


def facts(report: Report) -> str:
    machine = report.machine
    gpus = [f"{machine['gpus'].count(name)} × {name}" for name in dict.fromkeys(machine["gpus"])]
    versions = [(name, machine[key]) for name, key in (("driver", "driver"), ("CUDA", "cuda"), ("torch", "torch"))]
    versions += [("Python", machine["python"]), ("zerohop", machine["zerohop"])]
    known = ", ".join(f"{name} {value}" for name, value in versions if value)
    wrong = f" **{len(report.wrong)} rows had wrong bytes.**" if report.wrong else ""
    return f"{', '.join(gpus) or 'No GPU'}; {known}; {report.measured[:10]}.{wrong}"


def uses(report: Report) -> list[tuple[str, str, str, str]]:
    """Peer, version, names of rows and how, a line for each different way."""
    ways: dict[tuple[str, str, str], dict[str, None]] = {}
    for row in report.rows:
        ways.setdefault((row.peer, row.version, row.note), {})[row.name] = None
    return [(peer, version, ", ".join(names), note or "–") for (peer, version, note), names in ways.items()]


def main(arguments: list[str], root: Path = ROOT) -> int:
    results, target = root / "bench" / "results" / "peers.json", root / "docs" / "peers.md"
    there = results.exists()
    text = page(read(results), plot=results.with_suffix(".png").exists()) if there else None
    if arguments == ["write"]:
        if text is not None:
            target.write_text(text, encoding="utf-8")
        return 0
    if text == (target.read_text(encoding="utf-8") if target.exists() else None):
        return 0
    print("docs/peers.md is not what bench/results/ gives: python scripts/peers_page.py write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
