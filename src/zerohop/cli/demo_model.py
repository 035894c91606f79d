"""Runs ``zerohop demo --input model.safetensors``: one process publishes a model's tensors, the other pulls them all.

This process pulls: it owns the receiving device, and verifies each tensor by the digest that the publisher took from
the file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zerohop
from zerohop.cli.console import human_bytes, human_time, long_work
from zerohop.cli.demo_steps import Exchange, Mismatch, flip_byte, open_exchange
from zerohop.cli.payload import digest
from zerohop.cli.peer import accept
from zerohop.integrations.safetensors import read_layout

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from zerohop.cli.demo_steps import Deadline
    from zerohop.cli.peer import PeerProcess

_LOAD_BYTES = 16 << 20  # copied by one `load` command


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    offset: int
    nbytes: int
    digest: str
    handle: zerohop.RemoteBuffer


def pull_model(console: Console, peer: PeerProcess, deadline: Deadline, model: Path, *, flip: bool) -> None:
    """Move every tensor of `model` from the other process's simulated GPU into this one's, and verify each.

    Raises:
        Mismatch: a tensor arrived with a wrong byte; the text names the tensor and the bytes.
        SafetensorsError: the file is not valid.
    """
    layout = read_layout(model)
    path = str(model.resolve())
    console.print(f"[bold]One process publishes {model.name}, the other pulls it.[/] The GPUs are simulated.\n")
    with open_exchange(console, peer, deadline, max(1, layout.data_nbytes)) as exchange:
        steps = exchange.steps
        steps.next("Publish every tensor")
        with long_work(console, "file to device", layout.data_nbytes) as advance:
            start = time.perf_counter()
            for first in range(0, layout.data_nbytes, _LOAD_BYTES):
                nbytes = min(_LOAD_BYTES, layout.data_nbytes - first)
                exchange.ask("load", path=path, offset=first, nbytes=nbytes)
                advance(nbytes)
        took = time.perf_counter() - start
        steps.fact(f"publisher copied {human_bytes(layout.data_nbytes)} from file to device in {human_time(took)}")
        steps.next("Exchange the handles")
        catalogue = exchange.ask("publish", path=path)["tensors"]
        tensors = [_Tensor(**{**entry, "handle": accept(entry["handle"])}) for entry in catalogue]
        if sum(tensor.nbytes for tensor in tensors) != layout.data_nbytes:
            raise Mismatch("the catalogue does not cover the file")
        steps.fact(f"{len(tensors)} tensors, {sum(len(entry['handle']) for entry in catalogue) // 2} bytes of handles")
        steps.next("Transfer: pull every tensor")
        _pull(console, exchange, tensors)
        if flip and tensors:
            largest = max(tensors, key=lambda tensor: tensor.nbytes)
            steps.fault(flip_byte(exchange.memory, largest.offset + largest.nbytes // 3))
        steps.next("Verify on the receiving device")
        _verify(console, exchange, tensors)


def _pull(console: Console, exchange: Exchange, tensors: list[_Tensor]) -> None:
    context, memory, deadline = exchange.context, exchange.memory, exchange.deadline
    wanted = [tensor for tensor in tensors if tensor.nbytes]
    total = sum(tensor.nbytes for tensor in wanted)
    with long_work(console, "pulling", total) as advance:
        start = time.perf_counter()
        operations = [
            context.read(tensor.handle, memory[tensor.offset : tensor.offset + tensor.nbytes], timeout=deadline.left())
            for tensor in wanted
        ]
        for operation in zerohop.as_completed(operations, timeout=deadline.left()):
            advance(operation.result())
        took = time.perf_counter() - start
    if wanted:
        rate = f"{human_bytes(total)} in {human_time(took)}, {total / took / 1e9:.2f} GB/s"
        exchange.steps.fact(f"path: {context.explain(memory, wanted[0].handle)}")
        empty = f", {len(tensors) - len(wanted)} more are empty" if len(tensors) > len(wanted) else ""
        exchange.steps.fact(f"pulled {len(wanted)} tensors{empty}: {rate}")


def _verify(console: Console, exchange: Exchange, tensors: list[_Tensor]) -> None:
    memory = exchange.memory
    total = sum(tensor.nbytes for tensor in tensors)
    with long_work(console, "verifying", total) as advance:
        for tensor in tensors:
            found = memory.read_bytes(tensor.offset, tensor.nbytes) if tensor.nbytes else b""
            if digest(found) != tensor.digest:
                # The publisher has the right bytes, unless its device does not hold what its file does.
                where = exchange.difference(found, tensor.offset, mine_is_expected=False)
                what = "the publisher's device does not hold what its file does" if where is None else str(where)
                raise Mismatch(f"tensor {tensor.name} ({tensor.nbytes} bytes): {what}")
            advance(tensor.nbytes)
    exchange.steps.fact(f"{len(tensors)} of {len(tensors)} tensors have the publisher's BLAKE2b, {human_bytes(total)}")
