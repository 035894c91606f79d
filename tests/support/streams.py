"""A stream of a simulated device, as a user has one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from support.native import engine_of
from support.patience import PATIENCE_S
from zerohop import _native

if TYPE_CHECKING:
    import zerohop as zh

STANDS_S = 0.03  # how long a stream that must not go on is looked at


class Stream:
    """A user's stream on a simulated device, which stands still until it is released."""

    def __init__(self, context: zh.Context, device: int = 0) -> None:
        self.native = _native.SimStream(engine_of(context), device)
        self._word = np.zeros(1, np.uint32)

    def __cuda_stream__(self) -> tuple[int, int]:
        return self.native.__cuda_stream__()

    @property
    def zerohop_device(self) -> str:
        return self.native.zerohop_device

    def stand_still(self) -> None:
        self.native.wait32(self._word.ctypes.data, 1)

    def release(self) -> None:
        self._word[0] = 1

    def stands_still(self) -> bool:
        return not self.native.synchronize(time.monotonic_ns() + int(STANDS_S * 1e9))

    def finish(self) -> None:
        assert self.native.synchronize(time.monotonic_ns() + int(PATIENCE_S * 1e9)), "the stream stands still"
