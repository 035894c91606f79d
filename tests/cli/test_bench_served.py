"""`zerohop bench storage_served_read`: reads of a server's file beside reads without one, in a raw stream, by many."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cli.test_bench_storage import JOB, SMALL, play_fio
from zerohop.cli.bench import served
from zerohop.cli.bench.block_file import NoFile, block_file
from zerohop.cli.bench.block_reader import HOST_BESIDE
from zerohop.cli.bench.floors import FloorDescriptors, Floors
from zerohop.cli.bench.plan import NAMES, Request, plan
from zerohop.cli.bench.report import describe_case, effort_of
from zerohop.cli.bench.rows import Case, Row, several_clients
from zerohop.cli.bench.served import LOCAL, ONE_CLIENT, STREAM, measure_served
from zerohop.cli.bench.session import COMMAND_TIMEOUT, PEER
from zerohop.cli.bench.storage_plan import SERVED_IN_ORDER, SERVED_RANDOM, TMPFS
from zerohop.cli.peer import PeerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OVER_SHM = Case(SERVED_RANDOM, "shm", "file", "host", 4096, 16, form=TMPFS)
OVER_TCP = Case(SERVED_IN_ORDER, "tcp", "file", "host", 65536, 4, form=TMPFS)
BY_TWO = Case(SERVED_IN_ORDER, "shm", "file", "host", 65536, 4, form=TMPFS, mode=several_clients(2))
INTO_DEVICE = Case(SERVED_IN_ORDER, "p2p", "file", "sim", 65536, 4, form=TMPFS)
ALL = (OVER_SHM, OVER_TCP, BY_TWO, INTO_DEVICE)


@pytest.fixture
def floors() -> Iterator[Floors]:
    with closing(FloorDescriptors()) as descriptors:
        fds = tuple(descriptors.for_peer().values())
        with PeerProcess(PEER, pass_fds=fds, timeout=COMMAND_TIMEOUT) as peer:
            yield Floors(peer, descriptors)


@pytest.fixture
def no_fio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_they_are_measured_if_they_are_named() -> None:
    cases = [case for case in plan(Request(names=("storage",))) if case.provider is not None]
    mib = 1 << 20
    assert [(each.name, each.provider, each.dst, each.bytes, each.batch, each.clients) for each in cases] == [
        (SERVED_IN_ORDER, "shm", "host", mib, 32, 1),
        (SERVED_IN_ORDER, "p2p", "sim", mib, 32, 1),
        (SERVED_IN_ORDER, "tcp", "host", mib, 32, 1),
        (SERVED_IN_ORDER, "shm", "host", mib, 32, 2),
        (SERVED_IN_ORDER, "shm", "host", mib, 32, 4),
        (SERVED_IN_ORDER, "shm", "host", mib, 32, 8),
        (SERVED_RANDOM, "shm", "host", 4096, 64, 1),
    ]
    assert all(case.of_file and case.flows == 1 for case in cases)
    assert cases[5].memory_bytes == 8 * 32 * mib
    assert describe_case(cases[5]) == "storage_served_read shm tmpfs 32 × 1 MiB, 8 clients, file→host"
    assert not {SERVED_IN_ORDER, SERVED_RANDOM} & set(NAMES)


def test_they_keep_to_what_was_asked() -> None:
    (case,) = plan(Request(names=(SERVED_IN_ORDER,), providers=("tcp",), sizes="100,64Ki", batch=5))
    assert (case.provider, case.bytes, case.batch) == ("tcp", 65536, 5)
    (case,) = plan(Request(names=(SERVED_IN_ORDER, SERVED_RANDOM), dst="sim"))
    assert (case.name, case.provider, case.dst) == (SERVED_IN_ORDER, "p2p", "sim")
    for request in (Request(src="host"), Request(providers=("p2p",), dst="host")):
        with pytest.raises(ValueError, match="no row"):
            plan(replace(request, names=(SERVED_IN_ORDER, SERVED_RANDOM)))


def test_over_shm_beside_reads_by_itself(floors: Floors, no_fio: None) -> None:
    row = measure_served(SMALL, OVER_SHM, floors)
    assert (row.verified, row.missing, row.samples, row.beside) == (True, None, 3, LOCAL)
    assert (row.floor, row.floor_p50_us, row.floor_cpu_s_per_gb) == ("fio (not there: apt-get install fio)", None, None)
    assert row.path is not None
    assert row.path.startswith("server (mapped) by ")
    for number in (row.GBps, row.of_other, row.beside_p50_us, row.cpu_s_per_gb, row.server_cpu_s_per_gb):
        assert number is not None
        assert number > 0


def test_over_shm_beside_fio(floors: Floors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = play_fio(tmp_path, monkeypatch, f"echo '{json.dumps({'jobs': [JOB]})}'")
    row = measure_served(SMALL, OVER_SHM, floors)
    assert (row.verified, row.floor, row.beside) == (True, "fio-9", LOCAL)
    assert row.floor_p50_us == 16 / 500 * 1e6  # 500 reads a second, of which 16 are a measurement
    assert row.floor_cpu_s_per_gb is not None
    assert {"--rw=randread", "--bs=4096", "--iodepth=16", "--direct=0"} <= set(arguments.read_text().split())


def test_a_fio_that_fails_is_no_floor(floors: Floors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_fio(tmp_path, monkeypatch, "echo 'engine io_uring not loadable' >&2; exit 1")
    row = measure_served(SMALL, OVER_SHM, floors)
    assert (row.verified, row.floor) == (True, "fio-9 (engine io_uring not loadable)")
    assert (row.floor_p50_us, row.floor_cpu_s_per_gb) == (None, None)
    assert row.of_other is not None


def test_over_tcp_beside_a_stream(floors: Floors) -> None:
    row = measure_served(SMALL, OVER_TCP, floors)
    assert (row.verified, row.samples, row.floor, row.beside) == (True, 3, STREAM, None)
    assert row.path is not None
    assert row.path.startswith("server (tcp) by ")
    for number in (row.of_other, row.floor_GBps, row.cpu_s_per_gb, row.server_cpu_s_per_gb):
        assert number is not None
    assert row.other_cpu_s_per_gb is None


def test_into_a_device_beside_host_memory(floors: Floors) -> None:
    row = measure_served(SMALL, INTO_DEVICE, floors)
    assert (row.verified, row.samples, row.floor, row.beside) == (True, 3, None, HOST_BESIDE)
    assert row.path is not None
    assert row.path.startswith("server (")
    for number in (row.GBps, row.of_other, row.cpu_s_per_gb, row.server_cpu_s_per_gb, row.other_cpu_s_per_gb):
        assert number is not None


def test_several_clients_beside_one(floors: Floors) -> None:
    row = measure_served(SMALL, BY_TWO, floors)
    assert (row.verified, row.samples, row.floor, row.beside) == (True, 3, None, ONE_CLIENT)
    for number in (row.GBps, row.of_other, row.cpu_s_per_gb, row.server_cpu_s_per_gb, row.other_cpu_s_per_gb):
        assert number is not None


@pytest.mark.parametrize("case", ALL, ids=["shm", "tcp", "two clients", "a device"])
def test_wrong_bytes_are_noticed(floors: Floors, no_fio: None, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    @contextmanager
    def wrong(folder: str, nbytes: int, *, on_disk: bool) -> Iterator[Path]:
        with block_file(folder, nbytes, on_disk=on_disk) as path:
            with path.open("r+b") as file:
                file.seek(nbytes // 2)
                byte = file.read(1)[0]
                file.seek(nbytes // 2)
                file.write(bytes([byte ^ 1]))
            yield path

    monkeypatch.setattr(served, "block_file", wrong)
    assert measure_served(SMALL, case, floors).verified is False


def test_without_room_for_the_file(floors: Floors, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: str, nbytes: int, *, on_disk: bool) -> None:
        raise NoFile(f"no room for {nbytes} in {folder}")

    monkeypatch.setattr(served, "block_file", full)
    row = measure_served(SMALL, BY_TWO, floors)
    assert row.missing == "no room for 1048576 in /dev/shm"


def test_processor_time_of_client_and_server() -> None:
    row = Row(SERVED_RANDOM, "shm", None, "file", "host", 4096, 64, cpu_s_per_gb=0.25, server_cpu_s_per_gb=0.125)
    assert effort_of(row) == "0.250 + 0.125 server"
    row = replace(row, other_cpu_s_per_gb=0.5, floor="fio-9", floor_cpu_s_per_gb=0.75)
    assert effort_of(row) == "0.250 + 0.125 server (beside 0.500, fio-9 0.750)"
