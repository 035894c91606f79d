"""Checks the family "storage": how files are read here, and what a server of files may keep open and locked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.machine.descriptors import OF_CLIENT, OF_FILE, OF_SERVER
from zerohop.machine.doctor.check import Verdict, checks_of, not_here, ok, warn
from zerohop.machine.doctor.limits import raise_descriptors, raise_memlock
from zerohop.machine.doctor.words import add_to_container, no_nvidia, on_the_host, size
from zerohop.machine.io_uring import CALLS, REBUILD

if TYPE_CHECKING:
    from zerohop.machine.doctor.system import System
    from zerohop.machine.io_uring import IoUring

check = checks_of("storage")
on_nvidia = checks_of("storage", needs=no_nvidia)

# A server's own memory, unless it is told otherwise.
_SERVED = 256 << 20
_CLIENTS = 8
_LEAST_FILES = 2048
_PROFILE = "--security-opt seccomp=PROFILE.json"
_POD = "securityContext: {seccompProfile: {type: Localhost, localhostProfile: PROFILE.json}}"


@check("io-uring", "without it threads read and write files, which is more work for the processor")
def io_uring(system: System) -> Verdict:
    """Check that files can be read by io_uring."""
    found = system.process.io_uring
    if found is None:
        return not_here("not looked for")
    if found.usable:
        return ok("usable")
    return warn(f"{found.why}: threads read and write files", *_allow(system, found))


@check("iov-memory", "the system keeps pages of Iovs at hand up to this limit, and looks up others each time")
def iov_memory(system: System) -> Verdict:
    """Check that the limit of locked memory leaves room for Iovs, and for those of a server's clients."""
    if system.process.io_uring is None or not system.process.io_uring.usable:
        return not_here("threads read and write files, and lock nothing: see io-uring")
    limit = system.process.memlock
    if limit.soft is None:
        return ok("unlimited")
    told = f"{size(limit.soft)} may be locked"
    if system.process.locks_freely:
        return ok(f"{told}, and this process may exceed it (CAP_IPC_LOCK)")
    told += ", all Iovs of this user together"
    if limit.soft >= _SERVED:
        return ok(told)
    return warn(f"{told}: transfers of the others are slower (Iov.not_fixed)", *raise_memlock(system, limit))


@check("served-files", "each file that a client of a server has open takes two of the server's descriptors")
def served_files(system: System) -> Verdict:
    """Check that the limit of open descriptors leaves room for the files of a server's clients."""
    limit = system.process.descriptors
    if limit.soft is None:
        return ok("unlimited")
    most = (limit.soft - OF_SERVER - _CLIENTS * OF_CLIENT) // OF_FILE
    if most < 1:
        told = f"{limit.soft} descriptors: too few for a server with {_CLIENTS} clients"
    else:
        told = f"{limit.soft} descriptors: a server with {_CLIENTS} clients may have {most} of their files open at most"
    return ok(told) if most >= _LEAST_FILES else warn(told, *raise_descriptors(system, limit))


@on_nvidia("gds", "with GPUDirect Storage a disk writes into a GPU's memory; otherwise host buffers lie between them")
def gds(system: System) -> Verdict:
    """Tell whether GPUDirect Storage is used. It need not be: a machine without that way is healthy."""
    version = system.modules.get("nvidia_fs")
    there = "not loaded" if version is None else f"loaded{f' ({version})' if version else ''}"
    found = system.process.gpudirect
    if found is not None and found.usable:
        return ok(f"used for files on ext4 and xfs, not verified on hardware; its driver nvidia_fs is {there}")
    why = "not looked for" if found is None else found.why
    told = f"not used: bytes between files and GPUs pass through host buffers ({why}); its driver nvidia_fs is {there}"
    # A machine without that driver is not meant to have it.
    return not_here(told) if found is None or version is None else warn(told, f"# {found.fix}")


def _allow(system: System, found: IoUring) -> tuple[str, ...]:
    """Return what to type for io_uring, on this machine and in this container."""
    if found.cause == "build":
        return REBUILD
    if found.cause == "filter":
        if system.container:
            return (
                *add_to_container(system, _PROFILE, _POD),
                f"# PROFILE.json is the runtime's own seccomp profile with {CALLS} among the calls that it allows",
            )
        return ("# of a service: systemctl edit NAME, with SystemCallFilter=@io-uring under [Service]",)
    if found.cause in ("disabled", "restricted"):
        keep = "echo kernel.io_uring_disabled=0 >/etc/sysctl.d/60-io-uring.conf  # also after a restart"
        return on_the_host(system, found.fix, keep)
    if found.cause == "memlock":
        return raise_memlock(system, system.process.memlock)
    if found.cause == "descriptors":
        return raise_descriptors(system, system.process.descriptors)
    return (f"# {found.fix}",) if found.cause == "kernel" else on_the_host(system, found.fix)


CHECKS = (io_uring, iov_memory, served_files, gds)
