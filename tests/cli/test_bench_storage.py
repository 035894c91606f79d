"""`zerohop bench storage`: reads of files beside fio, which the tests play, and beside reads into host memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from zerohop.cli.bench.block_file import NoFile, block_file, content, file_system
from zerohop.cli.bench.block_reader import BlockReader
from zerohop.cli.bench.fio import Fio, FioFails
from zerohop.cli.bench.plan import NAMES, Request, plan
from zerohop.cli.bench.report import effort_of
from zerohop.cli.bench.rows import Case, Row
from zerohop.cli.bench.session import QUICK, Effort
from zerohop.cli.bench.storage import measure_storage
from zerohop.cli.bench.storage_plan import DISK, IN_ORDER, RANDOM, TMPFS
from zerohop.cli.bench.targets import STORAGE_TARGETS, judge
from zerohop.storage import open_store

if TYPE_CHECKING:
    from pathlib import Path

SHARED = "/dev/shm"
SMALL = replace(QUICK, file_turns=3, file_seconds=0.02, file_bytes=1 << 20)
TMPFS_CASE = Case(RANDOM, None, "file", "host", 4096, 16, form=TMPFS)
# What fio prints of a job, as far as it is read: 1000 reads in 2 s, which kept a processor half busy.
JOB = {"job_runtime": 2000, "usr_cpu": 20.0, "sys_cpu": 30.0, "read": {"total_ios": 1000, "runtime": 2000}}


def play_fio(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put a fio that runs this into PATH, alone; return the file that its arguments are added to."""
    arguments = folder / "arguments"
    program = folder / "fio"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo fio-9 && exit\necho "$@" >> {arguments}\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return arguments


def test_storage_is_measured_if_it_is_named() -> None:
    cases = plan(Request(names=("storage",)))
    assert [(each.name, each.form, each.dst, each.bytes, each.batch) for each in cases if each.provider is None] == [
        (IN_ORDER, DISK, "host", 1 << 20, 32),
        (IN_ORDER, DISK, "sim", 1 << 20, 32),
        (RANDOM, DISK, "host", 4096, 64),
        (RANDOM, TMPFS, "host", 4096, 64),
    ]
    for target in STORAGE_TARGETS:
        assert any(all(getattr(case, key) == value for key, value in target.fields.items()) for case in cases), target
    assert not {IN_ORDER, RANDOM} & set(NAMES)
    assert not any(case.of_file for case in plan(Request()))


def test_storage_keeps_to_what_was_asked() -> None:
    (case,) = plan(Request(names=(IN_ORDER,), dst="sim:1", sizes="100,64Ki", batch=5))
    assert (case.dst, case.bytes, case.batch, case.sim_devices) == ("sim:1", 65536, 5, 2)
    for request, names in (
        (Request(src="host"), ("storage",)),
        (Request(providers=("shm",)), (IN_ORDER, RANDOM)),
        (Request(sizes="100"), ("storage",)),
    ):
        with pytest.raises(ValueError, match="no row"):
            plan(replace(request, names=names))


def test_without_fio_a_row_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    row = measure_storage(SMALL, TMPFS_CASE)
    assert row.verified
    assert row.missing is None
    assert (row.floor, row.of_other, row.floor_p50_us) == ("fio (not there: apt-get install fio)", None, None)
    assert row.GBps is not None
    assert row.cpu_s_per_gb is not None
    assert judge(replace(row, batch=64)) == []


def test_fio_reads_the_same_file_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    arguments = play_fio(
        tmp_path,
        monkeypatch,
        f"echo tunables=$GLIBC_TUNABLES >> {tmp_path}/tunables; echo '{json.dumps({'jobs': [JOB]})}'",
    )
    row = measure_storage(SMALL, TMPFS_CASE)
    assert (row.floor, row.samples, row.verified) == ("fio-9", 3, True)
    assert row.floor_p50_us == 16 / 500 * 1e6  # 500 reads a second, of which 16 are a measurement
    assert row.other_cpu_s_per_gb is not None
    assert row.other_cpu_s_per_gb >= round(1.0 / (1000 * 4096 / 1e9), 4)  # at least what it tells of itself
    assert row.p50_us is not None
    assert row.of_other == pytest.approx(row.floor_p50_us / row.p50_us, rel=1e-3)
    calls = [line.split() for line in arguments.read_text().splitlines()]
    assert len(calls) == 4
    for call, milliseconds in zip(calls, (10, 20, 20, 20), strict=True):  # the first tells what it takes to begin
        assert {
            *("--filename=blocks", "--size=1048576", "--rw=randread", "--bs=4096", "--iodepth=16", "--direct=0"),
            *("--ioengine=io_uring", "--fixedbufs=1", f"--runtime={milliseconds}ms", "--readonly"),
        } <= set(call)
    tunables = "tunables=glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"
    assert (tmp_path / "tunables").read_text().splitlines() == [tunables] * 4


def test_processor_time_that_fio_does_not_tell_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel's threads read for it, and the job that it describes has nothing of their time."""
    idle = {**JOB, "usr_cpu": 0.0, "sys_cpu": 0.0}
    work = "case $* in *runtime=10ms*) ;; *) i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done;; esac"
    play_fio(tmp_path, monkeypatch, f"{work}; echo '{json.dumps({'jobs': [idle]})}'")
    turn = Fio().read(tmp_path / "fio", TMPFS_CASE, 0.02, direct=False, in_order=False)
    assert turn is not None
    assert turn.cpu_s > 0


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'engine io_uring not loadable' >&2; exit 1", "engine io_uring not loadable"),
        ("exit 3", "exit status 3"),
        ("echo '{}'", "{}"),
    ],
)
def test_a_fio_that_fails_is_no_floor(script: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_fio(tmp_path, monkeypatch, script)
    row = measure_storage(SMALL, TMPFS_CASE)
    assert (row.floor, row.of_other, row.verified) == (f"fio-9 ({told})", None, True)


@pytest.mark.parametrize("name", [IN_ORDER, RANDOM])
@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_wrong_bytes_are_noticed(name: str, device: str, tmp_path: Path) -> None:
    blocks = np.arange(24) * 8192
    (tmp_path / "good").write_bytes(content(blocks, 8192).data)
    wrong = content(blocks, 8192)
    wrong[5 * 8192 + 77] ^= 1
    (tmp_path / "wrong").write_bytes(wrong.data)
    (tmp_path / "moved").write_bytes(content(blocks[::-1].copy(), 8192).data)
    case = Case(name, None, "file", device, 8192, 16, form=DISK)
    with open_store(tmp_path, sim_devices=1) as store:
        for path, verified in (("good", True), ("wrong", False), ("moved", False)):
            with store.open(path).result() as file:
                reader = BlockReader(store, file, case, device)
                reader.check()
                assert reader.verified is verified
                turn = reader.turn(0.01)
                assert turn.operations >= 16
                assert turn.cpu_s > 0
                assert reader.verified is verified
                reader.close()


def test_reads_into_a_device_take_turns_with_those_into_host_memory(tmp_path: Path) -> None:
    if file_system(str(tmp_path)) == "tmpfs":
        pytest.skip("there is no disk here")
    case = Case(IN_ORDER, None, "file", "sim", 65536, 4, form=DISK)
    row = measure_storage(replace(SMALL, folder=str(tmp_path)), case)
    if row.missing is not None:
        assert "O_DIRECT" in row.missing
        return
    assert (row.beside, row.samples, row.verified, row.floor) == ("into host memory", 3, True, None)
    assert row.of_other is not None
    assert row.other_cpu_s_per_gb is not None
    assert not list(tmp_path.iterdir())


def test_folders_that_cannot_have_the_file(tmp_path: Path) -> None:
    effort: Effort = replace(SMALL, folder=str(tmp_path / "nope"))
    row = measure_storage(effort, replace(TMPFS_CASE, form=DISK))
    assert row.missing is not None
    assert "--folder" in row.missing
    for folder, nbytes, on_disk, told in (
        (SHARED, 1, True, "is in memory"),
        (SHARED, 1 << 60, False, "has room for"),
        (str(tmp_path), 1 << 60, file_system(str(tmp_path)) != "tmpfs", "has room for"),
    ):
        with pytest.raises(NoFile, match=told), block_file(folder, nbytes, on_disk=on_disk):
            pytest.fail("there is a file")


def test_processor_time_beside_that_of_the_other() -> None:
    row = Row(RANDOM, None, None, "file", "host", 4096, 64, cpu_s_per_gb=0.25)
    assert effort_of(row) == "0.250"
    assert effort_of(replace(row, other_cpu_s_per_gb=0.5)) == "0.250 (beside 0.500)"
    assert effort_of(replace(row, cpu_s_per_gb=None)) == ""


@pytest.mark.parametrize(("ratio", "met"), [(0.8, True), (0.79, False)])
def test_ratios_are_judged(ratio: float, met: bool) -> None:
    row = Row(RANDOM, None, None, "file", "host", 4096, 64, form=DISK, of_other=ratio)
    (verdict,) = judge(row)
    assert (verdict.target, verdict.met) == ("≥ 0.8 × floor", met)


def test_the_real_fio_if_there_is_one(tmp_path: Path) -> None:
    fio = Fio()
    path = tmp_path / "blocks"
    path.write_bytes(bytes(1 << 20))
    try:
        turn = fio.read(path, TMPFS_CASE, 0.05, direct=False, in_order=True)
    except FioFails:
        return  # this machine refuses io_uring, and fio says so
    assert (turn is None) == ("apt-get" in fio.name)
    assert turn is None or turn.operations > 0
