"""Says what works in programs of other frameworks than asyncio: gevent, trio."""

from __future__ import annotations

import _thread
import select
import socket
from typing import Final

NO_LOOP: Final = (
    "an await needs an event loop of asyncio, such as uvloop, and none runs on this thread. Fix: in trio, "
    "await trio.to_thread.run_sync(operation.result); elsewhere, operation.result()"
)

NO_LOOP_TO_CLOSE: Final = (
    "async with needs an event loop of asyncio, such as uvloop, and none runs on this thread. Fix: use with, "
    "and in trio close it by await trio.to_thread.run_sync(x.close)"
)


def check_unpatched() -> None:
    """Raise RuntimeError if gevent or the like has replaced what this thread needs: the Context would stand still."""
    for name, thing in (("threads", _thread.start_new_thread), ("sockets", socket.socket), ("select", select.poll)):
        library = thing.__module__.partition(".")[0]
        if library not in ("_thread", "socket", "select"):
            raise RuntimeError(
                f"{library} has patched the {name} of this process, and a Context needs the real ones. "
                f"Fix: use zerohop in a process of its own, or leave them: "
                f"gevent.monkey.patch_all(thread=False, socket=False, select=False)"
            )
