"""Checks the family "gpu", continued: whether NVIDIA's GPUs of this machine reach each other's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.machine.doctor.check import Verdict, checks_of, fail, not_here, ok, shortened, warn
from zerohop.machine.doctor.words import add_to_container, on_the_host

if TYPE_CHECKING:
    from zerohop.machine.doctor.system import System
    from zerohop.machine.nvml import GpuPair, Nvidia

check = checks_of("gpu")

# From this version of CUDA on, streams can write words without a module parameter for it.
_NEEDED = (12, 0)
_REGISTRY = "disabled in the driver's settings"


@check("gpu-versions", "a driver that was updated under a running system, or that is too old, cannot be used at all")
def gpu_versions(system: System) -> Verdict:
    """Check that the driver's library and its kernel modules fit together, and support CUDA 12."""
    nvidia = system.process.nvidia
    if nvidia is not None and nvidia.mismatch:
        fix = "# start the container again" if system.container else "reboot"
        return fail(f"{nvidia.why_not}: the driver was updated, and its old modules are still loaded", fix)
    if unknown := _unknown(system):
        return unknown
    assert nvidia is not None
    told = f"NVIDIA {nvidia.driver}"
    if nvidia.cuda is None:
        return ok(told)
    told += ", CUDA {}.{}".format(*nvidia.cuda)
    if nvidia.cuda < _NEEDED:
        return fail(f"{told}: zerohop needs CUDA 12", "# install NVIDIA's driver 525 or newer")
    return ok(told)


@check("gpu-fabric", "GPUs behind NVSwitches cannot be used before the fabric manager has set these up")
def gpu_fabric(system: System) -> Verdict:
    """Check that the fabric of NVSwitches is ready."""
    if unknown := _unknown(system):
        return unknown
    assert system.process.nvidia is not None
    late = [f"{gpu.pci_address} ({gpu.fabric})" for gpu in system.process.nvidia.gpus if gpu.fabric]
    if late:
        commands = "systemctl enable --now nvidia-fabricmanager", "journalctl -u nvidia-fabricmanager"
        return fail(f"not ready: {', '.join(late)}", *on_the_host(system, *commands))
    return ok("ready, or there is none")


@check("gpu-peers", "GPUs that do not reach each other's memory exchange every byte through host memory")
def gpu_peers(system: System) -> Verdict:
    """Check that all GPUs of this machine reach each other, by NVLink or PCIe."""
    if unknown := _unknown(system):
        return unknown
    nvidia = system.process.nvidia
    assert nvidia is not None
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


def _unknown(system: System) -> Verdict | None:
    """Return the verdict if there is no NVIDIA GPU, or if its library cannot be asked; else None."""
    if not any(gpu.kind == "cuda" for gpu in system.gpus):
        return not_here("this machine has no NVIDIA GPU")
    nvidia = system.process.nvidia
    if nvidia is not None and not nvidia.why_not:
        return None
    why = nvidia.why_not if nvidia is not None else "not looked for"
    if not system.container:
        return not_here(f"NVIDIA's management library cannot be asked: {why}")
    fix = add_to_container(
        system,
        "--gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        "runtimeClassName: nvidia, and env NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )
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


CHECKS = (gpu_versions, gpu_fabric, gpu_peers)
