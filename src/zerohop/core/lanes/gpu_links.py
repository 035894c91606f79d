"""Names the link between two devices of one machine, by the identities that drivers give them."""

from __future__ import annotations

from typing import Final

_SIM: Final = "sim:"


def link_between(here: str, there: str) -> str:
    """Return the link by which a device reaches memory: ``"nvlink"``, ``"pcie"``, ``"same device"`` or ``"sim"``.

    ``there`` is the other device; empty if the other memory is the host's. ``"peer"`` stands for an unknown link.
    """
    if here.startswith(_SIM):
        return "sim"
    if here == there:
        return "same device"
    if not there:
        return "pcie"
    # Imported here because it imports everything that looks at the machine.
    from zerohop.machine.nvml import over_nvlink

    found = over_nvlink(here, there)
    return "peer" if found is None else "nvlink" if found else "pcie"
