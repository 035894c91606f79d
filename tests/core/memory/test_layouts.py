"""What order the elements of an array have in memory, and which of two arrays may stand for each other."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest

from zerohop.core.memory.layouts import BYTES, ROWS, is_masked, layout_of, require_rows, same_places


def layout(x: np.ndarray[Any, Any]) -> bytes | None:
    return layout_of(x.shape, x.strides, x.itemsize, x.itemsize)


@pytest.mark.parametrize("shape", [(3, 4), (1, 3, 1, 4), (2, 3, 4, 5)])
def test_rows(shape: tuple[int, ...]) -> None:
    assert layout(np.zeros(shape)) == ROWS


@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (5, 1, 1), (3, 0, 4), (0,)])
def test_one_axis_has_only_one_order(shape: tuple[int, ...]) -> None:
    assert layout(np.zeros(shape)) == BYTES
    assert layout(np.zeros(shape, order="F")) == BYTES


@pytest.mark.parametrize("index", [np.s_[::2], np.s_[:, :2], np.s_[::-1], np.s_[:, ::-1]])
def test_gaps_and_negative_strides(index: Any) -> None:
    assert layout(np.zeros((4, 4))[index]) is None


def test_elements_upon_each_other() -> None:
    assert layout(np.broadcast_to(np.zeros(4), (3, 4))) is None


def test_every_order_of_the_axes_is_another() -> None:
    x = np.zeros((2, 3, 4, 5))
    found = [layout(x.transpose(order)) for order in itertools.permutations(range(4))]
    assert len(set(found)) == len(found) == 24
    assert None not in found


def test_axes_of_one_element_do_not_count() -> None:
    assert layout(np.zeros((1, 3, 1, 4))) == ROWS
    assert layout(np.zeros((3, 1, 4)).transpose(1, 0, 2)) == ROWS
    assert layout(np.zeros((3, 1, 4)).transpose(2, 1, 0)) == b"8:0x4,2x3"


def cache(pages: int, heads: int = 2, kind: type = np.float16, *, tokens: int = 16) -> bytes:
    found = layout(np.zeros((pages, tokens, heads, 8), kind).transpose(0, 2, 1, 3))
    assert found is not None
    return found


@pytest.mark.parametrize("pages", [1, 2, 99])
def test_caches_of_different_lengths_have_the_same_pages(pages: int) -> None:
    assert same_places(cache(10), cache(pages))
    assert same_places(cache(pages), cache(10))
    for other in (cache(pages, 4), cache(pages, 2, np.float32), cache(pages, tokens=32)):
        assert not same_places(cache(10), other)
        assert not same_places(other, cache(10))


def test_a_page_is_no_cache_of_other_pages() -> None:
    """One axis less on one side is the outermost one, and no other."""
    whole = layout(np.zeros((5, 16, 2, 8)).transpose(0, 2, 1, 3))
    inner = layout(np.zeros((5, 1, 2, 8)).transpose(0, 3, 1, 2))
    assert whole is not None
    assert inner is not None
    assert not same_places(whole, inner)


@pytest.mark.parametrize(
    ("shape", "others"),
    [
        ((3, 4), [(3, 1, 4), (1, 3, 4), (3, 4, 1), (1, 1, 3, 1, 4), (3, 9), (3, 9, 1)]),
        ((3, 1, 4, 5), [(3, 4, 5), (3, 4, 1, 5), (3, 4, 1, 9), (3, 4), (1, 3, 4)]),
    ],
)
def test_axes_of_one_element_do_not_count_in_the_order_of_the_others(
    shape: tuple[int, ...], others: list[tuple[int, ...]]
) -> None:
    here = layout(np.zeros(shape, order="F"))
    assert here is not None
    for other in others:
        there = layout(np.zeros(other, order="F"))
        assert there is not None
        assert same_places(here, there), other
        assert same_places(there, here), other
    for other in ((4, 1, 3), (4, 3), (4, 3, 5)):
        there = layout(np.zeros(other, order="F"))
        assert there is not None
        assert not same_places(here, there), other
        assert not same_places(there, here), other


def test_an_order_of_more_than_ten_axes() -> None:
    """Axes are in the order of their numbers, not of their names: 9 before 10."""
    shape = (1,) * 9 + (2, 3, 4)
    here, there = layout(np.zeros(shape, order="F")), layout(np.zeros(shape[8:], order="F"))
    assert here is not None
    assert there is not None
    assert same_places(here, there)


def test_what_goes_with_what() -> None:
    permuted = cache(3)
    for here, there, well in (
        (BYTES, permuted, True),
        (permuted, BYTES, True),
        (ROWS, ROWS, True),
        (BYTES, ROWS, True),
        (ROWS, permuted, False),
        (permuted, ROWS, False),
        (permuted, b"nonsense", False),
        (b"2:", b"2:", True),
        (permuted, b"2:,,,", False),
    ):
        assert same_places(here, there) is well


def test_what_may_be_moved() -> None:
    permuted = layout(np.zeros((3, 4)).T)
    assert permuted is not None
    assert require_rows(ROWS, "array", "x.copy()", as_bytes=False) == ROWS
    assert require_rows(permuted, "array", "x.copy()", as_bytes=True) == permuted
    with pytest.raises(ValueError, match=r"x\.copy\(\).*write_strided.*as_bytes=True"):
        require_rows(permuted, "array", "x.copy()", as_bytes=False)
    for as_bytes in (False, True):
        with pytest.raises(ValueError, match=r"not one range: .* Fix: pass x\.copy\(\)"):
            require_rows(None, "array", "x.copy()", as_bytes=as_bytes)


def test_an_array_of_very_many_axes() -> None:
    x = np.zeros((2,) * 24).transpose(*reversed(range(24)))
    assert layout(x) is not None
    with pytest.raises(ValueError, match="many axes"):
        require_rows(b"1x2," * 100, "array", "x.copy()", as_bytes=True)


def test_a_masked_array_is_told_without_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be out of descriptors when the first list comes, and then no module can be loaded."""
    masked = np.ma.array([0, 1])
    assert is_masked(masked)
    assert not is_masked(np.arange(2))
    monkeypatch.delitem(sys.modules, "numpy.ma")
    assert not is_masked([0, 1])
    assert "numpy.ma" not in sys.modules
