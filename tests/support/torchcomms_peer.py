"""The other process of test_torchcomms.py: written as torchcomms' users write theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from support.pattern import pattern

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def serve(pipe: Connection, nbytes: int, pushes: bool) -> None:
    """Gives its URL and its memory, and waits to be told that it was written to; or writes itself."""
    from zerohop.compat.torchcomms import RdmaMemory, RdmaTransport

    transport = RdmaTransport("cpu")
    array = np.zeros(nbytes, np.uint8)
    if pushes:
        array[:] = pattern(2, nbytes)
    memory = RdmaMemory(array)
    url, remote = pipe.recv()
    pipe.send((transport.bind(), memory.to_remote_buffer()))
    code = transport.connect(url)
    if pushes:
        code = code or transport.write(memory.to_view(), remote)
    pipe.send((code, transport.connected()))
    pipe.recv()
    pipe.send(array.tobytes())
    pipe.recv()
