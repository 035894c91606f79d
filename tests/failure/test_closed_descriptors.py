"""A program that closes descriptors it does not own, as os.closerange() does: close() ends, and harms no other file."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.patience import ANSWER_S, patience

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os, socket, sys, time
import numpy as np
import zerohop as zh

folder, provider, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = {"providers": [provider]} if provider else {}
here, there = zh.Context(**options), zh.Context(**options)
if provider:
    here.write(np.ones(64, np.uint8), there.alloc(64).share("w"), notify=1).result()
time.sleep(0.3)  # until their threads sleep
os.closerange(int(sys.argv[4]), 200)
files = [open(f"{folder}/{number}", "wb+", buffering=0) for number in range(count)]
pairs = [socket.socketpair() for _ in range(count)]
started = time.monotonic()
here.close(timeout=1)
there.close(timeout=1)
print(time.monotonic() - started)
for file in files:
    assert file.seek(0, os.SEEK_END) == 0, "somebody else has written into it"
    file.write(b"mine")
for one, other in pairs:
    one.send(b"mine")
    assert other.recv(100) == b"mine"
"""


@pytest.mark.parametrize("first", [3, 25, 34])
@pytest.mark.parametrize("count", [0, 50], ids=["closed", "and used by others"])
@pytest.mark.parametrize("provider", ["", "shm", "tcp"], ids=["alone", "shm", "tcp"])
def test_close_ends(tmp_path: Path, provider: str, count: int, first: int) -> None:
    """All of them, or those of one Context and a half."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path, provider, str(count), str(first)],
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < patience(4)
    assert "were closed beneath zerohop" in run.stderr
    assert "Traceback" not in run.stderr
    assert all(file.read_bytes() == b"mine" for file in tmp_path.iterdir())
