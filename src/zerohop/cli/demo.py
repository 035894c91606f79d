"""Runs ``zerohop demo``: two processes exchange GPU memory in eight steps, then a size sweep, everything verified."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from zerohop.cli.console import human_bytes, human_time, make_console
from zerohop.cli.demo_model import pull_model
from zerohop.cli.demo_steps import Deadline, Exchange, Mismatch, open_exchange, short
from zerohop.cli.payload import digest, random_bytes
from zerohop.cli.peer import PeerFailed, PeerProcess, accept
from zerohop.errors import ZerohopError, named
from zerohop.integrations.safetensors import SafetensorsError

if TYPE_CHECKING:
    from pathlib import Path

_NOTIFY = 42
_TRANSFER_BYTES = 1 << 20
_SWEEP_SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
_SWEEP_SECONDS = 0.25  # of repetitions per row


def run(*, model: Path | None, timeout: float, flip_in_steps: bool = False, flip_in_sweep: bool = False) -> int:
    """Run the demo.

    A byte is flipped on purpose so that the verification can be seen to fail.

    Args:
        model: a safetensors file whose tensors are moved, or None for random bytes.
        timeout: seconds for everything.
        flip_in_steps: flip a byte in the transfer of step 7 (or in the model).
        flip_in_sweep: flip a byte in the last row of the sweep (or in the model).

    Returns:
        0 if every byte was verified; 1 if a byte was wrong; 2 if the demo could not be completed.
    """
    console = make_console()
    started = time.monotonic()
    deadline = Deadline(timeout)
    try:
        with PeerProcess("zerohop.cli._demo_peer", timeout=timeout) as peer:
            if model is not None:
                pull_model(console, peer, deadline, model, flip=flip_in_steps or flip_in_sweep)
            else:
                _exchange(console, peer, deadline, flip=flip_in_steps)
                _sweep(console, peer, deadline, flip_last=flip_in_sweep)
    except Mismatch as error:
        console.print(f"[bold red]MISMATCH:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    except (PeerFailed, ZerohopError, SafetensorsError, OSError, MemoryError) as error:
        _say_failed(named(error))
        return 2
    console.print(f"\n[green]Everything verified[/] in {human_time(time.monotonic() - started)}.")
    return 0


def _say_failed(error: BaseException) -> None:
    make_console(stderr=True).print(f"[bold red]failed:[/] {escape(str(error))}", soft_wrap=True)


def _exchange(console: Console, peer: PeerProcess, deadline: Deadline, *, flip: bool) -> None:
    """Run the eight steps with random bytes: this process sends, the other receives and verifies."""
    console.print("[bold]Two processes exchange GPU memory.[/] The GPUs are simulated: no GPU is used.\n")
    with open_exchange(console, peer, deadline, _TRANSFER_BYTES) as exchange:
        steps, context, memory = exchange.steps, exchange.context, exchange.memory
        steps.next("Register the memory and share it")
        shared = exchange.ask("share", rights="w")
        size, rights = human_bytes(shared["nbytes"]), shared["rights"]
        steps.fact(f"receiver shares {size} of {shared['device']}, rights '{rights}'")
        steps.fact(f"sender has {memory.device} at 0x{memory.address:x} registered, {human_bytes(memory.nbytes)}")
        steps.next("Exchange the handle")
        handle = accept(shared["handle"])
        length = len(shared["handle"]) // 2
        steps.fact(f"the handle is a value of {length} bytes; owner {short(handle.owner)}, device {handle.device}")
        steps.next("Transfer, with a notification")
        payload = random_bytes(_NOTIFY, _TRANSFER_BYTES)
        memory.write_bytes(0, payload.tobytes())
        peer.begin("expect_notification", timeout_s=deadline.left())
        operation = context.write(memory, handle, notify=_NOTIFY, timeout=deadline.left())
        operation.result(deadline.left())
        steps.fact(f"{operation.explain()} (the first one, which finds the path too)")
        note = peer.finish(timeout=deadline.left())
        steps.fact(
            f"receiver was notified: value {note['value']}, {note['nbytes']} bytes, by context {short(note['context'])}"
        )
        if note["value"] != _NOTIFY or note["nbytes"] != _TRANSFER_BYTES:
            raise Mismatch(f"the notification says {note['value']} and {note['nbytes']} bytes")
        if flip:
            steps.fault(exchange.ask("flip", offset=_TRANSFER_BYTES // 3))
        steps.next("Verify on the receiving device")
        found = _verify(exchange, payload.tobytes())
        steps.fact(f"receiver copied {human_bytes(_TRANSFER_BYTES)} back from its device: BLAKE2b {found}, as sent")
    console.print("  both contexts closed")


def _verify(exchange: Exchange, expected: bytes) -> str:
    """Compare the receiving device's memory with `expected`; return the digest that both have."""
    found: str = exchange.ask("digest", nbytes=len(expected))["digest"]
    if found == digest(expected):
        return found
    where = exchange.difference(expected, 0, mine_is_expected=True)
    raise Mismatch(f"{len(expected)} bytes on the receiving device: {where}")


def _sweep(console: Console, peer: PeerProcess, deadline: Deadline, *, flip_last: bool) -> None:
    """Measure writes of growing size from device to device, over every usable provider."""
    from zerohop.machine.facts import read_providers

    names = [provider.name for provider in read_providers() if provider.usable]
    console.print("\n[bold]Size sweep:[/] write from sim GPU to sim GPU of the other process, median, verified there")
    console.print(f"  {'size':>8}  {'median':>8}  {'GB/s':>5}  verified  path")
    wrong: list[str] = []
    for name in names:
        with open_exchange(Console(quiet=True), peer, deadline, max(_SWEEP_SIZES), providers=[name]) as exchange:
            for nbytes in _SWEEP_SIZES:
                flip = flip_last and name == names[-1] and nbytes == _SWEEP_SIZES[-1]
                try:
                    _sweep_row(console, exchange, nbytes, flip=flip)
                except Mismatch as error:
                    wrong.append(f"{name}, {error}")
                    console.print(f"  {human_bytes(nbytes):>8}  [bold red]MISMATCH[/]")
    if wrong:
        raise Mismatch("; ".join(wrong))


def _sweep_row(console: Console, exchange: Exchange, nbytes: int, *, flip: bool) -> None:
    context, memory, deadline = exchange.context, exchange.memory, exchange.deadline
    handle = accept(exchange.ask("share", rights="w")["handle"])
    path = str(context.explain(memory, handle))
    source, target = memory[:nbytes], handle[:nbytes]
    context.write(source, target).result(deadline.left())  # warms up
    payload = random_bytes(nbytes, nbytes).tobytes()
    memory.write_bytes(0, payload)
    samples: list[float] = []
    until = time.perf_counter() + _SWEEP_SECONDS
    while len(samples) < 3 or (len(samples) < 200 and time.perf_counter() < until):
        start = time.perf_counter()
        context.write(source, target).result(deadline.left())
        samples.append(time.perf_counter() - start)
    if flip:
        flip_there = exchange.ask("flip", offset=nbytes // 3)
        console.print(f"  [yellow]fault injected:[/] byte {flip_there['offset']} flipped on the receiving device")
    _verify(exchange, payload)
    median = sorted(samples)[len(samples) // 2]
    rate = f"{nbytes / median / 1e9:.2f}" if nbytes >= 4096 else "–"
    console.print(
        f"  {human_bytes(nbytes):>8}  {human_time(median):>8}  {rate:>5}  [green]yes[/]       {escape(path)}",
        soft_wrap=True,
    )
