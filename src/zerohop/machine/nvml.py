"""Asks NVIDIA's management library (NVML) about the driver and the GPUs, without starting CUDA.

The library is opened once, and each query asks it anew. A fact is left out if the library or its version lacks it.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any, Final

_LIBRARY: Final = "libnvidia-ml.so.1"
_OK: Final = 0
_MISMATCH: Final = 18
_TEXT: Final = 96

# Questions for nvmlDeviceGetP2PStatus, and its answers.
_WRITE, _NVLINK = 1, 2
_NO_PEER: Final = {
    1: "the chipset does not support it",
    2: "the GPUs do not support it",
    3: "they hang on different root complexes",
    4: "it is disabled in the driver's settings",
    5: "it is not supported",
}
# States of a GPU in the fabric of NVSwitches.
_FABRIC: Final = {1: "not started", 2: "starting"}
_COMPLETED: Final = 3


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),
        ("address", ctypes.c_char * 32),
    )


class _FabricInfo(ctypes.Structure):
    _fields_ = (
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    """Describes a GPU that this process may see.

    Attributes:
        pci_address: PCI address as the kernel writes it.
        mig: whether the GPU is divided (Multi-Instance GPU).
        fabric: "" if its fabric of NVSwitches is ready, or if it has none; else "not started", "starting" or "failed".
    """

    pci_address: str
    mig: bool
    fabric: str


@dataclass(frozen=True, slots=True)
class GpuPair:
    """Describes the link of two GPUs, which their PCI addresses name.

    Attributes:
        a: the first GPU.
        b: the second GPU.
        link: "nvlink" or "pcie"; "" if they cannot reach each other's memory.
        why: the reason why they cannot.
    """

    a: str
    b: str
    link: str
    why: str


@dataclass(frozen=True, slots=True)
class Nvidia:
    """Describes the driver and its GPUs.

    Attributes:
        why_not: the reason why the library cannot be asked; then no other field is known.
        mismatch: whether the library has another version than the kernel's modules.
        driver: version of the driver.
        cuda: version of CUDA that the driver supports, as (12, 4); None: unknown.
        gpus: the GPUs that this process may see, whatever CUDA_VISIBLE_DEVICES says.
        pairs: every pair of them that the driver knows about.
    """

    why_not: str
    mismatch: bool = False
    driver: str = ""
    cuda: tuple[int, int] | None = None
    gpus: tuple[NvidiaGpu, ...] = ()
    pairs: tuple[GpuPair, ...] = ()


def read_nvidia() -> Nvidia:
    """Query the library; takes some ten milliseconds the first time."""
    library, why_not, code = _open()
    if library is None:
        return Nvidia(why_not, mismatch=code == _MISMATCH)
    driver = ctypes.create_string_buffer(_TEXT)
    cuda = ctypes.c_int()
    _ask(library, "nvmlSystemGetDriverVersion", driver, _TEXT)
    known = _ask(library, "nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
    handles = _handles(library)
    gpus = tuple(_gpu(library, handle) for handle in handles)
    pairs = []
    for i, (here, gpu) in enumerate(zip(handles, gpus, strict=True)):
        for there, other in zip(handles[i + 1 :], gpus[i + 1 :], strict=True):
            access = p2p_status(library, here, there, _WRITE)
            if access is not None:
                link = "" if access != _OK else "nvlink" if p2p_status(library, here, there, _NVLINK) == _OK else "pcie"
                why = "" if link else _NO_PEER.get(access, "the driver does not say why")
                pairs.append(GpuPair(gpu.pci_address, other.pci_address, link, why))
    version = divmod(cuda.value // 10, 100) if known else None
    return Nvidia("", driver=driver.value.decode(errors="replace"), cuda=version, gpus=gpus, pairs=tuple(pairs))


# Asked anew, the library takes longer than the driver does to open a peer's memory, which each new allocation needs.
@functools.cache
def over_nvlink(uuid: str, other: str) -> bool | None:
    """Tell whether two GPUs reach each other by NVLink; None if that is not known. A pair is looked up once."""
    library, *_ = _open()
    if library is None:
        return None
    handles = []
    for each in (uuid, other):
        handle = ctypes.c_void_p()
        if not _ask(library, "nvmlDeviceGetHandleByUUID", each.encode(), ctypes.byref(handle)):
            return None
        handles.append(handle)
    status = p2p_status(library, handles[0], handles[1], _NVLINK)
    return None if status is None else status == _OK


def p2p_status(library: ctypes.CDLL, here: ctypes.c_void_p, there: ctypes.c_void_p, what: int) -> int | None:
    """Return the library's answer about two GPUs; None if it has none."""
    status = ctypes.c_int(-1)
    return status.value if _ask(library, "nvmlDeviceGetP2PStatus", here, there, what, ctypes.byref(status)) else None


@functools.cache
def _open() -> tuple[ctypes.CDLL | None, str, int]:
    """Return the library; else the reason why it cannot be used, and its error code."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        code = library.nvmlInit_v2()
    except (OSError, AttributeError) as error:
        return None, str(error), -1
    if code == _OK:
        return library, "", code
    library.nvmlErrorString.restype = ctypes.c_char_p
    return None, f"{_LIBRARY}: {(library.nvmlErrorString(code) or b'it does not start').decode(errors='replace')}", code


def _ask(library: ctypes.CDLL, function: str, *arguments: Any) -> bool:
    """Call a function of the library, and tell whether it succeeded."""
    try:
        return bool(getattr(library, function)(*arguments) == _OK)
    except AttributeError:
        return False


def _handles(library: ctypes.CDLL) -> list[ctypes.c_void_p]:
    count = ctypes.c_uint()
    _ask(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    handles = [ctypes.c_void_p() for _ in range(count.value)]
    # A GPU that has fallen off the bus has no handle.
    return [
        handle
        for number, handle in enumerate(handles)
        if _ask(library, "nvmlDeviceGetHandleByIndex_v2", number, ctypes.byref(handle))
    ]


def _gpu(library: ctypes.CDLL, handle: ctypes.c_void_p) -> NvidiaGpu:
    place, fabric = _PciInfo(), _FabricInfo()
    mig, pending = ctypes.c_uint(), ctypes.c_uint()
    _ask(library, "nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(place))
    _ask(library, "nvmlDeviceGetMigMode", handle, ctypes.byref(mig), ctypes.byref(pending))
    _ask(library, "nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(fabric))
    domain, _, rest = place.address.decode(errors="replace").lower().partition(":")
    failed = "failed" if fabric.state == _COMPLETED and fabric.status != _OK else ""
    return NvidiaGpu(f"{domain[-4:]}:{rest}", mig.value == 1, _FABRIC.get(fabric.state, failed))
