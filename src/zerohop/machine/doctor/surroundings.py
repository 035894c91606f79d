"""Reads the surroundings of this process: container, distribution, kernel modules and settings, IP networks."""

from __future__ import annotations

import gzip
import ipaddress
import re
from typing import TYPE_CHECKING

from zerohop.machine import files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Options that a kernel needs so that a NIC can reach memory of AMD's GPUs.
_OPTIONS = ("CONFIG_HSA_AMD_P2P", "CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY")
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
    return {name: value for name in _OPTIONS for value in re.findall(rf"^{name}=(.+)$", text, re.MULTILINE)}


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
