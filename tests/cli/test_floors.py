"""The floors move what they say they move. Both sides run in one process here: the loops release the GIL."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.patience import PATIENCE_S
from zerohop import _floors
from zerohop.cli.bench.certificates import self_signed
from zerohop.cli.payload import PageLists, mixed_ranges, random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

RING_BYTES = 1 << 20
# Few: on a processor that both sides share, each of them spins for as long as it may before the other goes on.
ROUNDS = 100


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("test")
    os.ftruncate(fd, RING_BYTES)
    yield fd
    os.close(fd)


@pytest.fixture
def beside() -> Iterator[Callable[..., Any]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


def content(fd: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with mmap.mmap(fd, RING_BYTES) as view:
        return np.frombuffer(view[:], np.uint8)


def page_lists(pages: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    rng = np.random.default_rng(3)
    return rng.permutation(pages).astype(np.int64), rng.permutation(pages).astype(np.int64)


def test_copy_both_ways(memory: int) -> None:
    source = random_bytes(1, 100_001)
    copy = _floors.SharedCopy(memory, RING_BYTES)
    assert len(copy.write(source, 3)) == 3
    assert np.array_equal(content(memory)[: source.size], source)
    target = np.zeros_like(source)
    assert min(copy.read(target, 2)) > 0
    assert np.array_equal(target, source)


def test_copied_pages_go_where_the_lists_say(memory: int) -> None:
    source = random_bytes(2, 64 * 1000)
    here, there = page_lists(64)
    copy = _floors.SharedCopy(memory, RING_BYTES)
    copy.write_pages(source, here, there, 1000, 16, 4)
    expected = PageLists(here, there, 1000, 16).placed(source)
    assert np.array_equal(content(memory)[: source.size], expected)
    back = np.zeros_like(source)
    copy.read_pages(back, there, here, 1000, 16, 4)
    assert np.array_equal(back, source)


def test_copied_ranges_go_where_the_lists_say(memory: int) -> None:
    ranges = mixed_ranges(100, 496)
    source = random_bytes(2, 100 * 496)
    copy = _floors.SharedCopy(memory, RING_BYTES)
    copy.write_ranges(source, *ranges, 2)
    assert np.array_equal(content(memory)[: source.size], ranges.placed(source))
    back = np.zeros_like(source)
    copy.read_ranges(back, ranges.there, ranges.here, ranges.lengths, 2)
    assert np.array_equal(back, source)
    outside = ranges.there + RING_BYTES
    with pytest.raises(IndexError):
        copy.write_ranges(source, ranges.here, outside, ranges.lengths, 1)


def test_pages_outside_are_refused(memory: int) -> None:
    copy = _floors.SharedCopy(memory, RING_BYTES)
    inside, outside = np.zeros(1, np.int64), np.full(1, RING_BYTES // 1000, np.int64)
    source = random_bytes(1, 5000)
    for here, there in ((inside, outside), (outside, inside), (inside, -1 - inside)):
        with pytest.raises(IndexError):
            copy.write_pages(source, here, there, 1000, 1, 1)
    with pytest.raises(ValueError, match="larger than the mapping"):
        copy.write(random_bytes(1, RING_BYTES + 1), 1)
    with pytest.raises(ValueError, match="fewer bytes"):
        _floors.SharedCopy(memory, RING_BYTES + 1)


def test_flag_goes_to_and_fro(memory: int, beside: Callable[..., Any]) -> None:
    flag = _floors.Flag(memory)
    flag.reset()
    answered = beside(_floors.Flag(memory).pong, ROUNDS, 9, PATIENCE_S)
    times = flag.ping(ROUNDS, 9, PATIENCE_S)
    answered.result()
    assert len(times) == ROUNDS
    assert min(times) > 0


def test_flag_checks_its_payload(memory: int, beside: Callable[..., Any]) -> None:
    flag = _floors.Flag(memory)
    flag.reset()
    answered = beside(_floors.Flag(memory).pong, 1, 1, PATIENCE_S)
    with pytest.raises(RuntimeError):
        flag.ping(1, 2, 0.2)  # another seed: the answering side sees a wrong payload
    with pytest.raises(RuntimeError, match="wrong payload"):
        answered.result()


@pytest.mark.parametrize("nbytes", [1, 8, 65_535, 65_536, 65_537, 3 * RING_BYTES + 11])
def test_ring_delivers(memory: int, beside: Callable[..., Any], nbytes: int) -> None:
    source, target = random_bytes(4, nbytes), np.zeros(nbytes, np.uint8)
    ring = _floors.Ring(memory, RING_BYTES)
    ring.reset()
    placed_all = beside(_floors.Ring(memory, RING_BYTES).receive, target, 3 * nbytes, PATIENCE_S)
    assert len(ring.write(source, 3, PATIENCE_S)) == 3
    placed_all.result()
    assert np.array_equal(target, source)


def test_ring_delivers_pages(memory: int, beside: Callable[..., Any]) -> None:
    source = random_bytes(5, 4096 * 1000)
    here, there = page_lists(4096)
    target = np.zeros_like(source)
    ring = _floors.Ring(memory, RING_BYTES)
    ring.reset()
    placed_all = beside(_floors.Ring(memory, RING_BYTES).receive, target, source.size, PATIENCE_S)
    ring.write_pages(source, here, there, 1000, 256, 16, PATIENCE_S)
    placed_all.result()
    assert np.array_equal(target, PageLists(here, there, 1000, 16).placed(source))


def test_silence_ends(memory: int) -> None:
    ring = _floors.Ring(memory, RING_BYTES)
    ring.reset()
    with pytest.raises(RuntimeError, match="timed out"):
        ring.write(random_bytes(1, 2 * RING_BYTES), 1, 0.05)
    ring.reset()
    with pytest.raises(RuntimeError, match="timed out"):
        ring.receive(np.zeros(8, np.uint8), 8, 0.05)
    flag = _floors.Flag(memory)
    with pytest.raises(RuntimeError, match="timed out"):
        flag.pong(1, 1, 0.05)


def test_sockets(beside: Callable[..., Any]) -> None:
    here, there = socket.socketpair()
    with here, there:
        messages = random_bytes(6, 64 * 8)
        echoed = beside(_floors.socket_pong, there.fileno(), 8, 200, PATIENCE_S)
        assert len(_floors.socket_ping(here.fileno(), messages, 8, 200, PATIENCE_S)) == 200
        echoed.result()
        source, target = random_bytes(7, 3_000_001), np.zeros(3_000_001, np.uint8)
        received = beside(_floors.socket_receive, there.fileno(), target, 2, PATIENCE_S)
        _floors.socket_send(here.fileno(), source, 2, PATIENCE_S)
        received.result()
        assert np.array_equal(target, source)


def test_sockets_whose_ends_spin(beside: Callable[..., Any]) -> None:
    here, there = socket.socketpair()
    with here, there:
        messages = random_bytes(6, 64 * 72)
        echoed = beside(_floors.socket_pong_spinning, there.fileno(), 72, ROUNDS, PATIENCE_S)
        assert len(_floors.socket_ping_spinning(here.fileno(), messages, 72, ROUNDS, PATIENCE_S)) == ROUNDS
        echoed.result()


def test_a_stream_through_tls(beside: Callable[..., Any]) -> None:
    """The socket holds no byte of TLS afterwards, and serves again without it."""
    here, there = socket.socketpair()
    with here, there:
        source, target = random_bytes(7, 3_000_001), np.zeros(3_000_001, np.uint8)
        for _ in range(2):
            target.fill(0)
            received = beside(_floors.tls_receive, there.fileno(), target, 2, *self_signed(), PATIENCE_S)
            assert len(_floors.tls_send(here.fileno(), source, 2, PATIENCE_S)) == 2
            received.result()
            assert np.array_equal(target, source)
        echoed = beside(_floors.socket_pong, there.fileno(), 8, 1, PATIENCE_S)
        _floors.socket_ping(here.fileno(), source, 8, 1, PATIENCE_S)
        echoed.result()


def test_bytes_on_the_wire_are_not_the_payload() -> None:
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(_floors.tls_send, here.fileno(), random_bytes(1, 8), 1, PATIENCE_S)
        assert there.recv(3)[:2] == b"\x16\x03"  # the record of a handshake
        there.close()
        with pytest.raises(RuntimeError, match="SSL_connect fails"):
            sent.result()


def test_a_certificate_that_is_none() -> None:
    here, there = socket.socketpair()
    with here, there, pytest.raises(RuntimeError, match="does not take the certificate"):
        _floors.tls_receive(there.fileno(), np.zeros(8, np.uint8), 1, b"no certificate", bytes(32), PATIENCE_S)


@pytest.mark.parametrize("spinning", ["", "_spinning"])
def test_closed_or_silent_socket_ends(spinning: str) -> None:
    ping, pong = (getattr(_floors, f"socket_{end}{spinning}") for end in ("ping", "pong"))
    here, there = socket.socketpair()
    with here:
        with there, pytest.raises((RuntimeError, OSError)):
            ping(here.fileno(), random_bytes(1, 8), 8, 1, 0.05)
        with pytest.raises((RuntimeError, OSError)):
            pong(here.fileno(), 8, 1, 1.0)


class Interrupted(Exception):
    """Is raised by the signal's handler, as KeyboardInterrupt is by that of Ctrl-C."""


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """Expect that a signal ends the block, in which the other side of a floor, which does not exist, is silent."""
    waits: list[bool] = []

    def raise_it(number: int, frame: FrameType | None) -> None:
        if waits:
            waits.clear()  # only one of them ends the block
            raise Interrupted

    before = signal.signal(signal.SIGALRM, raise_it)
    # Again and again, because the first may come before the block begins.
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        waits.append(True)
        yield
    except Interrupted:
        pass
    else:
        pytest.fail("the block has ended by itself")
    finally:
        waits.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        # One that this thread blocks waits, and would be taken for the end of the test's time.
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("wait", ["ping", "pong"])
def test_a_signal_ends_the_wait_for_a_flag(memory: int, wait: str) -> None:
    with interrupted():
        getattr(_floors.Flag(memory), wait)(1, 1, PATIENCE_S)


@pytest.mark.parametrize("nbytes", [8, 2 * RING_BYTES], ids=["for the receiver", "for space"])
def test_a_signal_ends_the_wait_of_a_sender(memory: int, nbytes: int) -> None:
    with interrupted():
        _floors.Ring(memory, RING_BYTES).write(random_bytes(1, nbytes), 1, PATIENCE_S)


def test_a_signal_ends_the_wait_of_a_receiver(memory: int) -> None:
    with interrupted():
        _floors.Ring(memory, RING_BYTES).receive(np.zeros(8, np.uint8), 8, PATIENCE_S)


@pytest.mark.parametrize(
    "wait",
    [
        lambda fd: _floors.socket_ping(fd, random_bytes(1, 8), 8, 1, PATIENCE_S),
        lambda fd: _floors.socket_pong(fd, 8, 1, PATIENCE_S),
        lambda fd: _floors.socket_pong_spinning(fd, 8, 1, PATIENCE_S),
        lambda fd: _floors.socket_send(fd, random_bytes(1, 8 * RING_BYTES), 1, PATIENCE_S),
        lambda fd: _floors.socket_receive(fd, np.zeros(8, np.uint8), 1, PATIENCE_S),
        pytest.param(lambda fd: _floors.tls_send(fd, random_bytes(1, 8), 1, PATIENCE_S)),
    ],
    ids=["ping", "pong", "pong spinning", "send", "receive", "send through TLS"],
)
def test_a_signal_ends_the_wait_on_a_socket(wait: Callable[[int], object]) -> None:
    here, there = socket.socketpair()
    with here, there, interrupted():
        wait(here.fileno())


def test_a_signal_that_another_thread_receives(beside: Callable[..., Any]) -> None:
    """It interrupts no system call of the wait, as one does not that comes just before the call."""
    here, there = socket.socketpair()
    with here, there:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        try:
            heard = beside(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGALRM})
            with interrupted():
                _floors.socket_pong(here.fileno(), 8, 1, PATIENCE_S)
            heard.result()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
