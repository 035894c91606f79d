"""Gives the rest of the core the parts of a Memory or View that users do not need."""

from __future__ import annotations

from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final

from zerohop.core.memory import shared_pages
from zerohop.core.runtime.devices import HOST
from zerohop.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import Engine, Region
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.memory.rights import Rights

# These make no Python frame of their own.
routes_of: Final[Callable[[Memory | View], dict[bytes, Any]]] = attrgetter("_routes")
registration_of: Final[Callable[[Memory | View], Registration]] = attrgetter("_registration")
offset_of: Final[Callable[[Memory | View], int]] = attrgetter("_offset")
# How the elements of the array lie that a Memory was made of (layouts.py).
layout_of: Final[Callable[[Memory | View], bytes]] = attrgetter("_layout")
region_of: Final[Callable[[Memory | View], Region]] = attrgetter("_registration.region")


# Raises Closed if a Memory, or the Memory of a View, is closed, or its Context is.
check_open: Final[Callable[[Memory | View], None]] = methodcaller("_check_open")


def is_open(view: Memory | View) -> bool:
    """Tell whether a Memory, or the Memory of a View, is open, and its Context."""
    try:
        check_open(view)
    except Closed:
        return False
    return True


def memory_of(view: Memory | View) -> Memory:
    """Return the Memory that a View is part of; for a Memory, the Memory itself."""
    return view._home()


def may_be_replaced(view: Memory | View) -> bool:
    """Tell whether other pages may come in the place of the memory's, without this process's doing."""
    registration = registration_of(view)
    on_host = view.device == HOST
    return on_host and not registration.ours and shared_pages.may_be_replaced(view.address, view.nbytes)


def lend(view: Memory | View) -> tuple[object, int, Engine]:
    """Return an object that keeps the pages of a Memory for another library, its rights as bits, and the engine.

    Raises:
        Closed: the Memory or its Context is closed.
    """
    memory = view._home()
    memory._check_open()
    core = memory._core
    # The object is like an array that shows the pages: the Memory closes as usual, but its pages stay for the object.
    return (view, memory._export()), memory._rights, core.engine


def share_loosely(view: Memory | View, rights: Rights) -> RemoteBuffer:
    """Return a handle that ends with the Memory, and does not keep it alive: transfers have to do that."""
    return view._share_loosely(rights)


def revoke_at_once(memory: Memory, handle: RemoteBuffer) -> None:
    """Revoke a handle without waiting for a peer that has mapped the memory, which stays until it has let go."""
    memory._revoke_at_once(handle)


def close_in_destructor(memory: Memory) -> None:
    """Close a Memory without waiting for anything, for the destructor of the object that has it."""
    memory._close(0)
