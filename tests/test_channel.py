"""Channel: whatever goes wrong, no copy of a descriptor is left open."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import TYPE_CHECKING

import pytest

from support.leaks import holdings
from zerohop import wire
from zerohop.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Iterator


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

            before = holdings().descriptors
            with monkeypatch.context() as patched:
                patched.setattr(os, "dup", few)
                with pytest.raises(OSError, match="too many"):
                    channel.post(wire.Setup(providers=[], url="", name="", nfds=2), pipe)
            assert copies[0] == 2
            assert holdings().descriptors == before
            channel.close()

    asyncio.run(main())
