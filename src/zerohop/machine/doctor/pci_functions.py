"""Reads the PCI functions that a transfer passes: RDMA NICs, GPUs, and the bridges between them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zerohop.machine import files
from zerohop.machine.accelerators import read_accelerators
from zerohop.machine.doctor.config_space import ConfigSpace, read_config_space
from zerohop.machine.pci import PciPlace, place_of

if TYPE_CHECKING:
    from pathlib import Path

_BARS = 6
# All functions with these vendors and classes or devices are RDMA NICs. Of other makers only some are: those are
# recognised by their RDMA device.
_MELLANOX, _MELLANOX_CLASSES = 0x15B3, (0x0200, 0x0207)  # Ethernet, InfiniBand
_FIRST_OF_MLX5 = 0x1011  # Connect-IB
_AMAZON, _EFA_DEVICES = 0x1D0F, range(0xEFA0, 0xEFB0)


@dataclass(frozen=True, slots=True)
class PciLink:
    """Holds speed and width of a PCI Express link: gigatransfers a second of one lane, and lanes; None if not known."""

    gts: float | None = None
    lanes: int | None = None

    def __str__(self) -> str:
        gts = "speed not known" if self.gts is None else f"{self.gts:g} GT/s"
        return f"{gts} x{self.lanes if self.lanes is not None else '?'}"

    @property
    def gbps(self) -> float | None:
        """Return the gigabits a second in one direction, after the line code and before packet headers."""
        if self.gts is None or self.lanes is None:
            return None
        return self.gts * self.lanes * (128 / 130 if self.gts >= 8 else 8 / 10)


@dataclass(frozen=True, slots=True)
class PciFunction:
    """Holds the facts of one PCI function.

    Attributes:
        address: PCI address, such as "0000:18:00.0".
        driver: kernel driver that serves it, or None.
        made_for: the kernel driver that is made for it, if that is known even without a driver; else "".
        rdma: its RDMA device, or None.
        link: the link in its present state.
        most: the best link that the function supports.
        slot: the best link that the bridge above it supports; None if there is no such bridge.
        iommu: mode of its IOMMU group: "identity", "DMA", "DMA-FQ", ...; "" if the type is unknown, None without a
            group.
        bars: sizes of its memory windows, in bytes.
        place: its place on PCI.
        config: its configuration space.
    """

    address: str
    driver: str | None
    made_for: str
    rdma: str | None
    link: PciLink
    most: PciLink
    slot: PciLink | None
    iommu: str | None
    bars: tuple[int, ...]
    place: PciPlace
    config: ConfigSpace


@dataclass(frozen=True, slots=True)
class Gpu:
    """Holds a GPU: "cuda" or "hip", the name of its model, its memory in bytes if sysfs shows it, and its function."""

    kind: str
    model: str
    memory: int | None
    function: PciFunction


def read_nic_functions(root: Path) -> tuple[PciFunction, ...]:
    """Read the functions below `root` that are RDMA NICs, whether or not a driver has made an RDMA device of them."""
    found = (_function(root, folder) for folder in files.entries(root / "sys/bus/pci/devices") if _is_nic(folder))
    return tuple(function for function in found if function is not None)


def read_gpus(root: Path) -> tuple[Gpu, ...]:
    """Read the GPUs below `root`, by PCI address."""
    found = []
    for gpu in read_accelerators(root):
        folder = root / "sys/bus/pci/devices" / gpu.name
        function = _function(root, folder)
        if function is not None:
            found.append(Gpu(gpu.kind, gpu.model, files.number(folder / "mem_info_vram_total"), function))
    return tuple(found)


def read_bridges(root: Path, functions: tuple[PciFunction, ...]) -> dict[str, ConfigSpace]:
    """Read the configuration spaces of all bridges on the way to `functions`."""
    addresses = {bridge for function in functions for bridge in function.place.bridges}
    return {address: read_config_space(root / "sys/bus/pci/devices" / address) for address in sorted(addresses)}


def _is_nic(folder: Path) -> bool:
    return _made_for(folder) != "" or _rdma_device(folder) is not None


def _made_for(folder: Path) -> str:
    vendor, device, kind = (files.number(folder / name) for name in ("vendor", "device", "class"))
    if vendor == _MELLANOX and kind is not None and kind >> 8 in _MELLANOX_CLASSES:
        return "mlx5_core" if device is None or device >= _FIRST_OF_MLX5 else "mlx4_core"
    return "efa" if vendor == _AMAZON and device in _EFA_DEVICES else ""


def _rdma_device(folder: Path) -> str | None:
    # A software device over the function's interface does not belong to the function.
    for device in files.entries(folder / "infiniband"):
        if files.text(device / "parent") is None and files.text(device / "node_desc") != "rxe":
            return device.name
    return None


def _function(root: Path, folder: Path) -> PciFunction | None:
    place = place_of(folder)
    if place is None:
        return None
    above = root / "sys/bus/pci/devices" / place.bridges[-1] if place.bridges else None
    return PciFunction(
        address=folder.name,
        driver=files.link_name(folder / "driver"),
        made_for=_made_for(folder),
        rdma=_rdma_device(folder),
        link=_link(folder, "current"),
        most=_link(folder, "max"),
        slot=_link(above, "max") if above is not None else None,
        iommu=_iommu(folder),
        bars=_bars(folder),
        place=place,
        config=read_config_space(folder),
    )


def _link(folder: Path, which: str) -> PciLink:
    speed = re.match(r"(\d+(?:\.\d+)?) GT/s", files.text(folder / f"{which}_link_speed") or "")
    lanes = files.number(folder / f"{which}_link_width")
    # A virtual machine may show a link of 0 lanes; a driver that does not know the width shows 255.
    return PciLink(float(speed[1]) if speed else None, lanes if lanes is not None and 0 < lanes < 64 else None)


def _iommu(folder: Path) -> str | None:
    group = folder / "iommu_group"
    return (files.text(group / "type") or "") if group.exists() else None


def _bars(folder: Path) -> tuple[int, ...]:
    sizes = []
    for line in (files.text(folder / "resource") or "").splitlines()[:_BARS]:
        first, last, *_ = (int(word, 16) for word in line.split())
        if last > first:
            sizes.append(last - first + 1)
    return tuple(sizes)
