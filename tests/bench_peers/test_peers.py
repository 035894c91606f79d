"""The peers themselves on the host, as far as they are installed; and what is around `ucx_perftest`."""

from __future__ import annotations

import importlib.util

import pytest
from bench.peers import ucx
from bench.peers.catalogue import PEERS, Peer
from bench.peers.runner import measure
from bench.peers.workload import Case, Effort, Spec

from support.patience import patience

KI = 1 << 10
CASES = (Case("write", 64 * KI), Case("read", 64 * KI), Case("write_pages", KI, 64))
SPEC = Spec(("cpu", "cpu"), CASES, Effort(rounds=1, seconds=1e-4, most=5, limit=5.0))
NEEDS = {"zerohop": ("torch",), "nccl": ("torch",), "ucx": ("libucx",), "nixl": ("torch", "nixl_cu13")}
NAMES = {"nccl": ["write"], "ucx": ["write", "write_stream", "write_latency"]}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer.name in NEEDS], ids=lambda peer: peer.name)
def test_on_the_host(peer: Peer) -> None:
    for package in NEEDS[peer.name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    outcome = measure(peer, SPEC, patience(50.0))
    assert outcome.reason is None
    assert outcome.version
    assert [row["name"] for row in outcome.rows] == NAMES.get(peer.name, ["write", "read", "write_pages"])
    assert {row["verified"] for row in outcome.rows} == {None if peer.name == "ucx" else True}


def test_what_ucx_perftest_prints() -> None:
    tests = ucx.plan(Spec(("cuda:0", "cuda:1"), (*CASES, Case("write", 512 * KI)), SPEC.effort))
    printed = [
        "batch,iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr",
        "r0b65536, 500,6.039,14.338,14.5,4359.04,4359.04,69745,69745",
        "[1.5] [host:1:0]   |     0 |   0..3670 | short       | posix/memory   |",
        "[1.5] [host:1:0]   |  1020 | 3671..inf | zero-copy   | cuda_ipc/cuda  |",
        "r0b524288,2000,97.214,100.142,101,9985.82,9985.82,9986,9986",
    ]
    small, large = tests.values()
    taken, transports = ucx.parse(printed, tests, 2)
    assert taken[small] == [pytest.approx(6.039e-6)]
    assert taken[large] == [pytest.approx(97.214e-6)]
    assert transports == ["cuda_ipc/cuda"]
    assert ucx.parse(printed, tests, 4)[0][small] == [pytest.approx(14.5e-6)]
    assert ucx.batch_file(tests).splitlines()[0] == "r0b65536 -s 65536 -n 2000 -w 200"


def test_which_gpus_ucx_perftest_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client, which writes, takes the second of those that it sees."""
    spec = Spec(("cuda:0", "cuda:1"), CASES, SPEC.effort)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert ucx.environment_of(spec)["CUDA_VISIBLE_DEVICES"] == "1,0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert ucx.environment_of(spec)["CUDA_VISIBLE_DEVICES"] == "7,4"
    assert "CUDA_VISIBLE_DEVICES" not in ucx.environment_of(SPEC)
