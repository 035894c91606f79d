"""The shared file behind memory, where looking for it or opening it fails."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.sandboxed import run_program
from support.sizes import MIB
from support.small_disk import free_bytes, small_disk
from zerohop.core.memory import shared_pages

if TYPE_CHECKING:
    from support.fixtures import OpenContext

_IN_SANDBOX = """
import mmap, sys
import numpy as np
import zerohop
from support import seccomp
context, owner = zerohop.Context(), zerohop.Context()
handle = owner.alloc(4096).share("rw")
context.write(np.ones(4096, np.uint8), handle).result(5)
views = [np.frombuffer(mmap.mmap(-1, 4096), np.uint8), np.frombuffer(b"x" * 4096, np.uint8)]
seccomp.forbid(sys.argv[1], everywhere=True)
for view in views:
    assert context.write(view, handle).result(5) == 4096
    assert context.register(view).nbytes == 4096
context.close()
owner.close()
"""


@pytest.mark.parametrize("call", ["openat", "close"])
def test_a_sandbox_that_refuses_the_look(call: str) -> None:
    """The file is an extra: without it, peers reach the memory another way."""
    ended = run_program(_IN_SANDBOX, call)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("step", ["look", "open", "reserve"])
def test_no_descriptor_left(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """That is a limit, and not the end of a fast path in silence; the next call finds the file again."""
    context = open_context(Options(sim_devices=0))
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(1 << 16)
        view = np.frombuffer(mmap.mmap(file.fileno(), 1 << 16), np.uint8)

        def full(*_: object, **__: object) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        def full_for(path: str, *arguments: int) -> int:
            there = path.startswith("/proc/self/fd/" if step == "reserve" else "/dev/shm/")
            return full() if there else os.open(path, *arguments)

        with monkeypatch.context() as patch:
            if step == "look":
                patch.setattr(shared_pages, "_MAPS", SimpleNamespace(open=full))
            else:
                patch.setattr(shared_pages, "os", SimpleNamespace(**{**vars(os), "open": full_for}))
            with pytest.raises(zh.LimitReached, match="descriptors") as caught:
                context.register(view)
            assert "ulimit -n" in caught.value.fix
        memory = context.register(view)
        written = open_context(Options(sim_devices=0)).write(np.arange(64, dtype=np.uint8), memory.share("rw")[:64])
        written.result(PATIENCE_S)
        assert "mapped" in str(written.explain())


def test_shared_memory_in_a_full_file_system(open_context: OpenContext) -> None:
    """It has no page yet, which is no rule against writing: the error says that there is no room."""
    context = open_context(Options(sim_devices=0))
    with small_disk(MIB) as disk, (disk / "data").open("w+b") as file:
        file.truncate(MIB // 2)
        (disk / "data").unlink()
        (disk / "filler").write_bytes(bytes(free_bytes(disk)))
        shared = SimpleNamespace(buf=memoryview(mmap.mmap(file.fileno(), MIB // 2)), _fd=file.fileno())
        for rights in (None, "rw"):
            with pytest.raises(zh.RegistrationFailed, match="out of shared memory") as caught:
                context.register(shared, rights)
            assert "make /dev/shm larger" in caught.value.fix
        (disk / "filler").unlink()
        assert context.register(shared).share("rw").rights == "rw"


def test_shared_memory_whose_file_was_truncated(open_context: OpenContext) -> None:
    file = os.memfd_create("truncated")
    try:
        os.ftruncate(file, MIB)
        shared = SimpleNamespace(buf=memoryview(mmap.mmap(file, MIB)), _fd=file)
        os.ftruncate(file, 0)
        with pytest.raises(zh.RegistrationFailed, match="memory gone: its file has 0 bytes"):
            open_context(Options(sim_devices=0)).register(shared)
    finally:
        os.close(file)
