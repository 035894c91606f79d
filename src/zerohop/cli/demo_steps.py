"""Runs the first four of the demo's eight steps, which all forms of the demo share, within one deadline."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

import zerohop
from zerohop.cli.console import human_bytes, human_time
from zerohop.cli.payload import locate_difference
from zerohop.core.control import address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from zerohop.cli.payload import Difference
    from zerohop.cli.peer import Answer, PeerProcess

STEPS = 8
DEVICE = "sim:0"


class Mismatch(Exception):
    """Raised if received bytes differ from the sent ones; the text says which."""


class Deadline:
    """Holds a point in time after which `left` raises."""

    __slots__ = ("_end", "_seconds")

    def __init__(self, seconds: float) -> None:
        """Set the end `seconds` from now."""
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds left, above 0.

        Raises:
            TimeoutError: no time is left.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not finished within {self._seconds:g} s (--timeout gives it longer)")
        return left


class Steps:
    """Prints numbered steps and the facts of each."""

    def __init__(self, console: Console) -> None:
        """Start before step 1."""
        self._console = console
        self._number = 0

    def next(self, title: str) -> None:
        """Begin the next step."""
        self._number += 1
        assert self._number <= STEPS
        self._console.print(f"[bold]Step {self._number} of {STEPS}: {title}[/]")

    def fact(self, text: str) -> None:
        """Print a measured or read fact."""
        self._console.print(f"  {escape(text)}", soft_wrap=True)

    def fault(self, flipped: dict[str, Any]) -> None:
        """Say which byte was flipped on purpose."""
        where = f"byte {flipped['offset']}: 0x{flipped['before']:02x} became 0x{flipped['after']:02x}"
        self._console.print(f"  [yellow]fault injected on the receiving device:[/] {where}")


@dataclass(frozen=True, slots=True)
class Exchange:
    """Holds this process's half of an exchange, connected to the other process."""

    steps: Steps
    peer: PeerProcess
    deadline: Deadline
    context: zerohop.Context
    memory: zerohop.Memory

    def ask(self, command: str, **arguments: Any) -> Answer:
        """Run a command in the other process, within the time left."""
        return self.peer.call(command, **arguments, timeout=self.deadline.left())

    def difference(self, mine: bytes, offset: int, *, mine_is_expected: bool) -> Difference | None:
        """Find the bytes from `offset` on of the other process's device that differ from `mine`."""

        def fetch(at: int, nbytes: int) -> bytes:
            return bytes.fromhex(self.ask("inspect", offset=offset + at, nbytes=nbytes)["data"])

        blocks = self.ask("blocks", offset=offset, nbytes=len(mine))["blocks"]
        return locate_difference(mine, blocks, fetch, mine_is_expected=mine_is_expected)


@contextmanager
def open_exchange(
    console: Console,
    peer: PeerProcess,
    deadline: Deadline,
    nbytes: int,
    *,
    providers: Sequence[str] | None = None,
) -> Iterator[Exchange]:
    """Open a Context with one simulated GPU and `nbytes` on it in both processes, and connect the two (steps 1 to 4).

    Both Contexts are closed when the block ends.
    """
    steps = Steps(console)
    steps.next("Open a Context in each process")
    chosen = None if providers is None else list(providers)
    there = peer.call("open", providers=chosen, timeout=deadline.left())
    with zerohop.Context(sim_devices=1, providers=chosen) as context:
        steps.fact(f"this process:  pid {os.getpid()}, {_presence(context.url)}")
        steps.fact(f"other process: pid {there['pid']}, {_presence(there['url'])}")
        steps.next("Find the devices")
        mine = ", ".join(device.name for device in context.devices)
        steps.fact(f"this process:  {mine} (simulated in host memory)")
        steps.fact(f"other process: {', '.join(there['devices'])} (simulated in host memory)")
        steps.next("Allocate on the devices")
        with context.alloc(nbytes, device=DEVICE) as memory:
            allocated = peer.call("allocate", nbytes=nbytes, timeout=deadline.left())
            steps.fact(_allocation("this process: ", memory.nbytes, memory.address, cpu_access(memory.address)))
            steps.fact(_allocation("other process:", allocated["nbytes"], allocated["address"], allocated["access"]))
            steps.next("Connect")
            start = time.perf_counter()
            connection = context.connect(there["url"]).result(deadline.left())
            steps.fact(f"connected to context {short(connection.peer)} in {human_time(time.perf_counter() - start)}")
            yield Exchange(steps, peer, deadline, context, memory)
        peer.call("close", timeout=deadline.left())


def short(context_id: str) -> str:
    """Return the first digits of a Context's id, enough to tell two apart."""
    return context_id[:8]


def _presence(url: str) -> str:
    """Describe the Context at a URL; the whole URL also names the host and the Unix socket, and is long."""
    where = address.parse(url)
    return f"context {short(where.context)}, listens on {where.host}:{where.port} and a Unix socket"


def _allocation(whose: str, nbytes: int, address: int, access: str) -> str:
    return f"{whose} {human_bytes(nbytes)} on {DEVICE} at 0x{address:x}; access by the CPU: {access}"


def cpu_access(address: int) -> str:
    """Return the CPU's access to `address` of this process, as the kernel shows it: "none (---s)" or "rw-s"."""
    for line in Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").splitlines():
        bounds, permissions = line.split(maxsplit=2)[:2]
        first, _, end = bounds.partition("-")
        if int(first, 16) <= address < int(end, 16):
            return f"none ({permissions})" if permissions.startswith("---") else permissions
    return "not mapped"


def flip_byte(memory: zerohop.Memory, offset: int) -> dict[str, int]:
    """Flip one bit of the byte at `offset` of device memory; return the offset and the byte before and after."""
    before = memory.read_bytes(offset, 1)[0]
    memory.write_bytes(offset, bytes([before ^ 0x10]))
    return {"offset": offset, "before": before, "after": memory.read_bytes(offset, 1)[0]}
