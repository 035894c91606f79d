"""Family "gpu", continued: what a process needs to use the GPUs that are there.

Seen on H200s; of AMD's GPUs not verified on hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.machine.doctor.check import Verdict, checks_of, combined, fail, not_here, ok, warn
from zerohop.machine.doctor.words import add_to_container

if TYPE_CHECKING:
    from zerohop.machine.doctor.system import System

check = checks_of("gpu")

_NONE = "this machine has no GPU"
_NO_NVIDIA = "this machine has no NVIDIA GPU"
_LIBRARIES = {"cuda": ("NVIDIA", "libcuda.so.1"), "hip": ("AMD", "libamdhip64")}
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_BY_NAME = ("GPU-", "MIG-")


@check("gpu-library", "the library through which programs use GPUs comes with the driver, and containers often lack it")
def gpu_library(system: System) -> Verdict:
    """The driver's library for the GPUs that are there can be loaded."""
    kinds = dict.fromkeys(gpu.kind for gpu in system.gpus)
    if not kinds:
        return not_here(_NONE)
    return combined((_LIBRARIES[kind][0], _library(system, kind)) for kind in kinds)


@check("gpu-visible", "GPUs that CUDA_VISIBLE_DEVICES leaves out are not there for a process, and nobody says so")
def gpu_visible(system: System) -> Verdict:
    """CUDA_VISIBLE_DEVICES shows GPUs that exist."""
    count = sum(gpu.kind == "cuda" for gpu in system.gpus)
    if count == 0:
        return not_here(_NO_NVIDIA)
    # A container sees all cards on the bus, and has the device files of its own.
    count = sum(node.removeprefix("nvidia").isdecimal() for node in system.gpu_nodes) or count
    value = system.process.environment.get(_VISIBLE)
    if value is None:
        return ok(f"{_VISIBLE} is not set: all are visible")
    shown: list[str] = []
    for entry in (each.strip() for each in value.split(",")):
        if not _exists(entry, count):
            # CUDA takes those before the first that it does not know, and says nothing.
            what = f"'{entry}' in {_VISIBLE}={value} is none of the {count} GPUs here: "
            what += f"it and all after it are hidden, {len(shown)} visible" if shown else "no GPU is visible"
            return warn(what, f"unset {_VISIBLE}")
        shown.append(entry)
    return ok(f"{_VISIBLE}={value}: {len(shown)} of {count}")


@check("copy-kernels", "one kernel copies a page list; without cuda-core each page is a copy of its own, far slower")
def copy_kernels(system: System) -> Verdict:
    """cuda-core, which compiles the copy kernels, is installed."""
    if not any(gpu.kind == "cuda" for gpu in system.gpus):
        return not_here(_NO_NVIDIA)
    if not system.process.cuda_core:
        return warn("cuda-core is not installed: page lists are copied page by page", "pip install 'zerohop[cuda]'")
    return ok("cuda-core is installed")


def _library(system: System, kind: str) -> Verdict:
    why_not = system.process.gpu_drivers.get(kind, "not looked for")
    name = _LIBRARIES[kind][1]
    if not why_not:
        return ok(f"{name} can be loaded")
    if system.container and kind == "cuda":
        flags = "--gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        pod = "runtimeClassName: nvidia, and env NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return fail(why_not, *add_to_container(system, flags, pod))
    return fail(why_not, f"# install what comes with the driver: {name}")


def _exists(entry: str, count: int) -> bool:
    """By number, or by a name that only the driver can tell."""
    return entry.startswith(_BY_NAME) or (entry.isdecimal() and int(entry) < count)


CHECKS = (gpu_library, gpu_visible, copy_kernels)
