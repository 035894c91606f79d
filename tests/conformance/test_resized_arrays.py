"""NumPy arrays of which a view is registered: NumPy resizes them as little as those that are registered themselves."""

from __future__ import annotations

import ctypes
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.options import Options
from support.patience import PATIENCE_S

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
