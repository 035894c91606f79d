"""What is told where the kernels that copy page lists cannot be had."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.buffers import OTHER_GPU
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core import kernels

if TYPE_CHECKING:
    import zerohop as zh
    from support.fixtures import OpenContext

pytestmark = pytest.mark.cuda
COUNT = 64
PAGE = 1000
LIMIT_S = PATIENCE_S


def _moved(owner: zh.Context, context: zh.Context) -> str:
    """Details of the path, after a page list has been moved over it and found right."""
    target, source = owner.alloc(COUNT * PAGE, OTHER_GPU), context.alloc(COUNT * PAGE, "cuda:0")
    rng = np.random.default_rng()
    here, there, data = rng.permutation(COUNT), rng.permutation(COUNT), rng.bytes(COUNT * PAGE)
    source.write_bytes(0, data)
    handle = target.share("rw")
    context.write_pages(source, handle, here, there, page_bytes=PAGE).result(LIMIT_S)
    moved = np.frombuffer(target.read_bytes(), np.uint8).reshape(COUNT, PAGE)
    assert np.array_equal(moved[there], np.frombuffer(data, np.uint8).reshape(COUNT, PAGE)[here])
    return context.explain(source, handle).details()


def test_without_kernels(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pages are copied one by one, and both the log and `explain` say so, with what is missing."""
    monkeypatch.setattr(kernels, "image", lambda *_, **__: (None, "there is no compiler"))
    options = Options(sim_devices=0, providers=("p2p",))
    with caplog.at_level(logging.WARNING, logger="zerohop"):
        details = _moved(open_context(options), open_context(options))
    assert "each page of a list is copied by itself: there is no compiler" in details
    assert "page lists on cuda:0 are copied page by page: there is no compiler" in caplog.text
