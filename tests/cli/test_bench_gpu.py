"""The benchmark between GPUs: what is planned, how it is judged, the page; and, where there are GPUs, rows of them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cli.command import zerohop
from support.buffers import GPUS
from support.patience import patience
from support.software_gpus import IN_SOFTWARE
from zerohop import _floors
from zerohop.cli.bench.gpu_floors import GpuFloors, copy_kernels
from zerohop.cli.bench.plan import Request, plan
from zerohop.cli.bench.results import Report
from zerohop.cli.bench.rows import SEED_US, Case, Row
from zerohop.cli.bench.storage_plan import CACHED, IN_ORDER, SERVED_IN_ORDER
from zerohop.cli.bench.targets import GPU_TARGETS, judge
from zerohop.cli.payload import PageLists, mixed_ranges

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parent.parent.parent
KI, MI = 1 << 10, 1 << 20


def planned(**request: object) -> list[Case]:
    return plan(Request(**request))  # type: ignore[arg-type]


def row(name: str = "write", **fields: object) -> Row:
    made = Row(name, "p2p", True, "cuda:0", "cuda:1", 8 * KI, 1, verified=True)
    for key, value in fields.items():
        setattr(made, key, value)
    return made


class TestPlan:
    def test_every_size_of_the_table(self) -> None:
        cases = planned(names=("write",), src="cuda", dst="cuda:1", providers=("p2p",))
        assert {case.bytes for case in cases if case.mode is None} == {8, *SEED_US}
        assert {(case.src, case.dst) for case in cases} == {("cuda:0", "cuda:1")}

    def test_memory_of_expandable_segments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The rows of the table a second time, with a torch that can use GPUs; not where the host is at one end."""
        monkeypatch.setattr("zerohop.cli.bench.plan.has_torch", lambda: True)
        names = ("write", "read", "write_notify", "write_pages", "read_pages")
        cases = planned(names=names, src="cuda:0", dst="cuda:1", providers=("p2p",))
        assert {case.name for case in cases if case.mode == "expandable"} == set(names)
        (target,) = (each for each in GPU_TARGETS if each.fields["name"] == "write_notify" and each.row)
        both = [case for case in cases if case.name == "write_notify"]
        for case, fields in zip(both, (target.row, target.fields), strict=True):
            assert fields is not None
            assert {key: getattr(case, key) for key in fields} == fields
        assert not [case for case in planned(names=names, src="host", dst="cuda:0") if case.mode == "expandable"]

    def test_one_place_stands_for_both(self) -> None:
        assert {(case.src, case.dst) for case in planned(names=("read",), src="cuda:3", sizes="1Mi")} == {
            ("cuda:3", "cuda:3")
        }

    def test_a_host_at_one_end(self) -> None:
        cases = planned(src="host", dst="cuda:0", names=("write", "write_pages", "register", "all_pairs"))
        assert {case.name for case in cases} == {"write", "write_pages"}
        assert {case.provider for case in cases} == {"p2p"}

    def test_without_a_gpu_nothing_changes(self) -> None:
        assert not [case for case in planned() if case.name in ("stream_wait", "all_pairs")]
        elsewhere = {case.provider for case in planned() if case.src != "sim"}
        assert elsewhere == {"shm", "tcp", None}

    @pytest.mark.parametrize("word", ["cuda:", "cuda:x", "gpu", "hip:-1", "sim:x", "sim:64"])
    def test_places_that_there_are_not(self, word: str) -> None:
        with pytest.raises(ValueError, match="is no place"):
            planned(src=word)

    def test_a_gpu_that_is_not_there(self) -> None:
        done = zerohop("bench", "write", "--src", "cuda:77")
        assert done.returncode == 2
        assert "no device is called 'cuda:77'" in done.stderr

    def test_targets_have_rows(self) -> None:
        """Of those that need no torch; the others are planned where it is installed."""
        cases = planned(src="cuda:0", dst="cuda:1") + planned(names=("storage",), dst="cuda:0")
        torch = importlib.util.find_spec("torch") is not None and pytest.importorskip("torch").cuda.is_available()
        for target in GPU_TARGETS:
            name, mode = target.fields["name"], target.fields.get("mode")
            needs = mode == "expandable" or name in ("register", "stream_wait")
            found = any(all(getattr(case, key) == value for key, value in target.fields.items()) for case in cases)
            assert found or (needs and not torch), target


class TestJudging:
    def test_a_row_may_have_several_targets(self) -> None:
        verdicts = judge(row(p50_us=8.0, floor_p50_us=6.5, cpu_us_per_op=9.0))
        assert [verdict.met for verdict in verdicts] == [False, True, True]
        assert [verdict.measured for verdict in verdicts] == ["1.23 ×", "9 µs", "3.4 ×"]

    @pytest.mark.parametrize(
        ("nbytes", "p50_us", "met"), [(4 * MI, 22.0, True), (4 * MI, 23.0, False), (256 * MI, 700.0, False)]
    )
    def test_how_much_faster(self, nbytes: int, p50_us: float, met: bool) -> None:
        verdict = judge(row(bytes=nbytes, p50_us=p50_us))[-1]
        assert "different fabric" in verdict.target
        assert verdict.met is met

    def test_beside_another_row(self) -> None:
        plain = row(p50_us=10.0)
        expandable = row(p50_us=10.6, mode="expandable")
        assert judge(expandable) == []
        (verdict,) = judge(expandable, [plain, expandable])
        assert (verdict.met, verdict.measured) == (False, "0.94 ×")

    def test_staging(self) -> None:
        host = row(provider="tcp", src="host", dst="host", bytes=256 * MI, p50_us=60_000.0)
        staged = replace(host, src="cuda:0", dst="cuda:1", p50_us=65_000.0)
        (verdict,) = judge(staged, [host, staged])
        assert (verdict.met, verdict.target) == (True, "≥ 0.85 × host→host")


class TestPage:
    @pytest.fixture
    def script(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        monkeypatch.syspath_prepend(str(ROOT / "scripts"))
        spec = importlib.util.spec_from_file_location("gpu_page", ROOT / "scripts" / "gpu_page.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    @pytest.fixture
    def report(self) -> Report:
        fields = {"p50_us": 9.0, "floor": "C++ copy", "floor_p50_us": 8.0}
        rows = [row(name, bytes=nbytes, **fields) for nbytes in SEED_US for name in ("write", "read")]
        nvidia = {"driver": "580.1", "cuda": [13, 0], "gpus": [{}, {}], "pairs": [{"link": "nvlink"}]}
        machine = {"nvidia": nvidia, "accelerators": [{"model": "H200"}], "libraries": {"torch": "2.11"}}
        return Report("0.1.0", "2026-11-23T00:00:00+00:00", ("zerohop",), machine, 12.0, 0.0, tuple(rows))

    def test_the_table(self, script: ModuleType, report: Report) -> None:
        lines = script.seed_table(report).splitlines()
        assert lines[2] == "| 8 KiB | 27 µs | 9 µs (3.0 ×) | 9 µs | 8 µs | 0.9 GB/s |"
        assert len(lines) == 2 + len(SEED_US)

    def test_the_page(self, script: ModuleType, report: Report) -> None:
        text = script.page({"2 GPUs": report})
        assert "2 × H200 over nvlink, driver 580.1, CUDA 13.0, torch 2.11. 32 rows" in text
        assert "### Targets: " in text
        assert "different fabric" in text

    def test_the_page_with_files(self, script: ModuleType, report: Report) -> None:
        fields = {"provider": None, "src": "file", "dst": "cuda:0", "bytes": MI, "batch": 32, "form": CACHED}
        read = row(IN_ORDER, **fields, p50_us=1000.0, GBps=33.6, floor="threads", floor_p50_us=950.0, of_other=0.95)
        text = script.page({"2 GPUs": report}, replace(report, rows=(read,)))
        assert "| storage_read cached 32 × 1 MiB, file→cuda:0 | 32,000 | 33.6 | 950 µs, threads | 0.95 × |" in text

    def test_the_readme(self, script: ModuleType, report: Report) -> None:
        before = (ROOT / "README.md").read_text(encoding="utf-8")
        once = script.in_readme(before, report)
        assert "| 8 KiB | 27 µs | 9 µs (3.0 ×)" in once
        assert script.in_readme(once, report) == once

    def test_it_is_current(self) -> None:
        checked = run_script(ROOT / "scripts" / "gpu_page.py", "check")
        assert checked == 0


def run_script(path: Path, *arguments: str) -> int:
    return subprocess.run([sys.executable, str(path), *arguments], timeout=patience(30), check=False).returncode


def measured(folder: Path, *arguments: str, in_software: str = IN_SOFTWARE, src: str | None = "cuda:0") -> list[Row]:
    """The rows of a short run, with the first GPU's memory as source."""
    file = folder / "rows.json"
    where = ("--src", src) if src else ()
    done = zerohop("bench", *arguments, *where, "--quick", "--json", file, FAKE_CUDA_DEVICES=in_software)
    assert done.returncode == 0, done.stderr
    return [Row(**each) for each in json.loads(file.read_text())["rows"]]


@pytest.mark.cuda
@pytest.mark.timeout(90)  # each test starts several processes
class TestOnGpus:
    def test_rows(self, tmp_path: Path) -> None:
        """Of each kind that needs nothing but a GPU: every byte verified, a floor beside it."""
        names = ("write", "read", "write_notify")
        found = measured(tmp_path, *names, "--bytes", "8,8Ki,1Mi")
        # Two processes that take turns on one GPU have none for what goes there and back.
        assert all(each.floor_p50_us for each in found if each.name != "write_notify" or each.src != each.dst)
        lists = ("write_pages", "read_pages", "write_list", "read_list")
        found += measured(tmp_path, *lists, "--bytes", "1Ki", "--batch", "64")
        assert {each.name for each in found} == {*names, *lists}
        assert all(each.verified for each in found)
        assert {(each.provider, each.form) for each in found} == {("p2p", "peer")}

    def test_handles(self, tmp_path: Path) -> None:
        """Many of one memory, the first use of one more, and memory that nobody has registered."""
        found = measured(tmp_path, "views", "first_use", "raw", "--dst", f"cuda:{GPUS > 1:d}", "--batch", "100")
        assert [(each.name, each.mode) for each in found] == [
            ("views", None),
            ("first_use", "known"),
            ("first_use", "new"),
            ("raw", None),
        ]
        assert all(each.verified for each in found)
        assert {(each.provider, each.form) for each in found} == {("p2p", "peer")}
        assert found[2].floor_p50_us
        assert found[3].beside_p50_us

    @pytest.mark.parametrize("name", [IN_ORDER, SERVED_IN_ORDER])
    def test_files(self, tmp_path: Path, name: str) -> None:
        (found,) = measured(tmp_path, name, "--dst", "cuda:0", "--folder", str(Path.cwd()), src=None)
        assert (found.verified, found.missing, found.dst) == (True, None, "cuda:0")
        assert found.of_other
        assert bool(found.floor_p50_us) is (name == IN_ORDER)

    def test_between_a_gpu_and_the_host(self, tmp_path: Path) -> None:
        found = measured(tmp_path, "write", "read", "--dst", "host", "--bytes", "64Ki")
        assert [each.verified for each in found] == [True, True]

    @pytest.mark.parametrize("name", ["write", "read"])
    def test_floors(self, name: str) -> None:
        """The kernel's too: its launch, whatever the compiler of this machine makes of it."""
        source = np.random.default_rng().integers(0, 256, MI, dtype=np.uint8)
        floors = GpuFloors(Case(name, "p2p", "cuda:0", "cuda:0", MI), MI)
        assert len(floors.copy(source, 3)) == 3
        assert len(floors.copy_word(source, 3)) == 3
        image = kernel_image()
        pages = np.random.default_rng().permutation(64).astype(np.int64)
        assert len(floors.pages(image, source, PageLists(pages, pages[::-1].copy(), 4096, 16), 5)) == 5
        assert len(floors.ranges(image, source, mixed_ranges(500, 2048), 5)) == 5

    def test_all_at_once(self) -> None:
        assert len(_floors.copy_all_pairs(min(GPUS, 2), MI, 3)) == 3

    def test_every_pair_of_gpus(self, tmp_path: Path) -> None:
        """Each to each other one at once, every byte of every pair verified; in software among four, 12 pairs."""
        gpus = 4 if IN_SOFTWARE else GPUS
        if gpus < 2:
            pytest.skip("this machine has one GPU")
        in_software = IN_SOFTWARE and str(gpus)
        (found,) = measured(tmp_path, "all_pairs", "--dst", "cuda:1", "--bytes", "1Mi", in_software=in_software)
        assert (found.src, found.dst, found.batch) == ("cuda:*", "cuda:*", gpus * (gpus - 1))
        assert found.verified
        assert found.floor_p50_us


def kernel_image() -> bytes:
    """Compiled where there is a compiler; a GPU in software takes anything."""
    if IN_SOFTWARE:
        return b"any"
    import torch

    major, minor = torch.cuda.get_device_capability(0)
    image, why = copy_kernels(major * 10 + minor)
    assert image is not None, why
    return image
