"""Finds the accelerators of a Context by name and by the engine's index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zerohop._native import NativeError, gpu_drivers
from zerohop.core.base import closed_engine
from zerohop.errors import from_native
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zerohop._native import Engine

HOST: Final = "host"
# Name of a device that the driver has to find by the address, because `__cuda_array_interface__` names none.
DEVICE_BY_ADDRESS: Final = ""
# Words that a raw pointer may have in place of a device's name: some device has it, or the driver is to say.
SOME_DEVICE: Final = "device"
ANY_MEMORY: Final = "auto"
# Kinds of devices whose driver knows memory by its address.
GPUS: Final = ("cuda", "hip")
_HOST_INDEX: Final = -1


class Device(NamedTuple):
    """Describes an accelerator of this Context.

    Attributes:
        name: the name that ``alloc`` and ``register`` take, such as ``"sim:0"``.
        kind: the kind of driver: ``"sim"``, ``"cuda"``, ``"hip"``.
        capabilities: names of the abilities that the device has.
        pci_address: address on the PCI bus; empty for a device that is not on a bus.
        total_bytes: size of its memory.
    """

    name: str
    kind: str
    capabilities: tuple[str, ...]
    pci_address: str
    total_bytes: int


class Devices:
    """Finds the devices of one Context by name and by the engine's index. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_name: dict[str, int] | None = None

    @property
    def by_name(self) -> Mapping[str, int]:
        """Return the native index of each device, the host included. The first use opens the drivers."""
        if self._by_name is None:
            self._by_name = {HOST: _HOST_INDEX, **{each["name"]: each["index"] for each in self._all()}}
        return self._by_name

    def index_of(self, name: str) -> int:
        """Return the native index of a device.

        Raises:
            TypeError: the name is no string.
            ValueError: there is no such device; the message names those that exist.
        """
        if not isinstance(name, str):
            raise TypeError(f'a device is a name such as "host" or "cuda:0", not {shown(name)}')
        if name == HOST:
            return _HOST_INDEX
        index = self.by_name.get(name)
        if index is None:
            raise ValueError(self._no_such_device(name))
        return index

    def name_of(self, index: int) -> str:
        """Return the name of the device with this native index."""
        return next(name for name, each in self.by_name.items() if each == index)

    def described(self) -> tuple[Device, ...]:
        """Describe the accelerators; the host is none."""
        return tuple(
            Device(each["name"], each["kind"], tuple(each["capabilities"]), each["pci_address"], each["total_bytes"])
            for each in self._all()
        )

    def close(self) -> None:
        """Release the engine."""
        self._engine = closed_engine.ENGINE

    def _all(self) -> list[dict[str, Any]]:
        try:
            return self._engine.devices()
        except NativeError as error:  # the Context was closed meanwhile
            raise from_native(*error.args) from None

    def _no_such_device(self, name: str) -> str:
        kind = name.partition(":")[0]
        fix = "sim_devices=N adds simulated ones"
        why = ""
        if kind in GPUS:
            fix = "zerohop doctor shows what keeps a GPU from being used"
            try:
                why = self._engine.why_no_gpus().get(kind) or gpu_drivers().get(kind, "")
            except NativeError as error:  # as above
                raise from_native(*error.args) from None
        told = f" ({kind}: {why})" if why else ""
        return f"no device is called {shown(name)}{told}; this Context has {', '.join(self.by_name)}. Fix: {fix}"
