"""Completions: what verbs' numbers mean, and which error stands for which status."""

from __future__ import annotations

import pickle

import pytest

import zerohop as zh
from zerohop.fabric import Completion
from zerohop.fabric.completions import STATUSES, from_entry

FAILURES = {
    "LOC_LEN_ERR": zh.AccessDenied,
    "LOC_PROT_ERR": zh.AccessDenied,
    "REM_ACCESS_ERR": zh.AccessDenied,
    "REM_INV_REQ_ERR": zh.AccessDenied,
    "WR_FLUSH_ERR": zh.PeerLost,
    "RETRY_EXC_ERR": zh.PeerLost,
    "RNR_RETRY_EXC_ERR": zh.PeerLost,
    "REM_OP_ERR": zh.PeerLost,
    "LOC_QP_OP_ERR": zh.DeviceFailed,
    "FATAL_ERR": zh.DeviceFailed,
    "GENERAL_ERR": zh.DeviceFailed,
}


def test_numbers_of_verbs() -> None:
    """As in the enumerations of infiniband/verbs.h, whose numbers are part of its binary interface."""
    numbers = {"SUCCESS": 0, "WR_FLUSH_ERR": 5, "REM_ACCESS_ERR": 10, "RNR_RETRY_EXC_ERR": 13, "GENERAL_ERR": 21}
    assert {name: STATUSES.index(name) for name in numbers} == numbers
    assert from_entry((7, 129, 0, 64, 0xFFFF_FFFF, 0)) == Completion(
        7, "RECV_RDMA_WITH_IMM", "SUCCESS", 64, 0xFFFF_FFFF, 0
    )
    assert from_entry((1, 4, 10, 0, -1, 136)) == Completion(1, "FETCH_ADD", "REM_ACCESS_ERR", 0, None, 136)


def test_numbers_that_are_new() -> None:
    completion = from_entry((1, 77, 99, 0, -1, 0))
    assert (completion.opcode, completion.status, completion.ok) == ("77", "99", False)
    assert isinstance(completion.error, zh.DeviceFailed)


def test_success_is_no_error() -> None:
    completion = from_entry((1, 0, 0, 64, -1, 0))
    assert completion.ok
    assert completion.error is None


@pytest.mark.parametrize("status", STATUSES[1:])
def test_every_failure_is_explained(status: str) -> None:
    error = Completion(5, "RDMA_WRITE", status, 0, None, 0).error
    assert isinstance(error, FAILURES.get(status, zh.ZerohopError))
    assert (error.provider, error.operation) == ("verbs", "RDMA_WRITE")
    assert status in error.reason
    assert "wr_id 5" in error.reason
    assert type(pickle.loads(pickle.dumps(error))) is type(error)
