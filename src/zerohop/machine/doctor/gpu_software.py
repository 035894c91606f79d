"""Checks the family "gpu", continued: what a process needs to use the GPUs, and how they reach each other.

Seen on H200s; for AMD's GPUs not verified on hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.machine.doctor.check import State, Verdict, checks_of, combined, fail, not_here, ok, shortened, warn
from zerohop.machine.doctor.words import add_to_container, no_gpu, no_nvidia, on_the_host

if TYPE_CHECKING:
    from zerohop.machine.doctor.system import System
    from zerohop.machine.nvml import GpuPair, Nvidia

check = checks_of("gpu")
on_any = checks_of("gpu", needs=no_gpu)
on_nvidia = checks_of("gpu", needs=no_nvidia)

_LIBRARIES = {"cuda": ("NVIDIA", "libcuda.so.1"), "hip": ("AMD", "libamdhip64")}
# Of AMD's variables, the first hides GPUs from the runtime, and the second hides some of the rest from HIP.
_VISIBLE = {"cuda": ("CUDA_VISIBLE_DEVICES",), "hip": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}
_BY_NAME = ("GPU-", "MIG-")
_FLAGS = "--gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
_POD = "runtimeClassName: nvidia, and env NVIDIA_DRIVER_CAPABILITIES=compute,utility"
# From this version of CUDA on, streams can write words without a module parameter for it.
_NEEDED = (12, 0)
_REGISTRY = "disabled in the driver's settings"


@on_any(
    "gpu-library", "the library through which programs use GPUs comes with the driver, and containers often lack it"
)
def gpu_library(system: System) -> Verdict:
    """Check that the driver's library for each kind of GPU can be loaded."""
    kinds = dict.fromkeys(gpu.kind for gpu in system.gpus)
    return combined((_LIBRARIES[kind][0], _library(system, kind)) for kind in kinds)


@on_any("gpu-visible", "GPUs that a variable leaves out are not there for a process, and nobody says so")
def gpu_visible(system: System) -> Verdict:
    """Check that CUDA_VISIBLE_DEVICES, or HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, name GPUs that exist."""
    kinds = dict.fromkeys(gpu.kind for gpu in system.gpus)
    variables = [(name, kind) for kind in kinds for name in _VISIBLE[kind]]
    return combined((name, _visible(system, name, kind)) for name, kind in variables)


@on_nvidia("copy-kernels", "one kernel copies a page list; without NVRTC each page is a copy of its own, far slower")
def copy_kernels(system: System) -> Verdict:
    """Check that NVRTC, which compiles the copy kernels, can be loaded, and that the driver accepts its output."""
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


@on_any("gpu-import", "memory of another process's GPU can be imported only by a process that may use that GPU itself")
def gpu_import(system: System) -> Verdict:
    """Check that this process may use every GPU of the machine, and so import memory of every process on it."""
    kinds = dict.fromkeys(gpu.kind for gpu in system.gpus)
    return combined((_LIBRARIES[kind][0], _import(system, kind)) for kind in kinds)


def _import(system: System, kind: str) -> Verdict:
    library = _library(system, kind)
    if library.state is State.FAIL:
        return fail(f"nothing can be imported: {library.found}", *library.fix)
    there = sum(gpu.kind == kind for gpu in system.gpus)
    nodes = sum(node.removeprefix("nvidia").isdecimal() for node in system.gpu_nodes)
    lost = "memory of the others cannot be imported"
    if kind == "cuda" and system.container and 0 < nodes < there:
        told = f"the container has {nodes} of the host's {there} GPUs: {lost}"
        return warn(told, *add_to_container(system, _FLAGS, _POD))
    for variable in _VISIBLE[kind]:
        value = system.process.environment.get(variable)
        shown = there if value is None else _shown(value, there)
        if shown < there:
            choose = "# and choose the GPU in the program, as with torch.cuda.set_device()"
            return warn(f"{variable}='{value}' shows {shown} of {there} GPUs: {lost}", f"unset {variable}", choose)
    nvidia = system.process.nvidia if kind == "cuda" else None
    divided = [gpu.pci_address for gpu in nvidia.gpus if gpu.mig] if nvidia is not None else []
    if divided:
        disable = [f"nvidia-smi -i {address} -mig 0" for address in divided]
        told = f"divided by MIG: {', '.join(divided)}: no instance imports memory of another"
        return warn(told, *on_the_host(system, *disable))
    return ok(f"this process may use {'the GPU' if there == 1 else f'all {there} GPUs'} of this machine")


def _shown(value: str, count: int) -> int:
    """Return how many GPUs an environment variable shows: those before the first entry that names none."""
    shown = 0
    for entry in value.split(","):
        if not _exists(entry.strip(), count):
            break
        shown += 1
    return shown


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
        return fail(why_not, *add_to_container(system, _FLAGS, _POD))
    return fail(why_not, f"# install what comes with the driver: {name}")


def _exists(entry: str, count: int) -> bool:
    """Tell whether an entry exists: by number; a name counts, since only the driver knows names."""
    return entry.startswith(_BY_NAME) or (entry.isdecimal() and int(entry) < count)


@check("gpu-versions", "a driver that was updated under a running system, or that is too old, cannot be used at all")
def gpu_versions(system: System) -> Verdict:
    """Check that the driver's library and its kernel modules fit together, and support CUDA 12."""
    nvidia = system.process.nvidia
    if nvidia is not None and nvidia.mismatch:
        fix = "# start the container again" if system.container else "reboot"
        return fail(f"{nvidia.why_not}: the driver was updated, and its old modules are still loaded", fix)
    known = _asked(system)
    if isinstance(known, Verdict):
        return known
    told = f"NVIDIA {known.driver}"
    if known.cuda is None:
        return ok(told)
    told += ", CUDA {}.{}".format(*known.cuda)
    if known.cuda < _NEEDED:
        return fail(f"{told}: zerohop needs CUDA 12", "# install NVIDIA's driver 525 or newer")
    return ok(told)


@check("gpu-fabric", "GPUs behind NVSwitches cannot be used before the fabric manager has set these up")
def gpu_fabric(system: System) -> Verdict:
    """Check that the fabric of NVSwitches is ready."""
    nvidia = _asked(system)
    if isinstance(nvidia, Verdict):
        return nvidia
    late = [f"{gpu.pci_address} ({gpu.fabric})" for gpu in nvidia.gpus if gpu.fabric]
    if late:
        commands = "systemctl enable --now nvidia-fabricmanager", "journalctl -u nvidia-fabricmanager"
        return fail(f"not ready: {', '.join(late)}", *on_the_host(system, *commands))
    return ok("ready, or there is none")


@check("gpu-peers", "GPUs that do not reach each other's memory exchange every byte through host memory")
def gpu_peers(system: System) -> Verdict:
    """Check that all GPUs of this machine reach each other, by NVLink or PCIe."""
    nvidia = _asked(system)
    if isinstance(nvidia, Verdict):
        return nvidia
    divided = [gpu.pci_address for gpu in nvidia.gpus if gpu.mig]
    if divided:
        disable = [f"nvidia-smi -i {address} -mig 0" for address in divided]
        return warn(f"divided by MIG: {', '.join(divided)}: no access to any other", *on_the_host(system, *disable))
    if len(nvidia.gpus) < 2:
        return not_here("this process sees one GPU")
    if not nvidia.pairs:
        return not_here("the driver does not tell")
    apart = [pair for pair in nvidia.pairs if not pair.link]
    if apart:
        fixes = dict.fromkeys(line for pair in apart for line in _fix(system, pair))
        return warn("; ".join(_apart(apart, why) for why in dict.fromkeys(pair.why for pair in apart)), *fixes)
    return ok(_told(nvidia))


def _asked(system: System) -> Nvidia | Verdict:
    """Return the answers of NVIDIA's library; the verdict if there is no such GPU, or if it cannot be asked."""
    if missing := no_nvidia(system):
        return not_here(missing)
    nvidia = system.process.nvidia
    if nvidia is not None and not nvidia.why_not:
        return nvidia
    why = nvidia.why_not if nvidia is not None else "not looked for"
    fix = add_to_container(system, _FLAGS, _POD) if system.container else ()
    return not_here(f"NVIDIA's management library cannot be asked: {why}", *fix)


def _apart(pairs: list[GpuPair], why: str) -> str:
    names = [f"{pair.a} and {pair.b}" for pair in pairs if pair.why == why]
    return f"{shortened(names)}: {why}"


def _fix(system: System, pair: GpuPair) -> tuple[str, ...]:
    if _REGISTRY in pair.why:
        return on_the_host(system, "grep -r NVreg /etc/modprobe.d  # NVreg_RegistryDwords: take out what names peers")
    if system.kernel.virtual:
        return ("# a virtual machine must be given GPUs that share a switch or NVLink: ask who runs it",)
    return ("# use GPUs below one root complex or with NVLink between them: nvidia-smi topo -p2p w shows all",)


def _told(nvidia: Nvidia) -> str:
    counts = {link: sum(pair.link == link for pair in nvidia.pairs) for link in ("nvlink", "pcie")}
    if not counts["pcie"]:
        return f"{len(nvidia.gpus)} GPUs, each to each by NVLink"
    if not counts["nvlink"]:
        return f"{len(nvidia.gpus)} GPUs, each to each over PCIe"
    return f"{len(nvidia.gpus)} GPUs: {counts['nvlink']} pairs by NVLink, {counts['pcie']} over PCIe"


CHECKS = (gpu_library, gpu_visible, copy_kernels, gpu_versions, gpu_fabric, gpu_peers, gpu_import)
