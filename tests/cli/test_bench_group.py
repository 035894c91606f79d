"""Rows about ranks: all of them are measured, with right bytes, if somebody names them."""

from __future__ import annotations

import json

from zerohop.cli.bench.group_plan import GROUP_NAMES
from zerohop.cli.bench.plan import NAMES, Request, plan
from zerohop.cli.bench.targets import GROUP_TARGETS

from .command import zerohop


def test_they_are_measured_if_they_are_named() -> None:
    assert not set(GROUP_NAMES) & set(NAMES)
    assert not {case.name for case in plan(Request())} & set(GROUP_NAMES)
    assert {case.name for case in plan(Request(names=("group",)))} == set(GROUP_NAMES)
    assert {case.name for case in plan(Request(names=("group_barrier",)))} == {"group_barrier"}


def test_every_target_has_a_row() -> None:
    cases = plan(Request(names=("group",)))
    for target in GROUP_TARGETS:
        assert any(all(getattr(case, key) == value for key, value in target.fields.items()) for case in cases), target


def test_a_quick_run() -> None:
    run = zerohop("bench", "group", "--provider", "shm", "--quick", "--json", "-")
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)["rows"]
    assert {row["name"] for row in rows} == set(GROUP_NAMES)
    assert all(row["verified"] for row in rows)
    assert all(row["p50_us"] > 0 for row in rows if row["name"] != "group_idle")
    [idle] = [row for row in rows if row["name"] == "group_idle"]
    assert idle["cpu_s"] >= 0
    assert idle["peer_cpu_s"] >= 0
    [await_8] = [row for row in rows if row.get("mode") == "await"]
    assert await_8["bytes"] == 8
