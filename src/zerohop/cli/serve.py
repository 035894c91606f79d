"""Runs ``zerohop serve``: a server of files, until it is told to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

from rich.markup import escape

from zerohop.cli.console import human_bytes, make_console
from zerohop.cli.sizes import parse_sizes
from zerohop.errors import ZerohopError
from zerohop.storage import Server

if TYPE_CHECKING:
    from collections.abc import Iterator


def run(folder: str, *, listen: str, read_only: bool, threads: int, memory: str) -> int:
    """Serve until SIGINT or SIGTERM; return 0, or 2 if it cannot be served."""
    with _stopped() as stop:
        try:
            (nbytes,) = parse_sizes(memory)
            server = Server(folder, read_only=read_only, threads=threads, memory=nbytes, listen=listen)
        except (ZerohopError, ValueError) as error:
            make_console(stderr=True).print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
            return 2
        console = make_console()
        with server:
            how = "read only, " if read_only else ""
            console.print(f"serving {escape(server.folder)} {how}by {server.engine}; Ctrl-C ends it", soft_wrap=True)
            console.print(f'open_store("{escape(server.url)}")', soft_wrap=True)
            stop.wait()
            done = server.statistics()
        read, written = human_bytes(done.bytes_read), human_bytes(done.bytes_written)
        console.print(f"{read} were read, {written} written")
    return 0


@contextlib.contextmanager
def _stopped() -> Iterator[threading.Event]:
    """Within, SIGINT and SIGTERM set an event, and nothing else."""
    stop = threading.Event()
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
