"""The life of contexts, endpoints and regions: children first, once, and not in a forked child."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from fabric.regions import NativeRegion, Parent, region
from support.interrupting import at_each_line
from zerohop.fabric.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Callable


class Part(Resource):
    """Says when its native part is let go of."""

    __slots__ = ("name", "said")

    _kind = "Part"
    _copy_refusal = "a Part stays"

    def __init__(self, parent: Resource | None, name: str, said: list[str]) -> None:
        self.name = name
        self.said = said
        super().__init__(parent)

    def _release(self) -> None:
        self.said.append(f"{self.name} closed")

    def _forget_native(self) -> None:
        self.said.append(f"{self.name} abandoned")


def family(said: list[str]) -> tuple[Part, Part, Part]:
    root = Part(None, "root", said)
    child = Part(root, "child", said)
    return root, child, Part(child, "grandchild", said)


def test_children_first_and_once() -> None:
    said: list[str] = []
    root, child, grandchild = family(said)
    root.close()
    root.close()
    child.close()
    assert said == ["grandchild closed", "child closed", "root closed"]
    assert root.closed
    assert grandchild.closed
    with pytest.raises(zh.Closed, match="this Part is closed"):
        grandchild._check_open()


def test_a_close_that_a_signals_handler_cuts_short() -> None:
    """The next one does what is left."""
    said: list[str] = []
    made = [family(said)]

    def check() -> None:
        root, _, grandchild = made.pop()
        root.close()
        assert grandchild.closed
        assert list(dict.fromkeys(said)) == ["grandchild closed", "child closed", "root closed"]
        said.clear()
        made.append(family(said))

    at_each_line(lambda: made[0][0].close(), check)


def test_a_child_alone() -> None:
    said: list[str] = []
    root, child, _grandchild = family(said)
    child.close()
    assert not root.closed
    root.close()
    assert said == ["grandchild closed", "child closed", "root closed"]


@pytest.mark.parametrize("leave", [lambda part: part.__exit__(None, None, None), lambda part: part.__del__()])
def test_context_manager_and_destructor(leave: Callable[[Part], None]) -> None:
    said: list[str] = []
    with Part(None, "root", said) as root:
        child = Part(root, "child", said)
        leave(child)
        assert said == ["child closed"]
    assert said == ["child closed", "root closed"]


def test_a_forked_child_touches_nothing() -> None:
    said: list[str] = []
    root, child, grandchild = family(said)
    root._abandon()
    assert sorted(said) == ["child abandoned", "grandchild abandoned", "root abandoned"]
    root.close()
    child.close()
    assert len(said) == 3
    with pytest.raises(zh.Closed, match=r"before fork\(\)"):
        grandchild._check_open()


def test_regions_keep_their_memory_until_they_are_closed() -> None:
    class Buffer:
        pass

    said: list[str] = []
    buffer = Buffer()
    alive = weakref.ref(buffer, lambda _: said.append("memory gone"))
    registered = region(native=NativeRegion(said), keep=buffer)
    del buffer
    assert alive() is not None
    registered.close()
    assert said == ["region closed", "memory gone"]


def test_a_region_that_is_dropped_closes_itself_unless_a_slice_or_request_has_it() -> None:
    said: list[str] = []
    parent = Parent(None)
    registered = region(parent=parent, native=NativeRegion(said))
    part = registered[8:16]
    request = zh.fabric.Receive(registered)
    del registered
    gc.collect()
    assert said == []
    del part
    gc.collect()
    assert said == []
    del request
    gc.collect()
    assert said == ["region closed"]
