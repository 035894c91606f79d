"""Collects all facts that `zerohop info` shows in one value."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerohop.machine.accelerators import Accelerator, read_accelerators, read_open_modules, simulated
from zerohop.machine.host import Cpu, Kernel, read_cpu, read_kernel
from zerohop.machine.listening import Listening, describe
from zerohop.machine.memory import Limits, MemorySizes, read_limits, read_memory
from zerohop.machine.nics import Nic, RdmaDevice, read_nics, read_rdma_devices
from zerohop.machine.nvml import Nvidia, read_nvidia
from zerohop.machine.providers import ProviderFacts, read_providers

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Machine:
    """Holds the facts of this machine and this process; ``nvidia`` is None without NVIDIA GPUs."""

    zerohop: str
    cpu: Cpu
    kernel: Kernel
    memory: MemorySizes
    limits: Limits
    accelerators: tuple[Accelerator, ...]
    nics: tuple[Nic, ...]
    rdma_devices: tuple[RdmaDevice, ...]
    providers: tuple[ProviderFacts, ...]
    listening: Listening
    nvidia: Nvidia | None = None
    cuda_visible_devices: str | None = None
    nvidia_open_modules: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers."""
        return asdict(self)


def package_version() -> str:
    """Return the installed version of zerohop, or "unknown" if it runs from a source tree."""
    try:
        return version("zerohop")
    except PackageNotFoundError:
        return "unknown"


def inspect(*, sim_devices: Sequence[str] = (), root: Path = Path("/")) -> Machine:
    """Inspect this machine.

    Args:
        sim_devices: names of the simulated devices to show beside the real ones.
        root: root of the file system, with /proc, /sys and /etc.

    Raises:
        ValueError: a setting of the environment cannot be understood.
    """
    from zerohop.config.settings import resolve

    settings = resolve({})
    found = read_accelerators(root)
    return Machine(
        zerohop=package_version(),
        cpu=read_cpu(root),
        kernel=read_kernel(root),
        memory=read_memory(root),
        limits=read_limits(),
        accelerators=simulated(sim_devices) + found,
        nvidia=read_nvidia() if any(each.kind == "cuda" for each in found) else None,
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        nvidia_open_modules=read_open_modules(root),
        nics=read_nics(root),
        rdma_devices=read_rdma_devices(root),
        providers=read_providers(),
        listening=describe(settings.listen, secret=settings.secret is not None, insecure=settings.insecure),
    )
