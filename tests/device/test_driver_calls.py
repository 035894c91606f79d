"""Calls to a GPU's driver that wait for running kernels, while kernels wait for this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.lanes import eventually
from support.patience import ANSWER_S
from zerohop.device import Queue

if TYPE_CHECKING:
    from pathlib import Path

    from device.conftest import Launcher

pytestmark = pytest.mark.cuda
# How long the test looks for a call that must not come. It comes within a millisecond where nothing holds it back.
_LOOKS_S = 0.3


@pytest.mark.parametrize("mode", ["peer", "proxy"])
def test_memory_is_freed_only_when_the_kernels_have_ended(mode: str) -> None:
    with zh.Context() as here, zh.Context() as there:
        engine, freed = here._core.engine, here.alloc(1 << 20, "cuda:0")
        address, handle = freed.address, there.alloc(64, "cuda:0").share("rw")
        with Queue(here, [handle], [here.alloc(64, "cuda:0")], mode=mode) as queue:  # type: ignore[arg-type]  # a str
            assert queue.modes == (mode,)
            with queue.active():
                freed.close()
                until = time.monotonic() + _LOOKS_S
                while time.monotonic() < until:
                    assert engine.describe(address, 1) is not None, "the driver was asked to free memory"
            until = time.monotonic() + ANSWER_S
            while engine.describe(address, 1) is not None:
                assert time.monotonic() < until, "the memory was not freed"


def test_a_peer_has_its_memory_back_when_the_kernels_have_ended(launch: Launcher, tmp_path: Path) -> None:
    near, far = launch("thread"), launch("thread")
    nbytes = 64 << 20  # of an allocation that holds nothing else
    for process in (near, far):
        process("alloc", 64, "cuda:0")
        process("alloc", nbytes, "cuda:0")
    near("get", far("share", 1), 1)  # near's process maps it
    assert near("queue", [far("share", 0)], [0], mode="peer", device="cuda:0") == ("peer",)
    started, ended = tmp_path / "started", tmp_path / "ended"
    near.start("stay_active", ANSWER_S, str(started), str(ended))
    eventually(started.exists, "the Queue is not in use")
    assert far("fails", "revoke", 1, timeout=_LOOKS_S).startswith("RevocationIncomplete: ")
    ended.touch()
    near.result()
    far("revoke", 1)
