"""Gives each test of torchcomms' names the Context as a process finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.torchcomms_peer import own_shared_context

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def own_context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A shared Context of the test's own, which it does not leave behind."""
    monkeypatch.setenv("ZEROHOP_SIM_DEVICES", "2")
    with own_shared_context():
        yield
