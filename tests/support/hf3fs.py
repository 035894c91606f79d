"""3FS's names as a process finds them, and rings that tell in which batches transfers begin."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from support.torchcomms_peer import own_shared_context
from zerohop.storage.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest


@contextlib.contextmanager
def own_state() -> Iterator[None]:
    """Within, nothing is mounted, registered or installed, and nothing is left."""
    from zerohop.compat.hf3fs import log, modules, mounts, state

    with own_shared_context():
        state.reset()
        log.begin.cache_clear()
        mounts._mounts.clear()
        mounts._servers.clear()
        try:
            yield
        finally:
            modules.uninstall()
            mounts._mounts.clear()
            mounts._servers.clear()
            state.current().close()


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A registered descriptor."""
    from zerohop.compat.hf3fs import deregister_fd, register_fd

    fd = os.open(path, flags)
    try:
        register_fd(fd)
        yield fd
    finally:
        deregister_fd(fd)
        os.close(fd)


def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets how many transfers begin, each time that some do."""
    begun: list[int] = []
    begin = Ring._begin

    def counted(ring: Ring, count: int) -> None:
        before = ring._native.prepared
        begin(ring, count)
        if ring._native.prepared != before:
            begun.append(before - ring._native.prepared)

    monkeypatch.setattr(Ring, "_begin", counted)
    return begun
