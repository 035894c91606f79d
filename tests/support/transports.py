"""What a test may ask of Transports at the other side, and the pair that it has with one here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import zerohop as zh
from support.outcomes import Outcome, attempt
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from support.buffers import Buffer
    from support.peer import Remote


class Arrival(NamedTuple):
    """A write that was waited for."""

    value: int
    nbytes: int


class Transports:
    """The part of a Service that has Transports, by numbers."""

    context: zh.Context
    _transports: dict[int, zh.Transport]

    def buffer(self, number: int) -> Buffer:
        raise NotImplementedError

    def open_transport(self) -> tuple[int, str]:
        """Its number, and its URL."""
        transport = zh.Transport(ctx=self.context)
        number = len(self._transports)
        self._transports[number] = transport
        return number, transport.bind()

    def join(self, number: int, url: str) -> None:
        self._transports[number].connect(url).result(PATIENCE_S)

    def connected(self, number: int) -> bool:
        return self._transports[number].connected()

    def transport_write(
        self, number: int, handle: bytes, buffer: int, offset: int, nbytes: int, notify: int | None = None
    ) -> int:
        view = self.buffer(buffer).memory.view(offset, nbytes)
        remote = zh.RemoteBuffer.from_bytes(handle)
        return self._transports[number].write(view, remote, notify=notify).result(PATIENCE_S)

    def try_transport_write(self, number: int, handle: bytes, buffer: int, nbytes: int) -> Outcome:
        return attempt(lambda: self.transport_write(number, handle, buffer, 0, nbytes))

    def wait_for_write(self, number: int, timeout: float = PATIENCE_S) -> Arrival:
        note = self._transports[number].wait_for_write(timeout).result()
        return Arrival(note.value, note.nbytes)

    def try_wait_for_write(self, number: int, timeout: float = PATIENCE_S) -> Outcome:
        return attempt(lambda: self.wait_for_write(number, timeout))

    def close_transport(self, number: int) -> None:
        self._transports.pop(number).close()

    def abort_transport(self, number: int) -> None:
        self._transports[number].abort()

    def close_transports(self) -> None:
        while self._transports:
            self._transports.popitem()[1].close()


class Link:
    """A Transport here, joined with one there."""

    def __init__(self, context: zh.Context, remote: Remote) -> None:
        from support.service import Service

        self._service = Service
        self.remote = remote
        self.here = zh.Transport(ctx=context)
        self.there, self.url = remote.call(Service.open_transport)
        self.here.connect(self.url).result(PATIENCE_S)

    def expect_arrival(self, value: int, nbytes: int) -> None:
        """The next write that the other side hears of is this."""
        assert self.remote.call(self._service.wait_for_write, self.there) == Arrival(value, nbytes)

    def expect_arrivals(self, values: Iterable[int], nbytes: int) -> None:
        """These writes, each once and in any order, and all of that length, are the next that it hears of."""
        expected = [Arrival(value, nbytes) for value in sorted(values)]
        heard = [self.remote.call(self._service.wait_for_write, self.there) for _ in expected]
        assert sorted(heard) == expected

    def expect_none(self) -> None:
        assert self.remote.call(self._service.try_wait_for_write, self.there, 0.01).kind == "DeadlineExceeded"

    def close(self) -> None:
        self.here.close()
        self.remote.call(self._service.close_transports)


def every_call(transport: zh.Transport, url: str, handle: zh.RemoteBuffer) -> list[Callable[[], object]]:
    """One of each that can be asked of a Transport, but for what ends it and what looks at it."""
    data = np.zeros(min(8, handle.nbytes), np.uint8)
    return [
        transport.bind,
        lambda: transport.connect(url),
        lambda: transport.register(data),
        lambda: transport.write(data, handle),
        lambda: transport.write(data, handle, notify=1),
        lambda: transport.read(data, handle),
        lambda: transport.write_many([(data, handle)]),
        lambda: transport.write_many([], notify=1),
        lambda: transport.wait_for_write(0),
        transport.flush,
    ]
