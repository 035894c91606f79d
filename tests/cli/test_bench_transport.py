"""`zerohop bench transport`: its plan, filter, targets and tables, and rows of every kind, verified."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from bench_tables import beside_table

import zerohop as zh
from cli.command import zerohop
from support.patience import PATIENCE_S, patience
from zerohop.cli.bench import transport
from zerohop.cli.bench.floors import FloorDescriptors, Floors, transfer_floor
from zerohop.cli.bench.plan import NAMES, Request, plan
from zerohop.cli.bench.rows import SEED_US, Case, Row
from zerohop.cli.bench.session import QUICK, open_session
from zerohop.cli.bench.targets import GPU_TARGETS, TARGETS, judge
from zerohop.cli.bench.transfers import measure_posts
from zerohop.cli.payload import random_bytes
from zerohop.cli.peer import PeerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zerohop.cli.bench.session import Session

OURS = {name for name in NAMES if name.startswith("transport")}
REGISTER = "transport_register"
MANY = "transport_write_many"


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
        monkeypatch.setattr("zerohop.cli.bench.plan.has_torch", lambda: True)
        cases = plan(Request(names=("transport",), src="cuda:0", dst="cuda:1"))
        assert {case.name for case in cases} == OURS
        for target in GPU_TARGETS:
            if target.fields["name"] in OURS:
                assert any(all(getattr(case, key) == value for key, value in target.fields.items()) for case in cases)
        assert sum(target.fields["name"] == "transport_write" for target in GPU_TARGETS) == len(SEED_US)

    def test_registering_on_the_host_and_on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def places(**request: str) -> set[str | None]:
            return {case.src for case in plan(Request(names=(REGISTER,), **request))}  # type: ignore[arg-type]

        for torch, expected in ((True, {"host", "cuda:1"}), (False, {"host"})):
            monkeypatch.setattr("zerohop.cli.bench.plan.has_torch", lambda torch=torch: torch)
            assert places(src="cuda:1", dst="cuda:0") == expected
            assert places(src="host", dst="cuda:1") == expected
        assert places() == places(src="sim", dst="sim") == {"host"}

    def test_between_simulated_gpus(self) -> None:
        cases = plan(Request(names=("transport",), src="sim:0", dst="sim:1"))
        assert {case.name for case in cases} == OURS
        moving = [case for case in cases if case.name != REGISTER]
        assert {(case.provider, case.src, case.dst, case.sim_devices) for case in moving} == {
            ("p2p", "sim:0", "sim:1", 2)
        }
        for name in ("transport_write", "transport_read"):
            assert {case.bytes for case in cases if case.name == name} == set(SEED_US)

    @pytest.mark.parametrize(("src", "dst"), [("host", "sim:3"), ("sim:3", "host")])
    def test_a_simulated_gpu_at_one_end(self, src: str, dst: str) -> None:
        cases = plan(Request(names=("transport_write",), src=src, dst=dst))
        assert {(case.provider, case.src, case.dst, case.sim_devices) for case in cases} == {("p2p", src, dst, 4)}

    def test_over_a_provider(self) -> None:
        cases = plan(Request(names=("transport",), providers=("tcp",)))
        assert {case.form for case in cases} == {"stream"}
        assert {case.bytes for case in cases if case.name == "transport_read"} == set(SEED_US)

    def test_many_large_ones_only_where_they_are_asked_for(self) -> None:
        """10,000 writes of 1 MiB take more memory than most machines have."""
        assert MANY not in {case.name for case in plan(Request(names=("transport",), sizes="1Mi"))}
        assert MANY in {case.name for case in plan(Request(names=("transport",), sizes="8Ki"))}
        assert MANY in {case.name for case in plan(Request(names=("transport",), sizes="1Mi", batch=10))}
        assert MANY in {case.name for case in plan(Request(names=(MANY,), sizes="1Mi"))}

    def test_one_of_them(self) -> None:
        assert {case.name for case in plan(Request(names=("transport_read",)))} == {"transport_read"}

    def test_filter(self) -> None:
        kept = plan(Request(names=("transport",), filter=r"write .* (8|64) KiB$"))
        assert [(case.name, case.bytes) for case in kept] == [("transport_write", n << 10) for n in (8, 64)]
        assert {case.name for case in plan(Request(filter="^idle"))} == {"idle"}

    @pytest.mark.parametrize("text", ["write p2p 8 KiB, cuda:0", "write p2p peer 8 KiB, cuda:0"])
    def test_filter_of_what_the_table_shows(self, text: str) -> None:
        """What is announced, and what the table has once the path is known."""
        kept = plan(Request(names=("transport",), src="cuda:0", dst="cuda:1", filter=text))
        assert [(case.name, case.bytes) for case in kept] == [("transport_write", 8192)]

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

    @pytest.mark.parametrize(("mode", "median", "met"), [("cached", 5.1, False), ("cold", 29.0, True)])
    def test_registering(self, mode: str, median: float, met: bool) -> None:
        row = _row(name=REGISTER, provider=None, dst=None, mode=mode, p50_us=median)
        (verdict,) = judge(row)
        assert verdict.met is met
        assert judge(replace(row, bytes=1 << 20)) == [], "the issue asks for 8 KiB"

    @pytest.mark.parametrize(("nbytes", "times"), [(8 << 10, 3), (4 << 20, 5), (256 << 20, 8)])
    def test_between_two_gpus(self, nbytes: int, times: int) -> None:
        fields = {"provider": "p2p", "src": "cuda:0", "dst": "cuda:1", "bytes": nbytes, "form": "peer"}
        for slower, met in ((1.01, False), (0.99, True)):
            median = SEED_US[nbytes] / times * slower
            (verdict,) = judge(_row(name="transport_write", p50_us=median, **fields))
            assert verdict.met is met
            assert verdict.target.startswith(f"≥ {times} × as fast as")
            assert "different fabric" in verdict.target

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
        found = {(row["name"], row.get("form")): row for row in rows("transport", "--bytes", "64", "--src", "host")}
        forms = ("mapped", "ring", "stream")
        assert set(found) == {(name, form) for name in OURS - {REGISTER} for form in forms} | {(REGISTER, None)}
        for (name, _), row in found.items():
            assert row["p50_us"] > 0
            assert name == REGISTER or (row["beside_p50_us"] > 0 and row["floor_p50_us"] > 0)

    def test_between_simulated_gpus(self) -> None:
        """Of one process each, and of two: with the same rows."""
        for places in (("sim", "sim"), ("sim:0", "sim:1")):
            found = rows("transport", "--bytes", "8Ki,100k", "--batch", 10, "--src", places[0], "--dst", places[1])
            moved = [row for row in found if row["name"] != REGISTER]
            assert {(row["name"], row["provider"], row["bytes"], row["src"], row["dst"]) for row in moved} == {
                (name, "p2p", nbytes, *places) for name in OURS - {REGISTER} for nbytes in (8192, 100_000)
            }
            assert [row["seed_us"] for row in moved if "seed_us" in row] == [27.0]
            assert all(row["floor"].startswith("memcpy") for row in moved)

    def test_large_ones(self) -> None:
        """Of more than is renewed in several turns of a round."""
        (found,) = rows("transport_read", "--bytes", "65Mi", "--src", "host", "--filter", "mapped")
        assert found["GBps"] > 0

    def test_other_rows_between_two_simulated_gpus(self) -> None:
        found = rows("write", "--bytes", "8Ki", "--src", "sim:1", "--dst", "sim:0", "--provider", "shm")
        assert [(row["src"], row["dst"], row["form"]) for row in found] == [("sim:1", "sim:0", "staged")]

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
            PeerProcess("zerohop.cli.bench._peer", pass_fds=fds, timeout=patience(60)) as peer,
            open_session(peer, Floors(peer, descriptors), QUICK, "shm") as opened,
        ):
            yield opened
    finally:
        descriptors.close()


def test_what_was_registered_is_gone_before_the_next_is_made(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else torch gives out another part of the same allocation, whose registration is known."""
    alive: list[weakref.ref[Any]] = []

    def make(_: Case) -> tuple[Any, Any]:
        gc.collect()
        assert all(each() is None for each in alive)
        made = random_bytes(len(alive), 8192)
        alive.append(weakref.ref(made))
        return made, made.copy()

    monkeypatch.setattr(transport, "_fresh", make)
    monkeypatch.setattr(transport, "_COLD", 3)
    assert transport.measure_transport_register(session, Case(REGISTER, src="host", bytes=8192, mode="cold")).verified
    assert len(alive) == 4


class TestFloors:
    @pytest.mark.parametrize(("name", "expected"), [("transport_write", "copy_in"), ("transport_read", "copy_out")])
    def test_in_the_direction_of_the_row(self, name: str, expected: str) -> None:
        called: list[str] = []

        class Spy:
            def __getattr__(self, name: str) -> Any:
                return lambda *_: called.append(name)

        for provider, place in (("shm", "host"), ("p2p", "sim")):
            case = Case(name, provider, place, place, 4096, form="mapped" if provider == "shm" else None)
            _, floor = transfer_floor(cast("Floors", Spy()), case, 0.0)
            assert floor is not None
            floor(np.zeros(4096, np.uint8), 1)
        assert called == [expected, expected]

    def test_on_gpus_too(self) -> None:
        """Who reads has its own GPU copy."""
        assert Case("transport_read").reads
        assert not Case("transport_write").reads


class TestSource:
    @pytest.mark.parametrize("name", ["transport_write", "transport_read"])
    def test_no_byte_is_what_it_was(self, session: Session, name: str) -> None:
        case = Case(name, "shm", "host", "host", 4096, form="mapped")
        with session.local("host", 4096) as local, session.remote("host", "mapped", 4096) as remote:
            source = transport._Source(session, local, case, 4096)
            seen = [source.content.copy()]
            for _ in range(255):
                source.renew()
                seen.append(source.content.copy())
            held = local.array
            if case.reads:
                held = np.zeros(4096, np.uint8)
                session.context.read(remote, held).result(PATIENCE_S)
            assert held is not None
            assert np.array_equal(held, source.content)
            assert all(len(set(column)) == 256 for column in np.stack(seen, axis=1).tolist())


class Turns:
    """Notes who moves what, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[str] = []

        def measured(post: Any, pairs: Any, batch: int, count: int, pause: float, limit: float) -> list[int]:
            times = measure_posts(post, pairs, batch, count, pause, limit)
            self.order.append(type(post.__self__).__name__)
            return times

        monkeypatch.setattr(transport, "measure_posts", measured)


@pytest.mark.parametrize("name", ["transport_write", "transport_read"])
def test_both_begin_as_often(session: Session, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what comes second looks slower than the very same call: by a quarter, at 4 MiB."""
    turns = Turns(monkeypatch)
    row = transport.measure_transport(session, Case(name, "shm", "host", "host", 4096, form="mapped"))
    assert row.verified
    # The first is an estimate; of each turn there are a warm-up and what counts.
    order = turns.order[1:]
    assert order[::2] == order[1::2]
    first = order[::4]
    assert first.count("Transport") == first.count("Context") == len(first) // 2
    assert [{order[i], order[i + 2]} for i in range(0, len(order), 4)] == [{"Transport", "Context"}] * len(first)


@pytest.mark.parametrize("name", ["transport_write", "transport_read", "transport_write_many", "transport_register"])
def test_wrong_bytes_are_noticed(session: Session, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a Transport that moves nothing, while the Context that takes turns with it does all that it is asked to."""
    case = Case(name, "shm", "host", "host", 4096, batch=16 if name.endswith("many") else 1, form="mapped")
    if name == "transport_register":
        case = replace(case, provider=None, dst=None, mode="cached")
        monkeypatch.setattr("zerohop.cli.bench.session.digest", lambda _: "of something else")
    nothing = session.context.alloc(1 << 20)
    elsewhere = session.context.register(np.zeros(1 << 20, np.uint8)).share("rw")

    class Idle(zh.Transport):
        """Moves bytes to and from where nobody looks."""

        def write(self, view: Any, remote: Any, **options: Any) -> Any:  # type: ignore[override]
            return self.context.write(nothing[: view.nbytes], elsewhere[: remote.nbytes], **options)

        def read(self, view: Any, remote: Any, **options: Any) -> Any:  # type: ignore[override]
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
