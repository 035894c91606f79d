"""Coroutines that begin at once, and whose rest a task awaits."""

from __future__ import annotations

import asyncio

import pytest

from zerohop.core.runtime import eager


def test_what_need_not_wait_has_ended() -> None:
    async def work() -> int:
        return 7

    async def failing() -> int:
        raise KeyError("x")

    assert eager.begin(work()) == 7
    with pytest.raises(KeyError):
        eager.begin(failing())


def test_the_rest() -> None:
    """It goes on where it waits, several times, and ends with its result or its error."""

    async def work(first: asyncio.Future[int], second: asyncio.Future[int]) -> int:
        value = await first
        try:
            value += await second
        except ValueError:
            value += 100
        await asyncio.sleep(0)
        if value > 1000:
            raise KeyError(value)
        return value

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for second, expected in ((5, 6), (ValueError(), 101), (5000, KeyError)):
            futures = loop.create_future(), loop.create_future()
            rest = eager.begin(work(*futures))
            assert isinstance(rest, eager.Rest)

            async def awaited(rest: eager.Rest[int] = rest) -> int:
                return await rest

            task = asyncio.ensure_future(awaited())
            await asyncio.sleep(0)
            futures[0].set_result(1)
            await asyncio.sleep(0)
            if isinstance(second, Exception):
                futures[1].set_exception(second)
            else:
                futures[1].set_result(second)
            if expected is KeyError:
                with pytest.raises(KeyError):
                    await task
            else:
                assert await task == expected

    asyncio.run(main())


def test_the_rest_is_cancelled() -> None:
    """The coroutine decides what that means."""
    seen = []

    async def work(future: asyncio.Future[int]) -> int:
        try:
            return await future
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        rest = eager.begin(work(asyncio.get_running_loop().create_future()))
        assert isinstance(rest, eager.Rest)

        async def awaited() -> int:
            return await rest

        task = asyncio.ensure_future(awaited())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]
