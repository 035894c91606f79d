"""Names the providers: the fabrics that lanes are made of."""

from __future__ import annotations

from typing import Final

SHM: Final = "shm"
P2P: Final = "p2p"
VERBS: Final = "verbs"
TCP: Final = "tcp"
PROVIDERS: Final = (SHM, P2P, VERBS, TCP)
