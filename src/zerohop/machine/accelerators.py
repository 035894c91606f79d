"""Describes accelerators: the requested simulated devices, and the graphics processors that PCI shows.

It does not try to start a driver: that takes some hundred milliseconds, and makes this a process that uses GPUs.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zerohop.machine import files
from zerohop.machine.pci import numa_node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# PCI vendor -> (driver of this library, name, kernel modules that serve it)
_VENDORS = {
    0x10DE: ("cuda", "NVIDIA", ("nvidia",)),
    0x1002: ("hip", "AMD", ("amdgpu",)),
}
# Kinds of GPUs that the library has run on, and the processor of the host. docs/guarantees.md names the GPUs.
_VERIFIED = {"cuda": "x86_64"}
_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)  # VGA, 3D, other display controllers; processing accelerators


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Describes one accelerator, and says whether this library can use it.

    Attributes:
        name: "sim:0" for a simulated device; the PCI address for a device that no driver of the library has opened.
        kind: "sim", "cuda" or "hip".
        model: name of the model.
        usable: whether a Context of this process can allocate on it.
        why: the reason why it cannot be used, else "".
        fix: what to do about that, or "" if nothing on this machine would help.
        verified: whether the driver has run on such hardware; a simulated device never counts as hardware.
        pci_address: PCI address, or None for a simulated device.
        numa_node: memory node that it is attached to, or None.
    """

    name: str
    kind: str
    model: str
    usable: bool
    why: str
    fix: str
    verified: bool
    pci_address: str | None = None
    numa_node: int | None = None


def simulated(names: Sequence[str]) -> tuple[Accelerator, ...]:
    """Describe the simulated devices that a Context has opened."""
    model = "simulated in host memory; not a GPU"
    return tuple(Accelerator(name, "sim", model, usable=True, why="", fix="", verified=False) for name in names)


def read_open_modules(root: Path) -> bool | None:
    """Tell whether NVIDIA's kernel modules are the open ones, which export GPU memory as dma-buf; None without them."""
    version = files.text(root / "proc/driver/nvidia/version")
    return None if version is None else "Open Kernel Module" in version


def read_accelerators(root: Path, drivers: Mapping[str, str] | None = None) -> tuple[Accelerator, ...]:
    """Read the graphics processors below `root`.

    Args:
        root: root of the file system.
        drivers: kinds of GPUs that the library has a driver for, each with the reason why it cannot be used; None: asks
            the library.
    """
    if drivers is None:
        from zerohop._native import gpu_drivers

        drivers = gpu_drivers()
    found = []
    for folder in files.entries(root / "sys/bus/pci/devices"):
        vendor = files.number(folder / "vendor")
        device_class = files.number(folder / "class")
        if vendor in _VENDORS and device_class is not None and device_class >> 8 in _CLASSES:
            found.append(_accelerator(root, folder, vendor, drivers))
    return tuple(found)


def _accelerator(root: Path, folder: Path, vendor: int, drivers: Mapping[str, str]) -> Accelerator:
    kind, maker, modules = _VENDORS[vendor]
    bound = files.link_name(folder / "driver")
    if bound not in modules:
        why = f"the kernel driver {modules[0]} does not serve it (bound: {bound or 'none'})"
        fix = f"install {maker}'s driver and load it: modprobe {modules[0]}"
    elif kind not in drivers:
        why = f"this version of zerohop has no {kind} driver; its memory can be copied to the host and registered there"
        fix = ""
    elif drivers[kind]:
        why = drivers[kind]
        fix = "install the driver's libraries; in a container, start it with the GPUs (docker run --gpus all)"
    else:
        why = fix = ""
    return Accelerator(
        name=folder.name,
        kind=kind,
        model=_model(root, folder, maker),
        usable=not why,
        why=why,
        fix=fix,
        verified=kind in _VERIFIED and platform.machine() == _VERIFIED[kind],
        pci_address=folder.name,
        numa_node=numa_node(folder),
    )


def _model(root: Path, folder: Path, maker: str) -> str:
    information = files.fields(root / "proc/driver/nvidia/gpus" / folder.name / "information")
    product = information.get("Model") or files.text(folder / "product_name")
    return product or f"{maker} device {files.text(folder / 'device') or 'of unknown type'}"
