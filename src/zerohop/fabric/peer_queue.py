"""Declares PeerQueue: the send queue of a queue pair that two Contexts have agreed on, for kernels of one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zerohop.core.face import HOST
from zerohop.errors import Unsupported
from zerohop.fabric.config import EndpointConfig
from zerohop.fabric.kernel_queue import NIC, KernelQueue
from zerohop.fabric.resource import Resource

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from zerohop._native import FabricEndpoint
    from zerohop.core.face import Context

MESSAGES: Final = 1024  # requests that may be under way
INLINE_BYTES: Final = 28  # as zerohop/device/mlx5.hpp has room for


class _Pair(Resource):
    """Holds a queue pair as a KernelQueue wants it."""

    __slots__ = ("config", "qpn")

    _kind = "queue pair"

    def __init__(self, native: FabricEndpoint) -> None:
        super().__init__(None, native)
        self.config = EndpointConfig(max_messages=MESSAGES, on_gpu=True)
        self.qpn = native.address()[0]


class PeerQueue(KernelQueue):
    """Lets kernels write requests for one peer. Closing its ``endpoint`` closes it, and the queue pair.

    Kernels ring the NIC's doorbell where that is possible. Elsewhere this process reads their requests, and posts them.

    Attributes:
        told: who reads the requests, and why not the NIC.
    """

    __slots__ = ("told",)

    def __init__(self, native: FabricEndpoint, ctx: Context, device: str, timeout: float) -> None:
        pair = _Pair(native)
        try:
            super().__init__(pair, ctx, device, timeout, collapsed=False, doorbell=NIC)
            self.told = "the NIC reads the requests"
        except Unsupported as error:
            super().__init__(pair, ctx, device, timeout, collapsed=False, doorbell=HOST)
            self.told = f"this process reads the requests, as the NIC cannot: {error.reason}"

    def running(self) -> AbstractContextManager[object]:
        """Return what lets kernels use the queue, without the errors of `check`."""
        return self._running()

    def end(self, status: int) -> None:
        """End the waits of kernels with a status."""
        self._end(status)
