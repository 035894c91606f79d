"""Reads the PCI functions that a transfer passes, RDMA NICs, GPUs and the bridges between them, and their registers.

The layout of the registers is that of the PCI Express Base Specification: a list of capabilities in the first 256
bytes of a function's configuration space, and one of extended capabilities from byte 256 on. The kernel shows the first
64 bytes to everyone, and the rest to root only; sysfs shows these facts nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zerohop.machine import files
from zerohop.machine.accelerators import read_accelerators
from zerohop.machine.pci import PciPlace, place_of

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = 64  # bytes that everyone may read
_STATUS, _HAS_CAPABILITIES, _FIRST = 0x06, 0x10, 0x34
_EXPRESS, _EXPRESS_CONTROL = 0x10, 8
_EXTENDED, _ACS, _ACS_CONTROL = 0x100, 0x000D, 6
_MOST_CAPABILITIES = 64  # the end for a list that leads back into itself

# Bits of the ACS control register: send peer-to-peer requests, completions, or egress by control vector to the root.
ACS_REDIRECTS = 0x04 | 0x08 | 0x20


@dataclass(frozen=True, slots=True)
class ConfigSpace:
    """Holds the facts of one function; a fact is None if the function has no such register.

    Attributes:
        readable: whether the capabilities could be read; if not, all other facts are None.
        acs_control: Access Control Services of a bridge: the peer-to-peer traffic that it sends up to the root.
        read_request: largest read request that the function makes, in bytes.
        relaxed_ordering: whether it may mark its requests as free to overtake others.
    """

    readable: bool
    acs_control: int | None = None
    read_request: int | None = None
    relaxed_ordering: bool | None = None

    @property
    def redirects(self) -> bool:
        """Tell whether this bridge sends peer-to-peer traffic up to the root complex."""
        return bool((self.acs_control or 0) & ACS_REDIRECTS)


def read_config_space(function: Path) -> ConfigSpace:
    """Read the file `config` of a function's sysfs folder."""
    try:
        return decode((function / "config").read_bytes())
    except OSError:
        return ConfigSpace(readable=False)


def decode(data: bytes) -> ConfigSpace:
    """Read the registers from the bytes of a configuration space; a register that is not there is None."""
    if len(data) <= _HEADER:
        return ConfigSpace(readable=False)
    express = _capability(data, _EXPRESS)
    control = None if express is None else _word(data, express + _EXPRESS_CONTROL)
    acs = _extended_capability(data, _ACS)
    return ConfigSpace(
        readable=True,
        acs_control=None if acs is None else _word(data, acs + _ACS_CONTROL),
        read_request=None if control is None else 128 << (control >> 12 & 7),
        relaxed_ordering=None if control is None else bool(control & 0x10),
    )


def _word(data: bytes, at: int) -> int | None:
    return int.from_bytes(data[at : at + 2], "little") if at + 2 <= len(data) else None


def _capability(data: bytes, wanted: int) -> int | None:
    if not data[_STATUS] & _HAS_CAPABILITIES:
        return None
    at = data[_FIRST] & ~3
    for _ in range(_MOST_CAPABILITIES):
        if at < _HEADER or at + 2 > min(len(data), _EXTENDED):
            return None
        if data[at] == wanted:
            return at
        at = data[at + 1] & ~3
    return None


def _extended_capability(data: bytes, wanted: int) -> int | None:
    at = _EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        if at < _EXTENDED or at + 4 > len(data):
            return None
        header = int.from_bytes(data[at : at + 4], "little")
        if header & 0xFFFF == wanted:
            return at
        at = header >> 20 & ~3
    return None


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
    def gbit_per_s(self) -> float | None:
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
