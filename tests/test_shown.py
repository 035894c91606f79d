"""What an error shows of an argument."""

from __future__ import annotations

import pytest

from zerohop.shown import shown

_LONGEST = 300


class _Raises:
    def __repr__(self) -> str:
        raise KeyError("repr")


@pytest.mark.parametrize("value", [None, True, 5, -1.5, "a\nb", b"\xff", [1, "x"], (1, 2, 3), {"a": 1}])
def test_what_is_short_is_shown_whole(value: object) -> None:
    assert shown(value) == repr(value)


@pytest.mark.parametrize("value", ["é" * 5000, b"\xff" * 5000, list(range(5000)), {1: "x" * 5000}])
def test_what_is_long_is_cut_short(value: object) -> None:
    assert "..." in shown(value)
    assert len(shown(value)) < _LONGEST


def test_a_number_that_python_does_not_write() -> None:
    assert shown(-(1 << 64)) == str(-(1 << 64))
    assert shown(1 << 50_000) == "an int of 50001 bits"


def test_what_cannot_be_shown_is_named() -> None:
    assert "_Raises" in shown(_Raises())
