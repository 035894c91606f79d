"""Checks the family "software": libraries, versions, and the kernel's behaviour on fork()."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.machine.doctor.check import Verdict, checks_of, combined, fail, not_here, ok, shortened, warn
from zerohop.machine.doctor.words import install_verbs, no_rdma

if TYPE_CHECKING:
    from zerohop.machine.doctor.system import System

check = checks_of("software")
on_nic = checks_of("software", needs=no_rdma)

# Modules whose versions a maintainer asks for first.
_MODULES = ("mlx5_core", "mlx4_core", "bnxt_re", "irdma", "efa", "nvidia", "nvidia_peermem", "amdgpu")
_FORK_VARIABLES = ("RDMAV_FORK_SAFE", "IBV_FORK_SAFE")


@check("versions", "what every report of a problem begins with; cards of one kind should run one firmware")
def versions(system: System) -> Verdict:
    """Report the versions of zerohop, kernel, driver modules and firmware."""
    known = [f"{name} {system.modules[name]}" for name in _MODULES if system.modules.get(name)]
    kernel = f"Linux {system.kernel.release} ({system.kernel.distribution})"
    boards: dict[str, dict[str, list[str]]] = {}
    for hca in system.hcas:
        if not hca.software and hca.firmware:
            boards.setdefault(hca.board or hca.driver, {}).setdefault(hca.firmware, []).append(hca.name)
    for board, firmware in boards.items():
        if len(firmware) > 1:
            each = "; ".join(f"{version} on {', '.join(names)}" for version, names in firmware.items())
            return warn(f"NICs of one kind ({board}) have different firmware: {each}", "mstfwmanager --online --update")
        known += [f"firmware {version} on {shortened(names)}" for version, names in firmware.items()]
    return ok(", ".join([f"zerohop {system.zerohop}", kernel, *known]))


@check("libibverbs", "the library through which every program talks to RDMA NICs")
def libibverbs(system: System) -> Verdict:
    """Check that the verbs library can be loaded."""
    library = system.process.ibverbs
    if library.path:
        return ok(library.path)
    if not system.hcas and not system.nic_functions:
        return not_here("not installed, and without an RDMA device nothing needs it")
    return fail(f"it cannot be loaded: {library.why_not}", *install_verbs(system))


@on_nic("provider-library", "libibverbs shows no device whose driver's library it lacks, and says nothing about it")
def provider_library(system: System) -> Verdict:
    """Check that rdma-core's library for the driver of each device is installed."""
    found = []
    for hca in system.hcas:
        wanted = f"lib{hca.driver}-rdmav*.so"
        if not hca.driver:
            driver = hca.device.driver
            found.append((hca.name, not_here(f"the library for its driver {driver} is not known to zerohop")))
        elif hca.library:
            found.append((hca.name, ok(hca.library)))
        else:
            found.append((hca.name, fail(f"{wanted} is not installed", *install_verbs(system))))
    return combined(found, one_is_enough=True)


@check("verbs", "what zerohop itself says of the RDMA devices of this machine")
def verbs(system: System) -> Verdict:
    """Check that the verbs provider of zerohop is built, usable, and sees every device."""
    probed = {name: (usable, why, fix) for name, usable, why, fix in system.process.providers}
    if "verbs" not in probed:
        missing = "this build of zerohop has no verbs: it was built without libibverbs' headers"
        if no_rdma(system):
            return not_here(missing)
        return fail(missing, "apt-get install -y libibverbs-dev", "# then build zerohop again: make clean build")
    usable, why, fix = probed["verbs"]
    if not system.hcas:
        return not_here(no_rdma(system))
    if not usable:
        return fail(why, *([fix] if fix else []))
    if system.process.verbs is None:
        return ok("usable; its devices could not be asked")
    seen = {facts["name"]: facts["why_not"] for facts in system.process.verbs}
    found = []
    for hca in system.hcas:
        if hca.name not in seen:
            found.append((hca.name, fail("libibverbs does not list it: see provider-library", "ibv_devices")))
        elif seen[hca.name]:
            found.append((hca.name, fail(f"{seen[hca.name]}: see device-node", f"ibv_devinfo -d {hca.name}")))
        else:
            found.append((hca.name, ok("listed and opened")))
    return combined(found, one_is_enough=True)


@check("proc", "every Context opens descriptors through it, and the limits behind errors are read there")
def proc(system: System) -> Verdict:
    """Check that /proc is mounted."""
    why, fix = system.process.no_context
    return fail(f"no Context can be opened: {why}", fix) if why else ok("mounted")


@on_nic("fork", "before Linux 5.12 a child of fork() takes pages away that the parent has registered with a NIC")
def fork(system: System) -> Verdict:
    """Check that a forked child gets copies of registered pages, or that libibverbs keeps these pages from it."""
    release = system.kernel.release
    if system.kernel_version >= (5, 12):
        return ok(f"Linux {release} copies registered pages for a child")
    for name in _FORK_VARIABLES:
        if name in system.process.environment:
            return ok(f"Linux {release} is older than 5.12, and {name} is set")
    return warn(
        f"Linux {release} is older than 5.12 (a distribution may have brought the change back)",
        "export RDMAV_FORK_SAFE=1",
        '# or start processes without fork: multiprocessing.set_start_method("spawn")',
    )


CHECKS = (versions, proc, libibverbs, provider_library, verbs, fork)
