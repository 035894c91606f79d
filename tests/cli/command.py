"""Runs the command line as a user does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# What a developer has set must not change what the tests see.
_ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("ZEROHOP_")}


def zerohop(
    *arguments: object, timeout: float = 60, preexec: Callable[[], None] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`zerohop arguments…`, with its exit code and what it printed; `preexec` runs in its process before it."""
    command = [sys.executable, "-m", "zerohop.cli", *map(str, arguments)]
    env = {**_ENVIRONMENT, **environment}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=env, check=False, preexec_fn=preexec
    )
