"""Drives child.py."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zerohop as zh
from support.buffers import GPUS
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

CHILD = Path(__file__).parent / "child.py"
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


class Other:
    """Another process, with `nbytes` on its only GPU: another one than the tests' first, where there are two."""

    def __init__(self, nbytes: int, environment: Mapping[str, str] = {}, *, gpu: int | None = None) -> None:
        visible = str(gpu if gpu is not None else min(1, GPUS - 1))
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), str(nbytes), "cuda:0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible, **environment},
        )
        self.said = self._hear()
        self.handle = zh.RemoteBuffer.from_bytes(bytes.fromhex(self.said["handle"]))

    def ask(self, *words: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def expect(self, start: int, data: bytes) -> None:
        """Its memory has these bytes there."""
        assert self.ask("sum", start, start + len(data))["sum"] == hashlib.sha256(data).hexdigest()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the other process has ended"
        said: dict[str, Any] = json.loads(line)
        return said
