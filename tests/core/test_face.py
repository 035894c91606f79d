"""The base of faces: whose Context it is, and what it hears of peers. What a face promises is tested with Transport."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from zerohop._native import Status
from zerohop.core.face import Face, Refusal, call, parse_url

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from support.fixtures import OpenContext
    from zerohop.core.face import Link

SERVICE = "echo"


class Echo(Face):
    """Has its peers' words said back to it."""

    def __init__(self, ctx: zh.Context | None = None, timeout: float | None = None, **settings: Any) -> None:
        super().__init__(ctx, settings, timeout)
        self.lost: list[str] = []
        self.service = self._service(SERVICE, lambda: _answer)
        self._join_context()

    def say(self, url: str, words: bytes, timeout: float | None = None) -> zh.Operation[bytes]:
        async def work() -> bytes:
            return await call(await self._connect(parse_url(url)), SERVICE, words)

        return self._defer("echo", self._deadline(timeout), work)

    def close(self) -> None:
        self._leave_context()
        self._close_context(5.0)

    def _peer_lost(self, link: Link, error: zh.ZerohopError) -> None:
        self.lost.append(link.peer)


def _answer(_link: Link, body: bytes) -> bytes | Coroutine[Any, Any, bytes]:
    if body == b"no":
        raise Refusal(Status.ACCESS_DENIED, "it is not said back")
    if body == b"bug":
        raise RuntimeError("nobody foresaw this")
    return _fail_later() if body == b"late bug" else body


async def _fail_later() -> bytes:
    await asyncio.sleep(0)
    raise RuntimeError("nobody foresaw this")


def test_a_context_of_its_own_is_closed_with_it() -> None:
    with Echo(providers=["shm"]) as echo:
        context = echo.context
        assert context.alloc(8).nbytes == 8
    with pytest.raises(zh.Closed):
        context.alloc(8)


def test_a_context_that_it_was_given_stays_open(open_context: OpenContext) -> None:
    context = open_context(Options())
    with Echo(context) as echo:
        assert echo.context is context
    assert context.alloc(8).nbytes == 8
    context.close()
    with pytest.raises(zh.Closed):
        Echo(context)


def test_settings_beside_a_context(open_context: OpenContext) -> None:
    with pytest.raises(ValueError, match="secret: settings of a Context"):
        Echo(open_context(Options()), secret="x")
    with pytest.raises(TypeError, match="ctx="):
        Echo(context=open_context(Options()))


def test_a_timeout_that_makes_no_sense_leaves_no_context_open(open_context: OpenContext) -> None:
    for timeout in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            Echo(open_context(Options()), timeout)
        with pytest.raises(ValueError, match="timeout"):
            Echo(timeout=timeout)


def test_a_call_and_its_refusal(open_context: OpenContext) -> None:
    with Echo(open_context(Options())) as here, Echo(open_context(Options())) as there:
        assert here.say(there.context.url, b"hello").result(PATIENCE_S) == b"hello"
        with pytest.raises(zh.AccessDenied, match="not said back"):
            here.say(there.context.url, b"no").result(PATIENCE_S)
        assert here.service is there.service is Echo(there.context).service


@pytest.mark.parametrize("words", [b"bug", b"late bug"])
def test_a_service_that_fails(open_context: OpenContext, caplog: pytest.LogCaptureFixture, words: bytes) -> None:
    """The caller hears of it at once, and the service's own log has the traceback; the peers stay connected."""
    with Echo(open_context(Options())) as here, Echo(open_context(Options())) as there:
        with pytest.raises(zh.ProtocolError, match="its log says how"):
            here.say(there.context.url, words).result(PATIENCE_S)
        assert "nobody foresaw this" in caplog.text
        caplog.clear()
        assert here.say(there.context.url, b"hello").result(PATIENCE_S) == b"hello"
        assert not here.lost


def test_a_service_that_the_peer_has_not(open_context: OpenContext) -> None:
    bare = open_context(Options())
    with Echo(open_context(Options())) as here, pytest.raises(zh.Unsupported, match="nothing of that kind"):
        here.say(bare.url, b"hello").result(PATIENCE_S)


def test_it_hears_of_lost_peers_until_it_leaves(open_context: OpenContext) -> None:
    context, others = open_context(Options()), [open_context(Options()) for _ in range(2)]
    here = Echo(context)
    for other in others:
        context.connect(other.url).result(PATIENCE_S)
    others[0].close()
    eventually(lambda: here.lost == [others[0].id], "it hears of no loss")
    here.close()
    others[1].close()
    eventually(lambda: not context.connections, "the Context knows of no loss")
    assert here.lost == [others[0].id]


def test_one_that_is_dropped_hears_of_nothing_and_is_not_kept(open_context: OpenContext) -> None:
    context = open_context(Options())
    Echo(context)
    assert not context._core.watchers
