"""File, Ring, Iov, Store, Context and server are closed in every order while transfers of them are under way."""

from __future__ import annotations

import gc
import itertools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.pattern import pattern
from support.sizes import MIB
from support.stores import LOCAL
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from support.pattern import Bytes

NBYTES = 2 * MIB
# How a Store of a server, and one without, is taken down.
PARTS = ("file", "ring", "iov", "store", "context")
SERVED_PARTS = (*PARTS, "server")
# A prime step through all orders meets each of them in other places.
FEW = 53

_SLOW = (pytest.mark.slow, pytest.mark.timeout(patience(300)))
# Whether all are closed, or some are dropped, which ends them without a warning; and of which orders this is seen.
WHICH = pytest.mark.parametrize(
    ("how", "step"),
    [
        ("closed", FEW),
        ("dropped", FEW),
        pytest.param("closed", 1, marks=_SLOW),
        pytest.param("dropped", 7, marks=_SLOW),
    ],
)
DROPPED = ("file", "ring", "iov")
# What a transfer may end with that was under way: of a folder, and of a server, which may be refused closed memory.
ENDS = (zh.Closed,)
SERVED_ENDS = (zh.Closed, zh.PeerLost, zh.AccessDenied)


class Setting:
    """All of them, open, with reads and writes under way as operations and through a Ring."""

    def __init__(self, folder: Path, *, providers: tuple[str, ...] | None, served: bool, engine: Any = "auto") -> None:
        options = Options(providers=providers, sim_devices=0)
        self.ends = SERVED_ENDS if served else ENDS
        self.there = options.open() if served else None
        server = storage.Server(folder, ctx=self.there, memory=8 * MIB) if served else None
        context = options.open()
        if server is not None:
            store = storage.open_store(server.url, ctx=context)
        else:
            store = storage.open_store(folder, ctx=context, engine=engine)
        file, iov, ring = store.open("data", "r+").result(PATIENCE_S), store.iov(NBYTES), store.ring(64)
        self.parts: dict[str, Any] = {"file": file, "ring": ring, "iov": iov, "store": store, "context": context}
        if server is not None:
            self.parts["server"] = server
        self.source = pattern(2, NBYTES)
        self.target: Bytes = np.zeros(NBYTES, np.uint8)
        # The first transfer has ended by then, so that the server knows the memory and has begun with others.
        file.read_into(iov).result(PATIENCE_S)
        places = np.arange(64) * (NBYTES // 64)
        ring.prepare_many(iov, file, places, np.full(64, NBYTES // 64), places)
        self.operations: list[zh.Operation[Any]] = []
        for _ in range(3):
            self.operations += [
                file.read_into(iov),
                file.read_into(self.target),
                file.write_from(self.source),
                file.fsync(),
                store.open("data"),
            ]
        ring.submit()

    def take_down(self, order: Iterable[str], *, dropped: bool) -> None:
        """Close, or drop, one after the other. What is left of the transfers has ended when the last has gone."""
        for name in order:
            part = self.parts.pop(name)
            if not dropped or name not in DROPPED:
                part.close()
            del part
        for operation in self.operations:
            error = operation.exception(PATIENCE_S)
            assert error is None or isinstance(error, self.ends), error
        self.operations.clear()
        if self.there is not None:
            self.there.close()


def take_down_in(
    orders: list[tuple[str, ...]], folder: Path, make: Callable[[Path], Setting], *, dropped: bool
) -> None:
    """Take a setting down in each order; nothing of it is left then, and no warning was given."""
    (folder / "data").write_bytes(pattern(1, NBYTES).tobytes())
    make(folder).take_down(orders[0], dropped=dropped)
    gc.collect()
    before = holdings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for order in orders:
            make(folder).take_down(order, dropped=dropped)
            gc.collect(0)
        gc.collect()
    expect_given_back(before, holdings, "this process")
    found = np.fromfile(folder / "data", np.uint8)
    assert ((found == pattern(1, NBYTES)) | (found == pattern(2, NBYTES))).all()


@pytest.mark.parametrize("providers", [None, ("tcp",)], ids=["mapped", "tcp"])
@WHICH
def test_of_a_server(no_leaks: None, tmp_path: Path, providers: tuple[str, ...] | None, how: str, step: int) -> None:
    """Each transfer ends as usual, with Closed or with PeerLost; each call of close() returns."""
    orders = list(itertools.permutations(SERVED_PARTS))[::step]
    take_down_in(
        orders, tmp_path, lambda folder: Setting(folder, providers=providers, served=True), dropped=how == "dropped"
    )


@pytest.mark.parametrize("engine", LOCAL)
@WHICH
def test_of_a_folder(no_leaks: None, tmp_path: Path, engine: str, how: str, step: int) -> None:
    """The same without a server."""
    orders = list(itertools.permutations(PARTS))[:: -(-step // 6)]  # there are six times fewer
    take_down_in(
        orders,
        tmp_path,
        lambda folder: Setting(folder, providers=None, served=False, engine=engine),
        dropped=how == "dropped",
    )


@pytest.mark.parametrize("served", [False, True], ids=["folder", "server"])
def test_a_ring_outlives_its_file_and_memory(no_leaks: None, tmp_path: Path, served: bool) -> None:
    """It gives each result once: whole, unless a server was refused the memory. Only its Store's end is its own."""
    (tmp_path / "data").write_bytes(pattern(1, NBYTES).tobytes())
    for first, second in (("file", "iov"), ("iov", "file")):
        setting = Setting(tmp_path, providers=None, served=served)
        ring = setting.parts.pop("ring")
        setting.parts.pop(first).close()
        setting.parts.pop(second).close()
        found = ring.wait(min_results=64, timeout=PATIENCE_S)
        assert sorted(each.userdata for each in found) == [*range(64)]
        for each in found:
            assert each.result == NBYTES // 64 if each.error is None else served and isinstance(each.error, SERVED_ENDS)
        setting.parts.pop("store").close()
        with pytest.raises(zh.Closed, match="the Store is closed"):
            ring.wait(timeout=PATIENCE_S)
        ring.close()
        setting.take_down(list(setting.parts), dropped=False)
        del ring, setting
