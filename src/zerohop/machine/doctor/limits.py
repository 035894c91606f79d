"""Checks the family "limits": how much the system allows this process to lock, open, map and share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.machine.doctor.check import Verdict, checks_of, fail, not_here, ok, warn
from zerohop.machine.doctor.words import add_to_container, no_rdma, on_the_host, size

if TYPE_CHECKING:
    from zerohop.machine.doctor.system import System
    from zerohop.machine.host import Limit

check = checks_of("limits")

# A NIC port takes a few MiB for message buffers alone, and every connection more: less than this has room for no data.
_LEAST_LOCKED = 64 << 20
_LEAST_SHARED = 1 << 30
_LEAST_DESCRIPTORS = 1024
_OF_A_CONTEXT, _OF_A_CONNECTION = 15, 4  # descriptors, counted on Linux 6.18
_LOGIN = "printf '* soft memlock unlimited\\n* hard memlock unlimited\\n' >/etc/security/limits.d/rdma.conf"


@check("memlock", "a NIC reads and writes only memory that is locked: registration fails when the limit is reached")
def memlock(system: System) -> Verdict:
    """Check that the limit of locked memory leaves room for registered memory."""
    if missing := no_rdma(system):
        return not_here(f"{missing}: nothing locks memory")
    limit = system.process.memlock
    if limit.soft is None:
        return ok("unlimited")
    told = f"{size(limit.soft)} may be locked"
    if system.process.locks_freely:
        return ok(f"{told}, and this process may exceed it (CAP_IPC_LOCK)")
    fixes = raise_memlock(system, limit)
    if limit.soft < _LEAST_LOCKED:
        return fail(f"{told}: not enough to register anything of use", *fixes)
    return warn(f"{told}, all registered memory of the process together", *fixes)


@check("descriptors", "each connection, and each allocation that a peer has mapped, takes a few descriptors")
def descriptors(system: System) -> Verdict:
    """Check that the limit of open descriptors leaves room for connections."""
    limit = system.process.descriptors
    if limit.soft is None:
        return ok("unlimited")
    peers = max(0, (limit.soft - _OF_A_CONTEXT) // _OF_A_CONNECTION)
    told = f"{limit.soft} descriptors: connections to about {peers} peers"
    if limit.soft >= _LEAST_DESCRIPTORS:
        return ok(told)
    return warn(told, *raise_descriptors(system, limit))


@check("shared-memory", "multiprocessing.shared_memory and shared torch tensors live in /dev/shm; zerohop's own do not")
def shared_memory(system: System) -> Verdict:
    """Check that /dev/shm exists, is large enough, and is not full."""
    total, free = system.memory.shared_total, system.memory.shared_free
    enlarge = (
        add_to_container(system, "--shm-size=16g", "mount an emptyDir volume with medium: Memory at /dev/shm")
        if system.container
        else ("mount -o remount,size=50% /dev/shm",)
    )
    if total is None or free is None:
        return warn("there is no /dev/shm", "mount -t tmpfs -o mode=1777 tmpfs /dev/shm")
    told = f"/dev/shm has {size(total)}, {size(free)} of it free"
    if total < _LEAST_SHARED:
        return warn(told, *enlarge)
    if free < total // 10:
        return warn(f"{told}: nearly full", "ls -lt /dev/shm", "# remove what a killed process has left there")
    return ok(told)


@check("address-space", "GPU drivers reserve address space for all memory of the machine; a limit makes them fail")
def address_space(system: System) -> Verdict:
    """Check that address space is not limited."""
    limit = system.process.address_space
    if limit.soft is None:
        return ok("unlimited")
    told = f"{size(limit.soft)} of address space"
    if limit.hard is None:
        return warn(told, "ulimit -v unlimited")
    return warn(told, "# remove the limit `as` from /etc/security/limits.conf, or from the job's description")


def raise_descriptors(system: System, limit: Limit) -> tuple[str, ...]:
    """Return how the limit of open descriptors is raised."""
    wanted = "65536" if limit.hard is None or limit.hard >= 65536 else str(limit.hard)
    if limit.hard is None or (limit.soft is not None and limit.hard > limit.soft):
        return (f"ulimit -n {wanted}",)
    if system.container:
        of_the_node = "nothing: the limit is that of the node's container runtime (LimitNOFILE of containerd)"
        return add_to_container(system, "--ulimit nofile=65536", of_the_node)
    return "echo '* hard nofile 65536' >/etc/security/limits.d/nofile.conf", "# then log in again"


def raise_memlock(system: System, limit: Limit) -> tuple[str, ...]:
    """Return how the limit of locked memory is raised."""
    if limit.hard is None:
        return ("ulimit -l unlimited", "# of a service: LimitMEMLOCK=infinity in its unit")
    if system.container == "kubernetes":
        pod = 'securityContext: {capabilities: {add: ["IPC_LOCK"]}}'
        return add_to_container(system, "", pod)
    if system.container:
        return add_to_container(system, "--ulimit memlock=-1 --cap-add=IPC_LOCK", "")
    return on_the_host(
        system,
        _LOGIN,
        "# then log in again",
        "# of a service: systemctl edit NAME, with LimitMEMLOCK=infinity under [Service]",
    )


CHECKS = (memlock, descriptors, shared_memory, address_space)
