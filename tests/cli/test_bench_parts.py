"""The benchmark's plan, statistics, targets, table and plot, without measuring anything."""

from __future__ import annotations

import io
import os
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from bench_tables import read_report, rows_section
from rich.console import Console

from zerohop.cli.bench import results, transfers
from zerohop.cli.bench.floors import one_way
from zerohop.cli.bench.plan import Request, plan
from zerohop.cli.bench.plot import PlotUnavailable, draw, require_format, require_matplotlib
from zerohop.cli.bench.report import describe_case, print_rows, summarize
from zerohop.cli.bench.results import Neighbours, Report, require_writable, write_report
from zerohop.cli.bench.rows import Case, Row, Samples, percentile
from zerohop.cli.bench.runner import measure
from zerohop.cli.bench.session import FULL, QUICK
from zerohop.cli.bench.targets import TARGETS, judge
from zerohop.cli.bench.transfers import measure_posts
from zerohop.cli.sizes import parse_sizes
from zerohop.core.runtime.explanation import Explanation

if TYPE_CHECKING:
    from pathlib import Path

    from zerohop.cli.bench.session import Effort

SCHEMA = [
    "name", "provider", "direct", "src", "dst", "bytes", "batch", "p50_us", "p99_us", "p999_us", "GBps",
    "cpu_us_per_op", "floor", "floor_p50_us", "floor_GBps", "verified",
]  # fmt: skip


def test_sizes() -> None:
    assert parse_sizes("8, 64Ki,1M,2Gi,3Ti") == (8, 65536, 10**6, 2 << 30, 3 << 40)
    for text in ("", "0", "-8", "8,,9", "8Pi", "Ki", "1.5Ki", "0x8"):
        with pytest.raises(ValueError, match="is not a size"):
            parse_sizes(text)


def test_default_plan_has_a_row_for_every_target(tmp_path: Path) -> None:
    wheel = tmp_path / "some.whl"
    wheel.write_bytes(b"x")
    cases = plan(Request(wheel=wheel))
    assert len(set(cases)) == len(cases)
    for target in TARGETS:
        assert any(all(getattr(case, key) == value for key, value in target.fields.items()) for case in cases), target


def test_many_views_are_fewer_of_a_quick_run() -> None:
    counts = {quick: [case.batch for case in plan(Request(names=("views",), quick=quick))] for quick in (False, True)}
    assert counts == {False: [10_000, 20_000], True: [1000]}


def test_plan_keeps_to_what_was_asked() -> None:
    cases = plan(Request(names=("read",), providers=("tcp",), src="host", dst="host", sizes="8,1Ki", batch=4))
    stream = Case("read", "tcp", "host", "host", 8, batch=4, form="stream")
    assert cases == [stream, replace(stream, target="asleep"), replace(stream, bytes=1024)]
    mixed = plan(Request(names=("write",), src="host", dst="sim", sizes="4Ki"))
    assert {(case.provider, case.src, case.dst, case.form) for case in mixed} == {
        ("shm", "host", "sim", "staged"),
        ("tcp", "host", "sim", "staged"),
    }
    assert {case.name for case in plan(Request(providers=("shm",)))} == {
        *("write", "read", "write_notify", "write_pages", "read_pages", "write_list", "read_list", "views"),
        *("first_use", "raw"),
        *("transport_write", "transport_read", "transport_write_many"),
    }


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (Request(names=("wirte",)), "unknown name 'wirte'"),
        (Request(providers=("ucx",)), "unknown provider 'ucx'"),
        (Request(names=("import",), src="sim"), "no row"),
        (Request(sizes="x"), "is not a size"),
    ],
)
def test_impossible_plans_are_refused(request_: Request, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        plan(request_)


def test_percentiles_are_samples() -> None:
    samples = list(range(1000, 0, -1))
    assert percentile(samples, 0.5) == 500
    assert percentile(samples, 0.99) == 990
    assert percentile(samples, 0.999) == 999
    assert percentile([7], 0.999) == 7
    assert percentile([1, 2, 3], 0.5) == 2
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


def test_row_has_exactly_the_schema_and_known_extras() -> None:
    samples = Samples(times_ns=[1000, 2000, 3000], floor_ns=[500], cpu_ns=6000)
    case = Case("write", "shm", "host", "host", 4000, batch=2, form="mapped")
    row = samples.row(case, operations=2, floor="memcpy", path=Explanation("shm", "ring", False, "host", "host", ()))
    data = row.to_json()
    assert list(data)[: len(SCHEMA)] == SCHEMA
    assert set(data) - set(SCHEMA) == {"form", "path", "samples"}
    assert (row.form, row.path) == ("ring", "shm (ring) host→host staged")  # not what was planned, what was taken
    assert (row.p50_us, row.GBps, row.cpu_us_per_op, row.direct) == (2.0, 4.0, 1.0, False)
    assert (row.floor_p50_us, row.floor_GBps) == (0.5, 16.0)


def test_rows_without_a_transfer_and_small_ones_have_no_rate() -> None:
    row = Samples(times_ns=[1000]).row(Case("register", src="host", bytes=1 << 30, mode="cold"))
    assert row.GBps is None
    assert row.direct is None
    assert Samples(times_ns=[1000]).row(Case("write", "shm", "host", "host", 8)).GBps is None


def test_percentiles_that_no_sample_lies_beyond_are_left_out() -> None:
    case = Case("write", "shm", "host", "host", 8)
    few, some, many = (Samples(times_ns=list(range(1, count + 1))).row(case) for count in (99, 100, 1000))
    assert (few.p99_us, few.p999_us, few.samples) == (None, None, 99)
    assert (some.p99_us, some.p999_us) == (0.099, None)
    assert (many.p99_us, many.p999_us) == (0.99, 0.999)


def test_report_comes_back_as_it_was_written(tmp_path: Path) -> None:
    rows = [make(form="mapped", p50_us=1.0, samples=3), make("idle", provider=None, cpu_s=0.1, seconds=2.0)]
    report = Report.of_this_machine(rows, 1.25, 0.5)
    file = tmp_path / "report.json"
    write_report(str(file), report)
    assert read_report(file) == report
    file.write_text('{"rows": [{}]}')
    with pytest.raises(ValueError, match="not a report"):
        read_report(file)


def test_files_that_cannot_be_written_are_told_before(tmp_path: Path) -> None:
    require_writable(tmp_path / "new.json")
    assert not list(tmp_path.iterdir())
    (tmp_path / "old.json").write_text("kept")
    require_writable(tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "kept"
    for wrong in (tmp_path, tmp_path / "nope" / "x.json", tmp_path / "old.json" / "x.json"):
        with pytest.raises(OSError, match="cannot write"):
            require_writable(wrong)


@pytest.mark.parametrize("effort", [QUICK, FULL])
def test_a_round_has_an_end(effort: Effort) -> None:
    assert effort.repetitions(effort.limit * 1e9 / 2, 100) == 2
    assert effort.repetitions(effort.limit * 1e12, 100) == 1
    assert effort.repetitions(1000, 100) >= 100
    assert effort.within_limit(1000, 60) == 60


def test_measurements_end_with_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0

    class Slow:
        def result(self, timeout: float | None = None) -> int:
            nonlocal now_ns
            now_ns += 20_000_000
            return 0

    def measured(count: int, limit: float) -> list[int]:
        return measure_posts(lambda *_: Slow(), [(0, 0)] * 4, 1, count, 0.0, limit)  # type: ignore[arg-type] # a stand-in

    monkeypatch.setattr(transfers, "time", SimpleNamespace(perf_counter_ns=lambda: now_ns))
    assert measured(1000, 0.1) == [20_000_000] * 6  # the last one begins when the time is just up
    assert len(measured(5, 0.0)) == 1
    assert len(measured(3, 9.0)) == 3


def test_a_row_in_one_line() -> None:
    assert summarize(make(form="mapped", p50_us=1.0)) == "write shm mapped 8 B: 1 µs"
    assert summarize(make(bytes=8192, p50_us=2.0, GBps=4.1)) == "write shm 8 KiB: 2 µs, 4.10 GB/s"
    assert summarize(make("wheel", provider=None, src=None, dst=None, verified=False)) == "wheel 8 B, WRONG BYTES"


def test_neighbours_are_what_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    hertz = os.sysconf("SC_CLK_TCK")

    def write(busy_seconds: float) -> None:
        # The kernel puts guests into user time too: the ninth number is not to be added.
        stat.write_text(f"cpu  {int(busy_seconds * hertz)} 0 0 123456 777 0 0 0 55 0\ncpu0 1 2 3\n")

    now = 100.0
    monkeypatch.setattr(results, "time", SimpleNamespace(monotonic=lambda: now))
    write(1000)
    others = Neighbours(stat)
    now += 1000
    write(3000)
    # But for what this process has used meanwhile.
    assert others.processors() == pytest.approx(2.0, abs=0.05)
    assert Neighbours(tmp_path / "nothing").processors() is None


def make(name: str = "write", **fields: object) -> Row:
    row = Row(name, "shm", True, "host", "host", 8, 1, verified=True)
    for key, value in fields.items():
        setattr(row, key, value)
    return row


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (make(form="mapped", p50_us=1.5), True),
        (make(form="mapped", p50_us=1.51), False),
        (make(form="ring", target="polling", p50_us=2.6), False),
        (make(form="ring", target="asleep", p50_us=2.6), True),
        (make(form="mapped", bytes=64 << 20, GBps=9.5, floor_GBps=10.0, p50_us=1), True),
        (make(form="ring", bytes=64 << 20, GBps=6.9, floor_GBps=10.0, p50_us=1), False),
        (make("write_pages", bytes=1024, batch=256, form="mapped", GBps=8.0, p50_us=1), True),
        (make(provider="tcp", p50_us=15.0, floor_p50_us=10.0), True),
        (make(provider="tcp", p50_us=15.1, floor_p50_us=10.0), False),
        (make("write_notify", provider="tcp", mode="result", p50_us=15.1, floor_p50_us=10.0), False),
        (make("idle", provider=None, src=None, dst=None, bytes=0, seconds=10.0, cpu_s=0.051), False),
        (make("idle", provider=None, src=None, dst=None, bytes=0, seconds=2.0, cpu_s=0.009), True),
        (make("idle", provider=None, src=None, dst=None, seconds=2.0, cpu_s=0.009, peer_cpu_s=0.011), False),
        (make("wheel", provider=None, src=None, dst=None, bytes=3 << 20), True),
        (make("wheel", provider=None, src=None, dst=None, bytes=(3 << 20) + 1), False),
    ],
)
def test_targets(row: Row, met: bool) -> None:
    (verdict,) = judge(row)
    assert verdict.met is met


@pytest.mark.parametrize(
    ("p50_us", "told", "met"), [(12.9, "2.9 µs more", True), (13.1, "3.1 µs more", False), (9.5, "500 ns less", True)]
)
def test_how_much_more_than_another_call(p50_us: float, told: str, met: bool) -> None:
    gpus = {"provider": "p2p", "src": "cuda:0", "dst": "cuda:1", "bytes": 64 << 10}
    (verdict,) = judge(make("raw", p50_us=p50_us, beside="Memories", beside_p50_us=10.0, **gpus))
    assert (verdict.target, verdict.measured, verdict.met) == ("≤ 3 µs more than Memories", told, met)


def test_rows_without_a_target_are_not_judged() -> None:
    assert judge(make(bytes=9, p50_us=1.0)) == []
    assert judge(make(form="mapped", batch=2, p50_us=1.0)) == []


def test_table_names_floors_targets_and_wrong_bytes() -> None:
    rows = [
        make(form="mapped", p50_us=1.0, p99_us=2.0, floor="memcpy", floor_p50_us=0.01),
        make(form="ring", target="asleep", p50_us=100.0, verified=False),
    ]
    output = io.StringIO()
    print_rows(Console(file=output, width=200, color_system=None), rows)
    text = output.getvalue()
    assert "write shm mapped 8 B" in text
    assert "write shm ring 8 B, target asleep WRONG BYTES" in text
    assert "10 ns, memcpy" in text
    assert "100 µs  ✗ ≤ 60 µs" in text
    assert "targets met: 1 of 2" in text


def test_a_row_that_was_not_measured_says_why() -> None:
    row = make(provider="tcp", form="stream", bytes=64 << 20, mode="encrypted", missing="no library [libssl.so.3]")
    output = io.StringIO()
    print_rows(Console(file=output, width=200, color_system=None), [row])
    text = "write tcp stream 64 MiB, encrypted (not measured: no library [libssl.so.3])"
    assert text in output.getvalue()
    assert summarize(row) == text
    assert text in rows_section(Report("0", "", (), {}, 0.0, None, (row,)), "##")
    assert judge(row) == []


def test_rows_are_missing_without_what_encrypts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerohop.cli.bench.runner.why_not", lambda mode: f"nothing for {mode}")
    cases = plan(Request(names=("write",), filter="encrypted$"))
    measured = dict(measure(cases, QUICK, Console(file=io.StringIO())))
    assert list(measured) == cases
    assert {row.missing for row in measured.values()} == {"nothing for all"}


def test_describe_counts_batches() -> None:
    assert describe_case(Case("write_pages", "shm", "host", "host", 1024, 256, "ring")).endswith("256 × 1 KiB")
    assert describe_case(Case("read", "tcp", "sim", "host", 8, form="staged")) == "read tcp staged 8 B, sim→host"
    assert describe_case(Case("import")) == "import"


def test_one_way_pairs_departures_with_arrivals() -> None:
    assert one_way([100, 330, 500, 720], [110, 300, 520, 710]) == [10, 20, 30, 10]


def test_plot_without_matplotlib_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PlotUnavailable, match=r"pip install 'zerohop\[plot\]'"):
        require_matplotlib()


def test_plot_of_an_unknown_format_is_told_before(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    require_format(tmp_path / "plot.PNG")
    for name in ("plot", "plot.nope"):
        with pytest.raises(PlotUnavailable, match="must end in one of"):
            require_format(tmp_path / name)


def test_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        make(form="mapped", p50_us=1.0, GBps=0.1, floor_GBps=0.2, floor_p50_us=0.5),
        make(form="mapped", bytes=1 << 20, p50_us=20.0, GBps=40.0, floor_GBps=45.0, floor_p50_us=18.0),
        make("write_pages", form="ring", bytes=1024, batch=256, GBps=7.0, floor_GBps=8.0),
        make("idle", provider=None, bytes=0, cpu_s=0.01),
    ]
    draw(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize("text", ["(", ".{99999999999}", "(" * 3000], ids=["open", "too often", "too deep"])
def test_a_filter_that_is_no_regular_expression(text: str) -> None:
    with pytest.raises(ValueError, match="is no regular expression"):
        plan(Request(filter=text))


def test_a_filter_of_another_dialect() -> None:
    """Python's warning of it would name a line of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan(Request(filter="write|[[:alpha:]]"))
