"""Tables, plot and page of a report made by hand; its numbers mean nothing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.peers import plot, table
from bench.peers.report import Missing, Report, Row, read

from support.patience import ANSWER_S

ROOT = Path(__file__).parents[2]
MI = 1 << 20


def made_by_hand() -> Report:
    report = Report(
        {"gpus": ["GPU X", "GPU X"], "driver": "1.2", "cuda": "13.0", "torch": "2.11", "python": "3.12", "zerohop": "0"}
    )
    report.rows = [
        Row("nixl", "1.5", "write", 8192, 1, 40.0, 0.2, verified=True, note="posted again"),
        Row("nixl", "1.5", "write", 64 * MI, 1, 400.0, 167.8, verified=False),
        Row("zerohop", "0.1", "write", 8192, 1, 10.0, 0.8, verified=True, note="p2p | direct"),
        Row("zerohop", "0.1", "write", 64 * MI, 1, 200.0, 335.5, verified=True),
        Row("ucx", "1.22", "write", 8192, 1, 5.0, 1.6, verified=None),
        Row("ucx", "1.22", "write_latency", 8192, 1, 6.0, 1.4, verified=None, note="half a round trip"),
        Row("zerohop", "0.1", "write_pages", 1024, 4096, 20.0, 209.7, verified=True),
    ]
    report.missing = [Missing("nccl", "it hangs")]
    return report


def test_tables() -> None:
    sections = dict(table.sections(made_by_hand()))
    assert sections[table.TITLES["write"]].splitlines() == [
        "| size | zerohop | nixl | ucx |",
        "| --- | --- | --- | --- |",
        "| 8 KiB | 10 µs, 0.8 GB/s | 40 µs, 0.2 GB/s, 4.00× | 5 µs, 1.6 GB/s, 0.50× † |",
        "| 64 MiB | 200 µs, 336 GB/s | 400 µs, 168 GB/s, 2.00× **wrong bytes** | – |",
    ]
    assert "| 4096 × 1 KiB | 20 µs, 210 GB/s |" in sections[table.TITLES["write_pages"]]
    assert "| ucx | write_latency | 8 KiB | 6 µs, 1.4 GB/s † | half a round trip |" in sections["Other rows"]
    assert table.TITLES["read"] not in sections


def test_without_zerohop_there_is_no_factor() -> None:
    report = made_by_hand()
    report.rows = report.rows[:1]
    assert "| 8 KiB | 40 µs, 0.2 GB/s |" in table.sections(report)[0][1]


def test_json_there_and_back(tmp_path: Path) -> None:
    report = made_by_hand()
    report.write(tmp_path / "peers.json")
    assert read(tmp_path / "peers.json") == report
    (tmp_path / "other.json").write_text('{"rows": []}', "utf-8")
    with pytest.raises(ValueError, match=r"is not a report of bench\.peers"):
        read(tmp_path / "other.json")


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(6, None)], ids=["all", "one", "pages alone"])
def test_plot(tmp_path: Path, rows: slice) -> None:
    pytest.importorskip("matplotlib")
    report = made_by_hand()
    report.rows = report.rows[rows]
    plot.draw(report, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("peers_page", ROOT / "scripts" / "peers_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = load_script()
    results, page = tmp_path / "bench" / "results" / "peers-2.json", tmp_path / "docs" / "peers.md"
    for file in (results, page):
        file.parent.mkdir(parents=True)
    assert [script.main([verb], tmp_path) for verb in ("check", "write", "check")] == [0, 0, 0]
    assert not page.exists()
    made_by_hand().write(results)
    made_by_hand().write(results.with_name("peers-1.json"))
    assert [script.main([verb], tmp_path) for verb in ("check", "write", "check")] == [1, 0, 0]
    assert "peers_page.py write" in capsys.readouterr().err
    text = page.read_text("utf-8")
    for part in (
        "2 × GPU X; driver 1.2, CUDA 13.0, torch 2.11, Python 3.12, zerohop 0; ",
        "**1 rows had wrong bytes.**",
        "| nccl | it hangs |",
        "| zerohop | 0.1 | write | p2p \\| direct |",
        "## Two GPUs",
        "## One GPU",
    ):
        assert part in text
    results.unlink()
    assert script.main(["check"], tmp_path) == 1


def test_the_page_of_this_repository_is_generated() -> None:
    checked = subprocess.run([sys.executable, str(ROOT / "scripts" / "peers_page.py"), "check"], timeout=ANSWER_S)
    assert checked.returncode == 0
