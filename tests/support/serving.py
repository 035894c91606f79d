"""What the other side does with files: it serves a folder, or reads and writes one that is served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from support.patience import PATIENCE_S
from support.written_blocks import write_blocks
from zerohop import storage

if TYPE_CHECKING:
    import zerohop as zh


class Serving:
    """Part of Service."""

    context: zh.Context
    _server: storage.Server | None = None
    _store: storage.Store | None = None

    def serve(self, folder: str, memory: int = 8 << 20, read_only: bool = False) -> str:
        """Serves a folder; returns the URL."""
        self._server = storage.Server(folder, ctx=self.context, memory=memory, read_only=read_only)
        return self._server.url

    def served(self) -> storage.ServerStatistics:
        assert self._server is not None
        return self._server.statistics()

    def stop_serving(self) -> None:
        assert self._server is not None
        self._server.close()

    def use_store(self, url: str) -> None:
        """Opens the folder of a server."""
        self._store = storage.open_store(url, ctx=self.context)

    def open_file(self, path: str) -> None:
        """Opens a file, and keeps it open."""
        assert self._store is not None
        self._file = self._store.open(path, "r+").result(PATIENCE_S)

    def read_file(self, nbytes: int, times: int = 1, timeout: float = PATIENCE_S) -> int:
        """Reads the open file from its start, again and again; returns the sum of the last bytes."""
        target = np.zeros(nbytes, np.uint8)
        for _ in range(times):
            self._file.read_into(target, timeout=timeout).result()
        return int(target.sum())

    def read_by_ring(self, nbytes: int, times: int = 1) -> None:
        """Reads the open file from its start into allocated memory, again and again, through a Ring."""
        assert self._store is not None
        target, ring = self.context.alloc(nbytes), self._store.ring(8)
        for _ in range(times):
            for at in range(0, nbytes, nbytes // 8):
                ring.prepare(target[at : at + nbytes // 8], self._file, at)
            ring.submit()
            ring.wait(min_results=8, timeout=PATIENCE_S)

    def write_file(self, nbytes: int, value: int, times: int = 1) -> None:
        """Fills the start of the open file with a value, again and again."""
        source = np.full(nbytes, value, np.uint8)
        for _ in range(times):
            self._file.write_from(source).result(PATIENCE_S)

    def write_blocks(self, log: str) -> None:
        """Writes blocks of the open file until the process is ended; adds a byte to `log` for each acknowledged one."""
        with Path(log).open("ab", buffering=0) as noted:
            write_blocks(self.context, self._file, lambda _: noted.write(b"."))

    def leave_store(self) -> None:
        assert self._store is not None
        self._file.close()
        self._store.close()
