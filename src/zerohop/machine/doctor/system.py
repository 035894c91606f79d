"""Collects all facts for the checks, read once: among them container, distribution, kernel modules and IP networks."""

from __future__ import annotations

import gzip
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zerohop.config.nic_filter import NicFilter, parse_nic_filter
from zerohop.config.verbs_options import VerbsOptions, parse_verbs_options
from zerohop.machine import files
from zerohop.machine.accelerators import read_open_modules
from zerohop.machine.doctor.hcas import Hca, library_folders, read_hca
from zerohop.machine.doctor.pci_functions import Gpu, PciFunction, read_bridges, read_gpus, read_nic_functions
from zerohop.machine.doctor.process import Process, read_process
from zerohop.machine.facts import package_version
from zerohop.machine.host import Kernel, MemorySizes, read_kernel, read_memory
from zerohop.machine.layout import Layout, read_layout
from zerohop.machine.nics import RdmaPort, read_nics, read_rdma_devices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zerohop.machine.doctor.pci_functions import ConfigSpace
    from zerohop.machine.nics import Nic

# Options that a kernel needs so that a NIC can reach memory of AMD's GPUs.
OPTIONS = ("CONFIG_HSA_AMD_P2P", "CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY")
_PEERS = ("sys/kernel/mm/memory_peers", "sys/kernel/memory_peers", "sys/memory_peers")
_ON_LINK = 0  # gateway of a route to a network that the interface itself is in


def read_container(root: Path, environment: Mapping[str, str]) -> str:
    """Return the kind of container: "kubernetes", "docker", "podman", another one's name, or "" for none."""
    if "KUBERNETES_SERVICE_HOST" in environment or (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    # The file alone is also in the disk image of a virtual machine that was made from a container image. A container's
    # engine also mounts other files.
    mounted = {line.split()[1] for line in (files.text(root / "proc/mounts") or "").splitlines() if " " in line}
    if (root / ".dockerenv").exists() and mounted & {"/etc/resolv.conf", "/etc/hostname"}:
        return "docker"
    return environment.get("container", "")


def read_distribution(root: Path) -> tuple[str, ...]:
    """Return the name of the distribution and of those that it is like: ("ubuntu", "debian")."""
    release = files.fields(root / "etc/os-release", "=")
    return tuple(f"{release.get('ID', '')} {release.get('ID_LIKE', '')}".replace('"', "").split())


def read_modules(root: Path) -> dict[str, str]:
    """Return the kernel modules that are loaded or built in, each with its version or ""."""
    loaded = {line.split()[0]: "" for line in (files.text(root / "proc/modules") or "").splitlines() if line}
    for folder in files.entries(root / "sys/module"):
        loaded[folder.name] = files.text(folder / "version") or ""
    return loaded


def read_config(root: Path, release: str) -> dict[str, str] | None:
    """Return the options of the kernel's configuration that the doctor asks for; None if it is not published."""
    text = files.text(root / f"boot/config-{release}")
    if text is None:
        try:
            text = gzip.decompress((root / "proc/config.gz").read_bytes()).decode()
        except (OSError, EOFError, UnicodeDecodeError):
            return None
    return {name: value for name in OPTIONS for value in re.findall(rf"^{name}=(.+)$", text, re.MULTILINE)}


def read_memory_peers(root: Path) -> tuple[str, ...]:
    """Return the GPU drivers that have registered their memory with the RDMA drivers: "nv_mem", "amdkfd", ..."""
    return tuple(folder.name for place in _PEERS for folder in files.entries(root / place))


def read_subnets(root: Path) -> dict[str, tuple[ipaddress.IPv4Network, ...]]:
    """Return the IPv4 networks that each interface is in, from the routing table."""
    found: dict[str, tuple[ipaddress.IPv4Network, ...]] = {}
    for line in (files.text(root / "proc/net/route") or "").splitlines()[1:]:
        name, target, gateway, _, _, _, _, mask, *_ = line.split()
        bits = int(mask, 16).bit_count()
        if int(gateway, 16) == _ON_LINK and bits:
            # The file shows the address as a number in the processor's byte order; its four bytes are in network order.
            address = ipaddress.IPv4Address(bytes.fromhex(target)[::-1])
            network = ipaddress.IPv4Network((address, bits), strict=False)
            found[name] = (*found.get(name, ()), network)
    return found


def read_arp_settings(root: Path, interfaces: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """Return the effective arp_ignore, arp_announce and rp_filter of `interfaces`: the greater of own and "all"'s."""
    folder = root / "proc/sys/net/ipv4/conf"
    return {
        name: {
            setting: max(files.number(folder / which / setting) or 0 for which in ("all", name))
            for setting in ("arp_ignore", "arp_announce", "rp_filter")
        }
        for name in interfaces
    }


@dataclass(frozen=True, slots=True)
class System:
    """Holds the facts for the checks.

    Attributes:
        zerohop: version of this package.
        kernel: the kernel and the distribution's name.
        distribution: identifier of the distribution, and of those that it is like.
        container: kind of container that the process is in, or "".
        process: rights, limits and environment of the process.
        memory: memory and /dev/shm.
        modules: kernel modules with their versions.
        command_line: words of the kernel's command line.
        config: options of the kernel's configuration; None if it cannot be read.
        open_nvidia: whether NVIDIA's kernel modules are the open ones; None without them.
        memory_peers: GPU drivers that the RDMA drivers know.
        gpu_nodes: present device files of GPUs: "nvidia0", "kfd".
        uverbs: whether the kernel offers verbs to user space.
        hcas: RDMA devices.
        nic_functions: PCI functions that are RDMA NICs.
        gpus: GPUs.
        bridges: configuration spaces of the PCI bridges on the way to NICs and GPUs.
        interfaces: network interfaces by name.
        subnets: IPv4 networks of each interface.
        arp: ARP settings of the interfaces of RDMA ports.
        layout: distances, and the NICs that serve each GPU.
        filter: the NICs to use (ZEROHOP_NICS).
        options: options of RDMA lanes (ZEROHOP_VERBS).
        setting_errors: the errors in these two variables.
        numa_balancing: whether the kernel moves memory between nodes by itself; None if it does not say.
    """

    zerohop: str
    kernel: Kernel
    distribution: tuple[str, ...]
    container: str
    process: Process
    memory: MemorySizes
    modules: Mapping[str, str]
    command_line: tuple[str, ...]
    config: Mapping[str, str] | None
    open_nvidia: bool | None
    memory_peers: tuple[str, ...]
    gpu_nodes: tuple[str, ...]
    uverbs: bool
    hcas: tuple[Hca, ...]
    nic_functions: tuple[PciFunction, ...]
    gpus: tuple[Gpu, ...]
    bridges: Mapping[str, ConfigSpace]
    interfaces: Mapping[str, Nic]
    subnets: Mapping[str, tuple[ipaddress.IPv4Network, ...]]
    arp: Mapping[str, Mapping[str, int]]
    layout: Layout
    filter: NicFilter
    options: VerbsOptions
    setting_errors: tuple[str, ...]
    numa_balancing: int | None

    @property
    def kernel_version(self) -> tuple[int, int]:
        """Return the first two numbers of the kernel's release."""
        numbers = re.match(r"(\d+)\.(\d+)", self.kernel.release)
        return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)

    @property
    def hardware(self) -> tuple[PciFunction, ...]:
        """Return the RDMA NICs that have a device here."""
        return tuple(function for function in self.nic_functions if function.rdma is not None)

    def ports(self, *, active: bool = False) -> Iterator[tuple[str, Hca, RdmaPort]]:
        """Yield the ports that ZEROHOP_NICS allows, each with its name and device; with `active` only active ones."""
        for hca in self.hcas:
            for port in hca.device.ports:
                if (port.active or not active) and not self.filter.why_not(hca.name, port.number):
                    yield f"{hca.name}:{port.number}", hca, port


def read_system(root: Path = Path("/"), process: Process | None = None) -> System:
    """Read the facts.

    Args:
        root: root of the file system, with /proc, /sys, /dev, /etc and /usr.
        process: facts of a process; None: this process.
    """
    process = process or read_process()
    kernel = read_kernel(root)
    wanted, options, errors = _settings(process.environment)
    nics, gpus = read_nic_functions(root), read_gpus(root)
    libraries = library_folders(root, process.ibverbs.path)
    hcas = tuple(read_hca(root, device, libraries) for device in read_rdma_devices(root))
    netdevs = tuple(dict.fromkeys(name for hca in hcas for port in hca.device.ports for name in port.netdevs))
    return System(
        zerohop=package_version(),
        kernel=kernel,
        distribution=read_distribution(root),
        container=read_container(root, process.environment),
        process=process,
        memory=read_memory(root),
        modules=read_modules(root),
        command_line=tuple((files.text(root / "proc/cmdline") or "").split()),
        config=read_config(root, kernel.release),
        open_nvidia=read_open_modules(root),
        memory_peers=read_memory_peers(root),
        gpu_nodes=tuple(node.name for node in files.entries(root / "dev") if re.fullmatch(r"nvidia\d+|kfd", node.name)),
        uverbs=(root / "sys/class/infiniband_verbs").exists(),
        hcas=hcas,
        nic_functions=nics,
        gpus=gpus,
        bridges=read_bridges(root, nics + tuple(gpu.function for gpu in gpus)),
        interfaces={nic.name: nic for nic in read_nics(root)},
        subnets=read_subnets(root),
        arp=read_arp_settings(root, netdevs),
        layout=read_layout(root, wanted),
        filter=wanted,
        options=options,
        setting_errors=errors,
        numa_balancing=files.number(root / "proc/sys/kernel/numa_balancing"),
    )


def setting(environment: Mapping[str, str], name: str) -> str | None:
    """Return the value of a variable, or None if a Context takes it as not set: "" and "none"."""
    text = environment.get(name, "").strip()
    return None if text.lower() in ("", "none") else text


def _settings(environment: Mapping[str, str]) -> tuple[NicFilter, VerbsOptions, tuple[str, ...]]:
    wanted, options, errors = NicFilter(), VerbsOptions(), []
    try:
        if (text := setting(environment, "ZEROHOP_NICS")) is not None:
            wanted = parse_nic_filter(text)
    except ValueError as error:
        errors.append(f"ZEROHOP_NICS: {error}")
    try:
        options = parse_verbs_options(setting(environment, "ZEROHOP_VERBS") or "")
    except ValueError as error:
        errors.append(f"ZEROHOP_VERBS: {error}")
    return wanted, options, tuple(errors)
