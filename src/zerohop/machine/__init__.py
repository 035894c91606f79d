"""What this machine has, and why something is missing.

Every fact is read from the kernel (``/proc``, ``/sys``), from the native module or from this process's own limits when
`inspect` is called; nothing is guessed and nothing is cached. All readers take the root of the file system they look
at, so that they can be tried on the files of another machine.
"""

from zerohop.machine.accelerators import Accelerator
from zerohop.machine.facts import Machine, inspect
from zerohop.machine.host import Cpu, Kernel
from zerohop.machine.listening import Listening
from zerohop.machine.memory import Limits, MemorySizes
from zerohop.machine.nics import Nic, RdmaDevice, RdmaPort
from zerohop.machine.providers import ProviderFacts

__all__ = [
    "Accelerator",
    "Cpu",
    "Kernel",
    "Limits",
    "Listening",
    "Machine",
    "MemorySizes",
    "Nic",
    "ProviderFacts",
    "RdmaDevice",
    "RdmaPort",
    "inspect",
]
