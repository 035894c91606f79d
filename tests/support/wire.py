"""The lab's wire between two NICs, rxea and rxeb: made worse, cut and mended, and as it was afterwards."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LAB = Path(__file__).resolve().parents[2] / "lab"
# The NIC of either end.
NEAR, FAR = "rxea", "rxeb"


def _run(script: str, *words: str) -> None:
    subprocess.run([str(_LAB / script), *words], check=True, timeout=30)


@contextmanager
def trouble(words: str) -> Iterator[None]:
    """Both directions as tc-netem(8) says: "loss 5%"."""
    _run("netem.sh", *words.split())
    try:
        yield
    finally:
        _run("netem.sh", "clear")


@contextmanager
def cut(interface: str = "va") -> Iterator[None]:
    """A link is down: that between the two ends, unless told otherwise."""
    _run("link.sh", interface, "down")
    try:
        yield
    finally:
        _run("link.sh", interface, "up")
