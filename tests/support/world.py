"""Two Contexts that talk over one provider, kept for the whole session, and the buffers that one test uses of them."""

from __future__ import annotations

import itertools
import os
import warnings
from typing import TYPE_CHECKING, Literal

import pytest

import zerohop as zh
from support.buffers import KINDS, ON_GPUS, Buffer, Kind
from support.options import Options
from support.patience import PATIENCE_S
from support.peer import Neighbour, Peer, Remote
from support.service import Service

if TYPE_CHECKING:
    from support.outcomes import Outcome
    from zerohop.core.memory.rights import Rights

Place = Literal["same", "other"]
# Those that every machine has; the lab runs the same tests with ZEROHOP_TEST_PROVIDERS=verbs.
PROVIDERS = tuple(os.environ.get("ZEROHOP_TEST_PROVIDERS", "shm,p2p,tcp").split(","))
# Readable ids: provider, and whether the target lives in the same process or in another one.
WORLDS = tuple(f"{provider}-{place}" for provider in PROVIDERS for place in ("same", "other"))
# Each world with each kind of memory. Those that add no path to the others are for `make test-slow`.
_ENOUGH = {
    ("shm-other", "numpy"),
    ("shm-other", "alloc"),
    ("shm-other", "sim"),
    ("shm-same", "alloc"),
    ("p2p-other", "sim"),
    ("p2p-other", "alloc"),
    ("p2p-same", "sim"),
    ("tcp-other", "numpy"),
    ("tcp-other", "sim"),
    ("tcp-same", "numpy"),
    ("verbs-other", "numpy"),
    ("verbs-other", "sim"),
    ("verbs-same", "numpy"),
}


def _marks(world: str, kind: Kind) -> tuple[pytest.MarkDecorator, ...]:
    if kind == "cuda":
        return (pytest.mark.cuda,) if world in ("p2p-other", "tcp-other") else (pytest.mark.cuda, pytest.mark.slow)
    return () if (world, kind) in _ENOUGH else (pytest.mark.slow,)


WORLDS_AND_KINDS = tuple(pytest.param(world, kind, marks=_marks(world, kind)) for world in WORLDS for kind in KINDS)
# Every pair of memories that may meet on a path, so that no test is the first to use one.
_WARMING: tuple[Kind, ...] = ("numpy", "alloc", "sim", *ON_GPUS)
# More than a call moves by itself, so that first uses wait for an end on the control thread.
_WARMING_BYTES = 300_001
# Small and large ones may have threads of their own.
_SIZES = (64, _WARMING_BYTES)


class Target:
    """A buffer at the other side, with its handle."""

    def __init__(self, remote: Remote, kind: Kind, nbytes: int, rights: Rights = "rw", device: int = 0) -> None:
        self.remote = remote
        self.nbytes = nbytes
        self.number = remote.call(Service.new, kind, nbytes, device)
        self.handle = self.share(rights)

    def share(self, rights: Rights = "rw") -> zh.RemoteBuffer:
        return zh.RemoteBuffer.from_bytes(self.remote.call(Service.share, self.number, rights))

    def fill(self, offset: int, nbytes: int, seed: int) -> None:
        self.remote.call(Service.fill, self.number, offset, nbytes, seed)

    def put(self, offset: int, data: bytes) -> None:
        self.remote.call(Service.put, self.number, offset, data)

    def get(self, offset: int, nbytes: int) -> bytes:
        return self.remote.call(Service.get, self.number, offset, nbytes)

    def poison(self, offset: int = 0, nbytes: int | None = None) -> None:
        self.remote.call(Service.poison, self.number, offset, nbytes)

    def expect(self, offset: int, nbytes: int, seed: int) -> None:
        self.remote.call(Service.expect, self.number, offset, nbytes, seed)

    def expect_poison(self) -> None:
        """Nobody wrote anything."""
        self.remote.call(Service.expect_poison, self.number)

    def settle(self, offset: int, nbytes: int, seed: int) -> None:
        self.remote.call(Service.settle, self.number, offset, nbytes, seed)

    def revoke(self, timeout: float) -> Outcome:
        return self.remote.call(Service.revoke, self.number, timeout)

    def drop(self) -> None:
        self.remote.call(Service.drop, self.number)


class World:
    """`here` starts the operations, `there` holds the targets. One test at a time."""

    def __init__(self, provider: str, here: zh.Context, there: Remote) -> None:
        self.provider = provider
        self.here = here
        self.there = there
        self._buffers: list[Buffer] = []
        self._targets: list[Target] = []

    def buffer(self, kind: Kind, nbytes: int, *, device: int = 0) -> Buffer:
        """A buffer on this side, closed after the test."""
        buffer = Buffer(self.here, kind, nbytes, device=device)
        self._buffers.append(buffer)
        return buffer

    def target(self, kind: Kind, nbytes: int, rights: Rights = "rw", *, device: int = 0) -> Target:
        """A buffer at the other side, closed after the test."""
        target = Target(self.there, kind, nbytes, rights, device)
        self._targets.append(target)
        return target

    def expect_notification(self, value: int, nbytes: int) -> None:
        """The other side has exactly this one."""
        note = self.there.call(Service.notification)
        assert (note.value, note.nbytes, note.peer) == (value, nbytes, self.here.id)

    def expect_no_notification(self) -> None:
        """Of operations that are done, none has notified the other side."""
        self.there.call(Service.expect_no_notification)

    def close_buffers(self) -> None:
        while self._buffers:
            self._buffers.pop().close()
        while self._targets:
            self._targets.pop().drop()

    def warm(self) -> None:
        """Connect, also the other side with itself, go down every path once, and let every device start its threads."""
        for kind in _WARMING:
            source = self.buffer(kind, _WARMING_BYTES)
            for other in _WARMING:
                target = self.target(other, _WARMING_BYTES)
                self.here.write(source.memory[:], target.handle, notify=1).result(PATIENCE_S)
                self.expect_notification(1, _WARMING_BYTES)
                self.here.read(target.handle, source.memory[:]).result(PATIENCE_S)
            handle = bytes(source.memory.share("rw"))
            for other in _WARMING:
                number = self._targets[_WARMING.index(other)].number
                self.there.call(Service.write, handle, number, 0, _WARMING_BYTES)
        for target in self._targets[: len(_WARMING)]:
            self.there.call(Service.write, bytes(target.handle), target.number, 0, _WARMING_BYTES)
        for device, nbytes in itertools.product((0, 1), _SIZES):
            self._warm_device(device, nbytes)
        # Where a NIC reaches device memory itself, only messages make the devices copy.
        connection = self.here.connect(self._targets[0].handle.url).result(PATIENCE_S)
        for device in (0, 1):
            memory, target = self.buffer("sim", 64, device=device).memory, self.target("sim", 64, device=device)
            receiving = self.there.start(Service.recv, self.here.url, target.number, 0, 64)
            connection.send(memory).result(PATIENCE_S)
            receiving.result()
            received = connection.recv(memory)
            self.there.call(Service.send, self.here.url, target.number, 0, 64)
            received.result(PATIENCE_S)
        self.close_buffers()

    def _warm_device(self, device: int, nbytes: int) -> None:
        target = self.target("sim", nbytes, device=device)
        for source in (self.buffer("sim", nbytes, device=device), self.buffer("alloc", nbytes)):
            self.here.write(source.memory, target.handle).result(PATIENCE_S)
            self.here.read(target.handle, source.memory).result(PATIENCE_S)
            handle = bytes(source.memory.share("rw"))
            self.there.call(Service.write, handle, target.number, 0, nbytes)


class Pool:
    """The worlds of a session, opened when they are first asked for."""

    def __init__(self) -> None:
        self._worlds: dict[str, World] = {}

    def world(self, name: str) -> World:
        if name not in self._worlds:
            provider, place = name.split("-")
            options = Options(providers=(provider,), name=f"tests-{provider}")
            there: Remote = Peer().open(options) if place == "other" else Neighbour(options)
            world = World(provider, options.open(), there)
            self._worlds[name] = world
            with warnings.catch_warnings():
                # On a machine with GPUs, where not all paths are direct.
                warnings.simplefilter("ignore", zh.StagedPathWarning)
                world.warm()
        return self._worlds[name]

    def peer(self, name: str) -> Peer | None:
        """The other side's process, None where that is this one."""
        there = self._worlds[name].there
        return there if isinstance(there, Peer) else None

    def drop(self, name: str) -> None:
        """Forget a world that a failed test left in a state that nobody knows."""
        world = self._worlds.pop(name)
        world.here.close()
        if isinstance(world.there, Peer):
            world.there.reap()
        elif isinstance(world.there, Neighbour):
            world.there.finish()

    def close(self) -> None:
        for name in list(self._worlds):
            world = self._worlds.pop(name)
            world.here.close()
            assert isinstance(world.there, Peer | Neighbour)
            world.there.finish()
