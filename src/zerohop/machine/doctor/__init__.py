"""Runs every check of RDMA, GPUs and storage that a user would otherwise do by hand.

`read_system` reads the facts once. Each check judges them: it says OK, WARN or FAIL with commands to type, or why it
does not apply here. A check reads no other facts, so that it can be tried on the facts of another machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.machine.doctor import address, device, gpu, gpu_software, limits, pcie, port, software, storage
from zerohop.machine.doctor.check import Check, Checker, State
from zerohop.machine.doctor.system import System, read_system

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["CHECKS", "Check", "Checker", "State", "System", "diagnose", "read_system"]

# In the order to read them in: a problem in one family explains failures of later ones.
CHECKS: tuple[Checker, ...] = (
    *device.CHECKS,
    *software.CHECKS,
    *port.CHECKS,
    *address.CHECKS,
    *limits.CHECKS,
    *gpu.CHECKS,
    *gpu_software.CHECKS,
    *pcie.CHECKS,
    *storage.CHECKS,
)


def diagnose(system: System, names: Collection[str] = (), families: Collection[str] = ()) -> tuple[Check, ...]:
    """Run the checks.

    Args:
        system: the facts.
        names: run only these checks, and those of `families`; with neither, all.
        families: run only the checks of these families.

    Raises:
        ValueError: there is no such check or family; the text lists the known ones.
    """
    known_names = [check.name for check in CHECKS]
    known_families = list(dict.fromkeys(check.family for check in CHECKS))
    for given, known, what in ((names, known_names, "check"), (families, known_families, "family")):
        for name in given:
            if name not in known:
                raise ValueError(f"there is no {what} {name!r}; there are {', '.join(known)}")
    wanted = [check for check in CHECKS if check.name in names or check.family in families]
    return tuple(check(system) for check in (wanted if names or families else CHECKS))
