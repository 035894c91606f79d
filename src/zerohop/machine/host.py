"""Describes the processor, the kernel, the memory, and the limits of this process that decide what can be shared."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path

from zerohop.config.processors import usable_processors
from zerohop.machine import files
from zerohop.machine.pci import numa_nodes


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
    return Cpu(
        model=cpuinfo.get("model name") or cpuinfo.get("CPU part") or "unknown",
        architecture=platform.machine(),
        online=os.cpu_count() or 1,
        usable=len(usable_processors()),
        quota=_quota(files.text(root / "sys/fs/cgroup/cpu.max")),
        numa_nodes=max(1, len(numa_nodes(root))),
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


@dataclass(frozen=True, slots=True)
class MemorySizes:
    """Holds sizes in bytes; None if the kernel does not say.

    Attributes:
        total: installed memory that the kernel manages.
        available: memory that can be had without swapping.
        cgroup_limit: limit of the control group; shared memory counts against it.
        shared_total: size of /dev/shm. zerohop's own shared memory is anonymous (memfd) and not bound by it;
            `multiprocessing.shared_memory` and shared torch tensors are.
        shared_free: free space of /dev/shm.
        shared_huge_pages: the kernel's setting of transparent huge pages for shared memory.
    """

    total: int | None
    available: int | None
    cgroup_limit: int | None
    shared_total: int | None
    shared_free: int | None
    shared_huge_pages: str | None


@dataclass(frozen=True, slots=True)
class Limit:
    """Holds a resource limit: the present one, and the one up to which the process may raise it; None is unlimited."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Holds the limits of this process; None means unlimited.

    Attributes:
        descriptors: largest number of open descriptors. A mapped allocation and a connection take a few each.
        locked_memory: bytes that may be pinned. Verbs registration needs it; shm and tcp pin nothing.
        address_space: bytes of address space.
    """

    descriptors: int | None
    locked_memory: int | None
    address_space: int | None


def read_memory(root: Path) -> MemorySizes:
    """Read the sizes below `root`."""
    meminfo = files.fields(root / "proc/meminfo")
    limit = files.text(root / "sys/fs/cgroup/memory.max")
    total, free = _shared_memory(root / "dev/shm")
    return MemorySizes(
        total=_kibibytes(meminfo.get("MemTotal")),
        available=_kibibytes(meminfo.get("MemAvailable")),
        cgroup_limit=int(limit) if limit is not None and limit.isdigit() else None,
        shared_total=total,
        shared_free=free,
        shared_huge_pages=_chosen(files.text(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled")),
    )


def read_limits() -> Limits:
    """Read the soft limits of this process."""
    return Limits(
        descriptors=read_limit(resource.RLIMIT_NOFILE).soft,
        locked_memory=read_limit(resource.RLIMIT_MEMLOCK).soft,
        address_space=read_limit(resource.RLIMIT_AS).soft,
    )


def why_no_context(root: Path = Path("/")) -> tuple[str, str]:
    """Return why no Context can be opened here, whatever its settings, and the fix; empty texts if one can."""
    if (root / "proc/self/fd").is_dir():
        return "", ""
    return "/proc is not mounted, and doorbells are opened through /proc/self/fd", "mount -t proc proc /proc"


def read_limit(which: int) -> Limit:
    """Read the limits of one resource (`resource.RLIMIT_NOFILE`, …)."""
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which))
    return Limit(soft, hard)


def _kibibytes(value: str | None) -> int | None:
    return int(value.split()[0]) * 1024 if value else None


def _shared_memory(folder: Path) -> tuple[int | None, int | None]:
    try:
        facts = os.statvfs(folder)
    except OSError:
        return None, None
    return facts.f_frsize * facts.f_blocks, facts.f_frsize * facts.f_bavail


def _chosen(setting: str | None) -> str | None:
    """Return the word in brackets: the kernel prints `always [never] advise`."""
    for word in (setting or "").split():
        if word.startswith("["):
            return word.strip("[]")
    return None
