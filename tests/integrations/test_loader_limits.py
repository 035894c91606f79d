"""What load and save hold to: memory for a hostile header, deadlines, links, and errors that name the tensor."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import struct
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.stores import opened
from zerohop import DeadlineExceeded, LimitReached, StorageError, storage
from zerohop.integrations.safetensors import SafetensorsError, frameworks, layout, load, read_layout, save
from zerohop.storage import file_calls, names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LENGTH = 300_000
ENTRY = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'


def repeated(text: bytes, *, numbered: bool = False) -> bytes:
    count = LENGTH // (len(text) + 1)
    return b",".join(text % number if numbered else text for number in range(count))


HOSTILE = {
    "empty lists": b'{"x":[' + repeated(b"[]") + b"]}",
    "empty objects": b'{"x":[' + repeated(b"{}") + b"]}",
    "numbers": b'{"x":[' + repeated(b"300") + b"]}",
    "fractions": b'{"x":[' + repeated(b"1.5") + b"]}",
    "objects": b'{"x":[' + repeated(b'{"a":1}') + b"]}",
    "texts": b'{"x":[' + repeated(b'"ab"') + b"]}",
    "names": b"{" + repeated(b'"%05x":0', numbered=True) + b"}",
    "tensors": b"{" + repeated(b'"%05x":' + ENTRY, numbered=True) + b"}",
    "metadata": b'{"__metadata__":{' + repeated(b'"%05x":""', numbered=True) + b"}}",
    "one long shape": b'{"x":{"dtype":"U8","shape":[' + repeated(b"1") + b'],"data_offsets":[0,0]}}',
    "wide text": b'{"x":"' + b"a" * LENGTH + "\U0001f600".encode() + b'"}',
    "wide name": b'{"' + b"a" * LENGTH + "\U0001f600".encode() + b'":1}',
    "wide metadata": b'{"__metadata__":{"x":"' + b"a" * LENGTH + "\U0001f600".encode() + b'"}}',
}


@pytest.mark.parametrize("header", HOSTILE.values(), ids=list(HOSTILE))
def test_a_header_takes_no_more_memory_than_it_says(header: bytes) -> None:
    values = header.count(b",") + header.count(b"[") + header.count(b"{")
    tracemalloc.start()
    try:
        with contextlib.suppress(SafetensorsError):
            layout.parse_layout(header, layout.PREFIX_BYTES + len(header), "m")
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 9 * len(header) + 250 * values + (1 << 16)


def test_a_header_of_too_many_values_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    tensors = {str(number): np.zeros(0) for number in range(10)}
    save(tensors, path)
    monkeypatch.setattr(layout, "MOST_VALUES", 60)
    monkeypatch.setattr(layout, "_parse", lambda _: pytest.fail("the header was parsed"))
    for read in (read_layout, lambda path: load(path, framework="numpy")):
        with pytest.raises(SafetensorsError, match=r"has up to \d+ values; at most 60 are read"):
            read(path)
    with pytest.raises(ValueError, match="save fewer tensors at a time"):
        save(tensors, path)


LONG = "n" * 1_000_000


@pytest.mark.parametrize(
    "facts",
    [
        5,
        {"dtype": LONG, "shape": [], "data_offsets": [0, 1]},
        {"dtype": "U8", "shape": LONG, "data_offsets": [0, 1]},
        {"dtype": "U8", "shape": [1], "data_offsets": [1, 0]},
        {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]},
        {"dtype": "U8", "shape": [1] * 65, "data_offsets": [0, 1]},
        {"dtype": "U8", "shape": [0, 1 << 62, 1 << 62], "data_offsets": [0, 0]},
        {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]},
        {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]},
    ],
    ids=range(9),
)
def test_an_error_does_not_carry_a_long_name(tmp_path: Path, facts: Any) -> None:
    text = json.dumps({LONG: facts}).encode()
    (tmp_path / "m").write_bytes(struct.pack("<Q", len(text)) + text + bytes(3))
    with pytest.raises(Exception, match="nnn") as caught:  # of several classes
        load(tmp_path / "m", framework="numpy")
    assert len(str(caught.value)) < 1500


def test_long_names_in_errors_of_arguments(tmp_path: Path) -> None:
    save({LONG: np.zeros((4, 4))}, tmp_path / "a.safetensors")
    save({LONG: np.zeros((4, 4))}, tmp_path / "b.safetensors")
    chosen: tuple[dict[str, Any], ...] = (
        {"names": LONG + "n"},
        {"slices": {LONG + "n": slice(1)}},
        {"slices": {LONG: (slice(None),) * 3}},
        {"slices": {LONG: slice(0, 4, 2)}},
        {"slices": {LONG: slice("a")}},
        {"slices": {LONG: LONG}},
    )
    for arguments in chosen:
        with pytest.raises((TypeError, ValueError)) as caught:
            load(tmp_path / "a.safetensors", framework="numpy", **arguments)
        assert len(str(caught.value)) < 1000
    with pytest.raises(SafetensorsError) as caught_too:
        load(tmp_path, framework="numpy")
    assert len(str(caught_too.value)) < 1000
    with pytest.raises(TypeError) as caught_last:
        save({LONG: 5}, tmp_path / "c")
    assert len(str(caught_last.value)) < 1000


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_lack_of_memory_names_the_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: Any) -> None:
    """A file with holes says that a tensor has more bytes than there is memory."""
    if framework == "torch":
        pytest.importorskip("torch")
    nbytes = 1 << 43
    text = json.dumps({"large": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}).encode()
    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    kind = frameworks.framework_of(framework, "cpu")
    make = type(kind).empty
    # Some systems promise memory that they do not have; no system has so much.
    monkeypatch.setattr(type(kind), "empty", lambda self, dtype, shape, place: make(self, dtype, (1 << 60,), None))
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + nbytes)
    with pytest.raises(MemoryError, match=rf"on host for tensor 'large', which takes {nbytes} bytes: load fewer"):
        load(path, framework=framework)


def test_a_lack_of_memory_of_a_gpu_is_an_error_of_torch() -> None:
    """Its class is what programs for torch catch. A GPU is not needed to see that."""
    torch = pytest.importorskip("torch")
    made = frameworks.framework_of("torch", "cpu").out_of_memory(torch.cuda.OutOfMemoryError("full"), "said")
    assert isinstance(made, torch.cuda.OutOfMemoryError)
    assert str(made) == "said"


def test_errors_that_are_not_of_memory_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"x": np.zeros(3)}, tmp_path / "m")

    def failed(*_: Any) -> Any:
        raise RuntimeError("something else")

    monkeypatch.setattr(frameworks.Numpy, "empty", failed)
    with pytest.raises(RuntimeError, match="something else"):
        load(tmp_path / "m", framework="numpy")


def test_slices_into_too_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any, **__: Any) -> Any:
        raise MemoryError

    save({"x": np.zeros((1000, 4))}, tmp_path / "m")
    monkeypatch.setattr(np, "arange", none_left)
    with pytest.raises(MemoryError, match="places of 1000 pieces, which slices of tensor 'x' cut it into"):
        load(tmp_path / "m", framework="numpy", slices={"x": (slice(None), slice(1))})


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Have a call of the server last until the test is over."""
    over = threading.Event()

    def block(table: dict[str, Any], kind: str) -> None:
        entry = table[kind]

        def wait(*args: Any, **options: Any) -> Any:
            over.wait(10)  # less than a test may take
            call = entry[0] if isinstance(entry, tuple) else entry
            return call(*args, **options)

        monkeypatch.setitem(table, kind, (wait, *entry[1:]) if isinstance(entry, tuple) else wait)

    yield block
    over.set()


@pytest.mark.parametrize("kind", ["stat", "listdir"])
@pytest.mark.parametrize("by_url", [False, True])
def test_a_deadline_covers_a_folder_of_a_server(tmp_path: Path, stuck: Any, kind: str, by_url: bool) -> None:
    save({"x": np.zeros(3)}, tmp_path / "m.safetensors")
    with storage.Server(tmp_path) as server, storage.open_store(server.url, timeout=math.inf) as store:
        stuck(names.CALLS, kind)
        with pytest.raises(DeadlineExceeded):
            load("", store=store.folder if by_url else store, framework="numpy", timeout=0.2)


def test_a_deadline_covers_the_flush(tmp_path: Path, stuck: Any) -> None:
    with storage.Server(tmp_path) as server, storage.open_store(server.url, timeout=math.inf) as store:
        stuck(file_calls.CALLS, "fsync")
        with pytest.raises(DeadlineExceeded):
            save({"x": np.zeros(3)}, "m.safetensors", store, timeout=0.2)
        assert store.listdir().result() == []


@pytest.mark.parametrize("how", ["auto", "served"])
def test_every_read_has_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    save({f"{number}.{'x' * 1000}": np.zeros(3) for number in range(100)}, tmp_path / "m.safetensors")
    given: list[float | None] = []
    for name in ("read_into", "read_many"):
        call = getattr(storage.File, name)

        def noted(*args: Any, call: Any = call, timeout: float | None = None, **options: Any) -> Any:
            given.append(timeout)
            return call(*args, timeout=timeout, **options)

        monkeypatch.setattr(storage.File, name, noted)
    with opened(tmp_path, how) as store:
        load("m.safetensors", store=store, framework="numpy", timeout=17.0)
    assert set(given) == {17.0}
    assert len(given) == 3  # the header's first 64 KiB, the rest of it, and the tensors


def test_a_link_stays_where_a_file_is_saved(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    save({"x": np.zeros(3)}, tmp_path / "there" / "old")
    links = {"link": "again", "again": "there/old", "new": "there/made", "loop": "loop", "lost": "n/m"}
    for name, to in links.items():
        (tmp_path / name).symlink_to(to)
    for name, target in (("link", "old"), ("new", "made")):
        save({"x": np.ones(3)}, tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert load(tmp_path / "there" / target, framework="numpy")["x"].tolist() == [1, 1, 1]
    for name, complaint in (("loop", "Too many levels"), ("lost", "no such folder")):
        with pytest.raises(OSError, match=complaint):
            save({"x": np.ones(3)}, tmp_path / name)
        assert (tmp_path / name).is_symlink()
    assert sorted(each.name for each in (tmp_path / "there").iterdir()) == ["made", "old"]


@pytest.mark.parametrize("how", ["auto", "served"])
def test_a_link_in_a_store_stays(tmp_path: Path, how: str) -> None:
    """As without one, but no link leads out of it."""
    folder = tmp_path / "store"
    (folder / "there").mkdir(parents=True)
    save({"x": np.zeros(3)}, folder / "there" / "old")
    links = {
        "link": "there/again",
        "there/again": "../there/old",
        "new": "there/made",
        "loop": "loop",
        "lost": "n/m",
        "out": "../out",
        "far": str(tmp_path / "out"),
    }
    for name, to in links.items():
        (folder / name).symlink_to(to)
    with opened(folder, how) as store:
        for name, target in (("link", "old"), ("/link", "old"), ("new", "made")):
            save({"x": np.ones(3)}, name, store)
            assert load(folder / "there" / target, framework="numpy")["x"].tolist() == [1, 1, 1]
        for name, complaint in (
            ("loop", "Too many levels"),
            ("lost", "No such file"),
            ("out", "leads out of the store"),
            ("far", "leads out of the store"),
        ):
            with pytest.raises(StorageError, match=complaint):
                save({"x": np.ones(3)}, name, store)
    assert all((folder / name).is_symlink() for name in links)
    assert sorted(each.name for each in (folder / "there").iterdir()) == ["again", "made", "old"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["file", "new", "folder"])
def test_no_descriptor_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The error says what to type, and nothing stays of a file that was being saved."""
    save({"x": np.zeros(3)}, tmp_path / "file")
    usual, refuse = os.open, False

    def refusing(path: Any, flags: int, *rest: Any, **names: Any) -> int:
        kind = "folder" if flags & os.O_DIRECTORY else "new" if flags & os.O_CREAT else "file"
        if kind == what and str(path).startswith(str(tmp_path)) and refuse:
            raise OSError(errno.EMFILE, "Too many open files", path)
        return usual(path, flags, *rest, **names)

    monkeypatch.setattr("zerohop.integrations.safetensors.sources.os.open", refusing)
    with storage.open_store(tmp_path) as store:  # unlike a path of this process, it is open before
        assert load("file", store=store, framework="numpy")["x"].tolist() == [0, 0, 0]
        refuse = True
        monkeypatch.setattr("zerohop.integrations.safetensors.sources.open_store", lambda *_, **__: _Kept(store))
        with pytest.raises(LimitReached, match="ulimit -n"):
            load(tmp_path / "file", framework="numpy") if what == "file" else save({"x": np.ones(3)}, tmp_path / "file")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


class _Kept:
    """Stands for a Store that another one closes."""

    def __init__(self, store: storage.Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def close(self) -> None:
        """Close nothing."""
