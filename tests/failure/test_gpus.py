"""What goes wrong with a GPU's memory between processes: each ends by name in bounded time, and the rest goes on.

On real GPUs, and on those in software below the driver's interface.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.first_gpu import FirstGpu
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import PATIENCE_S
from support.service import Service
from support.software_gpus import IN_SOFTWARE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.first_gpu import Still
    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

pytestmark = pytest.mark.cuda
MIB = 1 << 20
ON_GPUS = Options(sim_devices=0, providers=("p2p",))


def random_bytes(nbytes: int) -> bytes:
    return np.random.default_rng().bytes(nbytes)


def new_target(peer: Peer, nbytes: int) -> tuple[int, zh.RemoteBuffer]:
    number = peer.call(Service.new, "cuda", nbytes, 1)
    return number, zh.RemoteBuffer.from_bytes(peer.call(Service.share, number))


class TestCloseInFlight:
    def test_of_a_context(self, open_context: OpenContext, start_peer: StartPeer, still: Still) -> None:
        context, peer = open_context(ON_GPUS), start_peer(ON_GPUS)
        number, handle = new_target(peer, 64 * MIB)
        source = context.alloc(64 * MIB, "cuda:0")
        source.fill(5)
        context.write(source, handle).result(PATIENCE_S)
        pages = np.arange(4096)
        posted = [context.write(source, handle) for _ in range(30)]
        posted += [context.write_pages(source, handle, pages, pages, page_bytes=16384) for _ in range(10)]
        held = [context.write(source, handle, stream=still.number) for _ in range(10)]
        held += [
            context.write_pages(source, handle, pages, pages, page_bytes=16384, stream=still.number) for _ in range(10)
        ]
        context.close()
        errors = [operation.exception(PATIENCE_S) for operation in posted]
        assert all(error is None or isinstance(error, zh.Closed) for error in errors)
        for operation in held:
            assert isinstance(operation.exception(PATIENCE_S), zh.Closed)
        still.release()
        again = open_context(ON_GPUS)
        data = random_bytes(MIB)
        fresh = again.alloc(MIB, "cuda:0")
        fresh.write_bytes(0, data)
        again.write(fresh, handle[:MIB]).result(PATIENCE_S)
        assert peer.call(Service.get, number, 0, MIB) == data

    def test_of_the_owner(self, open_context: OpenContext, start_peer: StartPeer, still: Still) -> None:
        context, peer = open_context(ON_GPUS), start_peer(ON_GPUS)
        _, handle = new_target(peer, 64 * MIB)
        source = context.alloc(64 * MIB, "cuda:0")
        context.write(source, handle).result(PATIENCE_S)
        posted = [context.write(source, handle) for _ in range(30)]
        held = [context.write(source, handle, stream=still.number) for _ in range(10)]
        peer.call(Service.close, PATIENCE_S)
        known = (zh.PeerLost, zh.AccessDenied)
        errors = [operation.exception(PATIENCE_S) for operation in posted]
        assert all(error is None or isinstance(error, known) for error in errors)
        for operation in held:
            assert isinstance(operation.exception(PATIENCE_S), known)
        still.release()
        other = start_peer(ON_GPUS)
        _, handle = new_target(other, MIB)
        context.write(source[:MIB], handle).result(PATIENCE_S)


class TestTheSameAllocationTwice:
    def test_by_two_processes(self, open_context: OpenContext, start_peer: StartPeer) -> None:
        """Each by two handles. One that is taken back leaves the others as they are."""
        context, peers = open_context(ON_GPUS), [start_peer(ON_GPUS) for _ in range(2)]
        memory = context.alloc(4 * MIB, "cuda:0")
        memory.fill(0)
        parts = [memory[i * MIB : (i + 1) * MIB] for i in range(4)]
        handles = [bytes(part.share("rw")) for part in parts]
        payloads = [random_bytes(MIB) for _ in range(4)]
        theirs = [peer.call(Service.new, "cuda", MIB, 1) for peer in peers]
        for i, payload in enumerate(payloads):
            peer, number = peers[i % 2], theirs[i % 2]
            peer.call(Service.put, number, 0, payload)
            assert peer.call(Service.write, handles[i], number, 0, MIB) == MIB
        assert memory.read_bytes() == b"".join(payloads)
        memory.revoke(zh.RemoteBuffer.from_bytes(handles[0]), timeout=PATIENCE_S)
        assert peers[0].call(Service.try_write, handles[0], theirs[0], MIB).kind == "AccessDenied"
        for i in (1, 2, 3):
            peer, number = peers[i % 2], theirs[i % 2]
            assert peer.call(Service.read, handles[i], number, 0, MIB) == MIB
            assert peer.call(Service.get, number, 0, MIB) == payloads[i]

    def test_after_a_peer_has_died(self, open_context: OpenContext, start_peer: StartPeer) -> None:
        context, first = open_context(ON_GPUS), start_peer(ON_GPUS)
        memory = context.alloc(MIB, "cuda:0")
        handle = bytes(memory.share("rw"))
        number = first.call(Service.new, "cuda", MIB, 1)
        first.call(Service.write, handle, number, 0, MIB)
        first.kill()
        first.reap()
        second = start_peer(ON_GPUS)
        number, data = second.call(Service.new, "cuda", MIB, 1), random_bytes(MIB)
        second.call(Service.put, number, 0, data)
        assert second.call(Service.write, handle, number, 0, MIB) == MIB
        assert memory.read_bytes() == data


@contextlib.contextmanager
def full(context: zh.Context) -> Iterator[None]:
    """Nothing can be had of the first GPU any more; of those in software, of none."""
    if IN_SOFTWARE:
        os.environ["FAKE_CUDA_FULL"] = "1"
        try:
            yield
        finally:
            del os.environ["FAKE_CUDA_FULL"]
        return
    held: list[zh.Memory] = []
    size = 64 << 30
    while size >= 64 << 10:
        try:
            held.append(context.alloc(size, "cuda:0"))
        except zh.RegistrationFailed:
            size //= 2
    yield
    for memory in held:
        memory.close()


# A neighbour's memory is on the same GPU.
@pytest.mark.alone
class TestOutOfMemory:
    @pytest.mark.parametrize("provider", ["p2p", "tcp"])
    def test_while_a_lane_is_set_up(self, open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
        """The operation ends by name, on a real GPU perhaps well: what it takes may be had already. When there is
        memory again, the next one works."""
        options = Options(sim_devices=0, providers=(provider,))
        context, peer = open_context(options), start_peer(options)
        number, handle = new_target(peer, MIB)
        source, data = context.alloc(MIB, "cuda:0"), random_bytes(MIB)
        source.write_bytes(0, data)
        with full(context):
            with pytest.raises(zh.RegistrationFailed):
                context.alloc(64 * MIB, "cuda:0")
            error = context.write(source, handle).exception(PATIENCE_S)
            assert isinstance(error, zh.RegistrationFailed) or (error is None and not IN_SOFTWARE)
            assert error is None or "free memory of the device" in error.fix
        peer.call(Service.poison, number)
        context.write(source, handle).result(PATIENCE_S)
        assert peer.call(Service.get, number, 0, MIB) == data


# A neighbour takes and frees memory of the same GPU.
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(300)
class TestManyRounds:
    def test_connecting(self, open_context: OpenContext, start_peer: StartPeer) -> None:
        """200 Contexts, one after the other, that reach the same memory: no descriptor, mapping or memory stays."""
        peer = start_peer(ON_GPUS)
        _, handle = new_target(peer, 4 * MIB)
        ours = open_context(Options(sim_devices=0))
        kept = ours.alloc(4 * MIB, "cuda:0")
        free_bytes = FirstGpu().free_bytes
        before = None
        for round_number in range(200):
            with zh.Context(providers=["p2p"], listen=None) as context:
                source = context.register((kept.address, kept.nbytes, "cuda:0"))
                context.write(source, handle).result(PATIENCE_S)
                context.alloc(MIB, "cuda:0")
            if round_number == 20:  # what libraries keep for good is there by now
                before = holdings(), peer.call(Service.holdings), free_bytes()
        assert before is not None
        here, there, free = before
        expect_given_back(here, holdings, "the test's process")
        expect_given_back(there, lambda: peer.call(Service.holdings), "the peer")
        assert free_bytes() >= free - 2 * MIB

    def test_importing(self, open_context: OpenContext, start_peer: StartPeer) -> None:
        """200 allocations of a peer, each mapped, written to and closed."""
        context, peer = open_context(ON_GPUS), start_peer(ON_GPUS)
        source = context.alloc(4 * MIB, "cuda:0")
        free_bytes = FirstGpu().free_bytes
        before = None
        for round_number in range(200):
            number, handle = new_target(peer, 4 * MIB)
            context.write(source, handle).result(PATIENCE_S)
            peer.call(Service.drop, number)
            if round_number == 20:
                before = holdings(), peer.call(Service.holdings), free_bytes()
        assert before is not None
        here, there, free = before
        expect_given_back(here, holdings, "the test's process")
        expect_given_back(there, lambda: peer.call(Service.holdings), "the peer")
        assert free_bytes() >= free - 2 * MIB
