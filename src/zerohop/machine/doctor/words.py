"""Words the fixes that several checks share for the machine at hand: its distribution, its container."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerohop.machine.doctor.system import System

# Distribution -> (command, the verbs library with its drivers' libraries)
_INSTALL = {
    "debian": ("apt-get install -y", "libibverbs1 ibverbs-providers"),
    "fedora": ("dnf install -y", "libibverbs"),
    "rhel": ("dnf install -y", "libibverbs"),
    "suse": ("zypper install -y", "libibverbs libibverbs1"),
    "arch": ("pacman -S --noconfirm", "rdma-core"),
    "alpine": ("apk add", "rdma-core"),
}
_NO_DEVICE = "this machine has no RDMA device"


def install_verbs(system: System) -> tuple[str, ...]:
    """Return the command that installs libibverbs and the libraries of its drivers."""
    for name in system.distribution:
        if name in _INSTALL:
            return (" ".join(_INSTALL[name]),)
    return ("# install rdma-core: libibverbs with its providers",)


def on_the_host(system: System, *commands: str) -> tuple[str, ...]:
    """Return commands that change the kernel; in a container, with the remark that they are for its host."""
    if not system.container:
        return commands
    return ("# on the host, not in this container:", *commands)


def add_to_container(system: System, flags: str, kubernetes: str) -> tuple[str, ...]:
    """Return how to start this container instead: with `flags` of docker or podman, or `kubernetes` in a pod's spec."""
    if system.container == "kubernetes":
        return (f"# in the pod: {kubernetes}",)
    if system.container in ("docker", "podman"):
        return (f"{system.container} run {flags} …",)
    return (f"# start this container with what Docker calls {flags}",)


def kernel_argument(system: System, argument: str) -> tuple[str, ...]:
    """Return the commands that add a word to the kernel's command line."""
    if {"fedora", "rhel"} & set(system.distribution):
        return on_the_host(system, f"grubby --update-kernel=ALL --args={argument}", "reboot")
    return on_the_host(
        system, f"# add {argument} to GRUB_CMDLINE_LINUX in /etc/default/grub, then:", "update-grub", "reboot"
    )


def as_command(fix: str) -> str:
    """Return a fix as it is typed: those that begin with ``ip`` are commands, the others words."""
    return fix if fix.startswith("ip ") else f"# {fix}"


def no_rdma(system: System) -> str:
    """Return why checks of RDMA devices have nothing to judge; "" if there is a device."""
    if system.hcas:
        return ""
    if system.nic_functions:
        return "no RDMA device yet: see rdma-device"
    return _NO_DEVICE


def no_active_port(system: System) -> str:
    """Return why checks of active ports have nothing to judge; "" if there is one."""
    if missing := no_rdma(system):
        return missing
    if not any(system.ports()):
        return "ZEROHOP_NICS leaves no port"
    return "" if any(system.ports(active=True)) else "no port is active: see port-state"


def no_gpu(system: System) -> str:
    """Return why checks of GPUs have nothing to judge; "" if there is a GPU."""
    return "" if system.gpus else "this machine has no GPU"


def no_nvidia(system: System) -> str:
    """Return why checks of NVIDIA's GPUs have nothing to judge; "" if there is one."""
    return "" if any(gpu.kind == "cuda" for gpu in system.gpus) else "this machine has no NVIDIA GPU"


def no_gpu_beside_nic(system: System) -> str:
    """Return why checks of the way between GPU and NIC have nothing to judge; "" if both exist."""
    return no_gpu(system) or ("" if system.hardware else "no RDMA NIC beside the GPU")


def no_nic(system: System) -> str:
    """Return why checks of a NIC's place on PCI have nothing to judge; "" if a NIC has an RDMA device."""
    return "" if system.hardware else "this machine has no RDMA NIC on PCI"


def size(nbytes: int) -> str:
    """Return a size such as "64 KiB", "8 MiB" or "23.5 GiB"."""
    for unit, bits in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if nbytes >= 1 << bits:
            return f"{nbytes / (1 << bits):.3g} {unit}"
    return f"{nbytes / 1024:g} KiB"
