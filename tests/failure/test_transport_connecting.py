"""Joining Transports, and what can be in the way: a wrong URL, nobody there, nobody who answers, one who is taken."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.leaks import SETTLE_S
from support.loops import LOOPS, run
from support.native import engine_of
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.pattern import pattern
from support.service import Service
from support.world import PROVIDERS, Target
from zerohop._native import NativeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.fixtures import OpenContext, StartPeer

DEADLINE_S = 0.1
# However late a busy machine lets anybody go on, it is long before any other deadline.
GRACE_S = PATIENCE_S
NEVER_S = patience(60.0)
NAME = "0123456789abcdef" * 2
SOME = f"zerohop://127.0.0.1:1/{NAME}"


@pytest.fixture
def transport(open_context: OpenContext) -> Iterator[zh.Transport]:
    with zh.Transport(ctx=open_context(Options(providers=("shm", "tcp")))) as made:
        yield made


def _expect_use(here: zh.Transport, there: zh.Transport) -> None:
    """They reach each other's memory, both ways, and hear of it."""
    for one, other in ((here, there), (there, here)):
        memory = other.register(np.zeros(64, np.uint8))
        assert one.write(pattern(1, 64), memory.share("rw"), notify=5).result(PATIENCE_S) == 64
        assert other.wait_for_write(PATIENCE_S).result()[:2] == (5, 64)
        assert memory.read_bytes() == pattern(1, 64).tobytes()
        memory.close()
        assert one.connected()


class TestWell:
    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_again(self, open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
        """To the same peer: at once, as it is; meanwhile, too."""
        options = Options(providers=(provider,))
        context, peer = open_context(options), start_peer(options)
        number, url = peer.call(Service.open_transport)
        with zh.Transport(ctx=context) as here:
            assert not here.connected()
            assert here.peer == ""
            first, second = here.connect(url), here.connect(url)
            assert first.result(PATIENCE_S) is here
            assert second.result(PATIENCE_S) is here
            third = here.connect(url)
            assert third.done()
            assert third.result() is here
            assert here.peer == peer.identity.id
            assert peer.call(Service.connected, number)

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_from_both_sides_at_once(self, open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
        options = Options(providers=(provider,))
        context, peer = open_context(options), start_peer(options)
        for _ in range(20):
            number, url = peer.call(Service.open_transport)
            with zh.Transport(ctx=context) as here:
                joining = peer.start(Service.join, number, here.bind())
                assert here.connect(url).result(PATIENCE_S) is here
                joining.result()
                target = Target(peer, "numpy", 64)
                here.write(pattern(1, 64), target.handle, notify=4).result(PATIENCE_S)
                assert peer.call(Service.wait_for_write, number).value == 4
                target.drop()

    def test_to_itself(self, transport: zh.Transport) -> None:
        """It is its own peer then: its writes are what it waits for."""
        assert transport.connect(transport.bind()).result(PATIENCE_S) is transport
        _expect_use(transport, transport)

    def test_to_another_of_the_same_context(self, transport: zh.Transport) -> None:
        with zh.Transport(ctx=transport.context) as other:
            assert transport.connect(other.bind()).result(PATIENCE_S) is transport
            _expect_use(transport, other)
        with pytest.raises(zh.PeerLost):
            transport.wait_for_write(PATIENCE_S).result()

    def test_two_contexts_of_one_process(self, transport: zh.Transport, open_context: OpenContext) -> None:
        with zh.Transport(ctx=open_context(Options())) as other:
            other.connect(transport.bind()).result(PATIENCE_S)
            _expect_use(transport, other)

    @pytest.mark.parametrize("loop", LOOPS)
    def test_a_hundred_at_once(self, transport: zh.Transport, open_context: OpenContext, loop: str) -> None:
        """A hundred to a hundred, of two Contexts, on one event loop."""
        context = open_context(Options(providers=("shm", "tcp")))
        with contextlib.ExitStack() as stack:
            here = [stack.enter_context(zh.Transport(ctx=context)) for _ in range(100)]
            there = [stack.enter_context(zh.Transport(ctx=transport.context)) for _ in range(100)]

            async def join(one: zh.Transport, other: zh.Transport) -> zh.Transport:
                return await one.connect(other.bind())

            async def main() -> list[zh.Transport]:
                return await asyncio.gather(*map(join, here, there))

            assert run(loop, main()) == here
            for one, other in zip(here[::33], there[::33], strict=True):
                _expect_use(one, other)

    def test_after_a_failure(self, transport: zh.Transport, open_context: OpenContext) -> None:
        """A Transport that could not connect may try again, elsewhere too."""
        for _ in range(3):
            with pytest.raises(zh.PeerLost):
                transport.connect(f"{SOME}?transport={NAME}").result(PATIENCE_S)
        with zh.Transport(ctx=open_context(Options())) as other:
            transport.connect(other.bind()).result(PATIENCE_S)
            _expect_use(transport, other)


class TestUrls:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            "garbage",
            "\0",
            "http://127.0.0.1:1/?transport=" + NAME,
            "zerohop://",
            "zerohop://127.0.0.1/?transport=" + NAME,
            "zerohop://127.0.0.1:99999/?transport=" + NAME,
            SOME,
            f"{SOME}?transport=",
            f"{SOME}?transport=xyz",
            f"{SOME}?transport={NAME[:-2]}",
            f"{SOME}?transport={NAME}00",
            f"{SOME}?transport={NAME[:-1]}é",
            f"{SOME}?transport={NAME}" + "&x=1" * 1000,
        ],
        ids=range(14),
    )
    def test_garbage(self, transport: zh.Transport, url: str) -> None:
        with pytest.raises(ValueError, match=r"zerohop|names no Transport|99999"):
            transport.connect(url)

    @pytest.mark.parametrize("url", [None, 3, b"zerohop://127.0.0.1:1", ["zerohop://127.0.0.1:1"]])
    def test_no_text(self, transport: zh.Transport, url: object) -> None:
        with pytest.raises(TypeError, match="a URL is a string"):
            transport.connect(url)  # type: ignore[arg-type]

    def test_of_a_context(self, transport: zh.Transport, open_context: OpenContext) -> None:
        """Which names none of its Transports; the error says what does."""
        with pytest.raises(ValueError, match=r"names no Transport.*bind\(\)"):
            transport.connect(open_context(Options()).url)


class TestNobody:
    def test_there(self, transport: zh.Transport, open_context: OpenContext) -> None:
        context = open_context(Options())
        with zh.Transport(ctx=context) as other:
            url = other.bind()
            context.close()
        with pytest.raises(zh.PeerLost):
            transport.connect(url).result(PATIENCE_S)
        with pytest.raises(zh.PeerLost):
            transport.connect(f"{SOME}?transport={NAME}").result(PATIENCE_S)

    @pytest.mark.parametrize("how", ["closed", "aborted", "dropped"])
    def test_any_more(self, transport: zh.Transport, open_context: OpenContext, how: str) -> None:
        """The Context is there, the Transport is not."""
        other = zh.Transport(ctx=open_context(Options()))
        url = other.bind()
        if how == "closed":
            other.close()
        elif how == "aborted":
            other.abort()
        else:
            del other
            gc.collect()
        with pytest.raises(zh.PeerLost, match="no such Transport any more"):
            transport.connect(url).result(PATIENCE_S)

    def test_that_has_bound(self, transport: zh.Transport, open_context: OpenContext) -> None:
        """One that exists and was never bound is nobody's business."""
        context = open_context(Options())
        with zh.Transport(ctx=context) as first, zh.Transport(ctx=context) as second:
            url = first.bind().replace(first._pairing.id.hex(), second._pairing.id.hex())
            with pytest.raises(zh.PeerLost, match="no such Transport any more"):
                transport.connect(url).result(PATIENCE_S)

    def test_of_that_kind(self, transport: zh.Transport, open_context: OpenContext) -> None:
        """A Context that has never had a Transport."""
        with pytest.raises(zh.Unsupported, match="nothing of that kind"):
            transport.connect(f"{open_context(Options()).url}&transport={NAME}").result(PATIENCE_S)

    def test_with_that_secret(self, transport: zh.Transport, open_context: OpenContext) -> None:
        with (
            zh.Transport(ctx=open_context(Options(secret="open sesame"))) as other,
            pytest.raises(zh.AccessDenied, match="secret"),
        ):
            transport.connect(other.bind()).result(PATIENCE_S)


class TestTaken:
    def test_by_another(self, transport: zh.Transport, open_context: OpenContext) -> None:
        """The first that joins is the only one; those that come later are told, and the pair is not disturbed."""
        context = open_context(Options())
        with zh.Transport(ctx=context) as first, zh.Transport(ctx=context) as second:
            first.connect(transport.bind()).result(PATIENCE_S)
            with pytest.raises(zh.AccessDenied, match="connected to another"):
                second.connect(transport.bind()).result(PATIENCE_S)
            with pytest.raises(ValueError, match="connected to another peer"):
                first.connect(second.bind())
            with pytest.raises(ValueError, match="make a second Transport"):
                transport.connect(second.bind())
            _expect_use(transport, first)
            assert not second.connected()

    def test_while_it_connects(self, transport: zh.Transport) -> None:
        """To one that does not answer: another one has to wait until that is over."""
        with _silent() as url:
            pending = transport.connect(url, timeout=NEVER_S)
            with zh.Transport(ctx=transport.context) as other:
                with pytest.raises(ValueError, match="about to be"):
                    transport.connect(other.bind())
                with pytest.raises(zh.AccessDenied, match="about to be"):
                    other.connect(transport.bind()).result(PATIENCE_S)
                assert pending.cancel()
                other.connect(transport.bind()).result(PATIENCE_S)
                _expect_use(transport, other)

    def test_of_a_hundred_one_is_the_first(self, transport: zh.Transport, open_context: OpenContext) -> None:
        context = open_context(Options(providers=("shm", "tcp")))
        with contextlib.ExitStack() as stack:
            others = [stack.enter_context(zh.Transport(ctx=context)) for _ in range(100)]
            url = transport.bind()
            errors = [pending.exception(PATIENCE_S) for pending in [other.connect(url) for other in others]]
            winners = [other for other, error in zip(others, errors, strict=True) if error is None]
            assert len(winners) == 1
            assert all(isinstance(error, zh.AccessDenied | None) for error in errors)
            _expect_use(transport, winners[0])


@contextlib.contextmanager
def _silent() -> Iterator[str]:
    """The URL of one that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"zerohop://127.0.0.1:{server.getsockname()[1]}/{NAME}?transport={NAME}"


class TestNoAnswer:
    """The handshake has a limit, whoever does not answer; the Transport can be used for another one then."""

    def _expect_deadline(self, here: zh.Transport, url: str) -> None:
        started = time.monotonic()
        with pytest.raises(zh.DeadlineExceeded):
            here.connect(url, timeout=DEADLINE_S).result()
        assert DEADLINE_S <= time.monotonic() - started < DEADLINE_S + GRACE_S
        assert not here.connected()

    def test_of_what_listens(self, transport: zh.Transport) -> None:
        with _silent() as url:
            self._expect_deadline(transport, url)
        with zh.Transport(ctx=transport.context) as other:
            transport.connect(other.bind()).result(PATIENCE_S)
            _expect_use(transport, other)

    def test_with_the_transports_own_limit(self, open_context: OpenContext) -> None:
        with (
            zh.Transport(ctx=open_context(Options(timeout=NEVER_S)), timeout=DEADLINE_S) as here,
            _silent() as url,
            pytest.raises(zh.DeadlineExceeded),
        ):
            here.connect(url).result()

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_of_a_peer_that_stands_still(self, open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
        """Connected already or not. When it goes on it does not take for its peer who has given up."""
        options = Options(providers=(provider,), timeout=NEVER_S)
        context, peer = open_context(options), start_peer(options)
        number, url = peer.call(Service.open_transport)
        for _ in range(2):
            peer.stop()
            with zh.Transport(ctx=context) as here:
                self._expect_deadline(here, url)
            peer.resume()
            context.connect(peer.identity.url).result(PATIENCE_S)
        with zh.Transport(ctx=context) as here:
            self._connect_to_the_forgetful(here, url)
            target = Target(peer, "numpy", 64)
            here.write(pattern(1, 64), target.handle, notify=4).result(PATIENCE_S)
            assert peer.call(Service.wait_for_write, number).value == 4

    def _connect_to_the_forgetful(self, here: zh.Transport, url: str) -> None:
        deadline = time.monotonic() + SETTLE_S
        while True:
            try:
                here.connect(url).result(PATIENCE_S)
            except zh.AccessDenied:
                assert time.monotonic() < deadline, "it still waits for one that has given up"
                time.sleep(0.01)  # until it has heard of that, which has no event
            else:
                return

    def test_given_up_by_the_caller(self, transport: zh.Transport) -> None:
        with _silent() as url:
            pending = transport.connect(url)
            assert pending.cancel()
            with zh.Transport(ctx=transport.context) as other:
                other.connect(transport.bind()).result(PATIENCE_S)
                _expect_use(transport, other)

    @pytest.mark.parametrize("loop", LOOPS)
    def test_given_up_by_a_task(self, transport: zh.Transport, loop: str) -> None:
        async def main(url: str) -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(transport.connect(url), DEADLINE_S)

        with _silent() as url:
            run(loop, main(url))

    @pytest.mark.parametrize("how", ["close", "abort", "the Context closes"])
    def test_ended_meanwhile(self, open_context: OpenContext, how: str) -> None:
        context = open_context(Options())
        with _silent() as url, zh.Transport(ctx=context) as here:
            pending = here.connect(url)
            ends: dict[str, Callable[[], object]] = {
                "close": here.close,
                "abort": here.abort,
                "the Context closes": context.close,
            }
            ends[how]()
            with pytest.raises(zh.Closed):
                pending.result(PATIENCE_S)


@pytest.mark.parametrize("who", ["who was asked", "who asks"])
def test_ended_while_it_finishes(open_context: OpenContext, who: str) -> None:
    """Whoever ends in that moment, the other one hears of it, and waits for nothing more."""
    a, b = open_context(Options(providers=("shm",))), open_context(Options(providers=("shm",)))
    a.connect(b.url).result(PATIENCE_S)
    for round_number in range(600):
        asks, asked = zh.Transport(ctx=a), zh.Transport(ctx=b)
        ends, stays = (asked, asks) if who == "who was asked" else (asks, asked)
        connecting = asks.connect(asked.bind())
        # Over the time that it takes, and longer: there is no event in its middle.
        time.sleep((round_number % 100) * 5e-5)
        if round_number % 100 == 99:
            connecting.result(PATIENCE_S)  # however slow the machine is, some are joined before the end
        ends.abort()
        failed = connecting.exception(PATIENCE_S) is not None
        if not failed or who == "who asks":
            deadline = time.monotonic() + PATIENCE_S
            while stays.connected():
                assert time.monotonic() < deadline, f"round {round_number}: it believes that the other is there"
                time.sleep(0.001)  # it is told by the control thread, which wakes nobody who only looks
        if not failed and stays is asks:
            with pytest.raises(zh.PeerLost):
                stays.wait_for_write(PATIENCE_S).result()
        stays.close()


def test_ports_are_not_lost(open_context: OpenContext) -> None:
    """A thousand Transports, one after the other and many at once: their numbers are used again."""
    context = open_context(Options(providers=("shm",)))
    with zh.Transport(ctx=context) as first:
        first.bind()
        for _ in range(20):
            with contextlib.ExitStack() as stack:
                for _ in range(50):
                    stack.enter_context(zh.Transport(ctx=context))
    assert not context._core.watchers


def test_more_than_there_can_be(open_context: OpenContext) -> None:
    context = open_context(Options(providers=("shm",)))
    engine = engine_of(context)
    numbers = []
    with contextlib.suppress(NativeError):
        while True:
            numbers.append(engine.open_queue())
    with pytest.raises(zh.RegistrationFailed, match=r"65535 queues .* close some Transports"):
        zh.Transport(ctx=context)
    engine.close_queue(numbers[0])
    with zh.Transport(ctx=context) as transport:
        assert transport.bind()


def test_from_many_threads(open_context: OpenContext) -> None:
    """Sixteen threads make, join, use and close pairs of one Context."""
    context = open_context(Options(providers=("shm",)))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                with zh.Transport(ctx=context) as one, zh.Transport(ctx=context) as other:
                    one.connect(other.bind()).result(PATIENCE_S)
                    _expect_use(one, other)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
