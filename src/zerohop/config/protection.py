"""Says which parts of a session are encrypted in which mode, and what this machine lacks for it."""

from __future__ import annotations

import importlib.util
from typing import Final, Literal

from zerohop.config import reach

Encryption = Literal["none", "control", "all"]
ENCRYPTIONS: Final = ("none", "control", "all")
_FIX: Final = "pip install 'zerohop[tls]', or pass encryption='none' on a network that you trust"


def why_not(encryption: Encryption) -> str:
    """Return why this machine cannot do what a mode asks for; empty if it can."""
    if encryption == "none":
        return ""
    try:
        import ssl
    except ImportError:
        return reach.why_gone() or "this Python was built without OpenSSL"
    if not ssl.HAS_TLSv1_3:
        return "this Python was built with an OpenSSL that has no TLS 1.3"
    if importlib.util.find_spec("cryptography") is None:
        return reach.why_gone() or "the package cryptography is not installed"
    if encryption == "control":
        return ""
    from zerohop._native import tls_why_not

    return tls_why_not()


def fix() -> str:
    """Return what to do about it."""
    return reach.FIX if reach.why_gone() else _FIX
