"""NumPy arrays of which a view is registered: NumPy resizes them as little as those that are registered themselves."""

from __future__ import annotations

import ctypes
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.memory import holders

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext

NBYTES = 65536
BYTES = ctypes.c_ubyte * NBYTES


def _readonly(array: np.ndarray[Any, Any]) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def _out_of_band(array: np.ndarray[Any, Any]) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(array, 5, buffer_callback=buffers.append)
    return pickle.loads(pickled, buffers=buffers)


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array,
        lambda array: array[100:],
        _readonly,
        lambda array: _readonly(array)[100:],
        lambda array: np.broadcast_to(array, array.shape),
        lambda array: np.lib.stride_tricks.sliding_window_view(array, NBYTES)[0],
        lambda array: np.lib.stride_tricks.as_strided(array, (NBYTES,), (1,)),
        memoryview,
        lambda array: np.frombuffer(memoryview(array), np.uint8),
        lambda array: np.ndarray((NBYTES,), np.uint8, buffer=array),
        BYTES.from_buffer,
        np.ctypeslib.as_ctypes,
        lambda array: np.ctypeslib.as_array(array.ctypes.data_as(ctypes.POINTER(ctypes.c_ubyte)), (NBYTES,)),
        pickle.PickleBuffer,
        _out_of_band,
    ],
)
def test_an_array_whose_view_is_registered(
    open_context: OpenContext, view: Callable[[np.ndarray[Any, Any]], Any]
) -> None:
    owner, peer = open_context(Options()), open_context(Options())
    array = np.full(NBYTES, 7, np.uint8)
    shown = view(array)
    memory = owner.register(shown)
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize(2 * NBYTES, refcheck=False)
    into = np.zeros(memory.nbytes, np.uint8)
    peer.read(memory.share("r"), into=into).result(PATIENCE_S)
    assert (into == 7).all()


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[100:],
        lambda array: np.lib.stride_tricks.sliding_window_view(array, NBYTES)[0],
        lambda array: np.lib.stride_tricks.as_strided(array, (NBYTES,), (1,)),
        memoryview,
        lambda array: memoryview(array)[100:],
        lambda array: np.frombuffer(memoryview(array), np.uint8),
        BYTES.from_buffer,
        np.ctypeslib.as_ctypes,
        _out_of_band,
    ],
)
def test_a_view_of_an_array_that_was_resized_before(
    open_context: OpenContext, view: Callable[[np.ndarray[Any, Any]], Any]
) -> None:
    """It shows freed memory, and is refused."""
    array = np.zeros(NBYTES, np.uint8)
    shown = view(array)
    held = np.zeros(NBYTES, np.uint8)  # so that the array cannot grow where it is
    array.resize(64 * NBYTES, refcheck=False)
    assert held.nbytes
    with pytest.raises(ValueError, match="has other memory by now"):
        open_context(Options()).register(shown)


def test_an_object_with_a_base_of_its_own(open_context: OpenContext) -> None:
    """The base of an object that is not NumPy's may have nothing to do with its memory."""
    torch = pytest.importorskip("torch")
    array = np.arange(NBYTES, dtype=np.uint8)
    shown = type("Shown", (), {})()
    shown.__array_interface__, shown.base = array.__array_interface__, torch.zeros(8)
    memory = open_context(Options()).register(np.asarray(shown))
    assert memory.address == array.__array_interface__["data"][0]


def test_pointers_that_are_set_meanwhile(open_context: OpenContext) -> None:
    """A table of pointers may change while what one of them shows is registered."""
    objects = [(ctypes.c_ubyte * 64)() for _ in range(1000)]
    table = (ctypes.POINTER(ctypes.c_ubyte * 64) * 1000)()
    for number in range(10):
        table[number] = ctypes.pointer(objects[number])
    left = iter(range(10, 1000))
    context = open_context(Options())

    class SetsAnother(type):
        def __instancecheck__(cls, instance: object) -> bool:
            """Set a pointer, as another thread may between two looks at what the table keeps."""
            number = next(left)
            table[number] = ctypes.pointer(objects[number])
            return isinstance(instance, memoryview)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holders, "memoryview", SetsAnother("view", (), {}), raising=False)
        assert context.register(table[0].contents).address == ctypes.addressof(objects[0])
