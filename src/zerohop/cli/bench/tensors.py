"""Makes memory of GPUs that no Context has allocated: torch's, or the driver's own where torch cannot use GPUs."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from zerohop._floors import GpuMemory


@functools.cache
def has_torch() -> bool:
    """Tell whether there is a torch that can use GPUs: some are built without."""
    if importlib.util.find_spec("torch") is None:
        return False
    return bool(import_torch().cuda.is_available())


def import_torch() -> Any:
    """Return torch, which is installed if a case that needs it was planned."""
    return importlib.import_module("torch")


def set_expandable(*, on: bool) -> None:
    """Set whether torch allocates expandable segments of virtual memory, or memory of cudaMalloc."""
    torch = import_torch()
    torch.cuda.empty_cache()
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # noqa: SLF001 - torch has no public name
    if setter is None:
        setter = torch.cuda.memory._set_allocator_settings  # noqa: SLF001 - the name in older versions, likewise
    setter(f"expandable_segments:{on}")


def zeros(nbytes: int, device: str, *, expandable: bool) -> Any:
    """Return a tensor in a new allocation, once its zeros are written."""
    torch = import_torch()
    set_expandable(on=expandable)
    tensor = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    # torch has only queued the zeros, and copies that name no stream overtake them.
    torch.cuda.synchronize(device)
    return tensor


def gpu_array(nbytes: int, device: str) -> Any:
    """Return an array in a new allocation of cudaMalloc, by torch if it can use GPUs. Slices of it are arrays, too."""
    if has_torch():
        return zeros(nbytes, device, expandable=False)
    memory = GpuMemory(int(device.partition(":")[2] or 0), nbytes)
    return DriverArray(memory, memory.address, nbytes)


class DriverArray:
    """Shows bytes of the driver's memory by the protocol that libraries of arrays on GPUs share."""

    def __init__(self, memory: GpuMemory, address: int, nbytes: int) -> None:
        """Show `nbytes` of `memory`, which lives as long."""
        self._memory = memory
        self._address = address
        self._nbytes = nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Describe the bytes."""
        return {"shape": (self._nbytes,), "typestr": "|u1", "data": (self._address, False), "version": 3}

    def __getitem__(self, part: slice) -> DriverArray:
        """Return a part that has a start and an end."""
        start, stop, _ = part.indices(self._nbytes)
        return DriverArray(self._memory, self._address + start, stop - start)
