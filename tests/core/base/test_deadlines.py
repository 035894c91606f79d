"""What waits for something for so long: the times of users, and the waits of coroutines."""

from __future__ import annotations

import asyncio
import math
from decimal import Decimal
from typing import cast

import numpy as np
import pytest

from support.loops import LOOPS, run
from support.patience import PATIENCE_S
from zerohop.core.base.deadlines import (
    STEP_S,
    deadline_after,
    nanoseconds_of,
    seconds_of,
    wait_while_running,
    wait_with_timeout,
)

loops = pytest.mark.parametrize("loop", LOOPS)


def test_seconds() -> None:
    assert seconds_of(0) == 0.0
    assert seconds_of(math.inf) == 1e9
    assert nanoseconds_of(1e-12) == 1
    assert nanoseconds_of(math.inf) == deadline_after(math.inf) == 0
    for wrong in (-1, -1e-9, math.nan, -math.inf, cast("float", Decimal("NaN"))):
        with pytest.raises(ValueError, match="negative"):
            seconds_of(wrong)
    several, text = np.zeros(2), np.array("1")
    for no_number in (None, "1", [1], int, float, 1j, several, text, np.array([object()]), np.timedelta64(1, "s")):
        with pytest.raises(TypeError, match="number of seconds"):
            seconds_of(no_number)  # type: ignore[arg-type]


def test_seconds_in_a_tensor() -> None:
    """torch says in words of its own, and in errors of several classes, that it is not one number."""
    torch = pytest.importorskip("torch")
    assert seconds_of(torch.tensor(3)) == 3.0
    complex_numbers = torch.zeros(4, dtype=torch.complex64)
    tensors = [
        torch.zeros(8),
        torch.empty(0),
        torch.zeros(8, requires_grad=True),
        torch.empty((), device="meta"),
        torch.eye(3).to_sparse(),
        complex_numbers.conj(),
        complex_numbers.conj().imag,
    ]
    if torch.backends.mkldnn.is_available():
        tensors.append(torch.zeros(4).to_mkldnn())
    for tensor in tensors:
        with pytest.raises(TypeError, match=r"^timeout must be a number of seconds, such as 1\.5, not Tensor$"):
            seconds_of(tensor)


@loops
class TestWithin:
    def test_what_it_returns_and_raises(self, loop: str) -> None:
        async def fail() -> None:
            raise KeyError("x")

        async def main() -> None:
            assert await wait_with_timeout(asyncio.sleep(0, "done"), 10) == "done"
            assert await wait_with_timeout(asyncio.sleep(0, "done"), None) == "done"
            with pytest.raises(KeyError):
                await wait_with_timeout(fail(), 10)

        run(loop, main())

    def test_too_late(self, loop: str) -> None:
        """What was waited for has ended by then, its own ending included."""
        ended = []

        async def slow() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)
                ended.append(True)

        async def main() -> None:
            for seconds in (0.01, 0, -1):
                with pytest.raises(TimeoutError):
                    await wait_with_timeout(slow(), seconds)
                await asyncio.sleep(0)

        run(loop, main())
        assert ended[:1] == [True]

    @pytest.mark.parametrize("error", [None, KeyError("x")])
    def test_cancelled_while_it_ends(self, loop: str, error: Exception | None) -> None:
        """In the same turn of the loop: whoever cancels is not to wait for what it was about to do next."""

        async def main() -> None:
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(wait_with_timeout(future, 10))
            await asyncio.sleep(0.01)
            if error is None:
                future.set_result(1)
            else:
                future.set_exception(error)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(loop, main())

    def test_cancelled(self, loop: str) -> None:
        """What was waited for is, too, and has ended."""

        async def main() -> None:
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(wait_with_timeout(future, None))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert future.cancelled()

        run(loop, main())


@loops
class TestWhileRunning:
    def test_what_it_returns_and_raises(self, loop: str) -> None:
        async def fail() -> None:
            raise KeyError("x")

        async def main() -> None:
            assert await wait_while_running(asyncio.sleep(0, "done"), 10) == "done"
            assert await wait_while_running(asyncio.sleep(STEP_S, "done"), 10) == "done"
            with pytest.raises(KeyError):
                await wait_while_running(fail(), 10)

        run(loop, main())

    def test_too_late(self, loop: str) -> None:
        async def main() -> None:
            for seconds in (STEP_S + 0.01, 0.01, 0):
                future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                with pytest.raises(TimeoutError):
                    await wait_while_running(future, seconds)
                assert future.cancelled()

        run(loop, main())

    def test_cancelled(self, loop: str) -> None:
        async def main() -> None:
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(wait_while_running(future, 10))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert future.cancelled()

        run(loop, main())


def test_a_machine_that_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the hour once, as one step; what comes after it is in time."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[int] = loop.create_future()
        task = asyncio.ensure_future(wait_while_running(heard, PATIENCE_S))
        await asyncio.sleep(0)
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + 3600)
        await asyncio.sleep(0.01)
        assert not task.done()
        heard.set_result(1)
        assert await task == 1

    asyncio.run(main())  # not run(), whose own limit would pass, too
