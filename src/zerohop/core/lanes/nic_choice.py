"""Chooses the NIC ports of a Context's RDMA lanes, as docs/nics.md orders them and settings narrow them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from zerohop.config.nic_filter import NicFilter, matches
from zerohop.core.lanes.nic_ports import Port
from zerohop.errors import Unsupported
from zerohop.machine.nics import read_rdma_devices
from zerohop.machine.topology import choose_nics, process_numa_node
from zerohop.shown import shown

if TYPE_CHECKING:
    from zerohop.config.settings import Settings
    from zerohop.config.verbs_options import VerbsOptions
    from zerohop.machine.topology import NicChoice

_ROOT: Final = Path("/")
# Characters that make a pattern of a name.
_WILDCARDS: Final = frozenset("*?[")
# Groups of a GID that name its subnet. In the GID of an IPv4 address they are the same for all networks.
_SUBNET_GROUPS: Final = 4


def choose(settings: Settings, near: str | None = None, root: Path = _ROOT) -> list[Port]:
    """Return the ports that may serve one lane together, the best first: those as near and as fast as the best.

    Args:
        settings: settings of the Context; ``nics`` leaves ports out, ``verbs`` says how many may serve one lane.
        near: PCI address of the accelerator whose memory is moved; None for host memory.
        root: the directory that has /sys.

    Raises:
        Unsupported: no port can be used; the error has the reason and the fix.
    """
    allowed = settings.nics or NicFilter()
    found = choose_nics(
        read_rdma_devices(root),
        near,
        process_numa_node(root) if near is None else None,
        allowed.include,
        allowed.exclude,
        gid_index=settings.verbs.gid_index,
        root=root,
    )
    if not found.chosen:
        rejected = "; ".join(f"{each.name}: {each.why}" for each in found.rejected)
        fixes = "; ".join(dict.fromkeys(each.fix for each in found.rejected if each.fix))
        raise Unsupported(
            found.why + (f" ({rejected})" if rejected and rejected not in found.why else ""), fix=found.fix or fixes
        )
    best = found.chosen[0]
    alike = [each for each in found.chosen if _tier(each) == _tier(best)]
    return [_port(each, settings.verbs) for each in alike[: settings.verbs.rails]]


def check_names(wanted: NicFilter, root: Path = _ROOT) -> None:
    """Check that there is what a filter names, in whatever state it is; a filter of patterns may also mean no port.

    Raises:
        Unsupported: there is nothing of all that it names; the reason lists the ports that there are.
    """
    ports = [(device.name, port.number) for device in read_rdma_devices(root) for port in device.ports]
    named = wanted.include and not any(set(pattern) & _WILDCARDS for pattern in wanted.include)
    if named and not any(matches(name, *port) for name in wanted.include for port in ports):
        there = ", ".join(f"{device}:{number}" for device, number in ports) or "none at all"
        raise Unsupported(
            f"nics={shown(','.join(wanted.include))} means no RDMA port of this machine; there is {there}",
            fix="correct nics= (ZEROHOP_NICS), or leave it out",
            operation="open",
        )


def _tier(choice: NicChoice) -> tuple[object, ...]:
    return choice.distance, choice.gbit_per_s, choice.numa_node


def _port(choice: NicChoice, options: VerbsOptions) -> Port:
    groups = choice.gid.text.split(":")
    link = "Ethernet" if choice.gid.type.startswith(("RoCE", "IB/RoCE")) else ""
    return Port(
        choice.device,
        choice.port,
        options.native(choice.gid.index),
        link=link,
        gbytes_per_s=(choice.gbit_per_s or 0.0) / 8,
        subnet=":".join(groups[:_SUBNET_GROUPS]),
    )
