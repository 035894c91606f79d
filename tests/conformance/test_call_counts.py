"""A call gains no Python frame and no native call: how many each kind of operation takes, once its path is known.

The numbers are those of Python 3.11; newer versions have fewer frames, because comprehensions have none of their own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from support.fixtures import OpenContext

ROUNDS = 7
# What a call here adds to the frames of each operation: the lambda that calls it.
HERE = 1

# Python frames, and native calls that are methods of the engine.
COUNTS: dict[str, tuple[int, int]] = {
    "write": (2, 0),
    "write of an array": (11, 0),
    "read into an array": (12, 0),
    "write with notify": (8, 1),
    "write_nowait": (17, 1),
    "read": (3, 0),
    "read_nowait": (18, 1),
    "write_many": (2, 0),
    "write_pages": (15, 1),
    "read_pages": (16, 1),
    "write_list": (19, 1),
    "read_list": (20, 1),
    "read_many": (95, 1),  # of eight
    "write_strided": (21, 1),
    "fetch_add": (13, 1),
    "compare_swap": (13, 1),
    "notify": (19, 2),
    "Connection.notify": (19, 2),
    "send and recv": (40, 2),
    "flush": (19, 1),
    "register and close": (17, 0),
    "register again": (9, 0),
    "share": (14, 0),
    "connect again": (27, 1),
    "Transport.write with notify": (14, 2),
    "Transport.write of an array": (11, 0),
    "Transport.read": (3, 0),
    "Transport.write_many": (2, 0),
}


class Counted:
    """An engine, and how many of its methods were called."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.real, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            return attribute(*arguments, **named)

        return call


@pytest.fixture
def operations(open_context: OpenContext) -> Iterator[dict[str, tuple[tuple[zh.Context, ...], Callable[[], object]]]]:
    """Each operation with the Contexts that carry it out, between two Contexts of this process."""
    here, there = (open_context(Options(providers=("shm",))) for _ in range(2))
    source, target = here.alloc(1 << 16), there.alloc(1 << 16)
    remote, array = target.share("rw"), np.zeros(4096, np.uint8)
    view, part, pages = source[:4096], remote[:4096], np.arange(4, dtype=np.int64)
    pairs = [(source[i * 64 : (i + 1) * 64], remote[i * 64 : (i + 1) * 64]) for i in range(8)]
    reads = [(remote, local) for local, remote in pairs]
    connection, other = here.connect(there.url).result(PATIENCE_S), there.connect(here.url).result(PATIENCE_S)
    message, into = here.alloc(64), there.alloc(64)
    one, two = zh.Transport(ctx=here), zh.Transport(ctx=there)
    one.connect(two.bind()).result(PATIENCE_S)

    def heard(operation: zh.Operation[int]) -> None:
        operation.result()
        there.notification(PATIENCE_S).result()

    def send_and_receive() -> None:
        receiving = other.recv(into)
        connection.send(message).result()
        receiving.result()

    def heard_by_two(operation: zh.Operation[int]) -> None:
        operation.result()
        two.wait_for_write(PATIENCE_S).result()

    both = here, there
    found: dict[str, tuple[tuple[zh.Context, ...], Callable[[], object]]] = {
        "write": (both, lambda: here.write(view, part).result()),
        "write of an array": (both, lambda: here.write(array, part).result()),
        "read into an array": (both, lambda: here.read(part, array).result()),
        "write with notify": (both, lambda: heard(here.write(view, part, notify=1))),
        "write_nowait": (both, lambda: here.write_nowait(view, part).result()),
        "read": (both, lambda: here.read(part, view).result()),
        "read_nowait": (both, lambda: here.read_nowait(part, view).result()),
        "write_many": (both, lambda: here.write_many(pairs).result()),
        "write_pages": (both, lambda: here.write_pages(source, remote, pages, pages, page_bytes=256).result()),
        "read_pages": (both, lambda: here.read_pages(remote, source, pages, pages, page_bytes=256).result()),
        "write_list": (both, lambda: here.write_list(source, remote, pages, pages, pages).result()),
        "read_list": (both, lambda: here.read_list(remote, source, pages, pages, pages).result()),
        "read_many": (both, lambda: here.read_many(reads).result()),
        "write_strided": (both, lambda: here.write_strided(source, remote, rows=4, row_bytes=64).result()),
        "fetch_add": (both, lambda: here.fetch_add(remote, 1).result()),
        "compare_swap": (both, lambda: here.compare_swap(remote, 0, 1).result()),
        "notify": (both, lambda: heard(here.notify(connection, 1))),
        "Connection.notify": (both, lambda: heard(connection.notify(1))),
        "send and recv": (both, send_and_receive),
        "flush": (both, lambda: here.flush(connection).result()),
        "register and close": (both, lambda: here.register(array).close()),
        "register again": (both, lambda: here.register(array)),
        "share": (both, lambda: source.share("r")),
        "connect again": (both, lambda: here.connect(there.url).result()),
        "Transport.write with notify": (both, lambda: heard_by_two(one.write(view, part, notify=1))),
        "Transport.write of an array": (both, lambda: one.write(array, part).result()),
        "Transport.read": (both, lambda: one.read(view, part).result()),
        "Transport.write_many": (both, lambda: one.write_many(pairs).result()),
    }
    for _, operation in found.values():
        for _ in range(3):
            operation()
    yield found
    one.close()
    two.close()


def _frames(operation: Callable[[], object]) -> int:
    """How many Python functions one call enters, on this thread."""
    entered = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(count)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return entered


def test_no_operation_takes_more_calls_than_it_did(
    operations: dict[str, tuple[tuple[zh.Context, ...], Callable[[], object]]],
) -> None:
    found: dict[str, tuple[int, int]] = {}
    for name, (contexts, operation) in operations.items():
        # The least of several: a wait that sleeps looks once more than one that does not.
        frames = min(_frames(operation) for _ in range(ROUNDS)) - HERE
        engines = [Counted(context._core.engine) for context in contexts]
        calls = []
        for context, engine in zip(contexts, engines, strict=True):
            context._core.engine = engine  # type: ignore[assignment]
        try:
            for _ in range(ROUNDS):
                before = sum(engine.calls for engine in engines)
                operation()
                calls.append(sum(engine.calls for engine in engines) - before)
        finally:
            for context, engine in zip(contexts, engines, strict=True):
                context._core.engine = engine.real
        found[name] = frames, min(calls)
    more = {
        name: (counts, COUNTS[name])
        for name, counts in found.items()
        if any(a > b for a, b in zip(counts, COUNTS[name], strict=True))
    }
    assert not more, f"found and allowed: {more}"
