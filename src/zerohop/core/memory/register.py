"""Makes Memories: of objects that own memory, and of new allocations."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from zerohop._native import NativeError, buffer_start
from zerohop.core.memory import sources, torch_tensors
from zerohop.core.memory.elements import elements_of, is_shape
from zerohop.core.memory.layouts import BYTES, ROWS
from zerohop.core.memory.memory import Memory, View
from zerohop.core.memory.rights import RIGHTS, length_of, rights_bits
from zerohop.core.runtime.devices import HOST
from zerohop.errors import from_native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerohop.core.memory.memory_core import MemoryCore
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.rights import Rights
    from zerohop.core.memory.torch_tensors import OnGpu

# Type of an argument that names memory here. An object that is no Memory or View is registered through the cache.
Local: TypeAlias = Memory | View | Any

_READ_ONLY: Final = RIGHTS["r"]
_READ_WRITE: Final = RIGHTS["rw"]
# Seconds for which a registration that another thread is closing is left alone before it is asked for again.
_LEAVING_S: Final = 0.001


def register(
    core: MemoryCore, x: Any, rights: Rights | None, *, as_bytes: bool = False, lasting: bool = False
) -> Memory:
    """Do Context.register for one object, which is ``lasting``; or register the argument of one transfer."""
    if core.closed or core.forked:
        raise core.closed_error()
    if rights is None:
        found = known(core, x)
        if found is not None:
            return found
    if isinstance(x, (Memory, View)):
        raise TypeError("it is registered already")
    source = sources.read(x, as_bytes=as_bytes)
    possible = _READ_ONLY if source.readonly else _READ_WRITE
    bits = possible if rights is None else rights_bits(rights)
    if bits & ~possible:
        raise ValueError(f'{type(x).__name__} is read-only: rights can be "r" only')
    while True:
        try:
            registration, owned = core.registration_cache.register(source)
        except NativeError as error:  # another thread has closed the Context meanwhile
            raise from_native(*error.args, operation="register") from None
        offset = source.address - registration.address
        memory = Memory(
            core,
            registration,
            offset,
            source.nbytes,
            bits,
            source.keep,
            source.layout,
            source.block,
            owned=owned,
            readonly=source.readonly,
        )
        if not (registration.closed or registration.leaving):
            if registration.made_for is None:
                registration.made_for = weakref.ref(memory)
            if lasting and source.block is not None and source.device == HOST and torch_tensors.is_storage(source.keep):
                torch_tensors.hold_size(source.keep)
            return memory
        # Another thread is closing a registration that had no Memory, and needs the interpreter for it.
        time.sleep(_LEAVING_S)


def known(core: MemoryCore, x: Any) -> Memory | None:
    """Return a Memory of a whole array, or of a tensor on a GPU, whose memory is registered already; None for all else.

    It takes half of the time that sources.read takes for an array, and a tenth for a tensor.
    """
    if type(x) is np.ndarray:
        registration = core.registration_cache.of_owner(x)
        if registration is None or not _is_whole(registration, x):
            return None
        layout = ROWS if x.ndim > 1 else BYTES
        bits = _READ_ONLY if registration.readonly else _READ_WRITE
        memory = Memory(core, registration, 0, registration.nbytes, bits, x, layout)
    elif type(x) in torch_tensors.tensors_on_gpus:
        where = torch_tensors.on_gpu(x)
        if where is None:
            return None
        registration = core.registration_cache.known_on_device(where[0], where[1])
        if registration is None:
            return None
        memory = _of_tensor(core, registration, where)
    else:
        return None
    # A thread that was about to close it has seen the Memory, or is seen here.
    return None if registration.closed or registration.leaving else memory


def _is_whole(registration: Registration, array: np.ndarray[Any, Any]) -> bool:
    """Tell whether a registration is of exactly the bytes that an array shows in their order."""
    try:
        start = buffer_start(array)
    except (ValueError, BufferError):  # it has gaps, or the type of its elements has no buffer format
        return False
    same = (registration.address, registration.readonly, registration.nbytes) == (*start, array.nbytes)
    return same and array.base is None and array.flags.c_contiguous


def register_all(core: MemoryCore, many: list[Any], rights: Rights | None, *, as_bytes: bool) -> list[Memory]:
    """Do Context.register for a list."""
    made: list[Memory] = []
    # An allocation that was found in this call is not looked up again.
    start = stop = 0
    registration = None
    try:
        for x in many:
            seen = rights is None and type(x) in torch_tensors.tensors_on_gpus
            where = torch_tensors.on_gpu(x) if seen else None
            if where is not None and start <= where[0] and where[0] + where[1] <= stop:
                assert registration is not None  # set together with start and stop
                made.append(_of_tensor(core, registration, where))
                continue
            memory = register(core, x, rights, as_bytes=as_bytes, lasting=True)
            made.append(memory)
            if where is not None:
                registration = memory._registration
                start, stop = registration.address, registration.address + registration.nbytes
    except BaseException:
        for memory in made:
            memory.close()
        raise
    return made


def _of_tensor(core: MemoryCore, registration: Registration, where: OnGpu) -> Memory:
    """Return a Memory of a tensor on a GPU whose allocation is registered."""
    address, nbytes, layout, storage, block = where
    return Memory(core, registration, address - registration.address, nbytes, _READ_WRITE, storage, layout, block)


def allocate(core: MemoryCore, shape: int | Sequence[int], device: str, dtype: Any) -> Memory:
    """Do Context.alloc."""
    if core.closed or core.forked:
        raise core.closed_error()
    elements = None
    if dtype is None and not is_shape(shape):
        nbytes = length_of(shape)
    else:
        elements = elements_of(shape, dtype)
        nbytes = elements.nbytes
    registration = core.registration_cache.allocate(nbytes, device)
    layout = BYTES if elements is None or len(elements.shape) < 2 else ROWS
    memory = Memory(core, registration, 0, nbytes, _READ_WRITE, None, layout, owned=True)
    memory._elements = elements
    registration.made_for = weakref.ref(memory)
    return memory


def view_of(core: MemoryCore, x: Local) -> Memory | View:
    """Return the Memory or View that a transfer's local argument stands for.

    Raises:
        ValueError: it was registered with another Context.
        Closed: the Context or the Memory is closed.
    """
    if not isinstance(x, (Memory, View)):
        return register(core, x, None)
    if x._core is not core:
        raise ValueError("the memory was registered with another Context")
    core.check_open()
    x._check_open()
    return x
