"""Says which parts of a session are encrypted in which mode, and what this machine lacks for it."""

from __future__ import annotations

import importlib.util
from typing import Final, Literal

Encryption = Literal["none", "control", "all"]
ENCRYPTIONS: Final = ("none", "control", "all")
FIX: Final = "pip install 'zerohop[tls]', or pass encryption='none' on a network that you trust"


def why_not(encryption: Encryption) -> str:
    """Return why this machine cannot do what a mode asks for; empty if it can."""
    if encryption == "none":
        return ""
    try:
        import ssl
    except ImportError:
        return "this Python was built without OpenSSL"
    if not ssl.HAS_TLSv1_3:
        return "this Python was built with an OpenSSL that has no TLS 1.3"
    if importlib.util.find_spec("cryptography") is None:
        return "the package cryptography is not installed"
    if encryption == "control":
        return ""
    from zerohop._native import tls_why_not

    return tls_why_not()
