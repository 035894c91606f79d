"""A peer that got in and then turns on the lane itself: random frames, a scribbled ring, memory pulled away."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.buffers import Buffer
from support.lanes import READ, WRITE, Liar, Owner, deadline, eventually, linked
from support.options import Options
from support.patience import ANSWER_S, PATIENCE_S, patience
from support.raw_control import RawControl
from support.tamper import CAPABILITY, SHARE, fields
from zerohop._native import Engine, Op, Status
from zerohop.core.control import wire

if TYPE_CHECKING:
    from support.buffers import Kind
    from support.fixtures import OpenContext

pytestmark = pytest.mark.unprivileged

TESTS = Path(__file__).resolve().parents[1]


def _survives(what: str, seed: int, rounds: int, limit: float) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "support.hostile", what, str(seed), str(rounds)]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert ran.returncode == 0, f"exit {ran.returncode}\n{ran.stderr[-6000:]}"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("what", ["ring", "frames"])
def test_survives(what: str, seed: int) -> None:
    _survives(what, seed, 10 if what == "ring" else 60, ANSWER_S)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("what", ["ring", "frames"])
def test_survives_longer(what: str, seed: int) -> None:
    _survives(what, seed, 200 if what == "ring" else 2000, patience(280))


def test_a_ring_cannot_be_pulled_away() -> None:
    """A peer holds the ring's descriptor: truncating it would make the owner's next look at it a SIGBUS."""
    owner, liar = Owner(), Liar()
    _, there = linked("shm", liar.engine, owner.engine)
    for fd in [*there.address()[1], owner.engine.presence_fd]:
        if os.fstat(fd).st_size == 0:
            continue  # the doorbell is a pipe
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    liar.close()
    owner.close()


def test_memory_cannot_be_pulled_away() -> None:
    """The same for memory that a peer has been given to map."""
    engine = Engine(0, 0, 0)
    region = engine.alloc(1 << 20, -1)
    with pytest.raises(PermissionError):
        os.ftruncate(region.fd, 0)
    region.close()
    engine.close(0)


class Client(RawControl):
    """One that has come in over the Unix socket, with all that belongs to it."""

    def __init__(self, url: str) -> None:
        super().__init__(url, unix=True)
        self.engine = Engine(0, 0, 0)
        hello = self.shake_hands()
        setup = wire.Setup(providers=["shm"], url=f"zerohop:///{hello.context}?unix=/nowhere", name="raw", nfds=2)
        doorbell, _ = self.engine.make_doorbell()
        self.send(setup, [self.engine.presence_fd, doorbell])
        os.close(doorbell)

    def map(self, share: int, capability: bytes) -> tuple[wire.Imported, list[int]]:
        """Ask for a memory; the answer comes among messages that are none of this client's business."""
        self.send(wire.ImportRequest(request=1, provider="shm", wanted=[wire.Wanted(share, capability)]))
        files: list[int] = []
        while True:
            answered = self.receive()
            assert answered is not None, "hung up instead of an answer"
            message, fds = answered
            if isinstance(message, wire.ImportReply):
                return message.answers[0], files
            if isinstance(message, wire.Allocation):
                files += fds
                continue
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        super().close()
        self.engine.close(0)


@pytest.mark.parametrize("kind", ["alloc", "shared_memory"])
def test_a_reader_cannot_map_for_writing(open_context: OpenContext, kind: Kind) -> None:
    """The descriptor that goes with a handle of right "r" allows no more than that."""
    context = open_context(Options(providers=("shm",)))
    owned = Buffer(context, kind, 65_536)
    said = fields(owned.memory.share("r"))
    client = Client(context.url)
    reply, fds = client.map(said[SHARE], said[CAPABILITY])
    assert (reply.status, reply.rights) == (0, 1)
    assert len(fds) == 1
    with pytest.raises(PermissionError):
        mmap.mmap(fds[0], 65_536)
    with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument"):
        os.write(fds[0], b"x")
    mmap.mmap(fds[0], 65_536, prot=mmap.PROT_READ).close()
    os.close(fds[0])
    client.close()
    owned.close()


def test_nothing_is_mapped_without_its_capability(open_context: OpenContext) -> None:
    context = open_context(Options(providers=("shm",)))
    with context.alloc(65_536) as mappable:
        handle = mappable.share("rw")
        said = fields(handle)
        client = Client(context.url)
        for share, capability in (
            (said[SHARE], bytes(16)),
            (said[SHARE] + 1, said[CAPABILITY]),
            (said[SHARE] ^ 1 << 32, said[CAPABILITY]),
            ((1 << 64) - 1, said[CAPABILITY]),
        ):
            reply, fds = client.map(share, capability)
            assert reply.status != 0
            assert not fds
        mappable.revoke(handle, timeout=PATIENCE_S)
        reply, fds = client.map(said[SHARE], said[CAPABILITY])
        assert reply.status != 0
        assert not fds
        client.close()


def test_a_peer_that_plays_with_its_doorbell() -> None:
    """It makes the descriptor block, fills it, and takes every ring: the owner still hears the others, and they it."""
    owner, liar, victim = Owner(), Liar(), Liar()
    linked("shm", liar.engine, owner.engine)
    shared, number = owner.engine.make_doorbell()  # as the peer gets it
    fcntl.fcntl(shared, fcntl.F_SETFL, fcntl.fcntl(shared, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    thief = os.open(f"/proc/self/fd/{shared}", os.O_RDWR | os.O_CLOEXEC)

    def steal() -> None:
        while b"end" not in os.read(thief, 1 << 16):
            pass

    stealing = threading.Thread(target=steal, daemon=True)
    stealing.start()
    here, _ = linked("shm", victim.engine, owner.engine)
    capability = bytes(range(16))
    route = victim.engine.route(here, victim.region, owner.share, capability, Owner.SHARED, READ | WRITE, None)
    for _ in range(50):
        time.sleep(0.002)  # the owner's thread falls asleep, for which there is no event
        posted = victim.engine.post(route, 0, 0, 0, 4096, -1, deadline())
        assert not isinstance(posted, Op) or (posted.wait(deadline(), 0) and posted.status is Status.OK)

    def thief_ended() -> bool:
        os.write(shared, b"end")  # which the owner may take first
        stealing.join(0.01)
        return not stealing.is_alive()

    eventually(thief_ended, "the thief does not end")
    owner.engine.close_doorbell(number)
    for fd in (shared, thief):
        os.close(fd)
    victim.close()
    liar.close()
    owner.close()
