"""Bytes as an argument: what has none is refused in words that name the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zerohop.core.base.plain_bytes import plain_bytes


@pytest.mark.parametrize("value", [b"abc", bytearray(b"abc"), memoryview(b"abc"), np.frombuffer(b"abc", np.uint8)])
def test_whatever_has_bytes(value: Any) -> None:
    assert plain_bytes("message", value) == b"abc"


def test_text() -> None:
    with pytest.raises(TypeError, match=r"^message= takes bytes, .*, not str\. Fix: message=text\.encode\(\)$"):
        plain_bytes("message", "abc")


@pytest.mark.parametrize("value", [5, None, ["abc"]])
def test_what_has_none(value: Any) -> None:
    with pytest.raises(TypeError, match=f"^message= takes bytes, .*, not {type(value).__name__}$"):
        plain_bytes("message", value)
