"""Writes docs/peers.md from bench/results/peers-*.json, or checks that it agrees with them.

peers_page.py write|check

Without results there must be no page: then `check` succeeds if there is none, and `write` does nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.peers import table
from bench.peers.report import Report, read

ROOT = Path(__file__).parents[1]

HEAD = """# Beside other libraries

This page is made from `bench/results/peers-*.json`: `make bench-peers` measures, and writes them.

Two processes on one host; one operation at a time, from the call until the caller knows that it is done, driven from
Python. A time is the median over several rounds. In each round the payload is new, the target holds other bytes before,
and all of it is compared afterwards. The factor is the peer's time divided by zerohop's: above 1 zerohop is faster.
"""
# Keyed by the number in the name of the file.
KINDS = {
    2: """## Two GPUs

Each process has a GPU of its own: writes go from GPU 0 to GPU 1, reads come back.
""",
    1: """## One GPU

Both processes use the same GPU, and the copies stay in its memory.
""",
}
TOOL = "\n†: measured by the peer's own tool, which compares no bytes.\n"


def page(reports: dict[int, Report], plots: dict[int, str]) -> str:
    parts = [HEAD]
    for kind, title in KINDS.items():
        if kind in reports:
            parts += ["\n", title, *part(reports[kind], plots.get(kind))]
    return "".join(parts)


def part(report: Report, plot: str | None) -> list[str]:
    by_tool = any(row.verified is None for row in report.rows)
    parts = [f"\n{facts(report)}\n", TOOL if by_tool else ""]
    if plot is not None:
        parts.append(f"\n![Times and rates over sizes, and page lists](../bench/results/{plot})\n")
    parts += [f"\n### {title}\n\n{text}" for title, text in table.sections(report)]
    parts.append("\n### How each was used\n\n")
    parts.append(table.markdown(("peer", "version", "rows", "how"), uses(report)))
    if report.missing:
        parts.append("\n### Missing\n\n")
        parts.append(table.markdown(("peer", "reason"), [(each.peer, each.reason) for each in report.missing]))
    return parts


def facts(report: Report) -> str:
    machine = report.machine
    gpus = [f"{machine['gpus'].count(name)} × {name}" for name in dict.fromkeys(machine["gpus"])]
    versions = [(name, machine[key]) for name, key in (("driver", "driver"), ("CUDA", "cuda"), ("torch", "torch"))]
    versions += [("Python", machine["python"]), ("zerohop", machine["zerohop"])]
    known = ", ".join(f"{name} {value}" for name, value in versions if value)
    wrong = f" **{len(report.wrong)} rows had wrong bytes.**" if report.wrong else ""
    return f"{', '.join(gpus) or 'No GPU'}; {known}; {report.measured[:10]}.{wrong}"


def uses(report: Report) -> list[tuple[str, str, str, str]]:
    """Return peer, version, names of rows and manner of use, a line for each different manner."""
    ways: dict[tuple[str, str, str], dict[str, None]] = {}
    for row in report.rows:
        ways.setdefault((row.peer, row.version, row.note), {})[row.name] = None
    return [(peer, version, ", ".join(names), note or "–") for (peer, version, note), names in ways.items()]


def main(arguments: list[str], root: Path = ROOT) -> int:
    target = root / "docs" / "peers.md"
    files = {kind: root / "bench" / "results" / f"peers-{kind}.json" for kind in KINDS}
    reports = {kind: read(file) for kind, file in files.items() if file.exists()}
    drawn = {kind: file.with_suffix(".png") for kind, file in files.items()}
    text = page(reports, {kind: file.name for kind, file in drawn.items() if file.exists()}) if reports else None
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
