"""Providers: which kinds of fabric this process can use, and why not the others."""

from __future__ import annotations

import platform
from dataclasses import dataclass

# What each provider has run on. Whatever is not listed here is labelled "not verified on hardware".
_VERIFIED = {
    "shm": "x86_64",
    "tcp": "x86_64, loopback",
    "p2p": "x86_64, NVIDIA H200 over NVLink and PCIe",
}


@dataclass(frozen=True, slots=True)
class ProviderFacts:
    """One provider.

    Attributes:
        name: "shm", "tcp", ...
        usable: a Context can open it here.
        why: the reason when it cannot, else "".
        fix: what would make it usable, or "".
        verified_on: what it has run on, or "" for nothing.
        label: "" or "not verified on hardware", with what that applies to.
    """

    name: str
    usable: bool
    why: str
    fix: str
    verified_on: str
    label: str


def read_providers() -> tuple[ProviderFacts, ...]:
    """Asks the native module."""
    from zerohop._native import providers

    return describe(providers(), platform.machine())


def describe(probed: list[tuple[str, bool, str, str]], architecture: str) -> tuple[ProviderFacts, ...]:
    """Turns the answers of the native probes into facts.

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
