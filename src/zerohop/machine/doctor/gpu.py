"""Checks the family "gpu": whether a NIC can reach the memory of each GPU, and at which distance.

The facts of a GPU were seen on an H200; with a NIC beside it, not verified on hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.machine.doctor.check import Verdict, checks_of, combined, fail, not_here, ok, warn
from zerohop.machine.doctor.system import OPTIONS
from zerohop.machine.doctor.words import add_to_container, no_gpu, no_gpu_beside_nic, on_the_host, size
from zerohop.machine.pci import Distance

if TYPE_CHECKING:
    from zerohop.machine.doctor.pci_functions import Gpu
    from zerohop.machine.doctor.system import System
    from zerohop.machine.layout import Served

check = checks_of("gpu", needs=no_gpu_beside_nic)

_DRIVERS = {"cuda": "nvidia", "hip": "amdgpu"}
_NODES = {"cuda": "nvidia", "hip": "kfd"}
_GIVEN_AWAY = ("vfio-pci", "pci-stub")
_SMALL_BAR = 256 << 20  # size on cards without a resizable BAR
_DMA_BUF_KERNEL = (5, 12)
_DMA_BUF_NICS = ("mlx5", "irdma", "bnxt_re", "efa", "mana", "ionic")  # drivers whose kernel side accepts dma-buf
_NO_PEER_INTERFACE = (
    "# where modprobe says 'Invalid argument', the RDMA drivers have no interface for it: install DOCA-OFED, or the"
    " open kernel modules of the NVIDIA driver, which use dma-buf"
)


@checks_of("gpu", needs=no_gpu)("gpu-driver", "without its driver a GPU is a PCI card and nothing else")
def gpu_driver(system: System) -> Verdict:
    """Check that each GPU is served by its driver, and has device files here."""
    return combined((gpu.function.address, _driver(system, gpu)) for gpu in system.gpus)


@check("gpu-direct", "without it each byte of GPU memory goes through host memory, and registering it fails")
def gpu_direct(system: System) -> Verdict:
    """Check that a NIC can register GPU memory: nvidia_peermem, dma-buf, or amdgpu's peer memory."""
    kinds = dict.fromkeys(gpu.kind for gpu in system.gpus)
    judge = {"cuda": _nvidia_direct, "hip": _amd_direct}
    names = {"cuda": "NVIDIA", "hip": "AMD"}
    return combined((names[kind], judge[kind](system)) for kind in kinds)


@check("gpu-bar", "a NIC reaches GPU memory through the card's PCI window: what is larger cannot be registered at once")
def gpu_bar(system: System) -> Verdict:
    """Check that the PCI window of each GPU covers its memory."""
    return combined((gpu.function.address, _window(gpu)) for gpu in system.gpus)


@check("gpu-distance", "behind one PCIe switch GPU and NIC talk at full speed; across processors at a fraction of it")
def gpu_distance(system: System) -> Verdict:
    """Check that the NIC that serves each GPU is near (as nvidia-smi topo -m shows)."""
    return combined(
        (f"{served.name} ({served.gpu})", _distance(system, served))
        for served in system.layout.served
        if served.gpu is not None
    )


def _driver(system: System, gpu: Gpu) -> Verdict:
    wanted, driver = _DRIVERS[gpu.kind], gpu.function.driver
    if driver in _GIVEN_AWAY:
        return not_here(f"given away to {driver}")
    if driver != wanted:
        load = on_the_host(system, f"modprobe {wanted}")
        return fail(f"{gpu.model}: no driver of its own serves it (bound: {driver or 'none'})", *load)
    if not any(node.startswith(_NODES[gpu.kind]) for node in system.gpu_nodes):
        flags = "--gpus all" if gpu.kind == "cuda" else "--device=/dev/kfd --device=/dev/dri"
        resource = "nvidia.com/gpu: 1" if gpu.kind == "cuda" else "amd.com/gpu: 1"
        if system.container:
            what = "its device files are not in this container"
            return fail(what, *add_to_container(system, flags, f"resources: limits: {{{resource}}}"))
        return fail("it has no device files", "nvidia-modprobe -u -c 0" if gpu.kind == "cuda" else "dmesg | grep kfd")
    version = system.modules.get(wanted)
    return ok(f"{gpu.model}, {wanted} {version}" if version else f"{gpu.model}, {wanted}")


def _nvidia_direct(system: System) -> Verdict:
    for module in ("nvidia_peermem", "nv_peer_mem"):
        if module in system.modules:
            return ok(f"{module} is loaded")
    if any(peer.startswith(("nv_mem", "nvidia")) for peer in system.memory_peers):
        return ok("the RDMA drivers know NVIDIA's memory")
    against = _against_dma_buf(system)
    if system.open_nvidia is not True:
        against.append("the NVIDIA driver's kernel modules are not the open ones")
    if not against:
        return ok("dma-buf: open kernel modules, and libibverbs registers one")
    load = ("modprobe nvidia_peermem", "echo nvidia_peermem >/etc/modules-load.d/nvidia-peermem.conf")
    pod = ("# with NVIDIA's GPU operator: driver.rdma.enabled=true",) if system.container == "kubernetes" else ()
    return fail(
        f"nvidia_peermem is not loaded, and there is no dma-buf: {', '.join(against)}",
        *on_the_host(system, *load, _NO_PEER_INTERFACE),
        *pod,
    )


def _amd_direct(system: System) -> Verdict:
    if "amdkfd" in system.memory_peers:
        return ok("the RDMA drivers know amdgpu's memory (peer memory)")
    against = _against_dma_buf(system)
    if system.config is None and not against:
        return warn(
            "whether the kernel was built with CONFIG_HSA_AMD_P2P cannot be read here",
            f"grep -E 'HSA_AMD_P2P|PCI_P2PDMA|DMABUF_MOVE_NOTIFY' /boot/config-{system.kernel.release}",
        )
    against += [f"the kernel was built without {name}" for name in OPTIONS if (system.config or {}).get(name) != "y"]
    if not against:
        return ok("dma-buf: the kernel was built with CONFIG_HSA_AMD_P2P, and libibverbs registers one")
    return fail(
        f"amdgpu has registered no peer memory, and there is no dma-buf: {', '.join(against)}",
        *on_the_host(system, "# install ROCm's kernel driver (amdgpu-dkms), or a kernel with these options"),
    )


def _against_dma_buf(system: System) -> list[str]:
    """Return the reasons why the kernel and libibverbs cannot register a dma-buf."""
    against = []
    if system.kernel_version < _DMA_BUF_KERNEL:
        against.append(f"Linux {system.kernel.release} is older than 5.12")
    if not system.process.ibverbs.dma_buf:
        against.append("libibverbs cannot register one (rdma-core before 34)")
    drivers = {hca.driver for hca in system.hcas if not hca.software}
    if not drivers & {*_DMA_BUF_NICS}:
        against.append(f"no NIC's driver here can ({', '.join(sorted(drivers))})")
    return against


def _window(gpu: Gpu) -> Verdict:
    if not gpu.function.bars:
        return not_here("its PCI windows cannot be read")
    largest = max(gpu.function.bars)
    told = f"its PCI window is {size(largest)}"
    if largest <= _SMALL_BAR or largest < (gpu.memory or 0):
        more = f", its memory {size(gpu.memory)}" if gpu.memory else ""
        return warn(told + more, "# BIOS: Above 4G Decoding and Resizable BAR on; virtual machine: a larger MMIO space")
    return ok(told)


def _distance(system: System, served: Served) -> Verdict:
    known = [(far, nic.device.name) for far, nic in zip(served.distances, system.layout.nics, strict=True) if far]
    chosen = [choice for choice in served.selection.chosen if choice.distance is not None]
    if chosen:
        far, name = chosen[0].distance, chosen[0].name
    elif known:
        far, name = min(known)
    else:
        return not_here("the place of no NIC is known")
    assert far is not None
    told = f"{far.name} to {name} ({far.words})"
    if far < Distance.NODE:
        return ok(told)
    nearest, nearer = min(known)
    if nearest < far:
        return warn(
            told, f"# {nearer} is nearer ({nearest.name}) and is not used: see port-state, gid and ZEROHOP_NICS"
        )
    if system.kernel.virtual:
        fix = "# a virtual machine may not show where its cards really are: ask who runs it"
    else:
        fix = "# put a NIC below the switch or root port of this GPU; nvidia-smi topo -m shows all distances"
    return warn(told, fix)


CHECKS = (gpu_driver, gpu_direct, gpu_bar, gpu_distance)
