"""Threads that share, revoke and close one Memory: each step of the one is tried with all of the other before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.interleaving import Meanwhile, at_each_step
from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.fixtures import OpenContext
    from zerohop.core.memory.local_share import LocalShare
    from zerohop.core.memory.registration import RetainedBuffer

NBYTES = 64


@pytest.fixture
def context(open_context: OpenContext) -> zh.Context:
    return open_context(Options(providers=("shm",)))


@pytest.mark.parametrize("shared_before", [False, True])
def test_sharing_what_is_being_closed(context: zh.Context, open_context: OpenContext, *, shared_before: bool) -> None:
    other = open_context(Options(providers=("shm",)))

    def attempt(step: int) -> Meanwhile:
        memory = context.alloc(NBYTES)
        if shared_before:
            memory.share("r")
        tried = Meanwhile(lambda: memory.share("rw"), memory.close, step)
        memory.close()
        assert all(isinstance(error, zh.Closed) for error in tried.errors)
        assert context.statistics().shares == 0
        return tried

    at_each_step(attempt)
    # Memories that were never shared have nothing in common.
    mine, others = context.alloc(NBYTES), other.alloc(NBYTES)
    mine.share("r")
    others.share("r")
    mine.close()
    assert (context.statistics().shares, other.statistics().shares) == (0, 1)


def test_closing_what_is_being_shared(context: zh.Context) -> None:
    def attempt(step: int) -> Meanwhile:
        memory = context.alloc(NBYTES)
        tried = Meanwhile(memory.close, lambda: memory.share("rw"), step)
        memory.close()
        assert all(isinstance(error, zh.Closed) for error in tried.errors)
        assert context.statistics().shares == 0
        return tried

    at_each_step(attempt)


def test_sharing_while_another_handle_is_revoked(context: zh.Context) -> None:
    """The new one is the Memory's like any other: closing the Memory takes it back."""

    def attempt(step: int) -> Meanwhile:
        memory = context.alloc(NBYTES)
        handle = memory.share("r")
        tried = Meanwhile(lambda: memory.revoke(handle, timeout=PATIENCE_S), lambda: memory.share("rw"), step)
        assert not tried.errors
        assert context.statistics().shares == tried.happened
        memory.close()
        assert context.statistics().shares == 0
        return tried

    at_each_step(attempt)


def test_two_that_close(context: zh.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them takes back the handles and then what the Memory kept alive, which stays until peers have let go."""
    happened: list[object] = []
    withdraw, release_detached = context._core.shares.withdraw, context._core.retention.release_detached

    def withdrawn(shares: Sequence[LocalShare], timeout: float) -> None:
        happened.append(shares[0].keep)
        withdraw(shares, timeout)

    def released(buffer: RetainedBuffer, *, owned: bool, closed: bool) -> None:
        happened.append(buffer.keep)
        release_detached(buffer, owned=owned, closed=closed)

    monkeypatch.setattr(context._core.shares, "withdraw", withdrawn)
    monkeypatch.setattr(context._core.retention, "release_detached", released)
    array = np.zeros(NBYTES, np.uint8)

    def attempt(step: int) -> Meanwhile:
        memory = context.register(array)
        memory.share("rw")
        happened.clear()
        tried = Meanwhile(memory.close, memory.close, step)
        assert len(happened) == 2
        assert all(each is array for each in happened)
        assert context.statistics().shares == 0
        return tried

    at_each_step(attempt)
