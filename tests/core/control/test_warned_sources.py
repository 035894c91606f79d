"""Warnings about strangers are counted by source, of which an IPv6 host is one with all its addresses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zerohop.core.control.handshake import SECRET, Refused
from zerohop.core.control.listener import _Gate
from zerohop.core.control.throttle import Throttle


@pytest.mark.parametrize(
    ("addresses", "sources"),
    [
        (("fd00:1::1", "fd00:1::2", "fd00:1::ffff:1"), 1),
        (("fd00:1::1", "fd00:1:0:1::1"), 2),
        (("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1"), 2),
    ],
)
def test_a_host_is_one_source(addresses: tuple[str, ...], sources: int) -> None:
    keys: set[str] = set()
    control = SimpleNamespace(warn_once=lambda key, *_: keys.add(key))
    listeners: Any = SimpleNamespace(_control=control, _throttle=Throttle())
    guest: Any = SimpleNamespace()
    for address in addresses:
        _Gate(listeners, address, guest, unix=False).refused(Refused(SECRET, "wrong secret", guess=True))
    assert len(keys) == sources
