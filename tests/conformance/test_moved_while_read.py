"""Memory that another thread moves while it is being registered: the registration is of where it is afterwards, or
there is none."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.patience import PATIENCE_S
from support.service import Service
from zerohop.core.memory import holders, sources, torch_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.world import World

pytestmark = pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)

# Less than malloc maps by itself, so that what is freed stays mapped, and others get it.
NBYTES = 64 << 10
LONGER = 8 << 20
OLD, NEW = 7, 9


def _move_around(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, move: Callable[[], object], when: str) -> None:
    """Have ``move`` called once, in the place of another thread, right before or after a watch is made."""
    watch = getattr(where, name)
    moves = [move]

    def watch_of(owner: Any) -> Any:
        if moves and when == "before":
            moves.pop()()
        made = watch(owner)
        if moves:
            moves.pop()()
        return made

    monkeypatch.setattr(where, name, watch_of)


def _expect_right(world: World, register: Callable[[], zh.Memory], get: Callable[[], bytes]) -> None:
    """Expect that peers reach the object's memory, or nothing at all."""
    memory, refusal = None, ""
    try:
        memory = register()
    except ValueError as error:
        refusal = str(error)
    if memory is None:
        assert "other memory by now" in refusal
        return
    with memory:
        target = world.target("numpy", NBYTES)
        target.put(0, bytes([NEW]) * NBYTES)
        handle = bytes(memory[:NBYTES].share("rw"))
        outcome = world.there.call(Service.try_write, handle, target.number, NBYTES)
        if outcome.kind == "ok":
            assert get()[:NBYTES] == bytes([NEW]) * NBYTES
        else:
            assert (outcome.kind, "moved" in outcome.text) == ("AccessDenied", True)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("shown", ["itself", "memoryview", "numpy", "as_strided", "from_buffer"])
def test_an_object_of_ctypes(world: World, monkeypatch: pytest.MonkeyPatch, shown: str, when: str) -> None:
    array = (ctypes.c_ubyte * NBYTES)(*[OLD] * NBYTES)
    whole = np.frombuffer(memoryview(array), np.uint8)
    x = {
        "itself": array,
        "memoryview": memoryview(array),
        "numpy": whole,
        "as_strided": np.lib.stride_tricks.as_strided(whole, (NBYTES,), (1,)),
        "from_buffer": (ctypes.c_ubyte * NBYTES).from_buffer(array),
    }[shown]
    others: list[Any] = []

    def move() -> None:
        ctypes.resize(array, LONGER)
        others.extend(np.full(NBYTES, OLD, np.uint8) for _ in range(4))  # of which one gets the memory that was freed

    _move_around(monkeypatch, holders, "_watch_ctypes", move, when)
    _expect_right(world, lambda: world.here.register(x), lambda: ctypes.string_at(ctypes.addressof(array), NBYTES))
    assert all((each == OLD).all() for each in others)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("shown", ["itself", "numpy", "as_ctypes", "as_strided"])
def test_a_tensor(world: World, monkeypatch: pytest.MonkeyPatch, shown: str, when: str) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # torch keeps the threads that it once started
    tensor = torch.full((NBYTES,), OLD, dtype=torch.uint8)
    whole = tensor.numpy()
    x = {
        "itself": tensor,
        "numpy": whole,
        "as_ctypes": np.ctypeslib.as_ctypes(whole),
        "as_strided": np.lib.stride_tricks.as_strided(whole, (NBYTES,), (1,)),
    }[shown]
    others: list[Any] = []

    def move() -> None:
        tensor.share_memory_()
        others.extend(np.full(NBYTES, OLD, np.uint8) for _ in range(4))

    _move_around(monkeypatch, torch_tensors, "watch", move, when)
    _expect_right(world, lambda: world.here.register(x), lambda: tensor.numpy().tobytes())
    assert all((each == OLD).all() for each in others)


def test_a_tensor_that_moves_away_and_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of it in between is not used, although it is where it was when all has been read."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    tensor = torch.full((NBYTES,), OLD, dtype=torch.uint8)
    storage, start, real = tensor.untyped_storage(), tensor.data_ptr(), torch_tensors._check_within
    there = torch.zeros(NBYTES, dtype=torch.uint8).untyped_storage()
    word, others = torch_tensors._find_words(start, storage._cdata).start, there.data_ptr()

    def move_to(address: int) -> None:
        ctypes.c_uint64.from_address(storage._cdata + word).value = address

    def check(*arguments: Any) -> None:
        try:
            real(*arguments)
        finally:
            move_to(start)

    _move_around(monkeypatch, torch_tensors, "watch", lambda: move_to(others), "after")
    monkeypatch.setattr(torch_tensors, "_check_within", check)
    with world.here.register(tensor) as memory:
        assert memory.address == start


def test_what_a_pointer_shows_of_a_tensor(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lie anywhere, so that only a move behind the look at the tensor is known."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    tensor = torch.full((NBYTES,), OLD, dtype=torch.uint8)
    pointer = tensor.numpy().ctypes.data_as(ctypes.POINTER(ctypes.c_ubyte))
    x = np.ctypeslib.as_array(pointer, (NBYTES,))
    _move_around(monkeypatch, torch_tensors, "watch", tensor.share_memory_, "after")
    with pytest.raises(ValueError, match="other memory by now"):
        world.here.register(x)


def test_an_array_of_numpy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy refuses to move it from the moment on in which it is looked at."""
    array = np.full(NBYTES, OLD, np.uint8)
    refused: list[ValueError] = []

    def start_of(owner: Any) -> Any:
        start = real(owner)
        try:
            array.resize(LONGER, refcheck=False)
        except ValueError as error:
            refused.append(error)
        return start

    real = sources._start_of
    monkeypatch.setattr(sources, "_start_of", start_of)
    _expect_right(world, lambda: world.here.register(array), array.tobytes)
    assert refused


def test_an_object_of_ctypes_that_becomes_shorter(world: World) -> None:
    """It stays where it is, and its end is freed."""
    array = (ctypes.c_ubyte * 16)()
    ctypes.resize(array, LONGER)
    memory = world.here.register(array)
    assert memory.nbytes == LONGER
    ctypes.resize(array, LONGER // 2)
    with pytest.raises(zh.Closed, match="moved"):
        memory.share("rw")


def test_memory_that_a_pointer_of_ctypes_points_to(world: World) -> None:
    """It does not lie in the pointer itself, which is an object with memory of its own."""
    whole = np.zeros(NBYTES, np.uint8)
    pointer = ctypes.cast(whole.ctypes.data, ctypes.POINTER(ctypes.c_ubyte))
    with world.here.register(np.ctypeslib.as_array(pointer, (NBYTES,))) as memory:
        target = world.target("numpy", NBYTES)
        target.put(0, bytes([NEW]) * NBYTES)
        assert world.here.read(target.handle, memory).result(PATIENCE_S) == NBYTES
    assert (whole == NEW).all()
