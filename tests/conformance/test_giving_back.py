"""Memory that a peer has mapped, asked back: the owner is told that it is free when nothing can touch it any more.

Both Contexts are in this process: what happens when is decided here.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.streams import Stream
from zerohop.core.peers.allocations import Allocations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext

NBYTES = 1 << 16
LIMIT_S = PATIENCE_S
SOON_S = 0.05


class Pair:
    """An owner with a pool that has room for one part, and a peer that writes to the part."""

    def __init__(self, open_context: OpenContext) -> None:
        options = Options(providers=("p2p",))
        self.owner, self.peer = open_context(options), open_context(options)
        self.pool = self.owner.pool("sim:0", chunk_bytes=NBYTES, max_bytes=NBYTES)
        self.part = self.pool.alloc(NBYTES)
        self.handle = self.part.share("rw")
        self.source = self.peer.alloc(NBYTES, "sim:0")
        self.stream = Stream(self.peer)

    def import_it(self) -> None:
        self.peer.write(self.source, self.handle).result(LIMIT_S)

    def copy_for_long(self, **options: Any) -> zh.Operation[int]:
        """Until the stream is released."""
        self.stream.stand_still()
        return self.peer.write(self.source, self.handle, stream=self.stream, **options)

    def write_on(self) -> threading.Thread:
        """Until that fails."""

        def work() -> None:
            with contextlib.suppress(zh.ZerohopError):
                while True:
                    self.peer.write(self.source, self.handle).result(LIMIT_S)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    @property
    def connection(self) -> zh.Connection:
        return self.peer.connections[0]

    def expect_room(self) -> None:
        self.part.close()
        self.pool.alloc(NBYTES, timeout=LIMIT_S).close()

    def expect_no_room(self) -> None:
        with pytest.raises(zh.RegistrationFailed, match="no room"):
            self.pool.alloc(NBYTES, timeout=SOON_S)


@pytest.fixture
def pair(open_context: OpenContext) -> Iterator[Pair]:
    made = Pair(open_context)
    yield made
    made.stream.release()
    made.stream.finish()
    made.stream.native.close()


class SlowImport:
    """Stands in for what the driver does to import: takes until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        real = Allocations._take_memory

        def slow(allocations: Allocations, *arguments: Any) -> Any:
            self.begun.set()
            assert self.go_on.wait(LIMIT_S)
            return real(allocations, *arguments)

        monkeypatch.setattr(Allocations, "_take_memory", slow)


class TestAskedBack:
    def test_twice_while_a_copy_is_under_way(self, pair: Pair) -> None:
        """The second time is no success either."""
        pair.import_it()
        operation = pair.copy_for_long()
        for _ in range(2):
            with pytest.raises(zh.RevocationIncomplete):
                pair.part.revoke(timeout=SOON_S)
        pair.part.close(timeout=SOON_S)
        pair.expect_no_room()
        pair.stream.release()
        operation.exception(LIMIT_S)
        pair.expect_room()

    def test_after_its_memory_was_closed(self, pair: Pair) -> None:
        """The connection asks for all that is mapped once more when it is closed."""
        pair.import_it()
        operation = pair.copy_for_long()
        pair.part.close(timeout=SOON_S)
        pair.owner.connections[0].close()
        pair.expect_no_room()
        pair.stream.release()
        operation.exception(LIMIT_S)

    def test_while_it_is_being_imported(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = SlowImport(monkeypatch)
        operation = pair.peer.write(pair.source, pair.handle)
        assert slow.begun.wait(LIMIT_S)
        with pytest.raises(zh.RevocationIncomplete):
            pair.part.revoke(timeout=SOON_S)
        slow.go_on.set()
        with pytest.raises(zh.AccessDenied, match="revoked"):
            operation.result(LIMIT_S)
        eventually(lambda: pair.peer.statistics().mapped == 0, "it stays mapped")
        pair.expect_room()

    def test_what_ended_before_its_copy(self, pair: Pair) -> None:
        """Nobody waits for it any more, and nothing else goes on: its memory is let go of all the same."""
        pair.import_it()
        operation = pair.copy_for_long(timeout=SOON_S)
        with pytest.raises(zh.DeadlineExceeded):
            operation.result(LIMIT_S)
        pair.stream.release()
        pair.part.revoke(timeout=LIMIT_S)
        pair.expect_room()


class TestLeaving:
    def test_with_an_import_under_way(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        pair.peer.connect(pair.owner.url).result(LIMIT_S)
        slow = SlowImport(monkeypatch)
        operation = pair.peer.write(pair.source, pair.handle)
        assert slow.begun.wait(LIMIT_S)
        closing = threading.Thread(target=pair.connection.close)
        closing.start()
        slow.go_on.set()
        closing.join()
        operation.exception(LIMIT_S)
        pair.expect_room()

    def test_while_it_writes(self, pair: Pair) -> None:
        pair.import_it()
        writing = pair.write_on()
        pair.owner.notification(timeout=SOON_S).exception()
        pair.peer.close()
        writing.join()
        pair.expect_room()

    def test_a_second_close_does_not_cut_the_first_short(self, pair: Pair) -> None:
        pair.import_it()
        operation = pair.copy_for_long()
        connection = pair.connection
        first = threading.Thread(target=connection.close, args=[LIMIT_S])
        first.start()
        eventually(lambda: not connection.alive, "nobody closes it")
        connection.close(0.01)
        pair.stream.release()
        first.join()
        operation.exception(LIMIT_S)
        pair.expect_room()

    def test_while_the_other_side_asks_for_more(self, pair: Pair) -> None:
        """The owner leaves; the peer goes on writing, and would map again what it has just given back."""
        pair.import_it()
        writing = pair.write_on()
        pair.owner.notification(timeout=SOON_S).exception()
        pair.owner.connections[0].close()
        pair.part.close()
        writing.join()
        pair.pool.alloc(NBYTES, timeout=LIMIT_S).close()
