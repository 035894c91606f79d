"""`zerohop bench transport`: its plan, filter, targets and tables, and rows of every kind, verified."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from cli.command import zerohop
from zerohop.cli.bench import gpu_plan, transport
from zerohop.cli.bench.case import Case
from zerohop.cli.bench.floors import FloorDescriptors, Floors
from zerohop.cli.bench.gpu_targets import GPU_TARGETS
from zerohop.cli.bench.plan import NAMES, Request, plan
from zerohop.cli.bench.report import beside_table
from zerohop.cli.bench.rows import Row
from zerohop.cli.bench.seed import SEED_US
from zerohop.cli.bench.session import QUICK, open_session
from zerohop.cli.bench.targets import TARGETS, judge
from zerohop.cli.peer import PeerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zerohop.cli.bench.session import Session

OURS = {name for name in NAMES if name.startswith("transport")}


def rows(*arguments: object) -> list[dict[str, Any]]:
    run = zerohop("bench", *arguments, "--quick", "--json", "-")
    assert run.returncode == 0, run.stdout + run.stderr
    found: list[dict[str, Any]] = json.loads(run.stdout)["rows"]
    assert all(row["verified"] for row in found)
    return found


class TestPlan:
    def test_every_size_of_the_seed(self) -> None:
        cases = plan(Request(names=("transport",)))
        assert {case.name for case in cases} == OURS
        for name in ("transport_write", "transport_read"):
            assert {case.bytes for case in cases if case.name == name} == set(SEED_US)
        assert {case.batch for case in cases if case.name == "transport_write_many"} == {10_000}
        modes = {(case.mode, case.bytes) for case in cases if case.name == "transport_register"}
        assert modes == {("cached", 8192), ("cold", 8192)}

    def test_between_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpu_plan, "_has_torch", lambda: True)
        cases = plan(Request(names=("transport",), src="cuda:0", dst="cuda:1"))
        assert {case.name for case in cases} == OURS
        for target in GPU_TARGETS:
            if target.fields["name"] in OURS:
                assert any(all(getattr(case, key) == value for key, value in target.fields.items()) for case in cases)
        assert sum(target.fields["name"] == "transport_write" for target in GPU_TARGETS) == len(SEED_US)

    def test_one_of_them(self) -> None:
        assert {case.name for case in plan(Request(names=("transport_read",)))} == {"transport_read"}

    def test_filter(self) -> None:
        kept = plan(Request(names=("transport",), filter=r"write .* (8|64) KiB$"))
        assert [(case.name, case.bytes) for case in kept] == [("transport_write", n << 10) for n in (8, 64)]
        assert {case.name for case in plan(Request(filter="^idle"))} == {"idle"}

    @pytest.mark.parametrize(("pattern", "told"), [("(", "no regular expression"), ("nothing like it", "no row")])
    def test_a_filter_that_is_none(self, pattern: str, told: str) -> None:
        run = zerohop("bench", "transport", "--filter", pattern)
        assert run.returncode == 2
        assert told in run.stderr
        assert "Traceback" not in run.stderr


def _row(**fields: Any) -> Row:
    case = {"provider": "shm", "direct": True, "src": "host", "dst": "host", "bytes": 8192, "batch": 1}
    return Row(**{**case, "verified": True, "form": "mapped", **fields})


class TestJudging:
    @pytest.mark.parametrize(("median", "met"), [(1.09, True), (1.11, False)])
    def test_beside_the_core(self, median: float, met: bool) -> None:
        (verdict,) = judge(_row(name="transport_write", p50_us=median, beside="Context.write", beside_p50_us=1.0))
        assert (verdict.target, verdict.met) == ("≤ 1.1 × Context.write", met)

    @pytest.mark.parametrize(("median", "met"), [(200.0, True), (210.0, False)])
    def test_beside_single_writes(self, median: float, met: bool) -> None:
        row = _row(name="transport_write_many", p50_us=median, beside="single writes", beside_p50_us=1000.0)
        (verdict,) = judge(row)
        assert (verdict.target, verdict.met) == ("≥ 5 × as fast as single writes", met)

    def test_every_row_has_a_target(self) -> None:
        named = {target.fields["name"] for target in TARGETS}
        assert named >= OURS - {"transport_read"}, "the issue asks nothing of reads but to be shown"

    def test_table(self) -> None:
        shown = _row(name="transport_write", p50_us=2.0, beside="Context.write", beside_p50_us=1.0, seed_us=27.0)
        table = beside_table([shown, _row(name="write", p50_us=1.0)])
        assert (
            "| transport_write shm mapped 8 KiB | 2 µs | 1 µs, Context.write (2.00 ×) | 27 µs (13.5 ×) | – |" in table
        )
        assert len(table.splitlines()) == 3


class TestRows:
    def test_on_the_host(self) -> None:
        found = {(row["name"], row["form"]): row for row in rows("transport", "--bytes", "64", "--src", "host")}
        forms = ("mapped", "ring", "stream")
        assert set(found) == {(name, form) for name in OURS - {"transport_register"} for form in forms}
        for row in found.values():
            assert row["p50_us"] > 0
            assert row["beside_p50_us"] > 0
            assert (row["floor"] is None) == (row["name"] == "transport_write_many")

    def test_between_simulated_gpus(self) -> None:
        found = rows("transport", "--bytes", "8Ki,100k", "--batch", 10, "--src", "sim", "--dst", "sim")
        assert {(row["name"], row["provider"], row["bytes"]) for row in found} == {
            (name, "p2p", nbytes) for name in OURS - {"transport_register"} for nbytes in (8192, 100_000)
        }
        assert [row["seed_us"] for row in found if "seed_us" in row] == [27.0]

    def test_registering(self) -> None:
        found = rows("transport_register")
        assert [(row["mode"], row["seed_us"]) for row in found] == [("cached", 54.5), ("cold", 54.5)]

    def test_in_the_table(self) -> None:
        run = zerohop("bench", "transport", "--filter", "transport_write shm mapped 8 KiB", "--quick")
        assert run.returncode == 0
        assert "RdmaTransport" in run.stdout
        assert "Context.write" in run.stdout


@pytest.fixture
def session() -> Iterator[Session]:
    descriptors = FloorDescriptors()
    try:
        fds = tuple(descriptors.for_peer().values())
        with (
            PeerProcess("zerohop.cli.bench._peer", pass_fds=fds, timeout=60) as peer,
            open_session(peer, Floors(peer, descriptors), QUICK, "shm") as opened,
        ):
            yield opened
    finally:
        descriptors.close()


@pytest.mark.parametrize("name", ["transport_write", "transport_read", "transport_write_many", "transport_register"])
def test_wrong_bytes_are_noticed(session: Session, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a Transport that moves nothing, while the Context that takes turns with it does all that it is asked to."""
    case = Case(name, "shm", "host", "host", 4096, batch=16 if name.endswith("many") else 1, form="mapped")
    if name == "transport_register":
        case = replace(case, provider=None, dst=None, mode="cached")
        monkeypatch.setattr(transport, "digest", lambda _: "of something else")
    nothing = session.context.alloc(1 << 20)
    elsewhere = session.context.register(np.zeros(1 << 20, np.uint8)).share("rw")

    class Idle(zh.Transport):
        """Moves bytes to and from where nobody looks."""

        def write(self, view: Any, remote: Any, **options: Any) -> Any:
            return self.context.write(nothing[: view.nbytes], elsewhere[: remote.nbytes], **options)

        def read(self, view: Any, remote: Any, **options: Any) -> Any:
            return self.context.read(elsewhere[: remote.nbytes], nothing[: view.nbytes], **options)

        def write_many(self, pairs: Any, **options: Any) -> Any:
            return self.context.write(nothing[:1], elsewhere[:1], **options)

    monkeypatch.setattr(zh, "Transport", Idle)
    measure = {
        "transport_write": transport.measure_transport,
        "transport_read": transport.measure_transport,
        "transport_write_many": transport.measure_write_many,
        "transport_register": transport.measure_transport_register,
    }[name]
    assert not measure(session, case).verified
