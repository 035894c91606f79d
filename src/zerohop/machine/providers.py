"""Reports the providers: which of them this process can use, and why it cannot use the others."""

from __future__ import annotations

import platform
from dataclasses import dataclass

# Hardware that each provider has run on. Others are labelled "not verified on hardware".
_VERIFIED = {
    "shm": "x86_64",
    "tcp": "x86_64, loopback",
    "p2p": "x86_64, NVIDIA H200 over NVLink and PCIe",
}


@dataclass(frozen=True, slots=True)
class ProviderFacts:
    """Describes one provider.

    Attributes:
        name: "shm", "tcp", ...
        usable: whether a Context can open it here.
        why: the reason why it cannot, else "".
        fix: what would make it usable, or "".
        verified_on: hardware that it has run on, or "" for none.
        label: "" or "not verified on hardware", with the hardware that this applies to.
    """

    name: str
    usable: bool
    why: str
    fix: str
    verified_on: str
    label: str


def read_providers() -> tuple[ProviderFacts, ...]:
    """Ask the native module for the providers."""
    from zerohop._native import providers

    return describe(providers(), platform.machine())


def describe(probed: list[tuple[str, bool, str, str]], architecture: str) -> tuple[ProviderFacts, ...]:
    """Turn the answers of the native probes into facts.

    Args:
        probed: name, usable, reason and fix of each provider of the native module.
        architecture: as `platform.machine()` names it.
    """
    return tuple(
        ProviderFacts(name, usable, why, fix, _VERIFIED.get(name, ""), _label(name, architecture))
        for name, usable, why, fix in probed
    )


def _label(name: str, architecture: str) -> str:
    if name not in _VERIFIED:
        return "not verified on hardware"
    if architecture not in ("x86_64", "AMD64"):
        return f"not verified on hardware: {architecture} (verified on {_VERIFIED[name]})"
    if name == "tcp":
        return "not verified on hardware: a network between two hosts (verified on loopback)"
    return ""
