"""Checks that a peer that begins TLS's handshake and never ends it is dropped, and holds up nobody meanwhile."""

from __future__ import annotations

import contextlib
import ssl
import time
from typing import TYPE_CHECKING

import pytest

from support.endless_tls import CLIENT_HELLO, endless_hello
from support.lanes import eventually
from support.options import Options
from support.patience import ANSWER_S, PATIENCE_S, patience
from support.raw_control import RawControl
from zerohop.core.control import channel, handshake, tls
from zerohop.core.control.secret import derive

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zerohop as zh
    from support.fixtures import OpenContext

SECRET = "open sesame"
KNOWS = Options(providers=("tcp",), secret=SECRET)
FOREVER_S = 3600.0
# A time for the whole handshake in which a busy machine gets as far as TLS.
_SHORT_S = patience(1.0)
# How long a hostile peer waits between two bytes, so that it is not over before its time is.
_PAUSE_S = 0.005


@contextlib.contextmanager
def hostile(context: zh.Context) -> Iterator[RawControl]:
    """Yield a peer that has agreed to TLS, which it now has to begin."""
    with contextlib.closing(RawControl(context.url, unix=False)) as client:
        client.introduce(client.hello(has_secret=True, tls=True))
        yield client


def _others_get_in(context: zh.Context, friend: zh.Context) -> None:
    """Connect by TCP, with TLS, as another host's would."""
    friend.connect(context.url.partition("?")[0]).result(PATIENCE_S).close()


def test_a_hello_without_end(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Count what it sends, because its time alone bounds neither the memory nor the work that it costs."""
    monkeypatch.setattr(handshake, "TIMEOUT_S", FOREVER_S)
    context, friend = open_context(KNOWS), open_context(KNOWS)
    said = endless_hello(CLIENT_HELLO, 2 * channel._MAX_HANDSHAKE_BYTES)
    with hostile(context) as client:
        client.socket.sendall(said[: len(said) // 4])
        _others_get_in(context, friend)
        # It may be hung up on in the middle of the rest.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.socket.sendall(said[len(said) // 4 :])
        assert client.hung_up()
    _others_get_in(context, friend)
    assert sum("a TLS handshake without end" in text for text in caplog.messages) == 1


@pytest.mark.parametrize("goes_on", [False, True], ids=["stops", "byte by byte"])
def test_a_handshake_that_takes_too_long(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, goes_on: bool
) -> None:
    """Give the whole handshake one time, because a peer would else stay for as long as it sends a byte now and then."""
    context, friend = open_context(KNOWS), open_context(KNOWS)
    _others_get_in(context, friend)
    said = iter(endless_hello(CLIENT_HELLO, channel._MAX_HANDSHAKE_BYTES // 2))
    monkeypatch.setattr(handshake, "TIMEOUT_S", _SHORT_S)
    with hostile(context) as client:
        client.socket.sendall(bytes([next(said), next(said)]))
        if goes_on:
            limit = time.monotonic() + ANSWER_S
            client.socket.settimeout(_PAUSE_S)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                while not _hung_up_by_now(client):
                    assert time.monotonic() < limit, "it is let in for as long as it sends something"
                    client.socket.sendall(bytes([next(said)]))
        else:
            assert client.hung_up()
    monkeypatch.undo()
    _others_get_in(context, friend)
    assert sum("did not finish its handshake" in text for text in caplog.messages) == 1


def _hung_up_by_now(client: RawControl) -> bool:
    """Tell whether the Context has ended the connection, after a pause in which it may."""
    try:
        return client.socket.recv(1) == b""
    except TimeoutError:
        return False


def _guess(client: RawControl) -> None:
    """Do TLS's handshake with the keys of a wrong secret, and take the listener's verdict, which is an SSLError."""
    wrong = derive(b"a guess")
    guessing = tls.make_contexts(wrong.listen, wrong.dial).dial
    guessing.verify_mode = ssl.CERT_NONE
    arriving, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = guessing.wrap_bio(arriving, leaving, server_side=False)
    for step in (session.do_handshake, session.read):
        while True:
            try:
                step()
                break
            except ssl.SSLWantReadError:
                client.socket.sendall(leaving.read())
                arriving.write(client.socket.recv(1 << 16))


def test_one_that_stays_after_a_wrong_secret(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The handshake's time ends while the listener waits for it to leave; its guess counts all the same."""
    context, friend = open_context(KNOWS), open_context(KNOWS)
    _others_get_in(context, friend)
    monkeypatch.setattr(handshake, "_LINGER_S", FOREVER_S)
    monkeypatch.setattr(handshake, "TIMEOUT_S", _SHORT_S)
    with hostile(context) as client:
        with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca"):
            _guess(client)
        eventually(lambda: any("wrong secret" in text for text in caplog.messages), "the guess was not noted")
