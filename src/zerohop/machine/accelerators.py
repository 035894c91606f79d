"""Accelerators: the simulated ones that were asked for, and the graphics processors that PCI shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zerohop.machine import files
from zerohop.machine.pci import numa_node

if TYPE_CHECKING:
    from pathlib import Path

# PCI vendor -> (driver of this library, name, kernel modules that serve it)
_VENDORS = {
    0x10DE: ("cuda", "NVIDIA", ("nvidia",)),
    0x1002: ("hip", "AMD", ("amdgpu",)),
}
_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)  # VGA, 3D, other display controllers; processing accelerators


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator and whether this library can use it.

    Attributes:
        name: "sim:0" for a simulated device; the PCI address for a device that no driver of the library has opened.
        kind: "sim", "cuda" or "hip".
        model: what it is, in words.
        usable: a Context of this process can allocate on it.
        why: the reason when it cannot be used, else "".
        fix: what to do about it, or "" when nothing on this machine would help.
        verified: the driver has run on such hardware; a simulated device never counts as hardware.
        pci_address: where it is, or None for a simulated device.
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


def simulated(names: tuple[str, ...]) -> tuple[Accelerator, ...]:
    """Describes the simulated devices that a Context has opened."""
    model = "simulated in host memory; not a GPU"
    return tuple(Accelerator(name, "sim", model, usable=True, why="", fix="", verified=False) for name in names)


def read_accelerators(root: Path) -> tuple[Accelerator, ...]:
    """Reads the graphics processors below `root`. None of them is usable: only the sim driver exists so far."""
    found = []
    for folder in files.entries(root / "sys/bus/pci/devices"):
        vendor = files.number(folder / "vendor")
        device_class = files.number(folder / "class")
        if vendor in _VENDORS and device_class is not None and device_class >> 8 in _CLASSES:
            found.append(_accelerator(root, folder, vendor))
    return tuple(found)


def _accelerator(root: Path, folder: Path, vendor: int) -> Accelerator:
    kind, maker, modules = _VENDORS[vendor]
    bound = files.link_name(folder / "driver")
    if bound not in modules:
        why = f"the kernel driver {modules[0]} does not serve it (bound: {bound or 'none'})"
        fix = f"install {maker}'s driver and load it: modprobe {modules[0]}"
    else:
        why = f"this version of zerohop has no {kind} driver; it moves the memory of sim devices and of the host"
        fix = "copy to host memory and register that"
    return Accelerator(
        name=folder.name,
        kind=kind,
        model=_model(root, folder, maker),
        usable=False,
        why=why,
        fix=fix,
        verified=False,
        pci_address=folder.name,
        numa_node=numa_node(folder),
    )


def _model(root: Path, folder: Path, maker: str) -> str:
    information = files.fields(root / "proc/driver/nvidia/gpus" / folder.name / "information")
    product = information.get("Model") or files.text(folder / "product_name")
    return product or f"{maker} device {files.text(folder / 'device') or 'of unknown type'}"
