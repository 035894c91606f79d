"""Checks that wrong objects as arguments raise TypeError or ValueError, whose words say what to give instead."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
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


Numbers = dict[str, tuple["Callable[[Given, Any], object]", str]]
INTEGERS: Numbers = {
    "view": (lambda g, x: g.memory.view(x), "offset"),
    "view's length": (lambda g, x: g.memory.view(0, x), "nbytes"),
    "view_at": (lambda g, x: g.memory.view_at(x), "address"),
    "contains": (lambda g, x: g.memory.contains(x), "address"),
    "contains a length": (lambda g, x: g.memory.contains(g.memory.address, x), "nbytes"),
    "read_bytes": (lambda g, x: g.memory.read_bytes(x), "offset"),
    "read_bytes of a length": (lambda g, x: g.memory.read_bytes(0, x), "nbytes"),
    "write_bytes": (lambda g, x: g.memory.write_bytes(x, b"x"), "offset"),
    "fill": (lambda g, x: g.memory.fill(x), "value"),
    "fetch_add": (lambda g, x: g.context.fetch_add(g.handle, x), "value"),
    "fetch_add at": (lambda g, x: g.context.fetch_add(g.handle, 1, offset=x), "offset"),
    "compare": (lambda g, x: g.context.compare_swap(g.handle, x, 0), "compare"),
    "swap": (lambda g, x: g.context.compare_swap_nowait(g.handle, 0, x), "swap"),
    "page_bytes": (lambda g, x: g.context.write_pages(g.memory, g.handle, [0], [0], page_bytes=x), "page_bytes"),
    "rows": (lambda g, x: g.context.write_strided(g.memory, g.handle, rows=x, row_bytes=8), "rows"),
    "row_bytes": (lambda g, x: g.context.read_strided(g.handle, g.memory, rows=1, row_bytes=x), "row_bytes"),
    "notify": (lambda g, x: g.context.notify(g.connection, x), "value"),
    "Connection.notify": (lambda g, x: g.connection.notify(x), "value"),
    "write": (lambda g, x: g.context.write(g.memory, g.handle, notify=x), "notify"),
    "read": (lambda g, x: g.context.read(g.handle, g.memory, notify=x), "notify"),
    "write_nowait": (lambda g, x: g.context.write_nowait(g.memory, g.handle, notify=x), "notify"),
    "write_many": (lambda g, x: g.context.write_many([(g.memory, g.handle)], notify=x), "notify"),
    "write_list": (lambda g, x: g.context.write_list(g.memory, g.handle, [0], [0], [8], notify=x), "notify"),
    "read_pages": (
        lambda g, x: g.context.read_pages(g.handle, g.memory, [0], [0], page_bytes=8, notify=x),
        "notify",
    ),
    "alloc": (lambda g, x: g.context.alloc(x), "nbytes"),
    "pool": (lambda g, x: g.context.pool("host").alloc(x), "nbytes"),
}
NO_INTEGERS: Final = (None, 0.5, math.nan, "x", object(), int, np.zeros(8), np.float64(1))
# Where None means something, as it does for each notify=.
_OPTIONAL: Final = ("view's length", "read_bytes of a length")


@pytest.mark.parametrize("call", INTEGERS)
def test_an_integer_argument_is_named(given: Given, call: str) -> None:
    """Python's own words say which type it was, and not which argument."""
    make, name = INTEGERS[call]
    for wrong in NO_INTEGERS:
        if wrong is None and (name == "notify" or call in _OPTIONAL):
            continue
        with pytest.raises(TypeError, match=f"^{name} must be an int, not {type(wrong).__name__}$"):
            make(given, wrong)


@pytest.mark.parametrize("call", INTEGERS)
def test_tensors_as_integers(given: Given, call: str) -> None:
    torch = pytest.importorskip("torch")
    make, name = INTEGERS[call]
    tensors = [torch.zeros(8, dtype=torch.int64), torch.zeros((), dtype=torch.int64, device="meta"), torch.zeros(())]
    for tensor in tensors:
        with pytest.raises(TypeError, match=f"^{name} must be an int, not Tensor$"):
            make(given, tensor)


@pytest.mark.parametrize(
    "call", [name for name in INTEGERS if INTEGERS[name][1] in ("value", "compare", "swap", "notify")]
)
def test_an_integer_beyond_its_range_is_named(given: Given, call: str) -> None:
    make, name = INTEGERS[call]
    for number in (1 << 70, -(1 << 70)):
        with pytest.raises(ValueError, match=f"^{name} must"):
            make(given, number)


def test_integers_of_other_libraries(given: Given) -> None:
    torch = pytest.importorskip("torch")
    for eight in (np.int64(8), np.uint8(8), torch.tensor(8)):
        given.memory.write_bytes(eight, b"12345678")
        assert given.memory.view(eight, eight).read_bytes(np.int32(0), eight) == b"12345678"
        assert given.memory.view_at(given.memory.address + np.int64(8)).nbytes == 56
        assert given.context.fetch_add(given.handle, eight, offset=eight).result(PATIENCE_S)
        given.context.notify(given.handle, eight).result(PATIENCE_S)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_as_arrays_of_integers(given: Given) -> None:
    """The error says what to type, and that works then."""
    torch = pytest.importorskip("torch")
    zeros = torch.zeros(1, dtype=torch.complex64)
    tensors = {
        "x.detach().long()": torch.zeros(1, requires_grad=True),
        "x.resolve_conj().real.long()": zeros.conj(),
        "x.resolve_neg().long()": zeros.conj().imag,
        "x.resolve_neg()": torch.zeros(1, dtype=torch.int64)._neg_view(),
        "x.values().long()": torch.nested.nested_tensor([torch.zeros(1)]),
        "x.to_dense().long()": torch.zeros(1).to_sparse(),
        "x.long()": torch.zeros(1, dtype=torch.bfloat16),
        "": torch.zeros(1, device="meta"),
    }
    context, memory, handle = given[:3]
    calls: dict[str, Callable[[Any], zh.Operation[int]]] = {
        "offsets here": lambda x: context.write_list(memory, handle, x, [0], [8]),
        "offsets there": lambda x: context.write_list(memory, handle, [0], x, [8]),
        "lengths": lambda x: context.read_list(handle, memory, [0], [0], x),
        "page numbers": lambda x: context.write_pages(memory, handle, x, [0], page_bytes=8),
    }
    for fix, tensor in tensors.items():
        for name, call in calls.items():
            with pytest.raises(TypeError, match=f"^{name} are integers in an array") as caught:
                call(tensor)
            assert str(caught.value).partition("Fix: pass ")[2] == fix
            if fix:
                call(eval(fix, {"x": tensor})).result(PATIENCE_S)


def test_tensors_as_pairs(given: Given) -> None:
    torch = pytest.importorskip("torch")
    # One of the tensors that cannot be iterated is of MKL-DNN's, which builds of torch for other processors lack.
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no MKL-DNN")
    tensor = torch.zeros(4).to_mkldnn()
    for call in (given.context.write_many, given.context.read_many):
        with pytest.raises(TypeError, match=r"_many takes pairs .*, not Tensor"):
            call(tensor)


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
    "fill": lambda g, x: g.memory.fill(x),
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
