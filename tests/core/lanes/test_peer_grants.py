"""Shares that are taken from a table: its owner may write lies there, and what is cut short is given back."""

from __future__ import annotations

import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest

from zerohop._native import Grants
from zerohop.config.providers import SHM
from zerohop.core.control import wire
from zerohop.core.control.auth import grant_key
from zerohop.core.lanes import peer_grants
from zerohop.core.lanes.imported import Allocation, Import
from zerohop.core.lanes.peer_grants import PeerGrants

EXTENT, START, NBYTES = 5, 0x10000, 4096
SHARE: Any = SimpleNamespace(share_id=3 << 32 | 1, capability=bytes(range(16)))
KEY = (SHM, SHARE.share_id)


class Part(tuple[int, int, bool]):
    __slots__ = ()

    def close(self) -> bool:
        return True


class Mapping:
    nbytes = NBYTES

    def part(self, offset: int, nbytes: int, writable: bool) -> Part:
        assert 0 <= offset <= offset + nbytes <= NBYTES
        return Part((offset, nbytes, writable))


class Link:
    """A link whose peer has given one allocation and a table."""

    def __init__(self) -> None:
        self.table = Grants()
        whole: Any = Mapping()
        message = wire.Allocation(1, SHM, NBYTES, writable=True, extent=EXTENT, address=START)
        self.allocation = Allocation(message, whole)
        other: Any = object()
        self.allocation.imports.add(other)
        self.imports: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self.allocations = {1: self.allocation}
        self.imports_lock = threading.RLock()
        self.lost = self.closing = None
        self.grants = PeerGrants(Grants(self.table.fd), 10)

    def grant(self, *, extent: int = EXTENT, address: int = START, nbytes: int = 64, rights: int = 3) -> None:
        assert self.table.grant(SHARE.share_id, grant_key(SHARE.capability), extent, address, nbytes, rights)

    def take(self) -> Any:
        link: Any = self
        return self.grants.take(link, SHM, SHARE)

    def give_back(self) -> Any:
        link: Any = self
        return self.grants.give_back(link, KEY)

    def has(self) -> bool:
        """Revoke the share; tell whether the owner counts the link as one that has it."""
        return self.table.revoke(SHARE.share_id, grant_key(SHARE.capability))[0]


def test_what_is_right() -> None:
    link = Link()
    link.grant(address=START + 128)
    imported = link.take()
    assert imported.access == (128, 64, True)
    assert link.imports == {KEY: imported}
    assert link.take() is imported
    assert link.has()


@pytest.mark.parametrize(
    "lie",
    [
        {"rights": 0},
        {"rights": 1 << 40 | 3},
        {"rights": 258},
        {"rights": 1},  # the allocation is that of writers
        {"extent": EXTENT + 1},
        {"address": START - 1},
        {"address": START + NBYTES - 63},
        {"address": 2**64 - 1},
        {"nbytes": NBYTES + 1},
        {"nbytes": 2**64 - 1},
    ],
    ids=str,
)
def test_a_table_that_lies(lie: dict[str, int]) -> None:
    """The owner is asked, whose answer is checked; and nothing is taken meanwhile."""
    link = Link()
    link.grant(**lie)
    assert link.take() is None
    assert not link.imports
    assert link.allocation.users == 1
    assert not link.has()


def test_an_allocation_that_is_being_given_back() -> None:
    link = Link()
    link.grant()
    link.allocation.imports.clear()
    assert link.take() is None
    assert not link.has()


@pytest.mark.parametrize("state", ["lost", "closing"])
def test_a_link_that_ends(state: str) -> None:
    link = Link()
    link.grant()
    setattr(link, state, RuntimeError())
    assert link.take() is None
    assert not link.has()


def test_an_earlier_import_that_ends_later() -> None:
    """It gives nothing back that is in use by a later one."""
    link = Link()
    link.grant()
    imported = link.take()
    link.give_back()
    assert link.imports == {KEY: imported}
    assert link.has()
    assert link.imports.pop(KEY).close()
    link.give_back()
    assert not link.has()


@pytest.mark.parametrize("where", ["grant_key", "Import"])
def test_a_handler_that_wants_the_same_share(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """It runs in the middle of another call, and asks the owner; what is in use is counted."""
    link = Link()
    link.grant()
    real, inner = getattr(peer_grants, where), []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        inner.append(link.take())
        return real(*arguments, **named)

    monkeypatch.setattr(peer_grants, where, interrupted)
    imported = link.take()
    assert inner == [None]
    assert link.imports == {KEY: imported}
    assert link.has()


@pytest.mark.parametrize("where", ["before the import", "after the import"])
def test_what_a_signal_cuts_short(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The share is asked for from then on, and given back when its owner asks for it, with what was made of it."""
    link = Link()
    link.grant()

    def interrupted(*arguments: Any, **named: Any) -> None:
        if where == "after the import":
            Import(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(peer_grants, "Import", interrupted)
    with pytest.raises(KeyboardInterrupt):
        link.take()
    monkeypatch.undo()
    assert link.take() is None
    assert link.has()
    any_link: Any = link
    assert link.grants.cut_short(any_link) == [KEY]
    imported = link.give_back()
    assert (imported is None) == (where == "before the import")
    if imported is not None:
        assert link.has()
        assert imported.close()
        assert link.give_back() is None
    assert link.allocation.users == 1
    assert not link.has()
    assert link.grants.cut_short(any_link) == []
