"""Memory that is gone ends an operation; any other fault ends the process as it would have without this library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from support.patience import ANSWER_S

# A transfer of memory that is gone, and then a fault of the program's own.
PROGRAM = """
import ctypes, faulthandler, mmap, os, sys
import numpy as np
import zerohop as zh

def enable(when):
    if when in sys.argv[1:]:
        faulthandler.enable()

enable("before")
with zh.Context(listen=None) as context:
    enable("between")
    with zh.Context(listen=None) as peer:
        fd = os.memfd_create("gone")
        os.ftruncate(fd, 1 << 20)
        array = np.frombuffer(mmap.mmap(fd, 1 << 20), np.uint8)
        target = peer.alloc(1 << 20).share("rw")
        context.write(array, target).result(10)
        os.ftruncate(fd, 0)
        for nbytes in (8, 1 << 20):
            try:
                context.write(array[:nbytes], target[:nbytes]).result(10)
            except zh.AccessDenied as error:
                assert "local memory gone" in str(error)
            else:
                raise AssertionError("it went")
    enable("after")
    print("alive", flush=True)
    ctypes.string_at(16)
"""


@pytest.mark.parametrize("when", ["never", "before", "between", "after"])
def test_a_fault_of_the_program(when: str) -> None:
    """Of the same signal, and Python's own report of it comes if somebody has asked for it, whenever that was."""
    with tempfile.TemporaryDirectory(prefix="zh-") as runtime:  # its end leaves the socket's folder behind
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, when],
            env={**os.environ, "XDG_RUNTIME_DIR": runtime},
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    assert ended.stdout == "alive\n", ended.stderr
    assert ended.returncode == -signal.SIGSEGV
    assert ended.stderr.count("Fatal Python error: Segmentation fault") == (when != "never")
