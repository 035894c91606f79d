"""Inspects this machine: its hardware, and the reason why something is missing.

`inspect` reads every fact from the kernel (``/proc``, ``/sys``), from the native module or from this process's own
limits when it is called; it guesses and caches nothing. All readers take the root of the file system that they read,
so that they can be tried on the files of another machine.
"""

from zerohop.config.nic_filter import NicFilter, parse_nic_filter
from zerohop.machine.accelerators import Accelerator
from zerohop.machine.facts import Listening, Machine, ProviderFacts, inspect
from zerohop.machine.gids import GidChoice, choose_gid, needs_grh
from zerohop.machine.host import Cpu, Kernel, Limits, MemorySizes
from zerohop.machine.nics import Gid, Nic, PKey, RdmaDevice, RdmaPort, has_gid, read_rdma_devices
from zerohop.machine.pci import Distance, PciPlace, distance, read_place
from zerohop.machine.topology import NicChoice, NicSelection, RejectedNic, choose_nics, process_numa_node

__all__ = [
    "Accelerator", "Cpu", "Distance", "Gid", "GidChoice", "Kernel", "Limits", "Listening", "Machine", "MemorySizes",
    "Nic", "NicChoice", "NicFilter", "NicSelection", "PKey", "PciPlace", "ProviderFacts", "RdmaDevice", "RdmaPort",
    "RejectedNic", "choose_gid", "choose_nics", "distance", "has_gid", "inspect", "needs_grh", "parse_nic_filter",
    "process_numa_node", "read_place", "read_rdma_devices",
]  # fmt: skip
