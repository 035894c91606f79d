"""Objects that show other memory the next time: it is the new memory that peers get, also at the same address."""

from __future__ import annotations

import gc
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import CapsuleType

    from support.fixtures import OpenContext

NBYTES = 1 << 16


class Reopened:
    """Shows one mapped file after the other, as SharedMemory shows one."""

    buf: memoryview | None = None

    def show(self, fd: int) -> None:
        if self.buf is not None:
            self.buf.release()
        self.buf = None
        gc.collect()
        self.buf = memoryview(mmap.mmap(fd, NBYTES))


class Exported:
    """Exports one array after the other, by DLPack alone."""

    array: np.ndarray[Any, Any] | None = None

    def show(self, fd: int) -> None:
        self.array = None
        gc.collect()
        self.array = np.frombuffer(mmap.mmap(fd, NBYTES), np.uint8)

    def __dlpack__(self, **wanted: Any) -> CapsuleType:
        assert self.array is not None
        return self.array.__dlpack__(**wanted)

    def __dlpack_device__(self) -> tuple[int, int]:
        assert self.array is not None
        return self.array.__dlpack_device__()


@pytest.fixture
def files() -> Iterator[list[int]]:
    """Descriptors of three shared files, filled with 1, 2 and 3."""
    made = [os.memfd_create("replaced") for _ in range(3)]
    for number, fd in enumerate(made, 1):
        os.write(fd, bytes([number]) * NBYTES)
    yield made
    for fd in made:
        os.close(fd)


@pytest.mark.parametrize("kind", [Reopened, Exported])
def test_the_new_memory_is_shared(open_context: OpenContext, files: list[int], kind: type[Any]) -> None:
    owner, peer = open_context(Options()), open_context(Options())
    shown = kind()
    for number, fd in enumerate(files, 1):
        shown.show(fd)
        memory = owner.register(shown)
        into = np.zeros(NBYTES, np.uint8)
        peer.read(memory.share("rw"), into).result(PATIENCE_S)
        assert set(into.tolist()) == {number}
        peer.write(np.full(NBYTES, 10 + number, np.uint8), memory.share("rw")).result(PATIENCE_S)
        assert set(os.pread(fd, NBYTES, 0)) == {10 + number}
        memory.close()


@pytest.mark.parametrize(
    "descriptor", [-1, 1 << 30, (1 << 31) - 1, 1 << 31, 1 << 40, 1 << 80, True, "3", None], ids=repr
)
def test_a_descriptor_that_is_none(open_context: OpenContext, files: list[int], descriptor: object) -> None:
    """The memory is registered like any other whose file is not to be found."""
    owner, peer = open_context(Options()), open_context(Options())
    shown: Any = Reopened()
    shown.show(files[0])
    shown._fd = descriptor
    memory = owner.register(shown)
    into = np.zeros(NBYTES, np.uint8)
    peer.read(memory.share("r"), into).result(PATIENCE_S)
    assert set(into.tolist()) == {1}
    memory.close()
