"""Checks that wrong objects as arguments raise TypeError or ValueError, whose words say what to give instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.compat import torchcomms

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext


class Given(NamedTuple):
    """What the calls are made with, all of it right."""

    context: zh.Context
    memory: zh.Memory
    handle: zh.RemoteBuffer
    connection: zh.Connection


@pytest.fixture
def given(open_context: OpenContext) -> Given:
    context, other = open_context(Options()), open_context(Options())
    memory = context.alloc(64)
    return Given(context, memory, memory.share("rw"), other.connect(context.url).result(PATIENCE_S))


Call = tuple["Callable[[Given, Any], object]", str]
CALLS: dict[str, Call] = {
    "alloc": (lambda g, x: g.context.alloc(8, x), "a device is a name"),
    "pool": (lambda g, x: g.context.pool(x), "a device is a name"),
    "raw memory": (lambda g, x: g.context.register((g.memory.address, 8, x)), "the device of raw memory is a name"),
    "register": (lambda g, x: g.context.register(x), "memory is a numpy array"),
    "rights": (lambda g, x: g.context.register(bytearray(8), x), 'rights are "r"'),
    "share": (lambda g, x: g.memory.share(x), 'rights are "r"'),
    "revoke": (lambda g, x: g.memory.revoke(x), "what is revoked is a RemoteBuffer"),
    "connect": (lambda g, x: g.context.connect(x), "a URL is a string"),
    "write from": (lambda g, x: g.context.write(x, g.handle), "memory is a numpy array"),
    "write to": (lambda g, x: g.context.write(g.memory, x), "the remote side is a RemoteBuffer"),
    "write many": (lambda g, x: g.context.write_many(x), r"pairs? (is )?\(memory here"),
    "write many to": (lambda g, x: g.context.write_many([(g.memory, x)]), "the remote side is a RemoteBuffer"),
    "write pages": (
        lambda g, x: g.context.write_pages(g.memory, x, [0], [0], page_bytes=8),
        "the remote side is a RemoteBuffer",
    ),
    "read": (lambda g, x: g.context.read(x, g.memory), "the remote side is a RemoteBuffer"),
    "fetch_add": (lambda g, x: g.context.fetch_add(x, 1), "the remote side is a RemoteBuffer"),
    "explain": (lambda g, x: g.context.explain(g.memory, x), "the remote side is a RemoteBuffer"),
    "notify": (lambda g, x: g.context.notify(x, 1), "notify takes a Connection, or a RemoteBuffer"),
    "flush": (lambda g, x: g.context.flush(x), "flush takes a Connection"),
    "stream": (lambda g, x: g.context.write(g.memory, g.handle, stream=x), "a stream is a torch"),
    "send": (lambda g, x: g.connection.send(x), "memory is a numpy array"),
    "recv": (lambda g, x: g.connection.recv(x), "memory is a numpy array"),
    "wait_all": (lambda g, x: zh.wait_all(x), "what is waited for are Operations"),
    "gather": (lambda g, x: zh.gather(x), "what is waited for are Operations"),
    "as_completed": (lambda g, x: zh.as_completed(x), "what is waited for are Operations"),
    "verbs": (lambda g, x: zh.Context(verbs=x), "verbs must be a VerbsOptions"),
    "Transport": (lambda g, x: zh.Transport(x, ctx=g.context), "a device is a name"),
    "Transport's Context": (lambda g, x: zh.Transport(ctx=x), "ctx is a zerohop.Context"),
    "torchcomms": (
        lambda g, x: torchcomms._result_code(g.context.write, g.memory[:], torchcomms.RdmaRemoteBuffer(0, 1, x)),  # type: ignore[arg-type]
        "an access key is the text",
    ),
}


@pytest.mark.parametrize("wrong", [1.5, object(), ["host"]], ids=["number", "object", "list"])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_object_of_the_library(given: Given, call: str, wrong: object) -> None:
    make, words = CALLS[call]
    with pytest.raises((TypeError, ValueError), match=words):
        make(given, wrong)


def test_a_flag_that_is_none(given: Given) -> None:
    with pytest.raises(TypeError, match="revocable must be True or False"):
        given.memory.share("rw", revocable="no")  # type: ignore[arg-type]


def test_raw_memory_of_no_device(given: Given) -> None:
    """An empty name stands for a search inside the library."""
    with pytest.raises(TypeError, match="the device of raw memory is a name"):
        given.context.register((given.memory.address, 8, ""))


def test_a_number_that_is_no_stream(open_context: OpenContext) -> None:
    """The number of a stream is an address in the driver, which ended the process."""
    context = open_context(Options(sim_devices=1))
    memory = context.alloc(64, "sim:0")
    handle = memory.share("rw")
    written = context.write(memory, handle)
    for call in (lambda: context.write(memory, handle, stream=5), lambda: written.wait_on(5)):
        with pytest.raises(zh.Unsupported, match="no stream of a simulated device has this number"):
            call()
    written.result(PATIENCE_S)


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_a_number_that_no_stream_has(open_context: OpenContext, number: int) -> None:
    context = open_context(Options(sim_devices=1))
    memory = context.alloc(64, "sim:0")
    with pytest.raises(ValueError, match="stream must be from 0 to 18446744073709551615"):
        context.write(memory, memory.share("rw"), stream=number)


def test_a_stream_that_gives_no_pair(given: Given) -> None:
    class Odd:
        def __cuda_stream__(self) -> int:
            return 5

    with pytest.raises(TypeError, match="__cuda_stream__ gives a pair"):
        given.context.write(given.memory, given.handle, stream=Odd())


def test_a_device_by_number(given: Given) -> None:
    """As CUDA counts them, and as a Transport takes it."""
    with pytest.raises(TypeError, match='a device is a name such as "host" or "cuda:0", not 5'):
        given.context.alloc(10, 5)  # type: ignore[arg-type]


# Python refuses to write such a number.
HUGE = 10**5000
REPEATED: dict[str, Callable[[Given, Any], object]] = {
    "alloc": lambda g, x: g.context.alloc(x),
    "device": lambda g, x: g.context.alloc(8, x),
    "dtype": lambda g, x: g.context.alloc(8, dtype=x),
    "pool": lambda g, x: g.context.pool("host", chunk_bytes=x),
    "rights": lambda g, x: g.memory.share(x),
    "revocable": lambda g, x: g.memory.share("r", revocable=x),
    "raw memory": lambda g, x: g.context.register((g.memory.address, x, "host")),
    "view": lambda g, x: g.memory.view(x),
    "view's length": lambda g, x: g.memory.view(0, x),
    "view_at": lambda g, x: g.memory.view_at(x),
    "read_bytes": lambda g, x: g.memory.read_bytes(x),
    "fetch_add": lambda g, x: g.context.fetch_add(g.handle, x),
    "fetch_add at": lambda g, x: g.context.fetch_add(g.handle, 1, offset=x),
    "compare_swap": lambda g, x: g.context.compare_swap(g.handle, 0, x),
    "page_bytes": lambda g, x: g.context.write_pages(g.memory, g.handle, [0], [0], page_bytes=x),
    "notify": lambda g, x: g.connection.notify(x),
    "timeout": lambda g, x: g.context.notification(-x),
    **{
        name: lambda _, x, name=name: zh.Context(**{name: x})  # type: ignore[misc] # mypy knows no defaults of lambdas
        for name in ("listen", "advertise", "insecure", "encryption", "providers", "require", "nics", "sim_devices")
    },
    "spin_us": lambda _, x: zh.Context(spin_us=x),
    "verbs": lambda _, x: zh.VerbsOptions(mtu=x),
}


@pytest.mark.parametrize("wrong", [HUGE, "é" * 5000, b"\xff" * 5000], ids=["number", "text", "bytes"])
@pytest.mark.parametrize("call", REPEATED)
def test_what_is_too_long_for_an_error(given: Given, call: str, wrong: object) -> None:
    """The error says what is wrong in the library's words, and repeats no more than the beginning."""
    with pytest.raises((TypeError, ValueError)) as caught:
        REPEATED[call](given, wrong)
    assert "Exceeds the limit" not in str(caught.value)
    assert len(str(caught.value)) < 1000
