"""Declares PeerQueue: the send queue of a queue pair that two Contexts have agreed on, for kernels of one of them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError
from zerohop.core.face import HOST
from zerohop.errors import Unsupported
from zerohop.fabric.config import EndpointConfig
from zerohop.fabric.kernel_queue import NIC, KernelQueue
from zerohop.fabric.resource import Resource

if TYPE_CHECKING:
    from zerohop._native import FabricEndpoint
    from zerohop.core.face import Context, KernelWork

MESSAGES: Final = 1024  # requests that may be under way
INLINE_BYTES: Final = 28  # as zerohop/device/mlx5.hpp has room for
_PEER_LOST: Final = 2  # as zerohop/device/layout.hpp declares it


class _Pair(Resource):
    """Adapts a queue pair to the endpoint that KernelQueue expects."""

    __slots__ = ("config", "qpn")

    _native: FabricEndpoint
    _kind = "queue pair"

    def __init__(self, native: FabricEndpoint) -> None:
        super().__init__(None, native)
        self.config = EndpointConfig(max_messages=MESSAGES, on_gpu=True)
        self.qpn = native.address()[0]

    def fail(self) -> None:
        """Have the device flush all requests, and refuse new ones."""
        with suppress(NativeError):  # it is closed at this moment, or the device is gone
            self._native.fail()


class PeerQueue(KernelQueue):
    """Lets kernels write requests for one peer. Closing its ``endpoint`` closes it, and the queue pair.

    Kernels ring the NIC's doorbell where that is possible. Elsewhere this process reads their requests, and posts them.

    Attributes:
        reader: text that says whether the NIC or this process reads the requests, and why.
    """

    __slots__ = ("reader",)

    def __init__(self, native: FabricEndpoint, ctx: Context, device: str, timeout: float) -> None:
        pair = _Pair(native)
        try:
            super().__init__(pair, ctx, device, timeout, collapsed=False, doorbell=NIC)
            self.reader = "the NIC reads the requests"
        except Unsupported as error:
            super().__init__(pair, ctx, device, timeout, collapsed=False, doorbell=HOST)
            self.reader = f"this process reads the requests, because the NIC cannot: {error.reason}"

    @property
    def state_address(self) -> int:
        """Return the address of the word of state, which kernels and this process write."""
        return self._control.address + self._state_at

    @property
    def state(self) -> int:
        """Return the state, a status."""
        return self._state()

    def work(self) -> list[KernelWork]:
        """Return what this process carries out while kernels run: nothing if the NIC reads the requests.

        Raises:
            Closed: the queue is closed.
        """
        return self._work()

    def raise_failure(self) -> None:
        """Raise the failure of a request, or of the device; return if there is none. Errors as of `check`."""
        self._raise_failure()

    def lose(self) -> None:
        """End the waits of kernels because the peer is lost, and have the device refuse further requests."""
        self._end(_PEER_LOST)
        if not self.closed:
            self.endpoint.fail()
