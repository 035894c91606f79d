"""The stores of a Group: a folder, and what was exchanged before."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from zerohop.group import FolderStore, Store
from zerohop.group.stores import Exchanged, folder_store

if TYPE_CHECKING:
    from pathlib import Path

MOMENT = timedelta(milliseconds=5)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "made" / "when needed")


class TestFolder:
    def test_a_value_of_one_is_there_for_another(self, store: FolderStore) -> None:
        other = FolderStore(store.folder)
        key, value = "zerohop/a name with / and ö/0", bytes(range(256))
        assert not other.check([key])
        store.set(key, value)
        assert other.check([key])
        other.wait([key], MOMENT)
        assert other.get(key) == value

    def test_keys_are_told_apart(self, store: FolderStore) -> None:
        for key in ("a/b", "a%2Fb", "a", ".a", ".."):
            store.set(key, key.encode())
        assert {store.get(key) for key in ("a/b", "a%2Fb", "a", ".a", "..")} == {b"a/b", b"a%2Fb", b"a", b".a", b".."}

    def test_a_key_is_set_once(self, store: FolderStore) -> None:
        store.set("key", b"first")
        with pytest.raises(FileExistsError):
            store.set("key", b"second")
        assert store.get("key") == b"first"

    def test_nothing_else_stays(self, store: FolderStore) -> None:
        store.set("key", b"")
        with pytest.raises(FileExistsError):
            store.set("key", b"")
        assert [path.name for path in store.folder.iterdir()] == ["key.value"]

    def test_waiting_ends(self, store: FolderStore) -> None:
        store.set("here", b"")
        with pytest.raises(TimeoutError, match="missing"):
            store.wait(["here", "missing"], MOMENT)
        with pytest.raises(FileNotFoundError):
            store.get("missing")

    def test_one_object_for_each_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert folder_store("x") is folder_store(tmp_path / "x") is folder_store(str(tmp_path / "y" / ".." / "x"))
        assert folder_store("x") is not folder_store("y")


def test_what_was_exchanged() -> None:
    store = Exchanged({"a": b"1"})
    store.set("b", b"2")
    store.wait(["a", "b"], MOMENT)
    assert (store.get("a"), store.get("b")) == (b"1", b"2")
    with pytest.raises(TimeoutError, match="c"):
        store.wait(["c"], MOMENT)


def test_what_is_a_store(store: FolderStore) -> None:
    assert isinstance(store, Store)
    assert isinstance(Exchanged({}), Store)
    assert not isinstance({}, Store)
