"""Describes the processor and the kernel of this machine."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zerohop.machine import files

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cpu:
    """Describes the processors that this process may use.

    Attributes:
        model: the processor's own name.
        architecture: "x86_64", "aarch64", ...
        online: processors of the machine.
        usable: processors that this process may run on (affinity mask).
        quota: processors' worth of time that the control group allows, or None without a limit.
        numa_nodes: number of memory nodes.
    """

    model: str
    architecture: str
    online: int
    usable: int
    quota: float | None
    numa_nodes: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """Describes the kernel and its surroundings.

    Attributes:
        release: as `uname -r` prints it.
        distribution: PRETTY_NAME of os-release, or "unknown".
        virtual: whether the processor says that it runs under a hypervisor.
    """

    release: str
    distribution: str
    virtual: bool


def read_cpu(root: Path) -> Cpu:
    """Read the processor's facts below `root`."""
    cpuinfo = files.fields(root / "proc/cpuinfo")
    nodes = [node for node in files.entries(root / "sys/devices/system/node") if node.name[4:].isdigit()]
    return Cpu(
        model=cpuinfo.get("model name") or cpuinfo.get("CPU part") or "unknown",
        architecture=platform.machine(),
        online=os.cpu_count() or 1,
        usable=len(os.sched_getaffinity(0)),
        quota=_quota(files.text(root / "sys/fs/cgroup/cpu.max")),
        numa_nodes=max(1, len(nodes)),
    )


def _quota(cpu_max: str | None) -> float | None:
    parts = (cpu_max or "max").split()
    if len(parts) != 2 or parts[0] == "max":
        return None
    return round(int(parts[0]) / int(parts[1]), 2)


def read_kernel(root: Path) -> Kernel:
    """Read the kernel's facts below `root`."""
    release = files.fields(root / "etc/os-release", "=")
    flags = files.fields(root / "proc/cpuinfo").get("flags", "").split()
    return Kernel(
        release=files.text(root / "proc/sys/kernel/osrelease") or platform.release(),
        distribution=release.get("PRETTY_NAME", "unknown").strip('"'),
        virtual="hypervisor" in flags,
    )
