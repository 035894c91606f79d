"""The drill of a group of three: one rank comes to a point of an operation, and is then killed, stopped or cut off.

`Victim` is the process of that rank. `OPERATIONS` says what each rank does in an operation, and what it has then.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.peer import Peer, _PipeJob
from support.relay import Relay
from zerohop.group import CompletionList, FolderStore
from zerohop.group.collectives.call import Call
from zerohop.group.collectives.meetings import Meetings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.peer import Job
    from support.service import Identity

VICTIM, SIZE = 2, 3
# Longer than what waits at a receiver, and than what allreduce does in one step.
COUNT = 30_000
NEVER_S = patience(60.0)


def numbers(rank: int, count: int = COUNT) -> Any:
    """Return what a rank gives."""
    return np.arange(count, dtype=np.int64) * 5 + rank


def _part(of: int) -> slice:
    return slice(of * COUNT, (of + 1) * COUNT)


class Memory(NamedTuple):
    """What a rank gives to an operation, and where it receives."""

    x: Any
    out: Any


class Operation(NamedTuple):
    """What ranks do in an operation."""

    # What a survivor begins, with the handle of the victim's memory and a timeout.
    begin: Callable[[zh.Group, Memory, zh.RemoteBuffer, float], zh.Operation[Any]]
    # What a survivor has in `out` if it ends well; None: nothing is to be looked at.
    result: Callable[[int], Any] | None = None
    # What the victim does from beginning to end.
    play: Callable[[zh.Group, Memory, Any], object] | None = None
    # None: of the group. Otherwise it is the survivors' alone, and the victim's process need not act.
    collective: bool = False


def _recv_all(group: zh.Group, memory: Memory, _: Any) -> None:
    for source in range(VICTIM):
        group.recv(memory.out[:COUNT], source).result(NEVER_S)


def _send_all(group: zh.Group, memory: Memory, _: Any) -> None:
    for rank in range(VICTIM):
        group.send(memory.x[:COUNT], rank).result(NEVER_S)


def _pop_all(_: zh.Group, __: Memory, told: Any) -> None:
    for _rank in range(VICTIM):
        assert told.pop(NEVER_S).error is None


def _together(call: Callable[..., Any], result: Callable[[int], Any] | None) -> Operation:
    return Operation(
        lambda group, memory, _, timeout: call(group, memory, timeout),
        result,
        lambda group, memory, _: call(group, memory, NEVER_S).result(NEVER_S),
        collective=True,
    )


_ALL = np.concatenate([numbers(rank) for rank in range(SIZE)])
_SUM = sum(numbers(rank, SIZE * COUNT) for rank in range(SIZE))
OPERATIONS: dict[str, Operation] = {
    "send": Operation(lambda g, m, _, t: g.send(m.x, VICTIM, timeout=t), None, _recv_all),
    "recv": Operation(lambda g, m, _, t: g.recv(m.out, VICTIM, timeout=t), lambda _: numbers(VICTIM), _send_all),
    "recv from any": Operation(lambda g, m, _, t: g.recv(m.out, timeout=t), lambda _: numbers(VICTIM), _send_all),
    "am": Operation(lambda g, m, _, t: g.am(m.x, VICTIM, 0, timeout=t), None, _pop_all),
    "put": Operation(lambda g, m, h, t: g.put(m.x[:COUNT], VICTIM, h, target=0, timeout=t), None, _pop_all),
    "get": Operation(
        lambda g, m, h, t: g.get(m.out[:COUNT], VICTIM, h, target=0, timeout=t), lambda _: numbers(VICTIM), _pop_all
    ),
    "fetch_add": Operation(lambda g, _, h, t: g.fetch_add(h, 0, timeout=t)),
    "barrier": _together(lambda g, _, t: g.barrier(timeout=t), None),
    "broadcast": _together(
        lambda g, m, t: g.broadcast(m.x if g.rank == VICTIM else m.out, VICTIM, timeout=t), lambda _: numbers(VICTIM)
    ),
    "reduce": _together(
        lambda g, m, t: g.reduce(m.x, 0, out=m.out if g.rank == 0 else None, timeout=t),
        lambda rank: _SUM[:COUNT] if rank == 0 else np.zeros(COUNT),
    ),
    "allreduce": _together(lambda g, m, t: g.allreduce(m.x, out=m.out, timeout=t), lambda _: _SUM[:COUNT]),
    "reduce_scatter": _together(
        lambda g, m, t: g.reduce_scatter(m.x, m.out, timeout=t), lambda rank: _SUM[_part(rank)]
    ),
    "allgather": _together(lambda g, m, t: g.allgather(m.x, m.out, timeout=t), lambda _: _ALL),
    "gather": _together(
        lambda g, m, t: g.gather(m.x, m.out if g.rank == 0 else None, 0, timeout=t),
        lambda rank: _ALL if rank == 0 else np.zeros(SIZE * COUNT),
    ),
    "scatter": _together(
        lambda g, m, t: g.scatter(m.x if g.rank == VICTIM else None, m.out, VICTIM, timeout=t),
        lambda rank: numbers(VICTIM, SIZE * COUNT)[_part(rank)],
    ),
    "alltoall": _together(
        lambda g, m, t: g.alltoall(m.x, m.out, timeout=t),
        lambda rank: np.concatenate([numbers(each, SIZE * COUNT)[_part(rank)] for each in range(SIZE)]),
    ),
}
# Those whose `x`, and whose `out`, have a part of each rank.
_LONG_X = ("reduce_scatter", "scatter", "alltoall")
_LONG_OUT = ("allgather", "gather", "alltoall")


def memory_of(what: str, rank: int) -> Memory:
    count = SIZE * COUNT if what in _LONG_X else COUNT
    return Memory(numbers(rank, count), np.zeros(SIZE * COUNT if what in _LONG_OUT else COUNT, np.int64))


@dataclass(frozen=True)
class Plan:
    """What the victim does until it comes to its point. In its process it takes the place of Options."""

    folder: Path
    provider: str
    what: str
    phase: str

    def open(self) -> zh.Context:
        """Come to the point; everything stays as it is then."""
        context = Options(providers=(self.provider,), timeout=NEVER_S, sim_devices=1).open()
        group = zh.Group(VICTIM, SIZE, FolderStore(self.folder), ctx=context)
        # The survivors dial, so that all goes through the relay if there is one.
        eventually(lambda: len(context.connections) == VICTIM, "the survivors do not connect")
        told = CompletionList(group)
        group.register(told)
        memory = memory_of(self.what, VICTIM)
        shared = context.register(memory.x)
        group.exchange(bytes(shared.share("rw"))).result(NEVER_S)
        _kept.extend([group, told, memory, shared])
        if self.phase == "middle" and OPERATIONS[self.what].collective:
            _play_until_it_waits(self.what, group, memory)
        elif self.phase == "end":
            play = OPERATIONS[self.what].play
            if play is not None:
                play(group, memory, told)
        return context


_kept: list[object] = []


def _play_until_it_waits(what: str, group: zh.Group, memory: Memory) -> None:
    """Begin a collective, and stand still where it waits for the first time: its first messages are posted."""
    there, never = threading.Event(), threading.Event()

    async def stand_still(*_: Any) -> None:
        there.set()
        never.wait()

    async def exchange(call: Call, view: Any, to: int, into: Any, sender: int) -> None:
        call.receive(into, sender)
        call.send(view, to)
        await stand_still()

    async def exchange_signals(call: Call, to: int, sender: int, begun: Any = False) -> None:
        if begun is False:
            call.signal_of(sender)
            call.signal(to)
        await stand_still()

    def take(*_: Any) -> None:
        there.set()
        never.wait()

    # This process does nothing else any more.
    for method, name in ((stand_still, "wait"), (exchange, "exchange"), (exchange_signals, "exchange_signals")):
        setattr(Call, name, method)
    # A barrier would go on in its caller's thread when the survivors' signals are there already.
    setattr(zh.Group, "_signal_at_once", lambda *_: False)  # noqa: B010  it is not ours
    # And a meeting would end there, if the survivors have come.
    setattr(Meetings, "_take", take)  # noqa: B010  it is not ours
    play = OPERATIONS[what].play
    assert play is not None
    threading.Thread(target=play, args=(group, memory, None), daemon=True).start()
    assert there.wait(PATIENCE_S)


class Victim(Peer):
    """The process of the victim."""

    def begin(self, plan: Plan) -> None:
        self._pipe.send(plan)
        self._coming: Job[Identity] = _PipeJob(self)

    @property
    def stopped(self) -> bool:
        return self._stopped

    def come_to_its_point(self) -> None:
        self.identity = self._coming.result()


class Detour(FolderStore):
    """A folder in which the survivors find a relay in the place of the victim."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.relay: Relay | None = None
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes:
        value = super().get(key)
        if not key.endswith(f"/{VICTIM}"):
            return value
        url, secret = value.decode().split(" ")
        with self._lock:  # each survivor has a thread that looks here
            self.relay = self.relay or Relay(url)
        return f"{self.relay.url(url)} {secret}".encode()

    def cut(self) -> None:
        """Cut the link between the victim and the others; nothing happens if it was cut before."""
        if self.relay is not None:
            self.relay.__exit__()
