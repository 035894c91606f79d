"""A program that calls chroot() leaves behind the files that it has not read by then, and /proc."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.peer import Peer
from support.sandboxed import run_program
from support.service import Service

if TYPE_CHECKING:
    from pathlib import Path

    from support.fixtures import OpenContext

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="chroot() is for root")

_OPEN = """
import os, sys, zerohop
os.chroot(sys.argv[1])
try:
    zerohop.Context()
except zerohop.Unsupported as error:
    print(error)
"""


def test_before_the_first_context(tmp_path: Path) -> None:
    ended = run_program(_OPEN, str(tmp_path))
    assert "cannot be reached any more, as after chroot()" in ended.stdout, ended.stderr
    assert "Fix: before chroot(), open a Context" in ended.stdout


def test_an_owner_without_proc(open_context: OpenContext, tmp_path: Path) -> None:
    """Its peers get what to do there."""
    here, owner = open_context(Options()), Peer()
    try:
        owner.open(Options())
        url = owner.identity.url
        owner.call(Service.leave_root, str(tmp_path))
        with pytest.raises(zh.PeerLost, match="open /proc/self/fd") as caught:
            here.connect(url).result(PATIENCE_S)
        assert caught.value.fix == "in the peer's process: 'mount -t proc proc /proc'"
    finally:
        owner.reap()  # it may not find what it needs to end well


_ENCRYPT = """
import os, sys, zerohop
here, there = (
    zerohop.Context(secret="what-both-know", encryption="all", providers=["tcp"]) for _ in range(2)
)
os.chroot(sys.argv[1])
try:
    here.connect(there.url).result(10)
except zerohop.ZerohopError as error:
    print(error, flush=True)
os._exit(0)
"""


def test_encryption(tmp_path: Path) -> None:
    """What is installed, and cannot be reached, is not said to be missing."""
    pytest.importorskip("cryptography")
    said = run_program(_ENCRYPT, str(tmp_path)).stdout
    Options().open().close()  # removes what the process has left of its own
    assert "cannot be reached any more, as after chroot()" in said
    assert "pip install" not in said
