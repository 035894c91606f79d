"""Memory that a Pool hands out: what comes back, when it is used again, and what it costs nothing of."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.forking import in_child
from support.lanes import eventually
from support.native import engine_of
from support.options import Options
from support.patience import PATIENCE_S
from support.service import Service
from support.streams import Stream
from zerohop import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.buffers import Kind
    from support.fixtures import OpenContext, StartPeer
    from zerohop.core.memory.local_share import LocalShare, Shared

CHUNK = 1 << 20
PART = 1000
LIMIT_S = PATIENCE_S
DEVICES = ["host", "sim:0", pytest.param("cuda:0", marks=pytest.mark.cuda)]
# A provider, and a kind of memory that the peer moves with it to and from memory of a pool on the device.
PATHS = [
    ("shm", "alloc", "host"),
    ("tcp", "numpy", "host"),
    ("tcp", "sim", "sim:0"),
    ("p2p", "sim", "sim:0"),
    ("p2p", "alloc", "sim:0"),
    pytest.param("p2p", "cuda", "cuda:0", marks=pytest.mark.cuda),
    pytest.param("p2p", "alloc", "cuda:0", marks=pytest.mark.cuda),
    pytest.param("tcp", "numpy", "cuda:0", marks=pytest.mark.cuda),
]


def random_bytes(nbytes: int) -> bytes:
    return np.random.default_rng().bytes(nbytes)


@pytest.fixture
def context(open_context: OpenContext) -> zh.Context:
    return open_context(Options(providers=None))


@pytest.fixture(params=DEVICES)
def memory_pool(request: pytest.FixtureRequest, context: zh.Context) -> Iterator[zh.Pool]:
    with context.pool(request.param, chunk_bytes=CHUNK, max_bytes=CHUNK) as made:
        yield made


class TestParts:
    def test_they_are_apart_and_aligned(self, memory_pool: zh.Pool, context: zh.Context) -> None:
        parts = [memory_pool.alloc(PART + i) for i in range(20)]
        data = [random_bytes(PART + i) for i in range(20)]
        for part, each in zip(parts, data, strict=True):
            assert part.address % 512 == 0
            assert part.device == memory_pool.device
            part.write_bytes(0, each)
        assert [part.read_bytes() for part in parts] == data
        assert [part.nbytes for part in parts] == [len(each) for each in data]

    def test_one_allocation_serves_all(self, memory_pool: zh.Pool, context: zh.Context) -> None:
        assert memory_pool.nbytes == 0
        parts = [memory_pool.alloc(PART) for _ in range(100)]
        assert memory_pool.nbytes == CHUNK
        # The chunk's, and a hundred that no driver and no NIC was asked for.
        assert context.statistics().registrations == 101
        assert max(part.address for part in parts) - min(part.address for part in parts) < CHUNK

    def test_what_is_dropped_or_closed_is_used_again(self, memory_pool: zh.Pool, context: zh.Context) -> None:
        for _ in range(3):
            held = [memory_pool.alloc(CHUNK // 4) for _ in range(4)]
            with pytest.raises(zh.RegistrationFailed, match="no room for 1 bytes"):
                memory_pool.alloc(1, timeout=0)
            held.pop().close()
            held.append(memory_pool.alloc(CHUNK // 4))
            held.clear()
            assert memory_pool.alloc(CHUNK).nbytes == CHUNK  # and neighbours are one range again
        assert memory_pool.nbytes == CHUNK

    def test_ten_thousand_rounds(self, memory_pool: zh.Pool, context: zh.Context) -> None:
        kept: list[zh.Memory] = []
        rng = np.random.default_rng(1)
        for _ in range(10_000):
            kept.append(memory_pool.alloc(int(rng.integers(1, 4000))))
            if len(kept) > 50:
                kept.pop(int(rng.integers(50)))
        assert memory_pool.nbytes == CHUNK
        assert context.statistics().registrations <= 53
        kept.clear()
        assert memory_pool.alloc(CHUNK).nbytes == CHUNK

    def test_threads(self, memory_pool: zh.Pool) -> None:
        failures: list[BaseException] = []

        def use(value: int) -> None:
            try:
                for _ in range(300):
                    part = memory_pool.alloc(3000)
                    part.fill(value)
                    assert part.read_bytes() == bytes([value]) * 3000
                    part.close()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=use, args=(value,)) for value in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


class TestTheWhole:
    def test_it_grows_by_chunks(self, context: zh.Context) -> None:
        pool = context.pool("sim:0", chunk_bytes=CHUNK)
        parts = [pool.alloc(CHUNK - 512), pool.alloc(512), pool.alloc(1)]
        assert pool.nbytes == 2 * CHUNK
        parts.append(pool.alloc(3 * CHUNK + 1))  # more than a chunk
        assert pool.nbytes == 5 * CHUNK + 512
        parts.clear()
        pool.close()

    def test_less_than_a_chunk_where_no_more_may_be_had(self, context: zh.Context) -> None:
        with context.pool("sim:0", chunk_bytes=CHUNK, max_bytes=CHUNK + 5000) as pool:
            first, second = pool.alloc(CHUNK), pool.alloc(4000)
            assert pool.nbytes == first.nbytes + 4608  # what of the room is a multiple of 512
            second.close()

    def test_trim_gives_back_what_is_idle(self, memory_pool: zh.Pool, context: zh.Context) -> None:
        part = memory_pool.alloc(PART)
        assert memory_pool.trim() == 0
        del part
        # A device may touch it until it has come to where it was given back.
        eventually(lambda: memory_pool.trim() == CHUNK, "it stays in use")
        assert memory_pool.nbytes == 0
        assert context.statistics().registrations == 0
        assert memory_pool.alloc(PART).nbytes == PART

    def test_closed_while_parts_are_open(self, memory_pool: zh.Pool, context: zh.Context) -> None:
        part, other = memory_pool.alloc(PART), memory_pool.alloc(PART)
        data = random_bytes(PART)
        part.write_bytes(0, data)
        other.close()
        memory_pool.close()
        memory_pool.close()
        with pytest.raises(zh.Closed, match="this Pool was closed"):
            memory_pool.alloc(1)
        assert part.read_bytes() == data
        part.close()
        del part, other
        assert context.statistics().registrations == 0

    def test_closed_with_its_context(self, open_context: OpenContext) -> None:
        context = open_context(Options())
        pool = context.pool("sim:0")
        part = pool.alloc(PART)
        context.close()
        with pytest.raises(zh.Closed):
            pool.alloc(1)
        with pytest.raises(zh.Closed):
            part.read_bytes()
        assert "closed" in repr(pool)
        pool.close()

    def test_more_than_it_may_have_costs_it_nothing(self, memory_pool: zh.Pool, context: zh.Context) -> None:
        memory_pool.alloc(PART).close()
        with pytest.raises(zh.RegistrationFailed, match="no room"):
            memory_pool.alloc(2 * CHUNK, timeout=0)
        assert memory_pool.nbytes == CHUNK

    def test_idle_chunks_make_room_for_a_larger_one(self, context: zh.Context) -> None:
        with context.pool("sim:0", chunk_bytes=CHUNK, max_bytes=2 * CHUNK) as pool:
            small = [pool.alloc(CHUNK) for _ in range(2)]
            small.clear()
            assert pool.alloc(2 * CHUNK).nbytes == 2 * CHUNK
            assert pool.nbytes == 2 * CHUNK

    def test_wrong_arguments(self, context: zh.Context) -> None:
        with pytest.raises(ValueError, match="no device is called"):
            context.pool("sim:99")
        with pytest.raises(ValueError, match="cannot allocate 0 bytes"):
            context.pool("host", chunk_bytes=0)
        with pytest.raises(TypeError):
            context.pool("host", max_bytes=1.5)  # type: ignore[arg-type]
        with context.pool("host") as pool:
            for wrong in (0, -1, 1 << 63):
                with pytest.raises(ValueError, match="cannot allocate"):
                    pool.alloc(wrong)
            with pytest.raises(TypeError):
                pool.alloc("1")  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                pool.alloc(True)

    def test_a_device_that_gives_nothing(self, context: zh.Context) -> None:
        engine_of(context).sim_inject(0, "alloc", 2)
        with context.pool("sim:0") as pool:
            with pytest.raises(zh.RegistrationFailed, match="no room for 1 bytes: it holds 0 bytes"):
                pool.alloc(1)
            assert pool.alloc(1).nbytes == 1


class TestInUse:
    """A part of which the last name is gone stays as it is for as long as anything can touch it."""

    @pytest.fixture
    def memory_pool(self, context: zh.Context) -> Iterator[zh.Pool]:
        with context.pool("sim:0", chunk_bytes=CHUNK, max_bytes=CHUNK) as made:
            yield made

    @pytest.fixture
    def stream(self, context: zh.Context) -> Iterator[_native.SimStream]:
        made = _native.SimStream(engine_of(context), 0)
        yield made
        made.close()

    def test_by_what_the_device_was_told_before(
        self, memory_pool: zh.Pool, context: zh.Context, stream: _native.SimStream
    ) -> None:
        """On a stream that is not ours, and of whose work nobody told us."""
        word, target = np.zeros(1, np.uint32), context.alloc(PART)
        part, data = memory_pool.alloc(CHUNK), random_bytes(PART)
        part.write_bytes(0, data)
        stream.wait32(word.ctypes.data, 1)
        stream.copy(target.address, part.address, PART)
        part.close()
        with pytest.raises(zh.RegistrationFailed, match="no room"):
            memory_pool.alloc(CHUNK, timeout=0.05)
        again: list[zh.Memory] = []
        waiting = threading.Thread(target=lambda: again.append(memory_pool.alloc(CHUNK)))
        waiting.start()
        word[0] = 1
        waiting.join(LIMIT_S)
        assert again
        assert target.read_bytes() == data

    def test_by_a_transfer(
        self, memory_pool: zh.Pool, context: zh.Context, stream: _native.SimStream, start_peer: StartPeer
    ) -> None:
        peer = start_peer(Options())
        theirs = peer.call(Service.new, "sim", CHUNK, 0)
        handle = zh.RemoteBuffer.from_bytes(peer.call(Service.share, theirs))
        part, word = memory_pool.alloc(CHUNK), np.zeros(1, np.uint32)
        data = random_bytes(CHUNK)
        part.write_bytes(0, data)
        context.write(part, handle).result(LIMIT_S)  # the first one waits for a connection
        peer.call(Service.poison, theirs)
        stream.wait32(word.ctypes.data, 1)
        operation = context.write(part, handle, stream=stream)
        part.close()
        with pytest.raises(zh.RegistrationFailed, match="no room"):
            memory_pool.alloc(CHUNK, timeout=0.05)
        word[0] = 1
        assert operation.result(LIMIT_S) == CHUNK
        assert memory_pool.alloc(CHUNK).nbytes == CHUNK
        assert peer.call(Service.get, theirs, 0, CHUNK) == data

    def test_while_a_graph_is_captured(
        self, memory_pool: zh.Pool, context: zh.Context, stream: _native.SimStream
    ) -> None:
        """What has been given back cannot be looked after, and is not used; nothing fails that need not."""
        first, second = memory_pool.alloc(CHUNK // 2), memory_pool.alloc(CHUNK // 4)
        stream.capture(True)
        first.close()
        assert memory_pool.alloc(CHUNK // 4).nbytes == CHUNK // 4  # never given out before
        with pytest.raises(zh.RegistrationFailed, match="no room"):
            memory_pool.alloc(CHUNK // 2, timeout=0.05)
        stream.capture(False)
        assert memory_pool.alloc(CHUNK // 2).nbytes == CHUNK // 2
        second.close()


class TestPeers:
    @pytest.mark.parametrize(("provider", "kind", "device"), PATHS)
    def test_both_ways(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, kind: Kind, device: str
    ) -> None:
        """A handle reaches its part and no other, and nothing once the part is closed."""
        context, peer = open_context(Options(providers=(provider,))), start_peer(Options(providers=(provider,)))
        with context.pool(device, chunk_bytes=CHUNK, max_bytes=CHUNK) as pool:
            theirs = peer.call(Service.new, kind, PART, 0)
            before, part, after = (pool.alloc(PART) for _ in range(3))
            for each in (before, part, after):
                each.fill(9)
            data = random_bytes(PART)
            peer.call(Service.put, theirs, 0, data)
            handle = bytes(part.share("rw"))
            assert peer.call(Service.write, handle, theirs, 0, PART) == PART
            assert part.read_bytes() == data
            assert before.read_bytes() == after.read_bytes() == b"\x09" * PART
            data = random_bytes(PART)
            part.write_bytes(0, data)
            assert peer.call(Service.read, handle, theirs, 0, PART) == PART
            assert peer.call(Service.get, theirs, 0, PART) == data
            mine = zh.RemoteBuffer.from_bytes(peer.call(Service.share, theirs))
            assert context.write(after, mine, notify=4).result(LIMIT_S) == PART
            assert peer.call(Service.get, theirs, 0, PART) == b"\x09" * PART
            assert peer.call(Service.notification).value == 4
            assert context.read(mine, before).result(LIMIT_S) == PART
            part.close()
            again = pool.alloc(PART)
            again.fill(5)
            assert peer.call(Service.try_write, handle, theirs, PART).kind == "AccessDenied"
            assert again.read_bytes() == b"\x05" * PART

    @pytest.mark.parametrize(("provider", "kind", "device"), [("shm", "alloc", "host"), ("p2p", "sim", "sim:0")])
    def test_one_that_does_not_let_go(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, kind: Kind, device: str
    ) -> None:
        """It may still write, so nobody else gets the part before it has let go of it."""
        context, peer = open_context(Options(providers=(provider,))), start_peer(Options(providers=(provider,)))
        with context.pool(device, chunk_bytes=CHUNK, max_bytes=CHUNK) as pool:
            theirs = peer.call(Service.new, kind, CHUNK, 0)
            part = pool.alloc(CHUNK)
            peer.call(Service.write, bytes(part.share("rw")), theirs, 0, CHUNK)
            peer.stop()
            try:
                part.close(timeout=0.05)
                with pytest.raises(zh.RegistrationFailed, match="no room"):
                    pool.alloc(CHUNK, timeout=0.05)
            finally:
                peer.resume()
            assert pool.alloc(CHUNK).nbytes == CHUNK


class TestLostPeers:
    """A peer whose connection is gone may still write to what it had mapped."""

    @pytest.mark.parametrize(("provider", "kind", "device"), [("shm", "alloc", "host"), ("p2p", "sim", "sim:0")])
    def test_one_that_is_stopped_while_this_side_leaves(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, kind: Kind, device: str
    ) -> None:
        context, peer = open_context(Options(providers=(provider,))), start_peer(Options(providers=(provider,)))
        with context.pool(device, chunk_bytes=CHUNK, max_bytes=CHUNK) as pool:
            theirs = peer.call(Service.new, kind, CHUNK, 0)
            part = pool.alloc(CHUNK)
            peer.call(Service.write, bytes(part.share("rw")), theirs, 0, CHUNK)
            peer.stop()
            context.connections[0].close()
            part.close(timeout=0.05)
            with pytest.raises(zh.RegistrationFailed, match="no room"):
                pool.alloc(CHUNK, timeout=0.05)
            peer.resume()
            peer.kill()
            peer.reap()
            eventually_allocates(pool)

    @pytest.mark.parametrize(("provider", "kind", "device"), [("shm", "alloc", "host"), ("p2p", "sim", "sim:0")])
    def test_one_that_says_goodbye_has_let_go(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, kind: Kind, device: str
    ) -> None:
        context, peer = open_context(Options(providers=(provider,))), start_peer(Options(providers=(provider,)))
        with context.pool(device, chunk_bytes=CHUNK, max_bytes=CHUNK) as pool:
            theirs = peer.call(Service.new, kind, CHUNK, 0)
            part = pool.alloc(CHUNK)
            peer.call(Service.write, bytes(part.share("rw")), theirs, 0, CHUNK)
            peer.call(Service.close, LIMIT_S)
            part.close()
            eventually_allocates(pool)

    @pytest.mark.parametrize(("provider", "kind", "device"), [("shm", "alloc", "host"), ("p2p", "sim", "sim:0")])
    def test_one_that_is_well_while_this_side_leaves(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, kind: Kind, device: str
    ) -> None:
        """It is asked for what it has mapped before the goodbye, and lives on: nothing grows, however often."""
        context, peer = open_context(Options(providers=(provider,))), start_peer(Options(providers=(provider,)))
        with context.pool(device, chunk_bytes=CHUNK, max_bytes=CHUNK) as pool:
            theirs = peer.call(Service.new, kind, CHUNK, 0)
            for _ in range(20):
                part = pool.alloc(CHUNK)
                peer.call(Service.write, bytes(part.share("rw")), theirs, 0, CHUNK)
                context.connections[0].close()
                part.close()
                eventually_allocates(pool)
                # A write of the peer before it has heard the goodbye would end with PeerLost.
                eventually(lambda: peer.call(Service.connections) == 0, "the peer has heard that this side left")

    def test_a_share_that_another_thread_closes(self, context: zh.Context, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who shares in the moment of a close() gets no handle, and nothing stays shared."""
        memory = context.alloc(PART)
        belongs = context._core.shares._belongs

        def closed_meanwhile(share: LocalShare, owner: Shared, *, loose: bool) -> None:
            memory.close()
            belongs(share, owner, loose=loose)

        monkeypatch.setattr(context._core.shares, "_belongs", closed_meanwhile)
        with pytest.raises(zh.Closed):
            memory.share("rw")
        assert context.statistics().shares == 0

    def test_one_that_leaves_with_a_copy_under_way(self, open_context: OpenContext) -> None:
        """Its goodbye waits a while for the copy, and does not say more than is true."""
        owner, peer = (open_context(Options(providers=("p2p",))) for _ in range(2))
        with owner.pool("sim:0", chunk_bytes=CHUNK, max_bytes=CHUNK) as pool:
            part = pool.alloc(CHUNK)
            part.fill(1)
            handle, source = part.share("rw"), peer.alloc(CHUNK, "sim:0")
            source.fill(7)
            peer.write(source, handle).result(LIMIT_S)
            stream = Stream(peer)
            stream.stand_still()
            peer.write(source, handle, stream=stream)
            peer.connections[0].close()
            part.close(timeout=0.05)
            with pytest.raises(zh.RegistrationFailed, match="no room"):
                pool.alloc(CHUNK, timeout=0.05)
            stream.release()
            stream.finish()
            stream.native.close()


def eventually_allocates(pool: zh.Pool) -> None:
    limit = time.monotonic() + LIMIT_S
    while True:
        try:
            pool.alloc(CHUNK, timeout=0).close()
        except zh.RegistrationFailed:
            assert time.monotonic() < limit
            time.sleep(0.005)  # a goodbye, and the end of a process, have no event here
        else:
            return


class TestWhileOthers:
    def test_look_at_what_is_given_back(self, open_context: OpenContext, start_peer: StartPeer) -> None:
        """What somebody looks at just then has not disappeared: the pool waits for it."""
        context, peer = open_context(Options()), start_peer(Options())
        theirs = peer.call(Service.new, "sim", CHUNK, 0)
        handle = zh.RemoteBuffer.from_bytes(peer.call(Service.share, theirs))
        ended = threading.Event()

        def look() -> None:
            while not ended.is_set():
                context.statistics()

        looking = threading.Thread(target=look)
        looking.start()
        try:
            with context.pool("sim:0", chunk_bytes=CHUNK, max_bytes=CHUNK) as pool:
                for _ in range(500):
                    part = pool.alloc(CHUNK)
                    context.write(part, handle).result(LIMIT_S)  # the first one of a part may have to wait
                    operation = context.write(part, handle)
                    part.close()
                    del part
                    operation.result(LIMIT_S)
        finally:
            ended.set()
            looking.join()

    def test_fork(self, context: zh.Context) -> None:
        """A child of a process of which another thread is allocating gets an error, and does not hang."""
        ended = threading.Event()
        with context.pool("host", chunk_bytes=CHUNK) as pool:

            def use() -> None:
                while not ended.is_set():
                    pool.alloc(PART).close()

            thread = threading.Thread(target=use)
            thread.start()
            try:
                outcomes = [in_child(lambda: check_forked(pool)) for _ in range(20)]
            finally:
                ended.set()
                thread.join()
            assert outcomes == ["Closed"] * 20


def check_forked(pool: zh.Pool) -> str:
    pool.close()
    for ask in (lambda: pool.alloc(1), lambda: pool.free_bytes, pool.trim):
        try:
            ask()
        except zh.Closed:
            continue
        return "no error"
    return "Closed"
