"""The tests that fsspec has for every file system: copy, get, put, open and pipe, at the root and in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.stores import opened

pytest.importorskip("fsspec.asyn").get_loop()  # its thread stays for good, and is no leak of a test
pytest.importorskip("fsspec.tests.abstract")

from fsspec.tests import abstract  # noqa: E402  # only where it is there

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]  # fsspec has no types
    """What these tests ask for: a file system, and a place in it."""

    @pytest.fixture(params=[("auto", ""), ("served", "folder/below")], ids=["at the root", "served, below"])
    def where(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.fixture
    def fs(self, where: tuple[str, str], tmp_path: Path) -> Iterator[Any]:
        from zerohop.integrations.fsspec import StoreFileSystem

        (tmp_path / "store").mkdir()
        with opened(tmp_path / "store", where[0]) as store:
            yield StoreFileSystem(store=store, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, where: tuple[str, str]) -> str:
        return where[1]


class TestCopy(abstract.AbstractCopyTests, Fixtures):  # type: ignore[misc]  # fsspec has no types
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):  # type: ignore[misc]  # fsspec has no types
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):  # type: ignore[misc]  # fsspec has no types
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):  # type: ignore[misc]  # fsspec has no types
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):  # type: ignore[misc]  # fsspec has no types
    pass
