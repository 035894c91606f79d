"""Links between devices of one machine, by the identities that drivers give them."""

from __future__ import annotations

from typing import Final

_SIM: Final = "sim:"


def link_between(here: str, there: str) -> str:
    """By which link a device reaches the memory of another: ``"nvlink"``, ``"pcie"``, ``"same device"``, ``"sim"``.

    ``there`` is empty where one of the memories is the host's. ``"peer"`` where nobody here knows.
    """
    if here.startswith(_SIM):
        return "sim"
    if here == there:
        return "same device"
    if not there:
        return "pcie"
    # Not with the package: it brings in all that looks at the machine.
    from zerohop.machine.nvml import over_nvlink

    found = over_nvlink(here, there)
    return "peer" if found is None else "nvlink" if found else "pcie"
