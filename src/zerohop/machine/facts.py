"""Collects all facts that `zerohop info` shows, among them the providers and who may connect to this process."""

from __future__ import annotations

import ipaddress
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerohop.config import protection
from zerohop.machine.accelerators import Accelerator, read_accelerators, read_open_modules, simulated
from zerohop.machine.gpudirect import GpuDirect, read_gpudirect
from zerohop.machine.host import (
    Cpu,
    Kernel,
    Limits,
    MemorySizes,
    read_cpu,
    read_kernel,
    read_limits,
    read_memory,
    why_no_context,
)
from zerohop.machine.io_uring import IoUring, read_io_uring
from zerohop.machine.nics import Nic, RdmaDevice, read_nics, read_rdma_devices
from zerohop.machine.nvml import Nvidia, read_nvidia

if TYPE_CHECKING:
    from collections.abc import Sequence

# Hardware that each provider has run on. Others are labelled "not verified on hardware".
_VERIFIED = {
    "shm": "x86_64",
    "tcp": "x86_64, loopback",
    "p2p": "x86_64, NVIDIA H200 over NVLink and PCIe",
}


@dataclass(frozen=True, slots=True)
class ProviderFacts:
    """Describes one provider.

    Attributes:
        name: "shm", "tcp", ...
        usable: whether a Context can open it here.
        why: the reason why it cannot, else "".
        fix: what would make it usable, or "".
        verified_on: hardware that it has run on, or "" for none.
        label: "" or "not verified on hardware", with the hardware that this applies to.
    """

    name: str
    usable: bool
    why: str
    fix: str
    verified_on: str
    label: str


def read_providers() -> tuple[ProviderFacts, ...]:
    """Ask the native module for the providers; none is usable where no Context can be opened."""
    from zerohop._native import providers

    why, fix = why_no_context()
    probed = [(name, False, why, fix) for name, *_ in providers()] if why else providers()
    return describe_providers(probed, platform.machine())


def describe_providers(probed: list[tuple[str, bool, str, str]], architecture: str) -> tuple[ProviderFacts, ...]:
    """Turn the answers of the native probes into facts.

    Args:
        probed: name, usable, reason and fix of each provider of the native module.
        architecture: as `platform.machine()` names it.
    """
    return tuple(
        ProviderFacts(name, usable, why, fix, _VERIFIED.get(name, ""), _label(name, architecture))
        for name, usable, why, fix in probed
    )


def _label(name: str, architecture: str) -> str:
    if name not in _VERIFIED:
        return "not verified on hardware"
    if architecture not in ("x86_64", "AMD64"):
        return f"not verified on hardware: {architecture} (verified on {_VERIFIED[name]})"
    if name == "tcp":
        return "not verified on hardware: a network between two hosts (verified on loopback)"
    return ""


@dataclass(frozen=True, slots=True)
class Listening:
    """Holds the meaning of this process's settings for its peers.

    Attributes:
        address: "host:port", or None if nothing listens on the network.
        loopback: whether only this host can connect.
        secret: whether peers must prove that they know a secret.
        encryption: "control", "all" or "none": what goes through TLS over TCP.
        insecure: whether listening off loopback without a secret was requested, so that anybody can connect.
        why: the reason why a Context would refuse these settings, else "".
        fix: what to do about that, or about an insecure listener, else "".
    """

    address: str | None
    loopback: bool
    secret: bool
    encryption: str
    insecure: bool
    why: str
    fix: str


def describe_listening(
    address: str | None, *, secret: bool, insecure: bool, encryption: str = "none", no_tls: str = ""
) -> Listening:
    """Judge a listening address.

    Args:
        address: "host:port" or None.
        secret: whether a shared secret is set.
        insecure: whether listening without a secret was explicitly allowed.
        encryption: the mode, as a Context has it after defaults.
        no_tls: why this machine cannot do what the mode asks for, or "".
    """
    loopback = address is None or _is_loopback(address.rpartition(":")[0].strip("[]"))
    exposed = not loopback and not secret
    why = fix = ""
    if exposed:
        fix = "set ZEROHOP_SECRET to the same value on every host, or listen on 127.0.0.1"
        if not insecure:
            why = f"listening on {address} without a secret is refused"
    elif no_tls and (not loopback or encryption == "all"):
        why = f'encryption="{encryption}" is not to be had: {no_tls}'
        fix = protection.fix()
    return Listening(address, loopback, secret, encryption, exposed and insecure, why, fix)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to any address; "" is every interface


@dataclass(frozen=True, slots=True)
class Machine:
    """Holds the facts of this machine and this process.

    ``nvidia`` and ``gpudirect_storage`` are None without NVIDIA GPUs, and ``io_uring`` where it was not asked for.
    """

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
    io_uring: IoUring | None = None
    gpudirect_storage: GpuDirect | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers."""
        return asdict(self)


def package_version(package: str = "zerohop") -> str:
    """Return the installed version of a package, or "unknown" if there is none, as of what runs from a source tree."""
    try:
        return version(package)
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
        io_uring=read_io_uring(root),
        gpudirect_storage=read_gpudirect() if any(each.kind == "cuda" for each in found) else None,
        nics=read_nics(root),
        rdma_devices=read_rdma_devices(root),
        providers=read_providers(),
        listening=describe_listening(
            settings.listen,
            secret=settings.secret is not None,
            insecure=settings.insecure,
            encryption=settings.encryption,
            no_tls=protection.why_not(settings.encryption),
        ),
    )
