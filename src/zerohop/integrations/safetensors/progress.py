"""Shows how far a load or a save is, with its rate, where somebody sees it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def shown_progress(what: str, nbytes: int, wanted: bool | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on the standard error; what this gives is called with each number of bytes that are done.

    Args:
        what: the words before the bar.
        nbytes: bytes in all.
        wanted: whether to show it; None: if the standard error is a terminal.
    """
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield _unseen
        return
    # rich takes 50 ms to import.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=nbytes)
        yield lambda nbytes: bar.advance(task, nbytes)


def _unseen(nbytes: int) -> None:
    """Show nothing."""
