"""Declares OpenedDevice, the part of DeviceContext that endpoints and memory regions know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.config.providers import VERBS
from zerohop.errors import Unsupported
from zerohop.fabric.resource import Resource

if TYPE_CHECKING:
    from zerohop._native import FabricDevice
    from zerohop.fabric.devices import Device


class OpenedDevice(Resource):
    """Holds an opened port of an RDMA device, with a protection domain.

    Attributes:
        device: the device, in the state that it had when it was opened.
        port: number of the port.
    """

    __slots__ = ("_native", "device", "port")

    def __init__(self, parent: Resource, native: FabricDevice, device: Device, port: int) -> None:
        self._native = native
        self.device = device
        self.port = port
        super().__init__(parent)

    @property
    def name(self) -> str:
        """Return device and port in the form ``"mlx5_0:1"``."""
        return f"{self.device.name}:{self.port}"

    def _check_atomics(self) -> None:
        if self.device.limits.atomics == "none":
            raise Unsupported(f"{self.device.name} has no atomics", fix="leave REMOTE_ATOMIC out", provider=VERBS)

    def _release(self) -> None:
        self._native.close()

    def _forget_native(self) -> None:
        self._native.abandon()
