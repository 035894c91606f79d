"""Kernels put, get, signal and wait between processes, in each mode and over each provider."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from support.buffers import OTHER_GPU
from support.patience import patience
from support.world import PROVIDERS
from zerohop import RemoteBuffer
from zerohop.device import CLOSED, FAILED, OK, PEER_LOST, TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from device.conftest import KernelProcess, Launcher

POISON = 0xA5
# Limits are for Queues whose waits succeed, and for those whose time is up; a Queue opens within either.
LIMIT_S = patience(10.0)
SHORT_S = patience(1.5)
NBYTES = 3 << 20


class Way(NamedTuple):
    """How kernels reach memory, and how they are written: in Triton, or in C++ for threads of a scope."""

    mode: str
    provider: str
    language: str
    device: str = "host"

    @property
    def far(self) -> str:
        """The device of the other process."""
        return self.device if self.device == "host" else OTHER_GPU


REACHED = [("peer", "shm"), ("proxy", "shm"), ("proxy", "tcp")]
# Only where there are RDMA devices. In C++ only: in the lab's guest Triton's interpreter takes ten times as long.
OVER_NICS = [Way(mode, "verbs", "thread") for mode in ("proxy", "mlx5")] if "verbs" in PROVIDERS else []
ON_GPUS = [
    *(Way("peer", "p2p", language, "cuda:0") for language in ("triton", "thread", "warp", "block")),
    *(Way("proxy", "p2p", language, "cuda:0") for language in ("triton", "block")),
    *(Way("proxy", "shm", language, "cuda:0") for language in ("triton", "warp")),
    *(Way("proxy", "tcp", language, "cuda:0") for language in ("triton", "thread")),
]
WAYS = [*(Way(*each, language) for language in ("triton", "thread") for each in REACHED), *ON_GPUS, *OVER_NICS]


def ways(wanted: Callable[[Way], bool] = lambda way: True) -> pytest.MarkDecorator:
    found = [
        pytest.param(
            way,
            id="-".join(way).replace("cuda:0", "gpu"),
            # A kernel of a GPU is compiled for each of the first calls.
            marks=[pytest.mark.cuda, pytest.mark.timeout(90)] if way.device != "host" else [],
        )
        for way in WAYS
        if wanted(way)
    ]
    # Tests of one way follow each other, so that few processes are needed at a time.
    return pytest.mark.parametrize("way", found, scope="module")


way = ways(lambda way: (way.mode, way.provider) != ("proxy", "verbs"))


class Pair(NamedTuple):
    """Two processes, each with memory 0 to send from and memory 1, poisoned, that the other reaches."""

    near: KernelProcess
    far: KernelProcess
    bytes_here: bytes
    bytes_there: bytes


def make_pair(launch: Launcher, way: Way) -> Pair:
    if way.language == "triton":
        pytest.importorskip("triton", reason="kernels in Triton need it: pip install triton")
    near, far = (launch(way.language, device, providers=[way.provider]) for device in (way.device, way.far))
    sent = []
    for process in (near, far):
        sent.append(random.randbytes(NBYTES))
        for _ in range(2):
            process("alloc", NBYTES)
        process("write", 0, 0, sent[-1])
    return Pair(near, far, *sent)


def open_queues(pair: Pair, way: Way, **options: Any) -> None:
    """Makes a Queue in each of both, with the other's memory 1, which is poison."""
    for process, other in ((pair.near, pair.far), (pair.far, pair.near)):
        process("write", 1, 0, bytes([POISON]) * NBYTES)
        assert process("queue", [other("share", 1)], [0, 1], mode=way.mode, **{"timeout": LIMIT_S, **options}) == (
            way.mode,
        )


@pytest.fixture(scope="module")
def pair_for_all(launch_for_all: Launcher, way: Way) -> Pair:
    return make_pair(launch_for_all, way)


@pytest.fixture
def pair(pair_for_all: Pair, way: Way) -> Pair:
    """Two processes that other tests have used, with new Queues."""
    open_queues(pair_for_all, way)
    return pair_for_all


@pytest.fixture
def own_pair(launch: Launcher, way: Way) -> Pair:
    """Two processes that no other test uses."""
    pair = make_pair(launch, way)
    open_queues(pair, way)
    return pair


# Where both offsets allow words, and where they do not, for which the interpreter takes a millisecond per kilobyte.
RANGES = [
    *((nbytes, 16, 32) for nbytes in (0, 1, 7, 8, 255, 4096, 65537, 1 << 20)),
    *((nbytes, 17, 3) for nbytes in (1, 16, 1023, 1025, 20011)),
    (4096, 8, 1),
]


@ways()
class TestBytes:
    def test_put(self, pair: Pair) -> None:
        near, far, data, _ = pair
        for nbytes, there, here in RANGES:
            assert near("run", "put", 0, there, 0, here, nbytes) == (OK, 0)
            assert near("run", "flush", 0) == (OK, 0)
            wanted = bytearray([POISON]) * (nbytes + 64)
            wanted[there : there + nbytes] = data[here : here + nbytes]
            assert far("read", 1, 0, nbytes + 64) == wanted, f"{nbytes} bytes to {there}"
            far("write", 1, 0, bytes([POISON]) * (nbytes + 64))
        assert near("check") == ""

    def test_get(self, pair: Pair) -> None:
        near, far, _, _ = pair
        data = random.randbytes(NBYTES)
        far("write", 1, 0, data)
        for nbytes, there, here in RANGES:
            assert near("run", "get", 0, there, 1, here, nbytes) == (OK, 0)
            wanted = bytearray([POISON]) * (nbytes + 64)
            wanted[here : here + nbytes] = data[there : there + nbytes]
            assert near("read", 1, 0, nbytes + 64) == wanted, f"{nbytes} bytes from {there}"
            near("write", 1, 0, bytes([POISON]) * (nbytes + 64))

    def test_a_signal_comes_after_the_bytes(self, pair: Pair) -> None:
        near, far, data, _ = pair
        far("write", 1, 0, bytes(8))
        far.start("run", "wait_signal", 1, 0, 42, 0)
        assert near("run", "put_signal", 0, 16, 0, 32, 2 << 20, 0, 42) == (OK, 0)
        assert far.result() == (OK, 0)
        assert far("read", 1, 16, 2 << 20) == data[32 : 32 + (2 << 20)]
        assert far("read", 1, 0, 8) == (42).to_bytes(8, "little")

    def test_ping_pong(self, pair: Pair) -> None:
        near, far, here, there = pair
        rounds, nbytes = 20, 1003
        for process in (near, far):
            process("write", 1, 0, bytes(8))
        far.start("run", "ping_pong", 0, rounds, nbytes)
        assert near("run", "ping_pong", 1, rounds, nbytes) == (OK, rounds)
        assert far.result() == (OK, rounds)
        assert far("read", 1, 8, rounds * nbytes) == here[: rounds * nbytes]
        assert near("read", 1, 8, rounds * nbytes) == there[: rounds * nbytes]

    def test_words_of_slices(self, pair: Pair, way: Way) -> None:
        near, far, _, _ = pair
        far("write", 1, 0, bytes(64))
        part = RemoteBuffer.from_bytes(far("share", 1))[4:1004]
        near("queue", [bytes(part)], [1], mode=way.mode, timeout=LIMIT_S)
        assert near("run", "signal", 0, 4, 5) == (OK, 0)
        assert near("run", "flush", 0) == (OK, 0)
        assert far("read", 1, 8, 8) == (5).to_bytes(8, "little")
        assert near("run", "signal", 0, 0, 5)[0] == FAILED
        assert far("read", 1, 0, 8) == bytes(8)

    def test_words_are_signed_and_may_be_given_without_a_sign(self, pair: Pair) -> None:
        near, far, _, _ = pair
        far("write", 1, 64, bytes(8))
        assert near("run", "compare_swap", 0, 64, 0, (1 << 63) + 5) == (OK, 0)
        assert near("run", "compare_swap", 0, 64, (1 << 63) + 5, 1) == (OK, -(1 << 63) + 5)
        near("write", 1, 0, ((1 << 63) + 5).to_bytes(8, "little"))
        near("queue", [far("share", 1)], [0, 1], timeout=SHORT_S)
        assert near("run", "wait_signal", 1, 0, -(1 << 63), -1) == (OK, 0)
        assert near("run", "wait_signal", 1, 0, 1, -1) == (TIMED_OUT, 0)

    def test_nothing_is_done_after_a_failure(self, pair: Pair) -> None:
        near, far, data, _ = pair
        near("write", 1, 0, bytes([POISON]) * 64)
        assert near("run", "transfers_after", 0, 64, 64, CLOSED) == (CLOSED, 0)
        assert near("run", "words_after", 0, 64, CLOSED) == (CLOSED, 0)
        assert near("run", "waits_after", 0, CLOSED) == (CLOSED, 0)
        assert near("check") == ""
        assert far("read", 1, 0, 128) == bytes([POISON]) * 128
        assert near("read", 1, 0, 64) == bytes([POISON]) * 64
        assert near("run", "put", 0, 0, 0, 0, 64) == (OK, 0)
        assert near("run", "flush", 0) == (OK, 0)
        assert far("read", 1, 0, 64) == data[:64]

    def test_atomics(self, pair: Pair) -> None:
        near, far, _, _ = pair
        far("write", 1, 64, (1 << 63 | 5).to_bytes(8, "little"))
        assert near("run", "fetch_add", 0, 64, -7) == (OK, -(1 << 63) + 5)
        assert near("run", "compare_swap", 0, 64, 3, 9) == (OK, (1 << 63) - 2)
        assert near("run", "compare_swap", 0, 64, (1 << 63) - 2, -1) == (OK, (1 << 63) - 2)
        assert near("run", "fetch_add", 0, 64, 1) == (OK, -1)
        assert near("run", "signal_add", 0, 64, 40) == (OK, 0)
        assert near("run", "signal_add", 0, 64, 2) == (OK, 0)
        assert near("run", "quiet") == (OK, 0)
        assert far("read", 1, 64, 8) == (42).to_bytes(8, "little")
        assert near("run", "signal", 0, 64, -3) == (OK, 0)
        assert near("run", "flush", 0) == (OK, 0)
        assert far("read", 1, 64, 8) == (-3).to_bytes(8, "little", signed=True)


@way
class TestMany:
    def test_many_blocks_and_few_slots(self, pair: Pair, way: Way) -> None:
        near, far, data, _ = pair
        # Triton's interpreter runs one program after the other, and takes a millisecond for each put.
        slow = (way.language, way.device) == ("triton", "host")
        blocks, count, nbytes = (4, 6, 1003) if slow else (132, 20, 1003) if way.device != "host" else (16, 50, 1003)
        total = blocks * count * nbytes
        at = NBYTES - 64
        far("write", 1, at, bytes(8))
        near("queue", [far("share", 1)], [0], mode=way.mode, timeout=LIMIT_S, slots=16)
        assert near("run_blocks", "put_blocks", blocks, nbytes, count, at) == (OK, 0)
        assert near("check") == ""
        assert far("read", 1, at, 8) == blocks.to_bytes(8, "little")
        assert far("read", 1, 0, total + 64) == data[:total] + bytes([POISON]) * 64

    def test_a_flush_waits_for_the_entries_of_its_own_block(self, pair: Pair, way: Way) -> None:
        near, far, _, data = pair
        slow = (way.language, way.device) == ("triton", "host")
        blocks, nbytes = 4 if slow else 132 if way.device != "host" else 16, 16 << 10
        near("queue", [far("share", 0)], [0, 1], mode=way.mode, timeout=LIMIT_S, slots=16)
        poison = int.from_bytes(bytes([POISON]) * 8, "little", signed=True)
        assert near("run_blocks", "get_blocks", blocks, nbytes, poison) == (OK, 0)
        assert near("read", 1, 0, blocks * nbytes + 8) == data[: blocks * nbytes] + bytes([POISON]) * 8


@ways(lambda way: way.language == "triton" and way.device != "host")
class TestGraphs:
    def test_a_graph_is_replayed(self, pair: Pair) -> None:
        near, far, here, there = pair
        times, nbytes = 12, 4099
        for process in (near, far):
            process("write", 1, 0, bytes(8))
        far.start("replay", times, 0, nbytes)
        assert near("replay", times, 1, nbytes) == (OK, times)
        assert far.result() == (OK, times)
        assert far("read", 1, 8, nbytes) == here[times * 8 : times * 8 + nbytes]
        assert near("read", 1, 8, nbytes) == there[times * 8 : times * 8 + nbytes]


WRONG: list[tuple[Any, ...]] = [
    ("put", 0, NBYTES - 7, 0, 0, 8),
    ("put", 0, 0, 0, NBYTES - 7, 8),
    ("put", 0, -8, 0, 0, 8),
    ("put", 0, 0, 0, 0, -1),
    ("put", 1, 0, 0, 0, 8),
    ("put", 0, 0, 2, 0, 8),
    ("get", 0, NBYTES, 1, 0, 1),
    ("signal", 0, NBYTES - 4, 1),
    ("signal", 0, 4, 1),
    ("fetch_add", 0, 12, 1),
    ("compare_swap", 0, -8, 0, 1),
    ("signal_add", -1, 0, 1),
    ("flush", 1),
    *(("fence", peer) for peer in (1, -1, 512)),
    ("wait_signal", 3, 0, 1, 0),
    ("wait_signal", 1, 4, 1, 0),
    ("wait_signal", 1, 0, 1, 7),
]


@way
class TestRefusals:
    def test_what_cannot_be_right(self, pair: Pair, way: Way) -> None:
        near, far, _, _ = pair
        for name, *arguments in WRONG:
            assert near("run", name, *arguments)[0] == FAILED, name
            assert near("check").startswith("AccessDenied: ")
            assert near("run", "flush", 0)[0] == FAILED, name
            near("close_queue")
            near("queue", [far("share", 1)], [0, 1], mode=way.mode, timeout=LIMIT_S)
        assert far("read", 1) == bytes([POISON]) * NBYTES

    def test_no_rights(self, pair: Pair, way: Way) -> None:
        near, far, _, _ = pair
        for rights, calls in (
            ("r", (("put", 0, 0, 0, 0, 8), ("signal", 0, 0, 1), ("fetch_add", 0, 0, 1))),
            ("w", (("signal_add", 0, 0, 1), ("fetch_add", 0, 0, 1), ("compare_swap", 0, 0, 0, 1))),
        )[: 1 if way.mode == "mlx5" else 2]:  # a NIC needs the right to read, without which there is no such Queue
            for name, *arguments in calls:
                near("queue", [far("share", 1, rights)], [0, 1], mode=way.mode, timeout=LIMIT_S)
                assert near("run", name, *arguments)[0] == FAILED, (rights, name)
                assert near("check").startswith("AccessDenied: ")
        if way.mode == "mlx5":
            failure = near("fails", "queue", [far("share", 1, "w")], [0, 1], mode="mlx5", timeout=LIMIT_S)
            assert failure.startswith("Unsupported: ")
            assert "rights" in failure
            return
        near("queue", [far("share", 1, "w")], [0, 1], mode=way.mode, timeout=LIMIT_S)
        assert near("run", "get", 0, 0, 1, 0, 8)[0] == FAILED
        if way.mode == "proxy":  # nothing more goes to a peer at which something has failed
            assert near("run", "put", 0, 0, 0, 0, 8)[0] == OK
        assert near("run", "flush", 0)[0] == FAILED
        assert far("read", 1) == bytes([POISON]) * NBYTES

    def test_the_next_queue_works(self, pair: Pair, way: Way) -> None:
        near, far, data, _ = pair
        assert near("run", "put", 0, NBYTES, 0, 0, 8)[0] == FAILED
        near("close_queue")
        near("queue", [far("share", 1)], [0], mode=way.mode, timeout=LIMIT_S)
        assert near("run", "put", 0, 0, 0, 0, 100) == (OK, 0)
        assert near("run", "flush", 0) == (OK, 0)
        assert far("read", 1, 0, 100) == data[:100]


@way
class TestEnds:
    def test_a_wait_ends_with_its_time(self, pair: Pair, way: Way) -> None:
        near, far, _, _ = pair
        near("write", 1, 0, bytes(8))
        near("queue", [far("share", 1)], [0, 1], mode=way.mode, timeout=SHORT_S)
        assert near("run", "wait_signal", 1, 0, 1, 0) == (TIMED_OUT, 0)

    def test_the_peer_is_killed_while_a_kernel_waits(self, own_pair: Pair) -> None:
        near, far, _, _ = own_pair
        near("write", 1, 0, bytes(8))
        near.start("run", "wait_signal", 1, 0, 1, 0)
        far.send_signal(signal.SIGKILL)
        assert near.result() == (PEER_LOST, 0)
        assert near("check").startswith("PeerLost: ")

    def test_closed_while_a_kernel_waits(self, pair: Pair) -> None:
        near, _, _, _ = pair
        near("write", 1, 0, bytes(8))
        near("close_queue_later", 0.2)
        assert near("run", "wait_signal", 1, 0, 1, 0) == (CLOSED, 0)
        assert near("check").startswith("Closed: ")


@ways(lambda way: way.mode == "proxy" and way not in OVER_NICS)
class TestFifo:
    def test_more_entries_than_slots(self, pair: Pair, way: Way) -> None:
        near, far, data, _ = pair
        near("queue", [far("share", 1)], [0], mode=way.mode, timeout=LIMIT_S, slots=16)
        assert near("run", "put_many", 0, 0, 24, 30) == (OK, 30)
        assert near("taken") == 60
        assert far("read", 1, 0, 720) == data[:720]

    def test_nobody_takes_the_entries(self, pair: Pair, way: Way) -> None:
        near, far, _, _ = pair
        near("queue", [far("share", 1)], [0], mode=way.mode, timeout=SHORT_S, slots=16)
        status, done = near("run", "put_many", 0, 0, 24, 100, active=False)
        assert (status, done) == (TIMED_OUT, 8)
        assert near("check").startswith("DeadlineExceeded: ")
        assert near("run", "flush", 0)[0] == TIMED_OUT

    def test_entries_wait_until_the_queue_is_active(self, pair: Pair) -> None:
        near, far, data, _ = pair
        assert near("run", "put", 0, 0, 0, 0, 8, active=False) == (OK, 0)
        assert near("run", "flush", 0) == (OK, 0)
        assert far("read", 1, 0, 8) == data[:8]

    def test_closed_at_once(self, pair: Pair, way: Way) -> None:
        near, far, data, _ = pair
        assert near("run_once", [far("share", 1)], [0], way.mode, "put_signal", 0, 16, 0, 32, 2 << 20, 0, 7) == (OK, 0)
        assert far("read", 1, 0, 8) == (7).to_bytes(8, "little")
        assert far("read", 1, 16, 2 << 20) == data[32 : 32 + (2 << 20)]


@ways(lambda way: way.mode != "peer" and way != Way("proxy", "verbs", "thread"))
class TestRevoked:
    def test_memory_that_its_owner_has_revoked(self, own_pair: Pair) -> None:
        near, far, _, _ = own_pair
        assert near("run", "put", 0, 0, 0, 0, 8) == (OK, 0)
        assert near("run", "flush", 0) == (OK, 0)
        far("revoke", 1)
        assert near("run", "put", 0, 0, 0, 0, 8)[0] == OK
        # A wait for a signal of this peer ends with the failure, and not with its time.
        assert near("run", "wait_signal", 1, 0, 1, 0)[0] == FAILED
        assert near("run", "flush", 0)[0] == FAILED
        assert near("check").startswith(("AccessDenied: ", "Closed: "))


@ways(lambda way: way.provider == "tcp")
class TestPeers:
    def test_the_peer_stands_still(self, own_pair: Pair, way: Way) -> None:
        near, far, _, _ = own_pair
        near("queue", [far("share", 1)], [0], mode=way.mode, timeout=SHORT_S)
        far.send_signal(signal.SIGSTOP)
        for _ in range(20):  # until its lane is full
            near("run", "put", 0, 0, 0, 0, 2 << 20, active=False)
        assert near("fails", "run", "flush", 0).startswith("DeadlineExceeded: ")
        assert near("check").startswith("DeadlineExceeded: ")
        assert near("run", "flush", 0, active=False)[0] == FAILED
        assert near("processor_seconds", 1.0) < 0.5
        far.send_signal(signal.SIGCONT)
