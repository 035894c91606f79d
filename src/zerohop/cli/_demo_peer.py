"""Runs the second process of the demo: ``python -m zerohop.cli._demo_peer``, driven by `zerohop.cli.peer`."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zerohop
from zerohop.cli.demo_steps import DEVICE, cpu_access, flip_byte
from zerohop.cli.payload import block_digests, digest
from zerohop.cli.peer import Answer, commands_of, serve
from zerohop.integrations.safetensors import read_layout

if TYPE_CHECKING:
    from zerohop.core.memory.rights import Rights


class DemoPeer:
    """Holds one Context with one simulated GPU and one allocation on it; each method is a command.

    Attributes:
        context: the Context, once `open` has made it.
        memory: the device memory, once `allocate` has made it.
    """

    context: zerohop.Context
    memory: zerohop.Memory

    def __init__(self) -> None:
        """Open nothing yet."""
        self._opened = ExitStack()
        self._handle: zerohop.RemoteBuffer | None = None

    def open(self, providers: list[str] | None) -> Answer:
        """Open a Context with one simulated device."""
        self.context = self._opened.enter_context(zerohop.Context(sim_devices=1, providers=providers))
        names = [device.name for device in self.context.devices]
        return {"id": self.context.id, "url": self.context.url, "pid": os.getpid(), "devices": names}

    def allocate(self, nbytes: int) -> Answer:
        """Allocate on the device."""
        self.memory = self._opened.enter_context(self.context.alloc(nbytes, device=DEVICE))
        address = self.memory.address
        return {"nbytes": self.memory.nbytes, "address": address, "access": cpu_access(address)}

    def share(self, rights: Rights) -> Answer:
        """Share the whole allocation."""
        handle = self._shared(rights)
        return {"handle": bytes(handle).hex(), "nbytes": handle.nbytes, "device": handle.device, "rights": rights}

    def _shared(self, rights: Rights) -> zerohop.RemoteBuffer:
        if self._handle is None:
            self._handle = self.memory.share(rights)
        return self._handle

    def expect_notification(self, timeout_s: float) -> Answer:
        """Wait for one notification."""
        note = self.context.notification(timeout=timeout_s).result()
        return {"value": note.value, "nbytes": note.nbytes, "context": note.peer.peer}

    def digest(self, nbytes: int) -> Answer:
        """Copy device memory back by the driver, and digest it."""
        return {"digest": digest(self.memory.read_bytes(0, nbytes))}

    def blocks(self, offset: int, nbytes: int) -> Answer:
        """Digest device memory block by block."""
        return {"blocks": block_digests(self.memory.read_bytes(offset, nbytes))}

    def inspect(self, offset: int, nbytes: int) -> Answer:
        """Return bytes of device memory, to find the wrong ones."""
        return {"data": self.memory.read_bytes(offset, nbytes).hex()}

    def flip(self, offset: int) -> Answer:
        """Flip a byte of device memory: the injected fault."""
        return dict(flip_byte(self.memory, offset))

    def load(self, path: str, offset: int, nbytes: int) -> None:
        """Copy a part of the file's data section to the device."""
        with Path(path).open("rb") as file:
            file.seek(read_layout(Path(path)).data_start + offset)
            self.memory.write_bytes(offset, file.read(nbytes))

    def publish(self, path: str) -> Answer:
        """Share every tensor: a slice of one handle each, with a digest taken from the file, not from the device."""
        whole = self._shared("r")
        layout = read_layout(Path(path))
        tensors: list[dict[str, Any]] = []
        with Path(path).open("rb") as file:
            for entry in layout.tensors:
                file.seek(layout.data_start + entry.offset)
                tensors.append(
                    {
                        "name": entry.name,
                        "offset": entry.offset,
                        "nbytes": entry.nbytes,
                        "digest": digest(file.read(entry.nbytes)),
                        "handle": bytes(whole[entry.offset : entry.offset + entry.nbytes]).hex(),
                    }
                )
        return {"tensors": tensors}

    def close(self) -> None:
        """Close the memory and the Context."""
        self._opened.close()
        self._handle = None


if __name__ == "__main__":
    with closing(DemoPeer()) as peer:
        serve(commands_of(peer))
