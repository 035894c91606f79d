"""Random and mutated bytes, as handles and into the listening port: a clear error, no crash, no hang, no growth.

The coverage-guided counterparts are in tests/fuzz.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.raw_control import RawControl
from support.sizes import MIB
from zerohop.core.control import auth, handshake, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.fixtures import OpenContext

# Deadlines belong to the tests themselves; fixtures are meant to be shared by all examples.
HOSTILE = settings(
    max_examples=300,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FEW = settings(HOSTILE, max_examples=60)
# Where a client that only pretends to be a Context says that it can be reached.
NOWHERE = f"zerohop:///{'0' * 32}?unix=/nowhere"


@pytest.fixture(scope="module")
def handle_bytes() -> bytes:
    """What a real handle looks like."""
    with Options().open() as context:
        return bytes(context.alloc(10_000).share("rw")[100:9000])


def mutations(of: bytes) -> st.SearchStrategy[bytes]:
    """The bytes with pieces overwritten, cut out, doubled or cut off."""

    def mutate(changes: list[tuple[int, int, bytes]]) -> bytes:
        raw = bytearray(of)
        for place, how, data in changes:
            at = place % (len(raw) + 1)
            if how == 0:
                raw[at : at + len(data)] = data
            elif how == 1:
                del raw[at : at + len(data) + 1]
            elif how == 2:
                raw[at:at] = data
            elif how == 3:
                raw[at:at] = raw[: at + 1]
            else:
                del raw[at:]
        return bytes(raw)

    change = st.tuples(st.integers(0, 4096), st.integers(0, 4), st.binary(max_size=12))
    return st.lists(change, min_size=1, max_size=6).map(mutate)


def _handle_or_none(data: bytes) -> zh.RemoteBuffer | None:
    try:
        return zh.RemoteBuffer.from_bytes(data)
    except zh.ProtocolError:
        return None


def _parse(data: bytes) -> None:
    """A handle or a ProtocolError; a handle is one that survives its own bytes."""
    handle = _handle_or_none(data)
    if handle is None:
        return
    again = zh.RemoteBuffer.from_bytes(bytes(handle))
    assert again == handle
    assert handle.nbytes >= 0
    assert handle.rights in ("r", "w", "rw")
    assert repr(handle)
    assert pickle.loads(pickle.dumps(handle)) == handle
    assert handle[1:5].nbytes <= 4


class TestFromBytes:
    @HOSTILE
    @given(data=st.binary(max_size=600))
    def test_random(self, data: bytes) -> None:
        _parse(data)

    @HOSTILE
    @given(data=st.data())
    def test_mutated(self, handle_bytes: bytes, data: st.DataObject) -> None:
        _parse(data.draw(mutations(handle_bytes)))

    @HOSTILE
    @given(tail=st.binary(max_size=300))
    def test_right_beginning(self, handle_bytes: bytes, tail: bytes) -> None:
        _parse(handle_bytes[:5] + tail)

    def test_every_cut_and_every_flipped_bit(self, handle_bytes: bytes) -> None:
        for length in range(len(handle_bytes)):
            with pytest.raises(zh.ProtocolError):
                zh.RemoteBuffer.from_bytes(handle_bytes[:length])
        for bit in range(8 * len(handle_bytes)):
            raw = bytearray(handle_bytes)
            raw[bit // 8] ^= 1 << bit % 8
            _parse(bytes(raw))

    def test_long_and_nested(self) -> None:
        for data in (bytes(1 << 24), b"ZHRB\1" + b"\x91" * 4000, b"ZHRB\1" + b"\xdd\xff\xff\xff\xff"):
            with pytest.raises(zh.ProtocolError):
                zh.RemoteBuffer.from_bytes(data)

    @pytest.mark.parametrize("given", [None, "text", 5, [1], object()])
    def test_what_is_not_bytes(self, given: object) -> None:
        with pytest.raises((TypeError, zh.ProtocolError)):
            zh.RemoteBuffer.from_bytes(given)  # type: ignore[arg-type]

    def test_another_version(self, handle_bytes: bytes) -> None:
        raw = bytearray(handle_bytes)
        raw[4] = 77
        with pytest.raises(zh.ProtocolError, match="77"):
            zh.RemoteBuffer.from_bytes(bytes(raw))

    def test_no_growth(self, handle_bytes: bytes) -> None:
        def many(rounds: int) -> None:
            for seed in range(rounds):
                raw = bytearray(handle_bytes)
                raw[seed % len(raw)] ^= 1 + seed % 255
                with contextlib.suppress(zh.ProtocolError):
                    zh.RemoteBuffer.from_bytes(bytes(raw))

        many(5_000)
        _expect_no_growth(lambda: many(50_000), 4 * MIB)


def _expect_no_growth(many: Callable[[], None], most: int) -> None:
    """What leaks grows every time; what the kernel or an allocator makes larger by itself, now and then."""
    grown = []
    for _ in range(4):
        before = _resident()
        many()
        grown.append(_resident() - before)
        if grown[-1] < most:
            return
    raise AssertionError(f"it grows by {grown} bytes")


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Listening(NamedTuple):
    """A Context that is shouted at, and a friend who sees that it still serves."""

    context: zh.Context
    friend: zh.Context
    target: np.ndarray[tuple[int], np.dtype[np.uint8]]
    handle: zh.RemoteBuffer

    def expect_alive(self) -> None:
        seed = int.from_bytes(os.urandom(2), "big")
        self.friend.write(pattern(seed, 1000), self.handle).result(PATIENCE_S)
        assert self.target.tobytes() == pattern(seed, 1000).tobytes()


@pytest.fixture
def listening(open_context: OpenContext) -> Iterator[Listening]:
    context, friend = open_context(Options(providers=("tcp",))), open_context(Options(providers=("tcp",)))
    target = np.zeros(1000, np.uint8)
    memory = context.register(target)
    handle = memory.share("rw")
    served = Listening(context, friend, target, handle)
    served.expect_alive()
    yield served
    served.expect_alive()
    # A newcomer is let in, too.
    with Options(providers=("tcp",)).open() as newcomer:
        assert newcomer.connect(context.url).result(PATIENCE_S).peer == context.id


def _shout(context: zh.Context, data: bytes, *, unix: bool) -> None:
    """Send the bytes, say that no more come, and wait until the other side has hung up."""
    client = RawControl(context.url, unix=unix)
    client.shout(data)
    assert client.hung_up(), "the listener holds on to a client that has ended its stream"
    client.close()


def _valid_hello() -> bytes:
    return wire.encode(
        wire.Hello(
            version=wire.VERSION,
            magic="zerohop",
            context="0" * 32,
            host="0" * 32,
            pid=1,
            name="hostile",
            purpose="control",
            nonce=auth.new_nonce(),
            has_secret=False,
        )
    )


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
class TestListeningPort:
    @FEW
    @given(data=st.binary(max_size=2000))
    def test_random(self, listening: Listening, unix: bool, data: bytes) -> None:
        _shout(listening.context, data, unix=unix)

    @FEW
    @given(data=st.data())
    def test_mutated_hello(self, listening: Listening, unix: bool, data: st.DataObject) -> None:
        _shout(listening.context, data.draw(mutations(_valid_hello())), unix=unix)

    @FEW
    @given(tail=st.binary(max_size=400))
    def test_after_a_valid_hello(self, listening: Listening, unix: bool, tail: bytes) -> None:
        _shout(listening.context, _valid_hello() + tail, unix=unix)

    @FEW
    @given(body=st.binary(max_size=400))
    def test_framed(self, listening: Listening, unix: bool, body: bytes) -> None:
        _shout(listening.context, wire.HEADER.pack(len(body)) + body, unix=unix)

    @FEW
    @given(data=st.data())
    def test_after_the_handshake(self, listening: Listening, unix: bool, data: st.DataObject) -> None:
        """One that proved itself, as far as there is a secret, and then goes mad."""
        messages: list[wire.Message] = [
            wire.Setup(providers=["tcp"], url=NOWHERE, name="mad"),
            wire.Lane(number=0, provider="tcp", address=b"", messages=True),
            wire.ImportRequest(request=1, provider="shm", wanted=[wire.Wanted(1, bytes(16))]),
            wire.Released(provider="shm", shares=[7], allocations=[1]),
            wire.LaneReady(number=0),
            wire.LaneDown(number=0, text="gone"),
            wire.Bye(text="no more"),
        ]
        said = data.draw(mutations(b"".join(map(wire.encode, messages))))
        client = RawControl(listening.context.url, unix=unix)
        client.shake_hands()
        client.shout(said)
        assert client.hung_up()
        client.close()

    def test_lengths_at_the_limits(self, listening: Listening, unix: bool) -> None:
        for length in (0, 1, wire.MAX_FRAME_UNAUTHENTICATED + 1, wire.MAX_FRAME, (1 << 32) - 1):
            _shout(listening.context, wire.HEADER.pack(length) + b"x" * 100, unix=unix)

    @pytest.mark.slow
    @pytest.mark.timeout(60)
    def test_silence(self, listening: Listening, unix: bool) -> None:
        """Those who say nothing, or half a word, are hung up on after the time for a handshake, and meanwhile keep
        nobody else out."""
        silent = [RawControl(listening.context.url, unix=unix) for _ in range(80)]
        for number, client in enumerate(silent):
            client.socket.sendall(_valid_hello()[: number % 40])
        for client in silent:
            client.socket.settimeout(handshake.TIMEOUT_S + PATIENCE_S)
            assert client.hung_up()
            client.close()

    def test_messages_out_of_turn(self, listening: Listening, unix: bool) -> None:
        """Every message of the protocol as the first one."""
        for message in (
            wire.Challenge(context="0" * 32, host="0" * 32, nonce=bytes(32)),
            wire.Prove(proof=bytes(32)),
            wire.Accept(proof=bytes(32)),
            wire.Location(proof=bytes(32)),
            wire.Setup(providers=[], url=NOWHERE, name=""),
            wire.Lane(number=0, provider="tcp", address=b"", messages=True),
            wire.LaneWanted(text=""),
            wire.ImportRequest(request=1, provider="shm", wanted=[wire.Wanted(1, bytes(16))]),
            wire.Release(provider="shm", shares=[1]),
            wire.Bye(text=""),
        ):
            client = RawControl(listening.context.url, unix=unix)
            client.send(message)
            assert client.hung_up()
            client.close()

    def test_no_growth(self, listening: Listening, unix: bool) -> None:
        def many(rounds: int) -> None:
            for seed in range(rounds):
                hello = bytearray(_valid_hello())
                hello[seed % len(hello)] ^= 1 + seed % 255
                _shout(listening.context, bytes(hello), unix=unix)

        many(200)
        _expect_no_growth(lambda: many(1000), 8 * MIB)


def test_descriptors_that_nobody_asked_for(listening: Listening) -> None:
    """Sent along with messages that have none, and never sent where they are announced; none of them stays open."""
    reader, writer = os.pipe()
    try:
        for announced, sent in ((0, 8), (2, 0), (2, 8), (0, 64)):
            client = RawControl(listening.context.url, unix=True)
            client.shake_hands()
            setup = wire.encode(wire.Setup(providers=["shm"], url=NOWHERE, name="mad", nfds=announced))
            if sent:
                socket.send_fds(client.socket, [setup], [writer] * sent)
                setup = b""
            client.shout(setup)
            assert client.hung_up()
            client.close()
    finally:
        os.close(reader)
        os.close(writer)


def test_many_at_once(listening: Listening) -> None:
    """200 clients shout while a friend works."""

    def shout() -> None:
        for seed in range(25):
            _shout(listening.context, os.urandom(seed * 7), unix=bool(seed % 2))

    threads = [threading.Thread(target=shout) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        listening.expect_alive()
    for thread in threads:
        thread.join()
