"""Writes docs/benchmarks-gpu.md and the README's table from bench/results/gpu-*.json, or checks that they agree.

gpu_page.py write|check
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench_tables import beside_table, files_table, markdown, read_report, rows_section, targets_section

from zerohop.cli.bench.plot import draw
from zerohop.cli.bench.rows import SEED_US
from zerohop.cli.bench.storage_plan import SERVED_NAMES
from zerohop.cli.console import human_bytes, human_time, human_us

if TYPE_CHECKING:
    from zerohop.cli.bench.results import Report
    from zerohop.cli.bench.rows import Row

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "bench" / "results"
FILES_RESULT: Final = RESULTS / "gpu-files.json"
DEVICE_RESULT: Final = RESULTS / "gpu-device.json"
PAGE: Final = ROOT / "docs" / "benchmarks-gpu.md"
README: Final = ROOT / "README.md"
BEGIN, END = "<!-- GPU table: made by scripts/gpu_page.py -->\n", "<!-- end of the GPU table -->\n"

HEAD: Final = """# Benchmarks between GPUs

This page is made from `bench/results/gpu-*.json`: `make bench-gpu` measures on a machine with NVIDIA GPUs, and writes
them. Two processes, driven from Python as a user would; every byte of every row was verified unless it says otherwise.
How rows are measured is told in [benchmarks.md](benchmarks.md).

| floor | what it is |
|---|---|
| C++ copy | `cuMemcpyAsync` between GPUs of one process, and a synchronisation; for reads, by the GPU that they go to |
| C++ copy and word | the same, and a word that the stream writes after it, which the host spins on |
| C++ kernel | one launch for each list of pages, whose numbers lie on the GPU already; of three grids the fastest |
| C++ copies, all at once | each GPU to each other one, from one process |
| driver's open | `cuIpcOpenMemHandle` of an allocation of the other process, which is open nowhere yet |

"first_use": of a tensor in an allocation that is open already ("known"), or in one of its own ("new"). "raw": tensors
that the caller did not register. "expandable": memory of PyTorch's expandable segments; all other is `cudaMalloc`'s.
RdmaTransport's column is what the documentation of torchcomms gives, over a NIC of 400 Gb/s between two hosts: **a
different fabric** than NVLink, and the comparison says what a user gains on one host, not how the libraries compare.

Processes that share one GPU take turns on it, and a turn lasts: `write_notify`, which is measured there and back, has
no floor there.
"""

BESIDE: Final = """Beside each row what took turns with it, round by round, and how many times that the row takes.

"""


FILES: Final = """
## Files

`{command}`: {facts}

One process reads 1 MiB blocks of a file that is in the page cache through a Ring into an Iov of the GPU's memory, 32 at
once; or of a file that a server in another process serves. The floor of the first is plain C++: threads that read into
pinned memory, two buffers each, and copy each buffer to the GPU while the other is read into; 1, 4 and 16 threads take
their turns, and the best counts. The second, of a file in /dev/shm, takes turns with the same reads by the client
itself. The ratio is the median of those of the turns.

"""


DEVICE: Final = """`{command}`: kernels of a [Queue](device.md), in Triton and C++, between two processes.

"device_ping" is half the round trip of a put with a signal. "device_wait" is the same; beside it the waits have no
timeout. "device_put" is the rate of puts by all blocks, or by 8. "device_fifo" is the host's time for one entry of the
FIFO: a fence, or a put of 8 bytes. "device_turn" is a round trip from a kernel to the host: a fence, then a flush. The
floor is a kernel that does the same by plain addresses; for "device_turn", a word that a thread of the host echoes.

"""


def seed_table(report: Report) -> str:
    """Return the table that compares RdmaTransport with zerohop."""
    kept = {(row.name, row.bytes): row for row in report.rows if _plain(row)}
    lines = []
    for nbytes, seed_us in SEED_US.items():
        write, read = kept.get(("write", nbytes)), kept.get(("read", nbytes))
        if write is None or read is None or write.p50_us is None or read.p50_us is None:
            continue
        lines.append(
            (
                human_bytes(nbytes),
                human_us(seed_us),
                f"{human_us(write.p50_us)} ({seed_us / write.p50_us:.1f} ×)",
                human_us(read.p50_us),
                human_us(write.floor_p50_us),
                f"{nbytes / write.p50_us / 1000:.1f} GB/s",
            )
        )
    head = ("bytes", "RdmaTransport, 400 Gb/s NIC", "`write`, NVLink", "`read`", "C++ copy", "rate of `write`")
    return markdown(head, lines)


def page(reports: dict[str, Report], files: Report | None = None, device: Report | None = None) -> str:
    """Return the page of all reports, which are given by name, and of those about files and kernels that send."""
    text = HEAD + "".join(_section(name, report) for name, report in reports.items())
    if device is not None:
        text += _section("Kernels that send", device, DEVICE.format(command=" ".join(device.command)))
    if files is None:
        return text
    head = FILES.format(command=" ".join(files.command), facts=_facts(files))
    tables = [files_table(files, served=served) for served in (False, True) if _has(files, served)]
    return text + head + "\n".join(tables)


def _has(files: Report, served: bool) -> bool:
    return any((row.name in SERVED_NAMES) == served for row in files.rows)


def in_readme(text: str, report: Report) -> str:
    """Return the README with the table of a report between its marks."""
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    told = f"{_facts(report)} A different fabric, as the heads say.\n\n"
    return f"{text[:begin]}\n{told}{seed_table(report)}\n{text[end:]}"


def _section(name: str, report: Report, intro: str = "") -> str:
    parts = [f"\n## {name}\n\n{intro}{_facts(report)}\n"]
    if any(_plain(row) for row in report.rows):
        parts.append(f"\n### Beside RdmaTransport\n\n{seed_table(report)}")
    if any(row.beside for row in report.rows):
        parts.append(f"\n### Beside another call\n\n{BESIDE}{beside_table(report.rows)}")
    return "".join([*parts, targets_section(report, "###"), rows_section(report, "###")])


def _plain(row: Row) -> bool:
    between = (row.src, row.dst) == ("cuda:0", "cuda:1")
    return between and row.provider == "p2p" and row.batch == 1 and row.mode is None


def _facts(report: Report) -> str:
    nvidia: dict[str, Any] = report.machine.get("nvidia") or {}
    models = sorted({card["model"] for card in report.machine.get("accelerators", ())})
    cuda = ".".join(map(str, nvidia.get("cuda") or ())) or "unknown"
    libraries = ", ".join(f"{name} {version}" for name, version in report.machine.get("libraries", {}).items())
    links = sorted({pair["link"] for pair in nvidia.get("pairs", ()) if pair["link"]})
    wrong = sum(not row.verified for row in report.rows)
    verified = "every byte verified" if not wrong else f"**{wrong} rows had wrong bytes**"
    return (
        f"zerohop {report.zerohop}, {report.measured[:10]}: {len(nvidia.get('gpus', ()))} × {', '.join(models)}"
        f"{' over ' + ' and '.join(links) if links else ''}, driver {nvidia.get('driver', 'unknown')}, CUDA {cuda}, "
        f"{libraries}. {len(report.rows)} rows in {human_time(report.seconds)}, {verified}."
    )


def main() -> int:
    reports = {
        f"{match[1]} GPU{'s' if match[1] != '1' else ''}": read_report(path)
        for path in sorted(RESULTS.glob("gpu-*.json"))
        if (match := re.fullmatch(r"gpu-(\d+)\.json", path.name))
    }
    if not reports:
        print("no results of GPUs: make bench-gpu, on a machine that has some")
        return 0
    files, device = (read_report(path) if path.exists() else None for path in (FILES_RESULT, DEVICE_RESULT))
    wanted = {PAGE: page(reports, files=files, device=device)}
    if "2 GPUs" in reports:
        wanted[README] = in_readme(README.read_text(encoding="utf-8"), reports["2 GPUs"])
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if sys.argv[1:] == ["write"]:
        for path in stale:
            path.write_text(wanted[path], encoding="utf-8")
        if importlib.util.find_spec("matplotlib") is not None:
            for name, report in reports.items():
                draw(report.rows, RESULTS / f"gpu-{name.partition(' ')[0]}.png")
        return 0
    for path in stale:
        print(
            f"{path.relative_to(ROOT)} differs from bench/results/: python scripts/gpu_page.py write", file=sys.stderr
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
