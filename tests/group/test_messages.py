"""Messages between ranks: who gets which, over each provider and in each memory, and what ends a receive."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import PLACES, groups
from support.lanes import eventually
from support.options import Options
from support.patience import ANSWER_S, PATIENCE_S
from support.pattern import pattern, poison
from zerohop.group import FolderStore, Message

if TYPE_CHECKING:
    from pathlib import Path

# Around the size of what is copied into a frame, of what waits at the receiver, and of a piece.
SIZES = (0, 1, 256, 257, 8192, 8193, 262_145, 3_000_001)
PROVIDERS = ("shm", "tcp")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("first", ["send", "recv"])
def test_every_size_and_memory(tmp_path: Path, provider: str, source: str, target: str, first: str) -> None:
    with groups(tmp_path, 2, provider) as (sender, receiver):
        for nbytes in SIZES:
            outgoing, incoming = sender.context.alloc(nbytes + 1, source), receiver.context.alloc(nbytes + 7, target)
            data = pattern(nbytes, nbytes + 1)
            outgoing.write_bytes(0, data.tobytes())
            incoming.fill(0xA5)
            room = incoming[3 : 3 + nbytes]
            if first == "send":
                sent = sender.send(outgoing[1:], 1, tag=nbytes)
                received = receiver.recv(room, tag=nbytes)
            else:
                received = receiver.recv(room, 0)
                sent = sender.send(outgoing[1:], 1, tag=nbytes)
            assert received.result(PATIENCE_S) == Message(0, nbytes, nbytes)
            assert sent.result(PATIENCE_S) == nbytes
            found = incoming.read_bytes(0, nbytes + 7)
            assert found[3 : 3 + nbytes] == data[1:].tobytes()
            assert found[:3] + found[3 + nbytes :] == b"\xa5" * 7


@pytest.mark.parametrize("provider", PROVIDERS)
def test_random_programs(tmp_path: Path, provider: str) -> None:
    """Three ranks send to the fourth, which receives by rank and tag, rank, tag, or anything: each message once, and
    those of one rank in order as far as the receives tell them apart."""
    chance = random.Random(provider)
    with groups(tmp_path, 4, provider) as ranks:
        sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
        operations = []
        messages = [(chance.randrange(3), chance.randrange(3)) for _ in range(150)]
        for number, (source, tag) in enumerate(messages):
            nbytes = 8 + chance.choice((0, 9, 5000, 50_000))
            data = pattern(number, nbytes)
            data[:8] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
            operations.append(ranks[source].send(data, 3, tag=tag))
            sent.setdefault((source, tag), []).append((number, nbytes))
        chance.shuffle(messages)
        for source, tag in messages:
            into = poison(60_000)
            asked = chance.choice([(source, tag), (source, None), (None, tag), (None, None)])
            if not any(left for (s, t), left in sent.items() if asked[0] in (None, s) and asked[1] in (None, t)):
                asked = (None, None)  # another receive has taken it
            got = ranks[3].recv(into, asked[0], tag=asked[1]).result(PATIENCE_S)
            assert asked[0] in (None, got.source)
            assert asked[1] in (None, got.tag)
            number, nbytes = sent[got.source, got.tag].pop(0)
            assert got.nbytes == nbytes
            assert int(into[:8].view(np.int64)[0]) == number, "a later message of the rank has overtaken"
            assert (into[8:nbytes] == pattern(number, nbytes)[8:]).all()
            assert (into[nbytes:] == 0xA5).all()
        assert not any(sent.values())
        for operation in operations:
            operation.result(PATIENCE_S)


def test_messages_before_the_connection_is_there_are_in_order(two: list[zh.Group]) -> None:
    sender, receiver = two
    operations = [sender.send(np.array([number]), 1) for number in range(100)]
    into = np.zeros(1, np.int64)
    for number in range(100):
        assert receiver.recv(into, 0).result(PATIENCE_S).nbytes == 8
        assert into[0] == number
    assert [operation.result(PATIENCE_S) for operation in operations] == [8] * 100


def test_many_threads_send(two: list[zh.Group]) -> None:
    """Each thread's messages are in order, from the first one on, which connects."""
    sender, receiver = two

    def send(tag: int) -> None:
        for number in range(200):
            sender.send(np.array([number]), 1, tag=tag).result(PATIENCE_S)

    threads = [threading.Thread(target=send, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    into, expected = np.zeros(1, np.int64), [0] * 4
    for _ in range(800):
        tag = receiver.recv(into).result(PATIENCE_S).tag
        assert into[0] == expected[tag]
        expected[tag] += 1
    for thread in threads:
        thread.join()


def test_a_rank_sends_to_itself(two: list[zh.Group]) -> None:
    into = np.zeros(10_000, np.uint8)
    sent = two[0].send(pattern(1, 10_000), 0, tag=3)
    assert two[0].recv(into, 0, tag=3).result(PATIENCE_S) == Message(0, 3, 10_000)
    assert sent.result(PATIENCE_S) == 10_000
    assert (into == pattern(1, 10_000)).all()


def test_awaited(two: list[zh.Group]) -> None:
    async def turns() -> int:
        into, back = np.zeros(1, np.int64), np.zeros(1, np.int64)
        for number in range(50):
            received = two[1].recv(into, 0, tag=number)
            await two[0].send(np.array([number]), 1, tag=number)
            assert await received == (0, number, 8)
            answer = two[0].recv(back)
            await two[1].send(into * 2, 0)
            await answer
            assert back[0] == 2 * number
        return 50

    assert asyncio.run(turns()) == 50


def test_groups_over_one_context_do_not_mix(tmp_path: Path) -> None:
    with Options().open() as here, Options().open() as there, ExitStack() as opened:
        pairs = [
            [
                opened.enter_context(zh.Group(rank, 2, tmp_path / name, ctx=ctx))
                for rank, ctx in enumerate((here, there))
            ]
            for name in ("first", "second")
        ]
        into = [np.zeros(1, np.int64), np.zeros(1, np.int64)]
        received = [pair[1].recv(room) for pair, room in zip(pairs, into, strict=True)]
        for number in (1, 0):
            pairs[number][0].send(np.array([number + 5]), 1).result(PATIENCE_S)
        assert [operation.result(PATIENCE_S).source for operation in received] == [0, 0]
        assert [int(room[0]) for room in into] == [5, 6]


def test_two_ranks_of_one_context(tmp_path: Path) -> None:
    with Options().open() as here, Options().open() as there, ExitStack() as opened:
        ranks = [
            opened.enter_context(zh.Group(rank, 3, tmp_path, ctx=ctx)) for rank, ctx in enumerate((here, here, there))
        ]
        into = np.zeros(1, np.int64)
        for source in (0, 1, 0):
            for target in (2, 1, 0):
                sent = ranks[source].send(np.array([source]), target)
                assert ranks[target].recv(into, source).result(PATIENCE_S) == Message(source, 0, 8)
                assert sent.result(PATIENCE_S) == 8
                assert into[0] == source
        waiting = [ranks[2].recv(into, source) for source in (0, 1)]
        here.close()
        for source, operation in enumerate(waiting):
            with pytest.raises(zh.PeerLost, match=f"rank {source}: "):
                operation.result(PATIENCE_S)


class TestBadInput:
    @pytest.mark.parametrize(
        ("call", "error", "match"),
        [
            (lambda group: group.send(b"x", 2), ValueError, "rank must be from 0 to 1, not 2"),
            (lambda group: group.send(b"x", -1), ValueError, "rank"),
            (lambda group: group.send(b"x", 1, tag=-1), ValueError, "tag must be from 0 to 4294967295, not -1"),
            (lambda group: group.send(b"x", 1, tag=1 << 32), ValueError, "tag"),
            (lambda group: group.send(b"x", 1, tag=1.5), TypeError, "tag"),
            (lambda group: group.send("text", 1), TypeError, "str"),
            (lambda group: group.recv(bytearray(5), 2), ValueError, "source must be from 0 to 1, not 2"),
            (lambda group: group.recv(bytearray(5), tag=-1), ValueError, "tag"),
            (lambda group: group.recv(b"read only"), ValueError, "read-only"),
            (lambda group: group.recv(bytearray(5), timeout=-1), ValueError, "timeout"),
        ],
    )
    def test_refused_at_once(self, two: list[zh.Group], call: Any, error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            call(two[0])

    def test_too_long_a_message(self, two: list[zh.Group]) -> None:
        for nbytes in (100, 100_000):
            sent = two[0].send(pattern(1, nbytes), 1, tag=1)
            with pytest.raises(zh.ProtocolError, match=r"rank 0: .*longer"):
                two[1].recv(np.zeros(99, np.uint8), 0).result(PATIENCE_S)
            if nbytes > 8192:
                with pytest.raises(zh.ProtocolError):
                    sent.result(PATIENCE_S)
        two[0].send(b"next", 1).result(PATIENCE_S)
        assert two[1].recv(bytearray(4)).result(PATIENCE_S).nbytes == 4

    def test_deadlines_name_the_rank(self, two: list[zh.Group]) -> None:
        two[0].connect(1).result(PATIENCE_S)
        with pytest.raises(zh.DeadlineExceeded, match="rank 1: "):
            two[0].recv(bytearray(4), 1, timeout=0.05).result(PATIENCE_S)
        with pytest.raises(zh.DeadlineExceeded):
            two[0].send(pattern(1, 100_000), 1, timeout=0.05).result(PATIENCE_S)

    def test_a_rank_that_never_comes(self, tmp_path: Path) -> None:
        with Options().open() as ctx, zh.Group(0, 2, tmp_path, ctx=ctx) as group:
            with pytest.raises(zh.DeadlineExceeded, match="rank 1 has not arrived"):
                group.send(b"x", 1, timeout=0.2).result(PATIENCE_S)
            first = group.send(b"x", 1)
            with pytest.raises(zh.DeadlineExceeded, match="rank 1: earlier messages"):
                group.send(b"x", 1, timeout=0.2).result(PATIENCE_S)
            assert first.cancel()
            with pytest.raises(zh.DeadlineExceeded, match="rank 1: "):
                group.recv(bytearray(1), 1, timeout=0.2).result(PATIENCE_S)
            waiting = group.recv(bytearray(1), 1)
        with pytest.raises(zh.Closed):
            waiting.result(PATIENCE_S)

    def test_a_store_that_has_something_else(self, tmp_path: Path) -> None:
        with Options().open() as ctx, zh.Group(0, 2, FolderStore(tmp_path), ctx=ctx) as group:
            FolderStore(tmp_path).set("zerohop//0/1", b"nonsense")
            with pytest.raises(zh.ProtocolError, match=r"rank 1: .*no entry"):
                group.send(b"x", 1).result(PATIENCE_S)
            with pytest.raises(zh.PeerLost, match=r"rank 1: .*no entry"):
                group.recv(bytearray(1), 1).result(PATIENCE_S)


class TestEnds:
    def test_a_rank_that_is_started_again(self, tmp_path: Path) -> None:
        """It can be received from again, and its second loss is told as well."""
        with Options().open() as ctx, zh.Group(0, 2, tmp_path, ctx=ctx) as group:
            for _ in range(3):
                # Not the path: a process counts the Groups of one.
                with Options().open() as other, zh.Group(1, 2, FolderStore(tmp_path), ctx=other) as again:
                    group.connect(1).result(PATIENCE_S)  # or a receive may come before the message, and find the loss
                    again.send(b"hello", 0).result(PATIENCE_S)
                    assert group.recv(bytearray(5), 1).result(PATIENCE_S).nbytes == 5
                    waiting, of_any = group.recv(bytearray(5), 1), group.recv(bytearray(5))
                for operation in (waiting, of_any):
                    with pytest.raises(zh.PeerLost, match="rank 1: "):
                        operation.result(PATIENCE_S)
                for entry in tmp_path.glob("*1.value"):  # that of the rank
                    entry.unlink()

    def test_cancelled_receives_take_no_message(self, two: list[zh.Group]) -> None:
        unused, into = bytearray(b"\xa5" * 5), bytearray(5)
        receives = [two[1].recv(unused, 0) for _ in range(3)]
        for operation in receives:
            operation.cancel()
        received = two[1].recv(into, 0)
        two[0].send(b"hello", 1).result(PATIENCE_S)
        assert received.result(PATIENCE_S).nbytes == 5
        assert bytes(into) == b"hello"
        assert bytes(unused) == b"\xa5" * 5

    def test_close_ends_receives_and_tells_senders(self, tmp_path: Path) -> None:
        with Options().open() as here, Options().open() as there, zh.Group(0, 2, tmp_path, ctx=here) as sender:
            receiver = zh.Group(1, 2, tmp_path, ctx=there)
            kept = sender.send(pattern(1, 100_000), 1)
            waiting = receiver.recv(bytearray(5), tag=4)
            sender.send(b"small", 1, tag=5).result(PATIENCE_S)
            receiver.recv(bytearray(5), tag=5).result(PATIENCE_S)
            receiver.close()
            with pytest.raises(zh.Closed):
                waiting.result(PATIENCE_S)
            with pytest.raises(zh.PeerLost):
                kept.result(PATIENCE_S)
            with pytest.raises(zh.Closed):
                receiver.recv(bytearray(5))
            with pytest.raises(zh.PeerLost):
                sender.send(pattern(1, 100_000), 1).result(PATIENCE_S)

    def test_the_context_closes_under_it(self, tmp_path: Path) -> None:
        ctx = Options().open()
        with zh.Group(0, 1, tmp_path, ctx=ctx) as group:
            waiting = group.recv(bytearray(5))
            ctx.close()
            with pytest.raises(zh.Closed):
                waiting.result(PATIENCE_S)
            with pytest.raises(zh.Closed):
                group.send(b"x", 0)

    def test_a_group_that_is_dropped(self, tmp_path: Path) -> None:
        """Nothing looks for a rank any more that a receive has waited for, and what is under way ends."""
        with Options().open() as ctx:
            group = zh.Group(0, 2, tmp_path, ctx=ctx)
            waiting, sending = group.recv(bytearray(5), 1), group.send(b"x", 1)
            gone = weakref.ref(group)
            del group
            for operation in (waiting, sending):
                with pytest.raises(zh.Closed):
                    operation.result(PATIENCE_S)
            eventually(lambda: gone() is None, "the Group is still there")

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_a_rank_that_leaves(self, tmp_path: Path, provider: str) -> None:
        """Messages that it has sent before are there. Receives of it end, those of any rank once. The others go on."""
        with groups(tmp_path, 3, provider) as (first, second, third):
            for tag in range(5):
                third.send(pattern(tag, 1000), 0, tag=tag).result(PATIENCE_S)
            into = poison(1000)
            assert first.recv(into, 2, tag=4).result(PATIENCE_S).tag == 4
            named, of_any, other = first.recv(into, 2, tag=9), first.recv(into, tag=9), first.recv(poison(4), 1)
            third.context.close()
            for operation in (named, of_any):
                with pytest.raises(zh.PeerLost, match="rank 2: "):
                    operation.result(PATIENCE_S)
            for tag in range(4):
                assert first.recv(into, tag=tag).result(PATIENCE_S) == Message(2, tag, 1000)
                assert (into == pattern(tag, 1000)).all()
            with pytest.raises(zh.PeerLost, match="rank 2: "):
                first.recv(into, 2).result(PATIENCE_S)
            second.send(b"more", 0).result(PATIENCE_S)
            assert other.result(PATIENCE_S).source == 1
            later = first.recv(into)
            with pytest.raises(zh.PeerLost, match="rank 2: "):
                first.recv(into, 2).result(PATIENCE_S)  # it is looked for, and not found, again
            second.send(b"last", 0).result(PATIENCE_S)
            assert later.result(PATIENCE_S).source == 1


VICTIM = """
import sys
import numpy as np
import zerohop as zh

with zh.Context(providers=(sys.argv[2],)) as ctx, zh.Group(1, 2, sys.argv[1], ctx=ctx) as group:
    group.send(np.arange(1000), 0, tag=1).result()
    group.send(np.arange(100_000), 0, tag=2, timeout=1000)
    group.send(b"ready", 0, tag=3).result()
    group.recv(bytearray(1), 0).result()
"""


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("connected", [False, True])
def test_a_rank_that_is_killed(tmp_path: Path, provider: str, connected: bool) -> None:
    """`connected`: this rank has sent to the other, too, and not only received from it."""
    with ExitStack() as opened:
        # A killed process leaves its socket behind, whose path has to be short.
        left = opened.enter_context(tempfile.TemporaryDirectory(prefix="zh-"))
        ctx = opened.enter_context(Options(providers=(provider,)).open())
        group = opened.enter_context(zh.Group(0, 2, tmp_path, ctx=ctx))
        command = [sys.executable, "-c", VICTIM, str(tmp_path), provider]
        with subprocess.Popen(command, env={**os.environ, "XDG_RUNTIME_DIR": left}) as victim:
            try:
                group.recv(bytearray(5), tag=3).result(PATIENCE_S)
                if connected:
                    group.connect(1).result(PATIENCE_S)
                waiting = group.recv(bytearray(5), tag=7)
                named = group.recv(bytearray(5), 1, tag=7)
            finally:
                victim.send_signal(signal.SIGKILL)
        for operation in (waiting, named):
            with pytest.raises(zh.PeerLost, match="rank 1: "):
                operation.result(ANSWER_S)
        into = np.zeros(100_000, np.int64)
        assert group.recv(into, 1, tag=1).result(PATIENCE_S).nbytes == 8000
        assert (into[:1000] == np.arange(1000)).all()
        with pytest.raises(zh.PeerLost, match="rank 1: "):
            group.recv(into, 1, tag=2).result(ANSWER_S)
        eventually(lambda: not group.context.connections, "the Connection is still there")


def test_two_threads_ask_for_one_message(tmp_path: Path) -> None:
    """One waits for its value, and another asks whether it is there."""
    with groups(tmp_path, 2) as two:
        into = np.zeros(8, np.uint8)
        wrong = []
        for round_number in range(200):
            receiving = two[1].recv(into, 0)
            thread = threading.Thread(target=lambda each=receiving: each.done())
            thread.start()
            two[0].send(np.full(8, round_number % 256, np.uint8), 1, tag=round_number).result(PATIENCE_S)
            message = receiving.result(PATIENCE_S)
            thread.join()
            wrong += [message] if message != (0, round_number, 8) else []
        assert not wrong
