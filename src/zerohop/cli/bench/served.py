"""Measures the rows about a server of files: what its clients read, in turn with reads that need no server."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from zerohop.cli.bench.block_file import NoFile, block_file
from zerohop.cli.bench.block_reader import HOST_BESIDE, BlockReader
from zerohop.cli.bench.fio import Fio, FioFails, Turn
from zerohop.cli.bench.floors import MOST
from zerohop.cli.bench.rows import Row, Samples, percentile
from zerohop.cli.bench.session import COMMAND_TIMEOUT, TIMEOUT
from zerohop.cli.bench.storage import SHARED_MEMORY, cpu_of, device_of, times_of
from zerohop.cli.bench.storage_plan import ALL_IN_ORDER, is_gpu
from zerohop.cli.payload import random_bytes
from zerohop.cli.peer import PeerProcess
from zerohop.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from zerohop.cli.bench.floors import Floors
    from zerohop.cli.bench.rows import Case
    from zerohop.cli.bench.session import Effort

    # Ways to read for so many seconds, by what a row calls them; None: this way is not there.
    Ways = Mapping[str, Callable[[float], Turn | None]]

_PEER: Final = "zerohop.cli.bench._served_peer"
_SERVED: Final = "served"
LOCAL: Final = "by this process itself"
ONE_CLIENT: Final = "one client"
STREAM: Final = "TCP stream"
_GIGA: Final = 1e9


class _ServerProcess:
    """Runs a server of a folder in another process.

    Attributes:
        url: the server's URL.
        engine: how it reads files.
        cpu_s: processor seconds that it has used in each turn so far.
    """

    def __init__(self, process: PeerProcess, path: Path, case: Case) -> None:
        """Begin to serve the folder that a file is in."""
        self._process = process
        told = process.call("serve", folder=str(path.parent), providers=_providers(case), sim_devices=case.sim_devices)
        self.url: str = told["url"]
        self.engine: str = told["engine"]
        self.cpu_s: list[float] = []

    def during(self, turn: Callable[[float], Turn]) -> Callable[[float], Turn]:
        """Return the same turn, of which the server's processor time is noted."""

        def noted(seconds: float) -> Turn:
            before = self._process.call("cpu")["seconds"]
            told = turn(seconds)
            self.cpu_s.append(self._process.call("cpu")["seconds"] - before)
            return told

        return noted


class _Clients:
    """Reads in several processes at once.

    Attributes:
        verified: whether no wrong byte has arrived so far.
    """

    def __init__(self, processes: Sequence[PeerProcess], server: _ServerProcess, path: Path, case: Case) -> None:
        """Have each process become a client, and read the whole file once."""
        self._processes = processes
        self.verified = True
        for process in processes:
            told = process.call(
                "open",
                url=server.url,
                provider=case.provider,
                file=path.name,
                name=case.name,
                nbytes=case.bytes,
                batch=case.batch,
            )
            self.verified &= told["verified"]

    def turn(self, seconds: float, count: int | None = None) -> Turn:
        """Have the first processes read for so many seconds, or all; return what they have read together."""
        chosen = self._processes[:count]
        for process in chosen:
            process.begin("turn", seconds=seconds)
        answers = [process.finish() for process in chosen]
        self.verified &= all(answer["verified"] for answer in answers)
        turns = [Turn(*answer["turn"]) for answer in answers]
        # They begin at different moments, and so each has a rate of its own.
        operations = sum(turn.operations for turn in turns)
        return Turn(operations / sum(turn.rate for turn in turns), operations, sum(turn.cpu_s for turn in turns))

    def one(self, seconds: float) -> Turn:
        """Have one of them read."""
        return self.turn(seconds, 1)


def measure_served(effort: Effort, case: Case, floors: Floors) -> Row:
    """Read blocks of a new file in memory from a server in another process, in turn with other ways to read.

    Over shm these are reads of the same file by this process itself, and by fio; over tcp a raw stream between two
    processes; for several clients one of them alone; for a device's memory the same reads into host memory. Verified:
    the whole file, read once by each client, and after each turn what its memory has then.
    """
    try:
        with block_file(SHARED_MEMORY, max(effort.file_bytes, case.memory_bytes), on_disk=False) as path:
            return _measure(effort, case, path, floors)
    except NoFile as error:
        return replace(Row.of(case), verified=True, missing=str(error))


def _measure(effort: Effort, case: Case, path: Path, floors: Floors) -> Row:
    assert case.provider is not None
    with ExitStack() as opened:

        def started() -> PeerProcess:
            return opened.enter_context(PeerProcess(_PEER, timeout=COMMAND_TIMEOUT))

        server = _ServerProcess(started(), path, case)
        fio, clients, readers = Fio(), None, []
        ways: dict[str, Callable[[float], Turn | None]] = {}
        if case.clients > 1:
            clients = _Clients([started() for _ in range(case.clients)], server, path, case)
            ways = {_SERVED: server.during(clients.turn), ONE_CLIENT: clients.one}
        elif is_gpu(case.dst):
            readers = [_reader(opened, case, path, url, device_of(case)) for url in (server.url, None)]
            ways = {_SERVED: server.during(readers[0].turn), LOCAL: readers[1].turn}
        elif case.dst != "host":
            readers = [_reader(opened, case, path, server.url, device) for device in (device_of(case), "host")]
            ways = {_SERVED: server.during(readers[0].turn), HOST_BESIDE: readers[1].turn}
        else:
            readers = [_reader(opened, case, path, server.url)]
            ways[_SERVED] = server.during(readers[0].turn)
            if case.provider == "tcp":
                ways[STREAM] = _Stream(floors, case).turn
            else:
                readers.append(_reader(opened, case, path, None))
                ways[LOCAL] = readers[1].turn
                ways[fio.name] = lambda seconds: fio.read(
                    path, case, seconds, direct=False, in_order=case.name in ALL_IN_ORDER
                )
        turns = _alternate(effort, ways)
        row = _row(case, turns, server.cpu_s)
        row.verified = (clients is None or clients.verified) and all(reader.verified for reader in readers)
        how = "" if clients else f" ({_way(case, path, server.url)})"
        row.path = f"server{how} by {server.engine} on tmpfs"
    return row


def _reader(opened: ExitStack, case: Case, path: Path, url: str | None, device: str = "host") -> BlockReader:
    """Return what reads from a server, or without a URL by itself, once it has read and compared the whole file."""
    store = opened.enter_context(
        open_store(path.parent)
        if url is None
        else open_store(url, providers=_providers(case), sim_devices=case.sim_devices)
    )
    file = opened.enter_context(store.open(path.name, direct=False).result(TIMEOUT))
    reader = BlockReader(store, file, case, device)
    opened.callback(reader.close)
    reader.check()
    return reader


def _providers(case: Case) -> list[str]:
    """Return the providers of the server and of its client; beside a device's memory is the host's, too."""
    assert case.provider is not None
    return ["p2p", "shm"] if case.provider == "p2p" else [case.provider]


def _way(case: Case, path: Path, url: str) -> str:
    """Return the form of the path that the bytes of one read take."""
    opened = open_store(url, providers=_providers(case), sim_devices=case.sim_devices)
    with opened as store, store.iov(case.bytes, device_of(case)) as block:
        with store.open(path.name, direct=False).result(TIMEOUT) as file:
            operation = file.read_into(block)
            operation.result(TIMEOUT)
        return operation.explain().form


class _Stream:
    """Sends as many bytes as a client has reads under way, again and again, over a socket without zerohop."""

    def __init__(self, floors: Floors, case: Case) -> None:
        self._floors, self._batch = floors, case.batch
        self._source = random_bytes(case.batch, case.bytes * case.batch)
        [first] = floors.tcp_stream(self._source, 1)
        self._ns = first

    def turn(self, seconds: float) -> Turn:
        """Send for about so many seconds. Its processor time is not measured."""
        rounds = max(1, min(MOST, int(seconds * _GIGA / self._ns)))
        times = self._floors.tcp_stream(self._source, rounds)
        self._ns = max(1, sum(times) // rounds)
        return Turn(sum(times) / _GIGA, rounds * self._batch, 0.0)


def _alternate(effort: Effort, ways: Ways) -> dict[str, list[Turn]]:
    """Return the turns of each way, by its name. Each begins as often as the others. One that fails has no turns."""
    turns: dict[str, list[Turn]] = {name: [] for name in ways}
    names, failed = [*ways], {}
    for number in range(effort.file_turns):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            if name in failed:
                continue
            try:
                turn = ways[name](effort.file_seconds)
            except FioFails as error:
                failed[name] = f"{name} ({error})"
            else:
                turns[name] += [] if turn is None else [turn]
    return {failed.get(name, name): [] if name in failed else told for name, told in turns.items()}


def _row(case: Case, turns: Mapping[str, list[Turn]], server_cpu_s: Sequence[float]) -> Row:
    """Make a row, in which a measurement is as many reads as a client has under way at once."""
    served = turns[_SERVED]
    samples = Samples(times_ns=times_of(case, served))
    samples.cpu_ns = sum(round(turn.cpu_s / turn.operations * case.batch * _GIGA) for turn in served)
    floor, other = None, None
    for name, told in turns.items():
        if name in (LOCAL, ONE_CLIENT, HOST_BESIDE):
            other, samples.beside, samples.beside_ns = told, name, times_of(case, told)
        elif name != _SERVED:
            floor, samples.floor_ns = name, times_of(case, told)
    row = samples.row(case, operations=case.batch, floor=floor)
    row.cpu_s_per_gb = cpu_of(case, served)
    moved = [turn.operations * case.bytes / _GIGA for turn in served]
    row.server_cpu_s_per_gb = round(percentile([cpu / gb for cpu, gb in zip(server_cpu_s, moved, strict=True)], 0.5), 4)
    if other is not None:
        row.other_cpu_s_per_gb = cpu_of(case, other)
        if floor is not None and turns[floor]:
            row.floor_cpu_s_per_gb = cpu_of(case, turns[floor])
    else:
        other = turns[STREAM]
    row.of_other = round(percentile([own.rate / each.rate for own, each in zip(served, other, strict=True)], 0.5), 4)
    return row
