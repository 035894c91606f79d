"""Memory taken back while a peer uses it: enforced where the target places the bytes, agreed where it is mapped."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import KINDS, Buffer, Kind
from support.lanes import eventually
from support.leaks import expect_given_back, holdings
from support.native import engine_of
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import POISON, expect_poison, pattern
from support.service import Service
from support.sizes import MIB
from support.streams import Stream
from support.world import PROVIDERS, WORLDS, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer
    from support.loads import Refusal
    from support.peer import Job
    from support.world import World

NBYTES = 2 * MIB + 1
# A provider by which a peer maps memory on the device, and a kind of memory that it moves to and from there.
MAPPED: list[tuple[str, Kind, str]] = [("shm", "alloc", "host"), ("p2p", "sim", "host"), ("p2p", "sim", "sim:0")]


def _under_way(world: World, owned: Buffer, loop: Callable[..., Refusal]) -> tuple[Job[Refusal], zh.RemoteBuffer]:
    """The other side's endless loop on `owned`, seen to go on."""
    theirs = world.target("numpy", NBYTES)
    handle = owned.memory.share("rw")
    job = world.there.start(loop, bytes(handle), theirs.number, 77)
    note = world.here.notification(PATIENCE_S).result()
    assert note.value == 77
    return job, handle


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
class TestWhileInUse:
    def test_revoked_while_being_read(self, world: World, kind: Kind) -> None:
        owned = world.buffer(kind, NBYTES)
        job, handle = _under_way(world, owned, Service.read_until_refused)
        owned.memory.revoke(handle, timeout=PATIENCE_S)
        refusal = job.result()
        assert refusal.outcome.kind == "AccessDenied"
        assert refusal.outcome.says("revoked")
        assert refusal.outcome.peer == world.here.id

    def test_revoked_while_being_written(self, world: World, kind: Kind) -> None:
        """Once `revoke` has returned, not one byte changes any more."""
        owned = world.buffer(kind, NBYTES)
        job, handle = _under_way(world, owned, Service.write_until_refused)
        owned.memory.revoke(handle, timeout=PATIENCE_S)
        owned.poison(0, NBYTES)
        assert job.result().outcome.kind == "AccessDenied"
        owned.expect_poison()

    def test_other_handles_of_the_memory_go_on(self, world: World, kind: Kind) -> None:
        target = world.target(kind, 4096)
        owned = world.buffer(kind, 4096)
        doomed, kept = owned.memory.share("rw"), owned.memory.share("rw")
        assert world.there.call(Service.write, bytes(doomed), target.number, 0, 4096) == 4096
        owned.memory.revoke(doomed, timeout=PATIENCE_S)
        assert world.there.call(Service.try_write, bytes(doomed), target.number, 4096).kind == "AccessDenied"
        target.fill(0, 4096, 8)
        assert world.there.call(Service.write, bytes(kept), target.number, 0, 4096) == 4096
        owned.expect(0, 4096, 8)

    def test_without_a_handle_all_of_them(self, world: World, kind: Kind) -> None:
        target = world.target(kind, 4096)
        owned = world.buffer(kind, 4096)
        handles = [bytes(owned.memory.share(rights)) for rights in ("rw", "w", "rw")]
        for handle in handles:
            assert world.there.call(Service.write, handle, target.number, 0, 4096) == 4096
        owned.memory.revoke(timeout=PATIENCE_S)
        owned.poison(0, 4096)
        for handle in handles:
            assert world.there.call(Service.try_write, handle, target.number, 4096).kind == "AccessDenied"
        owned.expect_poison()
        # Sharing anew is possible, the old handles stay dead.
        fresh = bytes(owned.memory.share("rw"))
        target.fill(0, 4096, 9)
        assert world.there.call(Service.write, fresh, target.number, 0, 4096) == 4096
        owned.expect(0, 4096, 9)
        assert world.there.call(Service.try_write, handles[0], target.number, 4096).kind == "AccessDenied"

    def test_revoking_what_nobody_uses(self, world: World, kind: Kind) -> None:
        owned = world.buffer(kind, 4096)
        handle = owned.memory.share("rw")
        owned.memory.revoke(handle, timeout=PATIENCE_S)
        with pytest.raises(ValueError, match="revoked"):
            owned.memory.revoke(handle, timeout=PATIENCE_S)
        target = world.target(kind, 4096)
        assert world.there.call(Service.try_write, bytes(handle), target.number, 4096).kind == "AccessDenied"
        owned.expect_poison()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_a_handle_that_is_not_revocable(world: World, kind: Kind) -> None:
    """It lasts as long as the Memory, and `revoke` says so."""
    owned = world.buffer(kind, 4096)
    target = world.target("numpy", 4096)
    handle = owned.memory.share("rw", revocable=False)
    with pytest.raises(ValueError, match="revocable"):
        owned.memory.revoke(handle, timeout=PATIENCE_S)
    owned.memory.revoke(timeout=PATIENCE_S)
    target.fill(0, 4096, 3)
    assert world.there.call(Service.write, bytes(handle), target.number, 0, 4096) == 4096
    owned.expect(0, 4096, 3)
    owned.memory.close()
    assert world.there.call(Service.try_write, bytes(handle), target.number, 4096).kind == "AccessDenied"


@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_handles_of_others(world: World) -> None:
    """Only the owner can revoke, and only through the Memory that it shared."""
    mine, other = world.buffer("numpy", 64), world.buffer("numpy", 64)
    target = world.target("numpy", 64)
    for handle in (target.handle, other.memory.share("r")):
        with pytest.raises(ValueError, match="handle"):
            mine.memory.revoke(handle, timeout=PATIENCE_S)
    world.here.write(pattern(1, 64), target.handle).result(PATIENCE_S)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_closing_a_memory_ends_its_handles(world: World, kind: Kind) -> None:
    owned = world.buffer(kind, NBYTES)
    target = world.target("numpy", 4096)
    job, handle = _under_way(world, owned, Service.write_until_refused)
    owned.memory.close()
    assert job.result().outcome.kind in {"AccessDenied", "Closed"}
    assert world.there.call(Service.try_write, bytes(handle), target.number, 4096).kind in {"AccessDenied", "Closed"}


@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_closing_a_memory_that_a_device_still_writes_to(open_context: OpenContext, provider: str) -> None:
    """Nobody waits for the device's copies; once they have ended the memory is given back, the Context still open."""
    options = Options(providers=(provider,))
    owner, other = open_context(options), open_context(options)
    with owner.alloc(NBYTES, device="sim:0") as warm:
        other.write(pattern(1, NBYTES), warm.share("w")).result(PATIENCE_S)
    before = holdings()
    # More than there are staging buffers for.
    memory = owner.alloc(32 * MIB, device="sim:0")
    # So long that they cannot all end before the memory is closed.
    engine_of(owner).sim_delay(0, 1_000_000_000, 0)
    arrived = owner.statistics().engine["bytes_received"]
    write = other.write(pattern(2, 32 * MIB), memory.share("w"))
    # The first copies begin then; nothing tells that they have.
    eventually(lambda: owner.statistics().engine["bytes_received"] - arrived >= MIB, "nothing arrives")
    memory.close()
    del memory
    engine_of(owner).sim_delay(0, 0, 0)
    with pytest.raises(zh.AccessDenied):
        write.result(PATIENCE_S)
    expect_given_back(before, holdings, "this process")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_stopped_peer_cannot_hold_what_is_enforced(
    open_context: OpenContext, start_peer: StartPeer, provider: str
) -> None:
    """The target places the bytes itself, so it needs nobody's consent; the peer is refused when it wakes."""
    options = Options(providers=(provider,))
    context, peer = open_context(options), start_peer(options)
    owned = np.full(NBYTES, POISON, np.uint8)
    memory = context.register(owned)
    handle = memory.share("rw")
    theirs = peer.call(Service.new, "numpy", NBYTES, 0)
    job = peer.start(Service.write_until_refused, bytes(handle), theirs, 1)
    assert context.notification(PATIENCE_S).result().value == 1
    peer.stop()
    memory.revoke(handle, timeout=PATIENCE_S)
    owned[:] = POISON
    peer.resume()
    assert job.result().outcome.kind == "AccessDenied"
    expect_poison(owned, "memory that was revoked")


@pytest.mark.parametrize("kind", ["alloc", "shared_memory"])
def test_a_stopped_peer_holds_what_it_has_mapped(open_context: OpenContext, start_peer: StartPeer, kind: Kind) -> None:
    """RevocationIncomplete names it, the memory stays, and a second `revoke` succeeds once the peer is back."""
    options = Options(providers=("shm",))
    context, peer = open_context(options), start_peer(options)
    owned = Buffer(context, kind, NBYTES)
    handle = owned.memory.share("rw")
    theirs = peer.call(Service.new, "numpy", NBYTES, 0)
    job = peer.start(Service.write_until_refused, bytes(handle), theirs, 1)
    assert context.notification(PATIENCE_S).result().value == 1
    peer.stop()
    with pytest.raises(zh.RevocationIncomplete) as caught:
        owned.memory.revoke(handle, timeout=0.2)
    assert list(caught.value.peers) == [peer.identity.id]
    # Still allocated: it may be used by its owner, who will find the peer's late writes in it.
    owned.fill(0, NBYTES, 3)
    peer.resume()
    owned.memory.revoke(handle, timeout=PATIENCE_S)
    owned.poison(0, NBYTES)
    assert job.result().outcome.kind == "AccessDenied"
    owned.expect_poison()
    owned.close()


@pytest.mark.parametrize("kind", ["alloc", "shared_memory"])
def test_a_dead_peer_holds_nothing(open_context: OpenContext, start_peer: StartPeer, kind: Kind) -> None:
    options = Options(providers=("shm",))
    context, peer = open_context(options), start_peer(options)
    owned = Buffer(context, kind, NBYTES)
    handle = owned.memory.share("rw")
    theirs = peer.call(Service.new, "numpy", NBYTES, 0)
    peer.start(Service.write_until_refused, bytes(handle), theirs, 1)
    assert context.notification(PATIENCE_S).result().value == 1
    peer.kill()
    owned.memory.revoke(handle, timeout=PATIENCE_S)
    owned.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_a_slice_of_a_revoked_handle_is_revoked(world: World, kind: Kind) -> None:
    """Slices are the same share: one `revoke` covers those made before and after."""
    target: Target = world.target(kind, 4096)
    before = target.handle[100:200]
    data = pattern(1, 100)
    world.here.write(data, before).result(PATIENCE_S)
    target.poison()
    assert target.revoke(PATIENCE_S).kind == "ok"
    for handle in (before, target.handle[300:400]):
        with pytest.raises(zh.AccessDenied):
            world.here.write(data, handle).result(PATIENCE_S)
        with pytest.raises(zh.AccessDenied):
            world.here.read(handle, np.zeros(100, np.uint8)).result(PATIENCE_S)
    target.expect_poison()


@pytest.mark.parametrize(("provider", "kind", "device"), MAPPED)
class TestLostPeers:
    """A peer whose connection is gone may still write to what it had mapped, for as long as its process lives."""

    def test_one_that_is_stopped(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, kind: Kind, device: str
    ) -> None:
        context, peer = open_context(Options(providers=(provider,))), start_peer(Options(providers=(provider,)))
        theirs = peer.call(Service.new, kind, 4096, 0)
        memory = context.alloc(4096, device)
        handle = memory.share("rw")
        peer.call(Service.write, bytes(handle), theirs, 0, 4096)
        peer.stop()
        context.connections[0].close()
        for chosen in (handle, None):
            with pytest.raises(zh.RevocationIncomplete) as caught:
                memory.revoke(chosen, timeout=0.05)
            assert list(caught.value.peers) == [peer.identity.id]
        ended: list[BaseException | None] = []

        def revoke() -> None:
            try:
                memory.revoke(handle, timeout=PATIENCE_S)
                ended.append(None)
            except zh.ZerohopError as error:
                ended.append(error)

        # Whoever waits is told of the end of the process.
        waiting = threading.Thread(target=revoke)
        waiting.start()
        peer.kill()
        waiting.join()
        assert ended == [None]
        peer.reap()

    def test_the_context_is_closed_meanwhile(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, kind: Kind, device: str
    ) -> None:
        """Nobody waits for ever, and nobody is told that all is well."""
        context, peer = open_context(Options(providers=(provider,))), start_peer(Options(providers=(provider,)))
        theirs = peer.call(Service.new, kind, 4096, 0)
        memory = context.alloc(4096, device)
        handle = memory.share("rw")
        peer.call(Service.write, bytes(handle), theirs, 0, 4096)
        peer.stop()
        ended: list[BaseException | None] = []

        def revoke() -> None:
            try:
                memory.revoke(handle, timeout=math.inf)
                ended.append(None)
            except zh.ZerohopError as error:
                ended.append(error)

        waiting = threading.Thread(target=revoke)
        waiting.start()
        context.connections[0].close()
        context.close(timeout=0.5)
        waiting.join(PATIENCE_S)
        assert [type(error) for error in ended] in ([zh.RevocationIncomplete], [zh.Closed])
        peer.resume()


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_a_lost_peer_with_a_copy_under_way(open_context: OpenContext, device: str) -> None:
    """Its connection is closed, and its device still writes."""
    owner, peer = (open_context(Options(providers=("p2p",))) for _ in range(2))
    memory = owner.alloc(NBYTES, device)
    handle, source = memory.share("rw"), peer.alloc(NBYTES, "sim:0")
    peer.write(source, handle).result(PATIENCE_S)
    stream = Stream(peer)
    stream.stand_still()
    peer.write(source, handle, stream=stream)
    peer.connections[0].close()
    with pytest.raises(zh.RevocationIncomplete) as caught:
        memory.revoke(handle, timeout=0.05)
    assert list(caught.value.peers) == [peer.id]
    stream.release()
    stream.finish()
    stream.native.close()
