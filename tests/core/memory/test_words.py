"""Checks the search for the words in which torch keeps a storage's address and length."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING

from zerohop.core.memory import torch_tensors

if TYPE_CHECKING:
    import pytest


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another library's tensor may look like one of torch: its address is watched, and its length is not."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    words = (ctypes.c_uint64 * 64)()
    words[3] = 0xABCDE
    found = torch_tensors._find_words(0xABCDE, ctypes.addressof(words))
    assert (found.start, found.length) == (24, 0)
