"""`zerohop bench`: rows of every name, verified, in the one schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cli.command import zerohop
from cli.test_bench_parts import SCHEMA

if TYPE_CHECKING:
    from pathlib import Path


def rows(*arguments: object) -> list[dict[str, Any]]:
    run = zerohop("bench", *arguments, "--quick", "--json", "-")
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)
    found: list[dict[str, Any]] = report["rows"]
    for row in found:
        assert list(row)[: len(SCHEMA)] == SCHEMA
        assert row["verified"] is True
    assert report["machine"]["cpu"]["online"] >= 1
    return found


@pytest.mark.parametrize("name", ["write", "read"])
@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_transfers(name: str, provider: str) -> None:
    found = rows(name, "--provider", provider, "--bytes", "8,100Ki")
    forms = {(row["bytes"], row["form"], row.get("target")) for row in found}
    if provider == "shm":
        assert {(8, "mapped", None), (8, "ring", "polling"), (8, "ring", "asleep"), (102_400, "ring", None)} <= forms
    else:
        assert (8, "stream", None) in forms
    assert (102_400, "staged", None) in forms
    for row in found:
        assert row["provider"] == provider
        known = [row[key] for key in ("p50_us", "p99_us", "p999_us") if row[key] is not None]
        assert known[0] > 0
        assert known == sorted(known)
        assert row["floor_p50_us"] > 0
        assert row["direct"] is (row["form"] != "staged")
        assert row["cpu_us_per_op"] > 0


def test_batches() -> None:
    for row in rows("write", "--provider", "tcp", "--src", "host", "--dst", "host", "--bytes", "1000", "--batch", 16):
        assert row["batch"] == 16
        assert row["GBps"] == pytest.approx(16_000 / row["p50_us"] / 1000, rel=0.01)


def test_places() -> None:
    found = rows("read", "--src", "sim", "--dst", "host", "--bytes", "64Ki")
    assert [(row["src"], row["dst"], row["provider"]) for row in found] == [
        ("sim", "host", "shm"),
        ("sim", "host", "tcp"),
    ]


@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_notified(provider: str) -> None:
    modes = {row["mode"] for row in rows("write_notify", "--provider", provider)}
    assert modes == {"result", "await", "await-asleep"}


@pytest.mark.parametrize("name", ["write_pages", "read_pages"])
def test_page_lists(name: str) -> None:
    found = rows(name, "--bytes", "1000", "--batch", 64)
    assert [row["form"] for row in found] == ["mapped", "ring", "stream"]


def test_rows_without_transfers() -> None:
    found = {(row["name"], row.get("mode")): row for row in rows("register", "idle", "import", "--bytes", "16Mi")}
    assert found["register", "cached"]["p50_us"] < found["register", "cold"]["p50_us"]
    assert found["idle", None]["seconds"] > 1
    assert found["idle", None]["cpu_s"] >= 0
    assert found["import", None]["floor"] == "import numpy"


def test_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "some.whl"
    wheel.write_bytes(bytes(12345))
    found = rows("import", "--wheel", wheel)
    assert [(row["name"], row["bytes"]) for row in found] == [("import", 0), ("wheel", 12345)]


def test_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    data, plot = tmp_path / "rows.json", tmp_path / "rows.png"
    run = zerohop("bench", "write", "--provider", "shm", "--bytes", "8", "--quick", "--json", data, "--plot", plot)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "targets met" in run.stdout
    assert len(json.loads(data.read_text())["rows"]) == 4
    assert plot.read_bytes().startswith(b"\x89PNG")
