"""Whatever a peer's processes do, the run goes on, and says what became of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.peers.catalogue import Peer
from bench.peers.runner import measure
from bench.peers.workload import Case, Effort, Spec

from support.patience import PATIENCE_S, patience

LIMIT = patience(15.0)
CASES = (Case("write", 4097), Case("write_pages", 1024, 64), Case("read", 4096), Case("nobody has this", 8))
SPEC = Spec(("cpu", "cpu"), CASES, Effort(rounds=2, seconds=1e-4, most=5, limit=5.0))


def fake(name: str) -> Peer:
    return Peer(name, f"bench_peers.fakes.{name}")


def test_every_case_that_the_peer_has_is_measured() -> None:
    outcome = measure(fake("copies"), SPEC, LIMIT)
    assert outcome.reason is None
    assert outcome.version == "1.0"
    assert [(row["name"], row["bytes"], row["batch"]) for row in outcome.rows] == [
        ("write", 4097, 1),
        ("write_pages", 1024, 64),
        ("read", 4096, 1),
    ]
    assert all(row["verified"] and row["p50_us"] > 0 and row["note"] == "a copy" for row in outcome.rows)


def test_one_wrong_byte_is_found() -> None:
    outcome = measure(fake("wrong"), SPEC, LIMIT)
    assert [row["verified"] for row in outcome.rows] == [False, False, False]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("is_not_there", "ModuleNotFoundError: No module named 'bench_peers.fakes.is_not_there'"),
        ("raises", "RuntimeError: the plugin does not load … no such library"),
        ("crashes", "ended by SIGKILL: bad handle"),
    ],
)
def test_the_reason_is_given(name: str, reason: str) -> None:
    outcome = measure(fake(name), SPEC, LIMIT)
    assert (outcome.rows, outcome.reason) == ([], reason)


def test_a_peer_that_hangs_is_ended_at_its_limit_and_keeps_its_rows() -> None:
    outcome = measure(fake("hangs"), SPEC, PATIENCE_S)
    assert outcome.reason == f"did not end within {PATIENCE_S:g} s"
    (row,) = outcome.rows
    for pid in row["note"].split():
        assert not Path("/proc", pid).exists()


def test_what_peers_print_is_kept(tmp_path: Path) -> None:
    measure(fake("crashes"), SPEC, LIMIT, logs=tmp_path)
    assert (tmp_path / "crashes-1.log").read_text("utf-8") == "bad handle\n"
