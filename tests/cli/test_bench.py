"""`zerohop bench`: rows of every name, verified, in the one schema."""

from __future__ import annotations

import json
import re
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from cli.command import zerohop, zerohop_started
from cli.test_bench_parts import SCHEMA
from support.lanes import eventually
from support.patience import patience
from zerohop.cli.bench.floors import FloorDescriptors, Floors
from zerohop.cli.bench.session import QUICK, open_session
from zerohop.cli.peer import PeerProcess


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
        floors = {(row["bytes"], row.get("mode"), row.get("target")): row["floor"] for row in found}
        assert floors[8, None, None] == "TCP socket, spinning"
        assert floors[8, None, "asleep"] == "TCP socket, blocking"
        if name == "write":
            assert floors[102_400, "encrypted", None] == "TLS socket stream"
        assert {mode for _, mode, _ in floors} == ({None, "encrypted"} if name == "write" else {None})
    assert (102_400, "staged", None) in forms
    for row in found:
        assert row["provider"] == provider
        known = [row[key] for key in ("p50_us", "p99_us", "p999_us") if row[key] is not None]
        assert known[0] > 0
        assert known == sorted(known)
        assert row["floor_p50_us"] > 0
        assert row["direct"] is (row["form"] == "mapped")
        assert row["cpu_us_per_op"] > 0


def test_batches() -> None:
    for row in rows("write", "--provider", "tcp", "--src", "host", "--dst", "host", "--bytes", "1000", "--batch", 16):
        assert row["batch"] == 16
        assert row["GBps"] == pytest.approx(16_000 / row["p50_us"] / 1000, rel=0.01, abs=5e-5)  # as it is rounded


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


@pytest.mark.parametrize("name", ["write_list", "read_list"])
def test_lists_of_ranges(name: str) -> None:
    found = rows(name)
    assert [(row["form"], row["batch"]) for row in found] == [("mapped", 5000), ("ring", 500), ("stream", 500)]
    assert found[0]["floor"] == "memcpy per range"


def test_handles() -> None:
    """Many of one memory, the first use of one more, and memory that nobody has registered."""
    views, first, raw = rows("views", "first_use", "raw", "--batch", 300)
    assert (views["batch"], views["form"], views["path"].split()[:2]) == (300, "mapped", ["shm", "(mapped)"])
    assert (first["batch"], first["form"], first["GBps"]) == (1, "ring", None)
    assert (raw["beside"], raw["bytes"]) == ("Memories", 64 << 10)
    assert raw["beside_p50_us"] > 0


def test_rows_without_transfers() -> None:
    found = {(row["name"], row.get("mode")): row for row in rows("register", "idle", "import", "--bytes", "16Mi")}
    assert all(found["register", mode]["p50_us"] > 0 for mode in ("cached", "cold"))
    assert found["idle", None]["seconds"] > 1
    assert found["idle", None]["cpu_s"] >= 0
    assert found["import", None]["floor"] == "import numpy"


def test_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "some.whl"
    wheel.write_bytes(bytes(12345))
    found = rows("import", "--wheel", wheel)
    assert [(row["name"], row["bytes"]) for row in found] == [("import", 0), ("wheel", 12345)]


def test_without_a_terminal_each_row_is_told_when_it_is_there() -> None:
    """On standard error; standard output stays the table."""
    run = zerohop("bench", "write", "--quick", "--provider", "shm", "--bytes", 8, "--batch", 1000)
    assert run.returncode == 0, run.stdout + run.stderr
    for form in ("mapped", "ring", "staged"):
        assert re.search(rf"^write shm {form} 1000 × 8 B.*: \d", run.stderr, re.MULTILINE)
    assert "median" in run.stdout
    assert "median" not in run.stderr


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(option: str, tmp_path: Path) -> None:
    if option == "--plot":
        pytest.importorskip("matplotlib")
    run = zerohop("bench", "idle", "--wheel", __file__, option, tmp_path / "nope" / "x.png")
    assert run.returncode == 2
    assert "cannot write" in run.stderr
    assert "Traceback" not in run.stderr
    assert "idle" not in run.stdout + run.stderr


def test_a_file_that_cannot_be_written_in_the_end(tmp_path: Path) -> None:
    """The table is there before it."""
    run = zerohop("bench", "import", "--quick", "--json", "/dev/full")
    assert run.returncode == 2
    assert "import" in run.stdout
    assert "No space left" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        *((name, "--bytes", "1000000Gi") for name in ("write", "write_pages", "write_notify", "register")),
        *((name, "--bytes", "8", "--batch", 10**12) for name in ("write", "write_pages")),
    ],
)
def test_more_memory_than_there_is(arguments: tuple[object, ...]) -> None:
    run = zerohop("bench", "--quick", *arguments)
    assert run.returncode == 2
    assert "of memory at least" in run.stderr
    assert "--bytes or --batch" in run.stderr
    assert "Traceback" not in run.stderr


def test_memory_that_cannot_be_had_after_all() -> None:
    """A limit that nobody could know of before."""
    run = zerohop("bench", "register", "--quick", "--bytes", "3Gi", preexec=limit_memory)
    assert run.returncode == 2
    assert "out of memory: Unable to allocate 3.00 GiB" in run.stderr
    assert "--bytes or --batch" in run.stderr
    assert "Traceback" not in run.stderr


def test_interrupted(tmp_path: Path) -> None:
    """What was measured until then is written."""
    data = tmp_path / "rows.json"
    # Of so many that it is not done before it is interrupted.
    sizes = [8 << number for number in range(12)]
    command = "bench", "write", "--provider", "shm", "--bytes", ",".join(map(str, sizes)), "--json", data
    with zerohop_started(*command) as bench:
        assert bench.stderr is not None
        assert bench.stderr.readline().startswith("write shm")
        bench.send_signal(signal.SIGINT)
        out, errors = bench.communicate(timeout=patience(60))
    assert bench.returncode == 130, out + errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    measured = json.loads(data.read_text())["rows"]
    assert 1 <= len(measured) < 3 * len(sizes)
    assert all(row["verified"] for row in measured)


def test_interrupted_while_the_second_process_polls() -> None:
    """It would not hear that anything else is asked of it."""
    descriptors = FloorDescriptors()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted_while_polling(descriptors)
    finally:
        descriptors.close()


def interrupted_while_polling(descriptors: FloorDescriptors) -> None:
    fds = tuple(descriptors.for_peer().values())
    with (
        PeerProcess("zerohop.cli.bench._peer", pass_fds=fds) as peer,
        open_session(peer, Floors(peer, descriptors), QUICK, "shm", polling=True) as session,
        session.remote("host", "ring", 8),
        session.polling("polling"),
    ):
        raise KeyboardInterrupt


def test_interrupted_before_anything_was_measured(tmp_path: Path) -> None:
    """What was measured at another time stays."""
    data = tmp_path / "rows.json"
    data.write_text("measured before")
    with zerohop_started("bench", "idle", "--json", data) as bench:
        eventually(lambda: children_of(bench.pid) != [], "the second process has been started")
        bench.send_signal(signal.SIGINT)
        _, errors = bench.communicate(timeout=patience(60))
    assert bench.returncode == 130, errors
    assert data.read_text() == "measured before"


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))


def test_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    data, plot = tmp_path / "rows.json", tmp_path / "rows.png"
    run = zerohop("bench", "write", "--provider", "shm", "--bytes", "8", "--quick", "--json", data, "--plot", plot)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "targets met" in run.stdout
    assert len(json.loads(data.read_text())["rows"]) == 4
    assert plot.read_bytes().startswith(b"\x89PNG")
