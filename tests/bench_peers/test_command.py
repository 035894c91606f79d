"""`python -m bench.peers`: its exit codes and files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from bench.peers import machine, workload
from bench.peers.__main__ import main
from bench.peers.catalogue import PEERS, Peer
from bench.peers.workload import Case

from support.patience import patience

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = {"gpus": [], "driver": "", "cuda": "", "torch": "", "python": "3.12.3", "zerohop": "0.1.0"}
FAKES = tuple(Peer(name, f"bench_peers.fakes.{name}") for name in ("copies", "wrong", "raises"))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "describe", lambda: MACHINE)
    monkeypatch.setattr(workload, "cases", lambda quick: (Case("write", 4096),))


def run(*arguments: str) -> int:
    return main([*arguments, "--quick", "--devices", "cpu,cpu", "--limit", str(patience(15))], FAKES)


def test_what_is_missing_is_listed_and_the_rest_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "peers.json"
    assert run("--only", "raises", "--only", "copies", "--json", str(target)) == 0
    data = json.loads(target.read_text("utf-8"))
    assert list(data) == ["measured", "machine", "rows", "missing"]
    assert data["machine"] == MACHINE
    (row,) = data["rows"]
    assert list(row) == ["peer", "version", "name", "bytes", "batch", "p50_us", "GBps", "verified", "note"]
    assert (row["peer"], row["version"], row["verified"]) == ("copies", "1.0", True)
    reason = "RuntimeError: the plugin does not load … no such library"
    assert data["missing"] == [{"peer": "raises", "reason": reason}]
    said = capsys.readouterr().out
    assert "| size | copies |" in said
    assert f"missing: raises: {reason}" in said


def test_wrong_bytes_are_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--only", "wrong") == 1
    assert "**wrong bytes**" in capsys.readouterr().out


def test_nothing_measured_is_a_failure_that_leaves_old_results(tmp_path: Path) -> None:
    target = tmp_path / "peers.json"
    target.write_text("old", "utf-8")
    assert run("--only", "raises", "--json", str(target)) == 2
    assert target.read_text("utf-8") == "old"


@pytest.mark.parametrize("arguments", [("--only", "nobody"), ("--json", "/no/such/folder/peers.json")])
def test_arguments_that_make_no_sense(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2


def test_names_are_unique() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
