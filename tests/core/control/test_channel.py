"""Channel: whatever goes wrong, no copy of a descriptor is left open; what has arrived can be waited for to be read."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from support.lanes import eventually
from support.leaks import holdings
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.control import wire
from zerohop.core.control.channel import Channel, ChannelEnded
from zerohop.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.mark.usefixtures("runtime_directory")
def test_the_second_of_two_copies_fails(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        here, there = socket.socketpair()
        with there:
            channel = Channel(here)
            duplicate, copies = os.dup, [0]

            def few(fd: int) -> int:
                copies[0] += 1
                if copies[0] > 1:
                    raise OSError(errno.EMFILE, "too many open files")
                return duplicate(fd)

            setup = wire.Setup(providers=[], url="", name="", nfds=2)
            before = holdings().descriptors
            with monkeypatch.context() as patched:
                patched.setattr(os, "dup", few)
                # What the kernel takes at once is not copied.
                channel.post(setup, pipe)
                assert copies[0] == 0
                while not channel._outgoing:
                    channel.post(wire.Bye(text="x" * wire.MAX_LONG_TEXT))
                with pytest.raises(OSError, match="too many"):
                    channel.post(setup, pipe)
            assert copies[0] == 2
            assert holdings().descriptors == before
            channel.close()

    asyncio.run(main())


@pytest.mark.usefixtures("runtime_directory")
def test_descriptors_wait_while_too_many_are_on_their_way(pipe: tuple[int, int]) -> None:
    """The kernel counts those that peers have not read yet: that is no end of the channel."""

    class Crowded(socket.socket):
        refusals = 3

        def sendmsg(self, *arguments: Any) -> int:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.ETOOMANYREFS, "too many references")
            return super().sendmsg(*arguments)

    async def main() -> None:
        here, there = socket.socketpair()
        sender, receiver = Channel(Crowded(fileno=here.detach())), Channel(there)
        receiver.most_fds = wire.SETUP_FDS  # as after the handshake, in which there are none
        sender.post(wire.Setup(providers=[], url="", name="", nfds=2), pipe)
        sender.post(wire.Bye(text="after it"))
        await sender.flush()
        message, fds = await receiver.receive()
        assert isinstance(message, wire.Setup)
        assert len(fds) == 2
        for fd in fds:
            os.close(fd)
        assert (await receiver.receive())[0] == wire.Bye(text="after it")
        sender.close()
        receiver.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("seconds", "idle", "user_timeout"), [(10.0, 3, 10_000), (0.5, 1, 500), (1e9, 32767, 32_767_000)]
)
def test_a_silent_host_is_noticed(seconds: float, idle: int, user_timeout: int) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as here:
            channel = Channel(here)
            channel.end_when_silent(0)
            assert here.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
            channel.end_when_silent(seconds)
            assert here.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            for option, value in {
                socket.TCP_KEEPIDLE: idle,
                socket.TCP_KEEPINTVL: idle,
                socket.TCP_KEEPCNT: 2,
                socket.TCP_USER_TIMEOUT: user_timeout,
            }.items():
                assert here.getsockopt(socket.IPPROTO_TCP, option) == value

    asyncio.run(main())


def test_both_ends_of_a_conversation_notice(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    silent = Channel.end_when_silent

    def ask(self: Channel, seconds: float) -> None:
        asked.append(seconds)
        silent(self, seconds)

    monkeypatch.setattr(Channel, "end_when_silent", ask)
    here = open_context(Options(providers=("tcp",), heartbeat=7.0))
    there = open_context(Options(providers=("tcp",), heartbeat=9.0))
    here.connect(there.url).result(PATIENCE_S)
    eventually(lambda: sorted(asked) == [7.0, 9.0], f"asked for {asked}")


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "has ended"])
def test_what_has_arrived_is_read_first(ends: bool) -> None:
    """Ten messages wait, and nobody has looked yet. Nothing more is waited for than these."""

    async def main() -> None:
        here, there = socket.socketpair()
        sender, receiver = Channel(there), Channel(here)
        for number in range(10):
            sender.post(wire.Bye(text=str(number)))
        if ends:
            sender.close()
        heard: list[wire.Message] = []

        async def listen() -> None:
            with contextlib.suppress(ChannelEnded):
                while True:
                    heard.append((await receiver.receive())[0])

        listening = asyncio.create_task(listen())
        await receiver.until_read()
        assert heard == [wire.Bye(text=str(number)) for number in range(10)]
        receiver.close()
        await receiver.until_read()
        await listening
        sender.close()

    asyncio.run(main())


def test_nobody_who_reads_is_not_waited_for() -> None:
    async def main() -> None:
        here, there = socket.socketpair()
        sender, receiver = Channel(there), Channel(here)
        sender.post(wire.Bye(text="never read"))
        await receiver.until_read()
        for channel in (sender, receiver):
            channel.close()

    asyncio.run(main())


def test_the_last_words_of_one_that_left_are_heard_by_who_talks_to_it() -> None:
    """To write to it fails, and that must not hide what it had said."""

    async def main() -> None:
        here, there = socket.socketpair()
        leaver, stayer = Channel(there), Channel(here)
        leaver.post(wire.Released(provider="shm", shares=[7]))
        leaver.post(wire.Bye(text="leaving"))
        leaver.close()
        stayer.post(wire.Release(provider="shm", shares=[7]))
        stayer.post(wire.Release(provider="shm", shares=[8]))
        await stayer.flush()
        heard = [(await stayer.receive())[0] for _ in range(2)]
        assert heard == [wire.Released(provider="shm", shares=[7]), wire.Bye(text="leaving")]
        with pytest.raises(ChannelEnded):
            await stayer.receive()
        stayer.close()

    asyncio.run(main())


# For each frame, descriptors beside some of its bytes; the last of them are too many.
HOARDS = {
    "in two portions": (wire.SETUP_FDS, {0: 1, 10: 1}),
    "more than the message may bring": (wire.SETUP_FDS, {0: wire.SETUP_FDS + 1}),
    "during the handshake": (0, {0: 1}),
    "in the middle of a message": (wire.MAX_FDS, {7: wire.MAX_FDS, 8: 1}),
}


@pytest.mark.parametrize("how", HOARDS)
def test_descriptors_that_no_message_announces(pipe: tuple[int, int], how: str) -> None:
    """They are refused while their message is not even complete, and none is kept."""
    most, portions = HOARDS[how]
    frame = wire.encode(wire.Setup(providers=[], url="", name="", nfds=2))

    async def main() -> None:
        here, there = socket.socketpair()
        receiver = Channel(here)
        receiver.most_fds = most
        before = holdings().descriptors
        with there:
            done = 0
            for place, count in portions.items():
                there.sendall(frame[done:place])
                socket.send_fds(there, [frame[place : place + 1]], [pipe[0]] * count)
                done = place + 1
            with pytest.raises(ProtocolError, match="more descriptors than"):
                await receiver.receive()
            receiver._end("the peer was disconnected")
            assert holdings().descriptors == before
            receiver.close()

    asyncio.run(main())


def test_descriptors_beside_a_message_that_has_none(pipe: tuple[int, int]) -> None:
    async def main() -> None:
        here, there = socket.socketpair()
        receiver = Channel(here)
        receiver.most_fds = wire.MAX_FDS
        with there:
            before = holdings().descriptors
            socket.send_fds(there, [wire.encode(wire.Bye(text=""))], pipe)
            with pytest.raises(ProtocolError, match="2 descriptors where 0 were announced"):
                await receiver.receive()
            assert holdings().descriptors == before
            receiver.close()

    asyncio.run(main())
