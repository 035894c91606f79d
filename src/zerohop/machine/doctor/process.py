"""Reads the rights, limits and environment of this process, and speeds of interfaces: facts that no file could show."""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import mmap
import os
import resource
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerohop.machine import files
from zerohop.machine.gpudirect import read_gpudirect
from zerohop.machine.host import read_limit, why_no_context
from zerohop.machine.io_uring import read_io_uring
from zerohop.machine.nvml import read_nvidia

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zerohop.machine.gpudirect import GpuDirect
    from zerohop.machine.host import Limit
    from zerohop.machine.io_uring import IoUring
    from zerohop.machine.nvml import Nvidia

_IPC_LOCK = 14  # CAP_IPC_LOCK in linux/capability.h
_MLOCK_ONFAULT = 1  # of mlock2(): pages are locked when they are touched
_LIBRARIES = ("libibverbs.so.1", "libibverbs.so")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_VARIABLES = ("ZEROHOP_", "RDMAV_", "IBV_", "KUBERNETES_SERVICE_HOST", "container", *_VISIBLE)


@dataclass(frozen=True, slots=True)
class Library:
    """Holds a shared library: its path, or why it could not be loaded; and whether it can register a dma-buf."""

    path: str
    why_not: str = ""
    dma_buf: bool = False


@dataclass(frozen=True, slots=True)
class Compiler:
    """Holds the version of NVRTC, which compiles the copy kernels, or the reason why there is none here."""

    version: tuple[int, int] | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """Holds the facts of this process.

    Attributes:
        locks_freely: whether it may lock memory beyond its limit (CAP_IPC_LOCK of the machine, not of a user
            namespace).
        memlock: limit of locked memory, in bytes.
        descriptors: limit of open descriptors.
        address_space: limit of address space, in bytes.
        environment: the variables that matter here.
        ibverbs: the verbs library.
        providers: result of `zerohop._native.providers()`: name, usable, reason, fix.
        verbs: facts of each RDMA device from libibverbs (`zerohop._native.fabric_devices()`); None if it cannot be
            asked.
        fastest: fastest speed of each network interface, in gigabits a second, if its driver says it.
        gpu_drivers: result of `zerohop._native.gpu_drivers()`: kind of GPU, and why its library cannot be loaded, else
            "".
        nvidia: facts from NVIDIA's management library; None if it was not asked.
        compiler: NVRTC, found as the packages that compile the copy kernels find it.
        no_context: why no Context can be opened in it, and the fix; empty texts if one can.
        io_uring: whether files can be read by io_uring; None if it was not asked.
        gpudirect: whether cuFile is ready; None if it was not asked, as without NVIDIA's library.
    """

    locks_freely: bool
    memlock: Limit
    descriptors: Limit
    address_space: Limit
    environment: Mapping[str, str] = field(default_factory=dict)
    ibverbs: Library = Library("", "not looked for")
    providers: tuple[tuple[str, bool, str, str], ...] = ()
    verbs: tuple[Mapping[str, Any], ...] | None = None
    fastest: Mapping[str, float] = field(default_factory=dict)
    gpu_drivers: Mapping[str, str] = field(default_factory=dict)
    compiler: Compiler = Compiler(None, "not looked for")
    no_context: tuple[str, str] = "", ""
    nvidia: Nvidia | None = None
    io_uring: IoUring | None = None
    gpudirect: GpuDirect | None = None


def read_process() -> Process:
    """Read the facts of this process, on this machine."""
    from zerohop._native import gpu_drivers, providers

    proc = Path("/proc/self")
    drivers = gpu_drivers()
    speeds = {folder.name: fastest(folder.name) for folder in files.entries(Path("/sys/class/net"))}
    return Process(
        locks_freely=_locks_freely(proc),
        memlock=read_limit(resource.RLIMIT_MEMLOCK),
        descriptors=read_limit(resource.RLIMIT_NOFILE),
        address_space=read_limit(resource.RLIMIT_AS),
        environment={name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)},
        ibverbs=load_library(_LIBRARIES),
        providers=tuple(providers()),
        verbs=_verbs_devices(),
        fastest={name: speed for name, speed in speeds.items() if speed is not None},
        gpu_drivers=drivers,
        compiler=find_compiler(),
        no_context=why_no_context(),
        nvidia=read_nvidia(),
        io_uring=read_io_uring(),
        gpudirect=None if drivers.get("cuda", "none") else read_gpudirect(),
    )


def _locks_freely(proc: Path) -> bool:
    status, uid_map = files.text(proc / "status"), files.text(proc / "uid_map")
    if status is None or uid_map is None:  # no /proc here, as after chroot()
        return may_exceed(read_limit(resource.RLIMIT_MEMLOCK))
    return locks_freely(status, uid_map)


def may_exceed(limit: Limit) -> bool:
    """Try whether this process may lock more memory than a limit allows; False if that cannot be tried.

    Pages that nothing has touched are locked, which takes no memory.
    """
    libc = ctypes.CDLL(None)
    if limit.soft is None or not hasattr(libc, "mlock2"):
        return False
    try:
        pages = mmap.mmap(-1, limit.soft + mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError):
        return False
    with pages:
        first = ctypes.c_char.from_buffer(pages)
        try:
            start, nbytes = ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(pages))
            return bool(libc.mlock2(start, nbytes, _MLOCK_ONFAULT) == 0)
        finally:
            del first  # the mapping cannot be closed before


def locks_freely(status: str, uid_map: str) -> bool:
    """Tell, from the texts of /proc/self/status and uid_map, whether the limit of locked memory has no effect.

    The kernel checks the capability of the machine: root's capability in a user namespace (a rootless container) does
    not count.
    """
    effective = 0
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key == "CapEff":
            effective = int(value, 16)
    return bool(effective >> _IPC_LOCK & 1) and uid_map.split() == ["0", "0", str(2**32 - 1)]


def load_library(names: tuple[str, ...]) -> Library:
    """Load the first loadable library of `names`, as the native module does, and return its path."""
    why_not = ""
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            why_not = why_not or str(error)
        else:
            return Library(_mapped_from(name), "", hasattr(library, "ibv_reg_dmabuf_mr"))
    return Library("", why_not)


def _mapped_from(name: str) -> str:
    for line in (files.text(Path("/proc/self/maps")) or "").splitlines():
        path = line.partition("/")[2]
        if Path(path).name.startswith(name):
            return f"/{path}"
    return name


def find_compiler() -> Compiler:
    """Load NVRTC, as compiling the copy kernels does: installed packages do not prove that the library is there.

    NVRTC lies in a package of its own, or in a CUDA toolkit.
    """
    if not _is_installed("cuda.core"):
        return Compiler(None, "cuda-core is not installed")
    try:
        from cuda.bindings import nvrtc

        code, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # noqa: BLE001 - cuda.bindings raises errors of its own kinds if the library is missing
        told = str(error).strip().splitlines() or [type(error).__name__]
        return Compiler(None, f"cuda-core is installed, and finds no NVRTC ({told[0]})")
    return Compiler((major, minor)) if int(code) == 0 else Compiler(None, f"NVRTC answers with {code}")


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # the parent package is missing, too
        return False


def _verbs_devices() -> tuple[Mapping[str, Any], ...] | None:
    from zerohop._native import NativeError, fabric_devices

    try:
        return tuple(fabric_devices())
    except NativeError:
        return None


# linux/sockios.h, linux/ethtool.h
_SIOCETHTOOL = 0x8946
_GET_LINK_SETTINGS = 0x4C
_HEADER = 48  # bytes of struct ethtool_link_settings before its bit masks
_WORDS_AT = 15  # link_mode_masks_nwords, signed; the first call returns minus the number that the kernel wants

# Gb/s -> bits of enum ethtool_link_mode_bit_indices, first and last of each run.
_MODES: dict[float, tuple[tuple[int, int], ...]] = {
    1: ((4, 5), (17, 17), (41, 41)),
    2.5: ((15, 15), (47, 47)),
    5: ((48, 48),),
    10: ((12, 12), (18, 20), (42, 46)),
    20: ((21, 22),),
    25: ((31, 33),),
    40: ((23, 26),),
    50: ((34, 35), (40, 40), (52, 56)),
    56: ((27, 30),),
    100: ((36, 39), (57, 61), (75, 79)),
    200: ((62, 66), (80, 84)),
    400: ((69, 73), (85, 89)),
    800: ((93, 98),),
}


def fastest(interface: str, ask: Callable[[str, bytearray], None] | None = None) -> float | None:
    """Return the fastest speed that `interface` supports, in gigabits a second; None if its driver lists no mode.

    Args:
        interface: name of the interface.
        ask: passes the request to the kernel, which answers in the same buffer; None: the ioctl.
    """
    ask = ask or _ioctl
    request = bytearray(_HEADER)
    struct.pack_into("I", request, 0, _GET_LINK_SETTINGS)
    try:
        ask(interface, request)
        words = -struct.unpack_from("b", request, _WORDS_AT)[0]
        if words <= 0:
            return None
        request = bytearray(_HEADER + 3 * 4 * words)  # supported, advertised, advertised by the other end
        struct.pack_into("I", request, 0, _GET_LINK_SETTINGS)
        struct.pack_into("b", request, _WORDS_AT, words)
        ask(interface, request)
    except OSError:
        return None
    supported = int.from_bytes(request[_HEADER : _HEADER + 4 * words], "little")
    return max((speed for speed, runs in _MODES.items() if _any_of(supported, runs)), default=None)


def _any_of(supported: int, runs: tuple[tuple[int, int], ...]) -> bool:
    return any(supported >> bit & 1 for first, last in runs for bit in range(first, last + 1))


def _ioctl(interface: str, request: bytearray) -> None:
    buffer = (ctypes.c_char * len(request)).from_buffer(request)
    # struct ifreq: the name, and a pointer to the request.
    question = struct.pack("16sP16x", interface.encode()[:15], ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, question)
