"""Reads RDMA devices as a process meets them: their device files, libraries, firmware and error counters."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zerohop.machine import files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zerohop.machine.nics import RdmaDevice

# Kernel driver of the PCI function -> (driver of rdma-core that serves it, kernel module that makes the RDMA device).
DRIVERS = {
    "mlx5_core": ("mlx5", "mlx5_ib"),
    "mlx4_core": ("mlx4", "mlx4_ib"),
    "bnxt_en": ("bnxt_re", "bnxt_re"),
    "ice": ("irdma", "irdma"),
    "i40e": ("irdma", "irdma"),
    "ionic": ("ionic", "ionic_rdma"),
    "efa": ("efa", "efa"),
    "erdma": ("erdma", "erdma"),
    "mana": ("mana", "mana_ib"),
    "hns3": ("hns", "hns_roce_hw_v2"),
    "qede": ("qedr", "qedr"),
    "cxgb4": ("cxgb4", "iw_cxgb4"),
    "hfi1": ("hfi1verbs", "hfi1"),
    "vmw_pvrdma": ("vmw_pvrdma", "vmw_pvrdma"),
    "rxe": ("rxe", "rdma_rxe"),
    "siw": ("siw", "siw"),
}
# Files of a port's `counters` and `hw_counters`: packets that arrived damaged, and RoCE packets that were lost.
DAMAGED = ("symbol_error", "port_rcv_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors")
LOST = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rx_icrc_encapsulated")
_PLACES = ("usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64", "lib", "lib64")


@dataclass(frozen=True, slots=True)
class Node:
    """Holds a device file: its path, and 0 or the error number from opening it."""

    path: str
    error: int


@dataclass(frozen=True, slots=True)
class Hca:
    """Holds the facts of a device that `RdmaDevice` lacks.

    Attributes:
        device: the facts that the kernel shows.
        software: whether it has no hardware of its own.
        kind: "CA" (InfiniBand, RoCE), "RNIC" (iWARP), ... or "unknown".
        board: kind of card, to compare cards of one kind; "" if the driver does not say.
        firmware: version; "" if there is none.
        driver: name of its driver in rdma-core, "" if it is not known.
        module: kernel module that makes the RDMA device, "" if it is not known.
        library: path of rdma-core's library for the device, "" if it was not found.
        nodes: its device files for verbs; none without ib_uverbs.
        counters: error counters of each port that are not 0.
    """

    device: RdmaDevice
    software: bool
    kind: str
    board: str
    firmware: str
    driver: str
    module: str
    library: str
    nodes: tuple[Node, ...]
    counters: Mapping[int, Mapping[str, int]]

    @property
    def name(self) -> str:
        """Return the kernel's name of the device."""
        return self.device.name


def read_hca(root: Path, device: RdmaDevice, libraries: tuple[Path, ...]) -> Hca:
    """Read the facts of `device`.

    Args:
        root: root of the file system, with /sys and /dev.
        device: the device.
        libraries: folders with the libraries of rdma-core's drivers.
    """
    folder = root / "sys/class/infiniband" / device.name
    kind = (files.text(folder / "node_type") or "unknown").rpartition(":")[2].strip()
    software = device.driver is None and device.pci_address is None
    served_by = device.driver or ""
    if software:
        served_by = "siw" if kind == "RNIC" else "rxe"
    driver, module = DRIVERS.get(served_by, ("", ""))
    return Hca(
        device=device,
        software=software,
        kind=kind,
        board=files.text(folder / "board_id") or "",
        firmware=files.text(folder / "fw_ver") or "",
        driver=driver,
        module=module,
        library=_library(root, driver, libraries),
        nodes=_nodes(root, device.name),
        counters={port.number: _counters(folder / f"ports/{port.number}") for port in device.ports},
    )


def library_folders(root: Path, ibverbs: str) -> tuple[Path, ...]:
    """Return the folders that may hold rdma-core's drivers: the one beside libibverbs first, then the usual ones."""
    beside = [(root / ibverbs.lstrip("/")).parent / "libibverbs"] if ibverbs else []
    for place in _PLACES:
        beside += [root / place / "libibverbs", *sorted((root / place).glob("*/libibverbs"))]
    return tuple(dict.fromkeys(beside))


def _library(root: Path, driver: str, folders: tuple[Path, ...]) -> str:
    for folder in folders:
        for path in sorted(folder.glob(f"lib{driver}-rdmav*.so")):
            return f"/{path.relative_to(root)}"
    return ""


def _nodes(root: Path, device: str) -> tuple[Node, ...]:
    names = [
        folder.name
        for folder in files.entries(root / "sys/class/infiniband_verbs")
        if files.text(folder / "ibdev") == device
    ]
    return tuple(Node(f"/dev/infiniband/{name}", _opens(root / "dev/infiniband" / name)) for name in names)


def _opens(path: Path) -> int:
    # Permissions do not tell all: a container's device rules refuse files that everyone may write.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _counters(port: Path) -> dict[str, int]:
    read = {name: files.number(port / "counters" / name) for name in DAMAGED}
    read |= {name: files.number(port / "hw_counters" / name) for name in LOST}
    return {name: count for name, count in read.items() if count}
