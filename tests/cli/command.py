"""Runs the command line as a user does: in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from support.patience import patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What a developer has set must not change what the tests see.
_ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("ZEROHOP_")}


def zerohop(
    *arguments: object,
    timeout: float = patience(60),
    preexec: Callable[[], None] | None = None,
    encoding: str = "utf-8",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """`zerohop arguments…`, with its exit code and what it printed in this encoding; `preexec` runs there before it."""
    env = {**_ENVIRONMENT, **environment}
    return subprocess.run(
        _command(arguments),
        capture_output=True,
        encoding=encoding,
        timeout=timeout,
        env=env,
        check=False,
        preexec_fn=preexec,
    )


@contextmanager
def zerohop_started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run it as zerohop() does, for as long as the block lasts; Ctrl-C ends it. What still runs then is killed."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        _command(arguments), stdout=pipe, stderr=pipe, text=True, env=_ENVIRONMENT, preexec_fn=_hear_ctrl_c
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _hear_ctrl_c() -> None:
    # A script's background jobs ignore it, and so does what they start.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _command(arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-m", "zerohop.cli", *map(str, arguments)]
