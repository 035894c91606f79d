"""Checks the family "gpu", continued: the software that a process needs to use the GPUs.

Seen on H200s; for AMD's GPUs not verified on hardware.
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
# Of AMD's variables, the first hides GPUs from the runtime, and the second hides some of the rest from HIP.
_VISIBLE = {"cuda": ("CUDA_VISIBLE_DEVICES",), "hip": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}
_BY_NAME = ("GPU-", "MIG-")


@check("gpu-library", "the library through which programs use GPUs comes with the driver, and containers often lack it")
def gpu_library(system: System) -> Verdict:
    """Check that the driver's library for each kind of GPU can be loaded."""
    kinds = dict.fromkeys(gpu.kind for gpu in system.gpus)
    if not kinds:
        return not_here(_NONE)
    return combined((_LIBRARIES[kind][0], _library(system, kind)) for kind in kinds)


@check("gpu-visible", "GPUs that a variable leaves out are not there for a process, and nobody says so")
def gpu_visible(system: System) -> Verdict:
    """Check that CUDA_VISIBLE_DEVICES, or HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, name GPUs that exist."""
    kinds = dict.fromkeys(gpu.kind for gpu in system.gpus)
    variables = [(name, kind) for kind in kinds for name in _VISIBLE[kind]]
    if not variables:
        return not_here(_NONE)
    return combined((name, _visible(system, name, kind)) for name, kind in variables)


@check("copy-kernels", "one kernel copies a page list; without NVRTC each page is a copy of its own, far slower")
def copy_kernels(system: System) -> Verdict:
    """Check that NVRTC, which compiles the copy kernels, can be loaded, and that the driver accepts its output."""
    if not any(gpu.kind == "cuda" for gpu in system.gpus):
        return not_here(_NO_NVIDIA)
    cuda = system.process.nvidia.cuda if system.process.nvidia is not None else None
    extra = "pip install 'zerohop[cuda12]'" if cuda is not None and cuda[0] == 12 else "pip install 'zerohop[cuda]'"
    compiler = system.process.compiler
    if compiler.version is None:
        return warn(f"{compiler.why_not}: page lists are copied page by page", extra)
    told = "NVRTC {}.{}".format(*compiler.version)
    if cuda is not None and compiler.version[0] > cuda[0]:
        told += " makes kernels that this driver, of CUDA {}.{}, refuses".format(*cuda)
        # The compiled kernels are cached, and would be found again.
        return warn(f"{told}: page lists are copied page by page", extra, "rm -f ~/.cache/zerohop/copy-sm*.cubin")
    return ok(told)


def _visible(system: System, variable: str, kind: str) -> Verdict:
    count = sum(gpu.kind == kind for gpu in system.gpus)
    if kind == "cuda":
        # A container sees all cards on the bus, but only the device files of its own.
        count = sum(node.removeprefix("nvidia").isdecimal() for node in system.gpu_nodes) or count
    value = system.process.environment.get(variable)
    if value is None:
        return ok("not set, all GPUs are visible")
    shown: list[str] = []
    for entry in (each.strip() for each in value.split(",")):
        if not _exists(entry, count):
            # The driver uses the entries before the first unknown one, and reports nothing.
            what = f"'{entry}' in '{value}' is none of the {count} GPUs here: "
            what += f"it and all after it are hidden, {len(shown)} visible" if shown else "no GPU is visible"
            return warn(what, f"unset {variable}")
        shown.append(entry)
    return ok(f"'{value}', {len(shown)} of {count} GPUs")


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
    """Tell whether an entry exists: by number; a name counts, since only the driver knows names."""
    return entry.startswith(_BY_NAME) or (entry.isdecimal() and int(entry) < count)


CHECKS = (gpu_library, gpu_visible, copy_kernels)
