"""What waits for many operations says to whoever takes it for something else."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext

AWAIT = re.escape("type `await zh.gather(operations)`")


@pytest.fixture
def connection(open_context: OpenContext) -> zh.Connection:
    """To another Context, of which a message may be waited for."""
    context, other = open_context(Options()), open_context(Options())
    return context.connect(other.url).result(PATIENCE_S)


def test_it_blocks(connection: zh.Connection) -> None:
    """As a statement, too: when it has returned, all have ended."""
    sends = [connection.send(bytes(8), timeout=0.02) for _ in range(2)]
    with pytest.raises(zh.DeadlineExceeded) as caught:
        zh.wait_all(sends)
    assert all(send.done() for send in sends)
    assert caught.value is sends[0].exception(0), "the first failure in their order"


def test_a_time_limit(connection: zh.Connection) -> None:
    """They go on."""
    receive = connection.recv(bytearray(8))
    with pytest.raises(zh.DeadlineExceeded, match="still in flight"):
        zh.wait_all([receive], timeout=0.01)
    assert not receive.done()
    receive.cancel()


def test_awaiting_what_has_blocked(connection: zh.Connection) -> None:
    """In a coroutine it does not hold up the loop, whether or not all have ended; it says what to type."""
    receive = connection.recv(bytearray(8))

    async def main(operations: list[zh.Operation[int]]) -> None:
        with pytest.raises(TypeError, match=AWAIT):
            await zh.wait_all(operations)  # type: ignore[misc]

    asyncio.run(main([receive]))
    receive.cancel()
    asyncio.run(main([]))


def test_a_list_that_was_taken_for_an_operation() -> None:
    with pytest.raises(AttributeError, match="has waited"):
        zh.wait_all([]).result(5)  # type: ignore[attr-defined]


WAITS: dict[str, Callable[[zh.Operation[int]], object]] = {
    "wait": lambda operation: concurrent.futures.wait([operation]),  # type: ignore[arg-type]
    "as_completed": lambda operation: list(concurrent.futures.as_completed([operation])),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("wait", WAITS)
def test_waits_of_concurrent_futures(connection: zh.Connection, wait: str) -> None:
    for operation in (connection.recv(bytearray(8)), connection.flush()):
        with pytest.raises(AttributeError, match=re.escape("type `zerohop.wait_all(operations, timeout)`")):
            WAITS[wait](operation)
        operation.cancel()


def test_waits_of_asyncio(connection: zh.Connection) -> None:
    operation = connection.recv(bytearray(8))

    async def main() -> Any:
        return await asyncio.wait([operation])

    if sys.version_info >= (3, 11):
        with pytest.raises(AttributeError, match=re.escape("`await zerohop.gather(operations)`")):
            asyncio.run(main())
    operation.cancel()
    assert not hasattr(operation, "add_done_callback"), "others look for it to tell what a future is"


def test_all_failures_are_taken(connection: zh.Connection) -> None:
    """The one that is raised stands for all of them: nobody is warned of the others."""

    async def main() -> None:
        with pytest.raises(zh.DeadlineExceeded):
            await zh.gather([connection.recv(np.zeros(8, np.uint8), timeout=0.01) for _ in range(3)])

    asyncio.run(main())


def test_all_failures_are_taken_also_beside_one_that_was_cancelled(
    connection: zh.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        receives = [connection.recv(np.zeros(8, np.uint8), timeout=0.01) for _ in range(3)]
        receives[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await zh.gather(receives)

    asyncio.run(main())
    gc.collect()
    assert not caplog.records, "nobody is warned of a failure that was taken"
