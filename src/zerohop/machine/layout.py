"""Places the GPUs and RDMA NICs of this machine: their distances, and the NICs that serve each GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerohop.config.nic_filter import NicFilter
from zerohop.machine.accelerators import Accelerator, read_accelerators
from zerohop.machine.nics import RdmaDevice, read_rdma_devices
from zerohop.machine.pci import Distance, PciPlace, distance, numa_nodes, read_place
from zerohop.machine.topology import NicSelection, choose_nics


@dataclass(frozen=True, slots=True)
class PlacedGpu:
    """Holds a GPU and its place.

    Attributes:
        name: "GPU0", counting PCI addresses upwards, as nvidia-smi does; CUDA_VISIBLE_DEVICES does not matter here.
        accelerator: its facts.
        place: its place on PCI.
    """

    name: str
    accelerator: Accelerator
    place: PciPlace


@dataclass(frozen=True, slots=True)
class PlacedNic:
    """Holds an RDMA device and its place; None for a software device."""

    device: RdmaDevice
    place: PciPlace | None


@dataclass(frozen=True, slots=True)
class Served:
    """Holds a GPU, or the host memory of one NUMA node, and the RDMA ports that serve it.

    Attributes:
        name: "GPU0", "NUMA 0", or "host" on a machine with a single node.
        gpu: PCI address, or None for host memory.
        numa_node: memory node, or None if it is not known or there is just one.
        distances: distance to each RDMA device, in the order of the devices; None if not known, and for host memory.
        selection: the ports, in their order.
    """

    name: str
    gpu: str | None
    numa_node: int | None
    distances: tuple[Distance | None, ...]
    selection: NicSelection


@dataclass(frozen=True, slots=True)
class Layout:
    """Holds the memory nodes, the GPUs by address, the RDMA devices by name, and the ports that serve them."""

    numa_nodes: tuple[int, ...]
    gpus: tuple[PlacedGpu, ...]
    nics: tuple[PlacedNic, ...]
    served: tuple[Served, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers."""
        return {
            "numa_nodes": list(self.numa_nodes),
            "accelerators": [
                {"name": gpu.name, "model": gpu.accelerator.model, **_place_to_json(gpu.place)} for gpu in self.gpus
            ],
            "nics": [{"name": nic.device.name, **_nic_to_json(nic)} for nic in self.nics],
            "served": [
                {
                    "name": served.name,
                    "pci_address": served.gpu,
                    "numa_node": served.numa_node,
                    "distances": {
                        nic.device.name: far.name if far is not None else None
                        for nic, far in zip(self.nics, served.distances, strict=True)
                    },
                    **_selection_to_json(served.selection),
                }
                for served in self.served
            ],
        }


def read_layout(root: Path = Path("/"), nics: NicFilter | None = None) -> Layout:
    """Inspect the machine below `root`, and choose NICs for each GPU and each memory node.

    Args:
        root: root of the file system, with /sys and /proc.
        nics: the filter to choose with, or None.
    """
    wanted = nics or NicFilter()
    nodes = numa_nodes(root)
    devices = read_rdma_devices(root)
    placed = tuple(PlacedNic(device, read_place(root, device.pci_address)) for device in devices)
    places = [(accelerator, read_place(root, accelerator.pci_address)) for accelerator in read_accelerators(root)]
    found = [(accelerator, place) for accelerator, place in places if place is not None]
    gpus = tuple(PlacedGpu(f"GPU{number}", *pair) for number, pair in enumerate(found))

    def select(near: str | None, numa: int | None) -> NicSelection:
        return choose_nics(devices, near, numa, wanted.include, wanted.exclude, root=root)

    served = [
        Served(
            name=gpu.name,
            gpu=gpu.place.address,
            numa_node=gpu.place.numa_node,
            distances=tuple(
                None if nic.place is None else distance(gpu.place, nic.place, nodes=len(nodes)) for nic in placed
            ),
            selection=select(gpu.place.address, None),
        )
        for gpu in gpus
    ]
    nowhere = (None,) * len(placed)
    if len(nodes) > 1:
        served += [Served(f"NUMA {node}", None, node, nowhere, select(None, node)) for node in nodes]
    else:
        served.append(Served("host", None, None, nowhere, select(None, None)))
    return Layout(nodes, gpus, placed, tuple(served))


def _place_to_json(place: PciPlace | None) -> dict[str, Any]:
    if place is None:
        return {"pci_address": None, "numa_node": None, "host_bridge": None, "switches": []}
    return {
        "pci_address": place.address,
        "numa_node": place.numa_node,
        "host_bridge": place.host_bridge,
        "switches": list(place.switches),
    }


def _nic_to_json(nic: PlacedNic) -> dict[str, Any]:
    ports = [
        {"number": port.number, "state": port.state, "link_layer": port.link_layer, "gbps": port.gbps}
        for port in nic.device.ports
    ]
    return {**_place_to_json(nic.place), "ports": ports}


def _selection_to_json(selection: NicSelection) -> dict[str, Any]:
    return {
        "chosen": [
            {
                "name": choice.name,
                "distance": choice.distance.name if choice.distance is not None else None,
                "gbps": choice.gbit_per_s,
                "numa_node": choice.numa_node,
                "gid_index": choice.gid.index,
                "gid": choice.gid.text,
                "why": choice.why,
            }
            for choice in selection.chosen
        ],
        "rejected": [{"name": port.name, "why": port.why, "fix": port.fix} for port in selection.rejected],
        "unmatched": list(selection.unmatched),
        "why": selection.why,
        "fix": selection.fix,
    }
