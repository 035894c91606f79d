"""Runs a process of the rows about a server of files: the server itself, or one of several clients."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path

from zerohop.cli.bench.block_reader import BlockReader
from zerohop.cli.bench.rows import Case
from zerohop.cli.bench.session import TIMEOUT
from zerohop.cli.bench.storage_plan import TMPFS
from zerohop.cli.peer import Answer, commands_of, serve
from zerohop.storage import Server, open_store


class ServedPeer:
    """Holds what the commands of one process have opened."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._reader: BlockReader

    def serve(self, folder: str, providers: list[str], sim_devices: int) -> Answer:
        """Serve a folder over these providers; return the server's URL, and how it reads files."""
        server = self._opened.enter_context(Server(folder, providers=providers, sim_devices=sim_devices))
        return {"url": server.url, "engine": server.engine}

    def cpu(self) -> Answer:
        """Return the processor seconds that this process has used."""
        return {"seconds": time.process_time()}

    def open(self, url: str, provider: str, file: str, name: str, nbytes: int, batch: int) -> Answer:
        """Become a client, and read the whole file once; return whether every byte was right."""
        store = self._opened.enter_context(open_store(url, providers=(provider,)))
        blocks = self._opened.enter_context(store.open(Path(file).name).result(TIMEOUT))
        case = Case(name, provider, "file", "host", nbytes, batch, form=TMPFS)
        self._reader = self._opened.enter_context(closing(BlockReader(store, blocks, case, "host")))
        self._reader.check()
        return {"verified": self._reader.verified}

    def turn(self, seconds: float) -> Answer:
        """Read for so many seconds; return the numbers of a Turn, and whether every byte was right so far."""
        turn = self._reader.turn(seconds)
        return {
            "turn": [turn.seconds, turn.operations, turn.cpu_s],
            "verified": self._reader.verified,
        }

    def close(self) -> None:
        """Close what was opened."""
        self._opened.close()


if __name__ == "__main__":
    with closing(ServedPeer()) as peer:
        serve(commands_of(peer))
