"""A server that answers with nonsense: its client raises ProtocolError, never waits, and takes nothing for granted."""

from __future__ import annotations

import errno
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.stores import open_remote
from zerohop._native import Status
from zerohop.core.face import Face
from zerohop.storage import wire
from zerohop.storage.failures import of_errno

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext
    from zerohop.core.face import Link

PAGE = 4096


class Liar(Face):
    """Answers a greeting and ``open`` as a server does, and all else as it is told to."""

    def __init__(self, ctx: zh.Context) -> None:
        super().__init__(ctx, {}, None)
        self.answer: wire.Answer | bytes = wire.Value()
        self.greeting: wire.Answer = wire.Welcome(wire.VERSION, "threads", "", False)
        self._service(wire.SERVICE, lambda: self.answered)
        self._join_context()

    def answered(self, link: Link, body: bytes) -> bytes:
        del link
        request = wire.request_of(body)
        if isinstance(request, wire.Hello):
            return wire.encode(self.greeting)
        if isinstance(request, wire.Open):
            return wire.encode(wire.Opened(7))
        return self.answer if isinstance(self.answer, bytes) else wire.encode(self.answer)


def numbers(*values: int, of: str = "<i8") -> bytes:
    return np.array(values, of).tobytes()


def moved(done: bytes = b"", errors: bytes = b"", outcomes: bytes = b"") -> wire.Moved:
    return wire.Moved("mapped", done, errors, outcomes)


@pytest.fixture
def liar(open_context: OpenContext) -> Liar:
    return Liar(open_context(Options()))


OF_TRANSFERS = [
    moved(done=numbers(PAGE + 1)),
    moved(done=numbers(-1)),
    moved(done=numbers(PAGE, PAGE)),
    moved(done=b"123"),
    moved(errors=numbers(1, 1, of="<i4")),
    moved(outcomes=bytes(4)),
    moved(outcomes=bytes([99, 0])),
    moved(outcomes=bytes([255, 255]), done=numbers(0)),
    moved(outcomes=bytes([Status.PENDING.value, 0])),
    moved(outcomes=bytes([Status.WOULD_BLOCK.value, 0]), done=numbers(0)),
    wire.Failed("StorageError", "no", "", 1 << 63),
    wire.Failed("StorageError", "no", "", -5),
    wire.Value(PAGE),
    wire.Welcome(wire.VERSION, "", "", False),
    b"",
    b"zerohop",
]


@pytest.mark.parametrize("answer", OF_TRANSFERS, ids=repr)
@pytest.mark.parametrize("writes", [False, True], ids=["read", "write"])
def test_of_a_transfer(liar: Liar, open_context: OpenContext, answer: wire.Answer | bytes, writes: bool) -> None:
    liar.answer = answer
    with open_remote(liar.context.url, open_context(Options())) as store:
        file = store.open("data", "r+").result(PATIENCE_S)
        array = np.zeros(PAGE, np.uint8)
        operation: Any = file.write_from(array) if writes else file.read_into(array)
        with pytest.raises(zh.ProtocolError):
            operation.result(PATIENCE_S)
        ring = store.ring(1, for_read=not writes)
        ring.prepare(array, file, 0, 5)
        ring.submit()
        (result,) = ring.wait(timeout=PATIENCE_S)
        assert result.userdata == 5
        assert isinstance(result.error, zh.ProtocolError)


def test_a_write_that_stops_short(liar: Liar, open_context: OpenContext) -> None:
    """No caller looks at how much of a file was written: a server that tells less is no success."""
    liar.answer = moved(done=numbers(PAGE - 1))
    with open_remote(liar.context.url, open_context(Options())) as store:
        file = store.open("data", "r+").result(PATIENCE_S)
        with pytest.raises(zh.ProtocolError, match="stopped short"):
            file.write_from(np.zeros(PAGE, np.uint8)).result(PATIENCE_S)
        with pytest.raises(zh.EndOfFile):
            file.read_into(np.zeros(PAGE, np.uint8)).result(PATIENCE_S)


def test_a_failure_without_a_number(liar: Liar, open_context: OpenContext) -> None:
    """An outcome of failure with all bytes moved is still a failure."""
    liar.answer = moved(outcomes=bytes([Status.FILE_ERROR.value, 0]))
    with open_remote(liar.context.url, open_context(Options())) as store:
        file = store.open("data").result(PATIENCE_S)
        with pytest.raises(zh.ZerohopError):
            file.read_into(np.zeros(PAGE, np.uint8)).result(PATIENCE_S)


ROOT = Path("/").stat()
FACTS = {name: getattr(ROOT, name) for name in dir(ROOT) if name.startswith("st_")}
ODD_FACTS = [("st_size", math.nan), ("st_size", 1.5), ("st_size", -5), ("st_size", 1 << 63), ("st_mtime", math.inf)]
CALLS: list[Callable[[Any], Any]] = [
    lambda store: store.listdir(),
    lambda store: store.stat("data"),
    lambda store: store.readlink("data"),
    lambda store: store.open("data").result(PATIENCE_S).stat(),
]


@pytest.mark.parametrize(
    "answer",
    [
        wire.Names([], more=True),
        wire.Names([b""], more=True),
        wire.Stat({}),
        wire.Stat({"st_size": 1.5}),
        *(wire.Stat({**FACTS, name: value}) for name, value in ODD_FACTS),
        wire.Value(-1),
        wire.Value(3),
        wire.Failed("StorageError", "no", "", 1 << 31),
        moved(),
        wire.Welcome(wire.VERSION, "", "", False),
        b"\xc1",
    ],
    ids=repr,
)
def test_of_a_call(liar: Liar, open_context: OpenContext, answer: wire.Answer | bytes) -> None:
    liar.answer = answer
    with open_remote(liar.context.url, open_context(Options())) as store:
        for call in CALLS:
            with pytest.raises(zh.ProtocolError):
                call(store).result(PATIENCE_S)


@pytest.mark.parametrize("value", [-1, 0, 1 << 62])
def test_a_number_for_none(liar: Liar, open_context: OpenContext, value: int) -> None:
    liar.answer = wire.Value(value)
    with open_remote(liar.context.url, open_context(Options())) as store:
        for operation in (store.mkdir("folder"), store.open("data", "r+").result(PATIENCE_S).truncate(5)):
            with pytest.raises(zh.ProtocolError):
                operation.result(PATIENCE_S)


NOT_PRINTED = "\x1b[2J\n\r\u202eroot logged in"


@pytest.mark.parametrize("answer", [("PeerLost", 0), ("ValueError", 0), ("StorageError", 2), ("another", 0)], ids=repr)
def test_texts_stay_on_their_line(liar: Liar, open_context: OpenContext, answer: tuple[str, int]) -> None:
    liar.greeting = wire.Welcome(wire.VERSION, NOT_PRINTED, NOT_PRINTED, False)
    kind, number = answer
    liar.answer = wire.Failed(kind, NOT_PRINTED + 100_000 * "a", NOT_PRINTED, number, NOT_PRINTED.encode())
    with open_remote(liar.context.url, open_context(Options())) as store:
        error = store.stat("data").exception(PATIENCE_S)
        for text in (str(error), store.engine, store.why_no_uring, repr(store)):
            assert text.isprintable(), text
            assert len(text) < 5000


@pytest.mark.parametrize(
    "answer", [("Closed", 0), ("ValueError", 0), ("LimitReached", 0), ("StorageError", 2)], ids=repr
)
def test_whose_words_they_are(liar: Liar, open_context: OpenContext, answer: tuple[str, int]) -> None:
    """An error says which words are the server's, so that nobody types them in good faith."""
    kind, number = answer
    liar.answer = wire.Failed(kind, "it's broken", "curl there | sh", number, b"")
    with open_remote(liar.context.url, open_context(Options())) as store:
        error = store.stat("data").exception(PATIENCE_S)
        assert r"the server says: 'it\'s broken'" in str(error)
        assert str(error).count("curl there") == str(error).count("the server says: 'curl there | sh'")


def test_the_words_of_this_library_for_a_number(liar: Liar, open_context: OpenContext) -> None:
    """An error of the system is told as a Store of this machine tells it."""
    liar.answer = wire.Failed(
        "StorageError", "No such file or directory: 'data'", "curl there | sh", errno.ENOENT, b"data"
    )
    with open_remote(liar.context.url, open_context(Options())) as store:
        error = store.stat("data").exception(PATIENCE_S)
        assert str(error) == str(of_errno(errno.ENOENT, "stat", "data"))


def test_a_way_that_there_is_not(liar: Liar, open_context: OpenContext) -> None:
    body = wire.encode(moved()).replace(b"mapped", b"\x1b[2Jab")
    liar.answer = body
    with open_remote(liar.context.url, open_context(Options())) as store, pytest.raises(zh.ProtocolError):
        store.open("data").result(PATIENCE_S).read_into(np.zeros(PAGE, np.uint8)).result(PATIENCE_S)


def test_names_that_never_end(liar: Liar, open_context: OpenContext) -> None:
    liar.answer = wire.Names([b"a", b"b"], more=True)
    with open_remote(liar.context.url, open_context(Options())) as store, pytest.raises(zh.ProtocolError):
        store.listdir().result(PATIENCE_S)


@pytest.mark.parametrize("name", [b"", b".", b"..", b"../x", b"/etc", b"a/b", b"a\0"], ids=repr)
def test_names_that_lead_elsewhere(liar: Liar, open_context: OpenContext, name: bytes) -> None:
    """A program that copies a folder to this machine makes paths of them."""
    liar.answer = wire.Names([b"a", name], more=False)
    with open_remote(liar.context.url, open_context(Options())) as store, pytest.raises(zh.ProtocolError):
        store.listdir().result(PATIENCE_S)


@pytest.mark.parametrize("greeting", [wire.Opened(1), wire.Welcome(99, "", "", False)], ids=repr)
def test_of_a_greeting(liar: Liar, open_context: OpenContext, greeting: wire.Answer) -> None:
    liar.greeting = greeting
    with pytest.raises((zh.ProtocolError, zh.Unsupported)):
        open_remote(liar.context.url, open_context(Options()))
