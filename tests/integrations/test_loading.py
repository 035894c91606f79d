"""Tensors of safetensors files are loaded whole or in part, with the bytes that safetensors' own library finds."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.stores import LOCAL, SERVED, opened
from zerohop import EndOfFile, StorageError, Unsupported, storage
from zerohop.integrations.safetensors import SafetensorsError, frameworks, load, loading, save
from zerohop.integrations.safetensors import plan as planning
from zerohop.integrations.safetensors.dtypes import DTYPES
from zerohop.integrations.safetensors.selection import Part

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def write(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]], *, pad: int = 0) -> Path:
    """Write a file by the format's own words, and not by what is tested."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode() + b" " * pad
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def random(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(1 << 15), 1 << 15, count, np.int16)


def f32(*shape: int, seed: int = 1) -> tuple[np.ndarray, tuple[str, tuple[int, ...], bytes]]:
    values = np.random.default_rng(seed).random(shape, np.float32)
    return values, ("F32", shape, values.tobytes())


@pytest.fixture
def shards(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Three files with tensors of all sizes: nothing, a number, less than a page, several operations."""
    expected = {}
    for number in range(3):
        content = {}
        for at, shape in enumerate([(), (0, 5), (3, 7), (1000, 1100), (2_100, 2_500), (1,), (300, 1000)]):
            values, content[f"{number}.{at}"] = f32(*shape, seed=10 * number + at)
            expected[f"{number}.{at}"] = values
        write(tmp_path / f"model-{number}.safetensors", content, pad=number)
    return tmp_path, expected


def check(found: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert found[name].shape == values.shape
        assert found[name].dtype == values.dtype
        assert found[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("budget", [MIB, 64 * MIB])
def test_whole_checkpoint(shards: tuple[Path, dict[str, np.ndarray]], budget: int) -> None:
    folder, expected = shards
    found = load(folder, framework="numpy", budget=budget)
    check(found, expected)
    check(load(sorted(folder.glob("*.safetensors")), framework="numpy"), expected)
    found["0.3"][:] = 0  # every tensor has memory of its own, which may be written to
    check(
        {name: each for name, each in found.items() if name != "0.3"}, {n: v for n, v in expected.items() if n != "0.3"}
    )


@pytest.mark.parametrize("how", [*LOCAL, *SERVED])
def test_from_a_store(no_leaks: None, shards: tuple[Path, dict[str, np.ndarray]], how: str) -> None:
    folder, expected = shards
    with opened(folder, how) as store:
        check(load("", framework="numpy", store=store, budget=MIB), expected)
        part = load("model-1.safetensors", framework="numpy", store=store, names=["1.2", "1.4"])
        check(part, {name: expected[name] for name in ("1.2", "1.4")})


def test_from_a_server_by_its_url(shards: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, expected = shards
    with storage.Server(folder) as server:
        check(load("", framework="numpy", store=server.url), expected)


def test_links_lead_out_of_the_folder(tmp_path: Path) -> None:
    """As in the folders of a model hub's cache."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    values, content = f32(3)
    write(tmp_path / "blobs" / "1234", {"x": content})
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/1234")
    check(load(tmp_path / "snapshot", framework="numpy"), {"x": values})


def test_names(shards: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, expected = shards
    small = {name: values for name, values in expected.items() if name.endswith(".2")}
    check(load(folder, framework="numpy", names=lambda name: name.endswith(".2")), small)
    check(load(folder, framework="numpy", names=set(small)), small)
    check(load(folder, framework="numpy", names=[]), {})
    with pytest.raises(ValueError, match=r"no tensor '0\.33' .* there is \['0\.3'"):
        load(folder, framework="numpy", names=["0.33"])


SLICES = st.builds(slice, st.none() | st.integers(-9, 9), st.none() | st.integers(-9, 9))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(shape=st.lists(st.integers(0, 8), max_size=4), data=st.data())
def test_slices_are_those_of_numpy(tmp_path: Path, shape: list[int], data: st.DataObject) -> None:
    values, content = f32(*shape)
    chosen = tuple(data.draw(st.lists(SLICES, max_size=len(shape))))
    write(tmp_path / "m.safetensors", {"before": f32(3)[1], "x": content})
    found = load(tmp_path / "m.safetensors", framework="numpy", names=["x"], slices={"x": chosen}, store=None)
    check(found, {"x": np.ascontiguousarray(values[chosen]).reshape(values[chosen].shape)})


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param((slice(100, 1900),), id="rows"),
        pytest.param((slice(None), slice(1000, 1500)), id="columns"),
        pytest.param((slice(None), slice(10, 12)), id="narrow columns"),
        pytest.param((slice(1999, 2000), slice(3, None)), id="part of a row"),
    ],
)
@pytest.mark.parametrize("budget", [MIB, 64 * MIB])
def test_slices_of_a_large_tensor(tmp_path: Path, chosen: tuple[slice, ...], budget: int) -> None:
    values, content = f32(2000, 20_000 // 8)
    write(tmp_path / "m.safetensors", {"x": content, "y": f32(5)[1]}, pad=3)
    found = load(tmp_path / "m.safetensors", framework="numpy", slices={"x": chosen}, names=["x"], budget=budget)
    check(found, {"x": np.ascontiguousarray(values[chosen])})


def test_long_runs_of_slices_are_read_alone(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 256, (8, 4, 300_000), np.uint8)
    write(tmp_path / "m.safetensors", {"x": ("U8", values.shape, values.tobytes())})
    with opened(tmp_path, "served") as store:
        found = load("m.safetensors", "cpu", store, slices={"x": (slice(None), slice(1, 3))}, framework="numpy")
    check(found, {"x": np.ascontiguousarray(values[:, 1:3])})


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ((slice(0, 2, 2),), "step"),
        ((slice(None), slice(None), slice(None)), "2 dimensions, and 3 slices"),
        ((1,), "one a dimension"),
        ((slice("a"),), "slices of tensor 'x'"),
    ],
)
def test_slices_that_mean_nothing(tmp_path: Path, chosen: Any, complaint: str) -> None:
    write(tmp_path / "m.safetensors", {"x": f32(4, 4)[1]})
    with pytest.raises((TypeError, ValueError), match=complaint):
        load(tmp_path / "m.safetensors", framework="numpy", slices={"x": chosen})


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": MIB - 1},
        {"budget": 1.5},
        {"framework": "jax"},
        {"device": "cuda:0", "framework": "numpy"},
        {"paths": 3},
        {"paths": [b"x"]},
        {"slices": {"nothing": slice(1)}},
    ],
)
def test_arguments_that_mean_nothing(tmp_path: Path, arguments: dict[str, Any]) -> None:
    path = write(tmp_path / "m.safetensors", {"x": f32(4)[1]})
    given: dict[str, Any] = {"paths": path, "framework": "numpy"}
    with pytest.raises((TypeError, ValueError)):
        load(**(given | arguments))


def test_two_files_with_one_name(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        write(tmp_path / name, {"x": f32(4)[1]})
    with pytest.raises(SafetensorsError, match=r"'x' is in .*a\.safetensors and in .*b\.safetensors"):
        load(tmp_path, framework="numpy")


HOSTILE = {
    "empty": b"",
    "length beyond the file": struct.pack("<Q", 1000) + b"{}",
    "length beyond all": struct.pack("<Q", (1 << 64) - 1) + b"{}",
    "no text": struct.pack("<Q", 8) + b'{"\xff": 1}',
    "data cut off": struct.pack("<Q", 63)
    + b'{"x": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}   '
    + bytes(8),
    "overlap": struct.pack("<Q", 128)
    + (
        b'{"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, '
        b'"y": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}'
    ).ljust(128)
    + bytes(6),
    "dimensions that no library can count": struct.pack("<Q", 96)
    + b'{"x": {"dtype": "F32", "shape": [0, 4611686018427387904, 4], "data_offsets": [0, 0]}}'.ljust(96),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("through_a_store", [False, True])
def test_hostile_files_give_no_tensor(tmp_path: Path, content: bytes, through_a_store: bool) -> None:
    write(tmp_path / "a.safetensors", {"good": f32(4)[1]})
    (tmp_path / "b.safetensors").write_bytes(content)
    store = storage.open_store(tmp_path) if through_a_store else None
    said = r"b\.safetensors is not a safetensors file, or a damaged one"
    with contextlib.closing(store) if store else contextlib.nullcontext(), pytest.raises(SafetensorsError, match=said):
        load("" if store else tmp_path, store=store, framework="numpy")


def test_a_file_that_became_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut after its header was read: no tensor is returned, and nothing is under way any more."""
    path = write(tmp_path / "m.safetensors", {"x": f32(3_000_000)[1], "y": f32(10)[1]})

    def cut(*given: Any) -> Any:
        with path.open("r+b") as file:
            file.truncate(5 * MIB)
        return planning.plan(*given)

    monkeypatch.setattr(loading, "plan", cut)
    with pytest.raises(EndOfFile):
        load(path, framework="numpy")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        load(tmp_path / "nothing.safetensors", framework="numpy")
    with pytest.raises(ValueError, match="no file whose name ends with"):
        load(tmp_path, framework="numpy")
    with opened(tmp_path, "auto") as store, pytest.raises(StorageError):
        load("nothing.safetensors", store=store, framework="numpy")


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.safetensors")
    with pytest.raises(StorageError, match="not a regular file"):
        load(tmp_path / "m.safetensors", framework="numpy")


def test_nothing_is_read_into_memory_that_is_still_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, earlier kernels may do that until the framework says that they have ended."""
    path = write(tmp_path / "m.safetensors", {"x": f32(3_000_000)[1], "y": f32(10)[1]})
    order: list[str] = []
    reads = storage.File.read_many

    def read_many(*given: Any, **options: Any) -> Any:
        order.append("read")
        return reads(*given, **options)

    monkeypatch.setattr(storage.File, "read_many", read_many)
    monkeypatch.setattr(frameworks.Numpy, "begin", lambda _: order.append("begin"))
    load(path, framework="numpy")
    assert order[0] == "begin"
    assert set(order[1:]) == {"read"}


def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = write(tmp_path / "m.safetensors", {"x": f32(4)[1]})
    with pytest.raises(Unsupported, match=r"finds \d+ GPUs, and 'cuda:99' is none of them"):
        load(path, "cuda:99")
    with pytest.raises(ValueError, match="device is"):
        load(path, torch.device("meta"))


def test_tensors_of_torch_that_cannot_be_saved(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    number = torch.tensor([1 + 2j, 3 + 4j], dtype=torch.complex64)
    for tensor, complaint in (
        (number.conj(), "resolve_conj"),
        (torch.eye(3).to_sparse(), "to_dense"),
        (torch.ones(4, 4).t()[1:], "not contiguous"),
        (torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "needs a dimension"),
    ):
        with pytest.raises((TypeError, ValueError), match=complaint):
            save({"x": tensor}, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_long_header(tmp_path: Path) -> None:
    """One that is longer than what is read at first."""
    content = {f"{number}.{'x' * 100}": f32(2, seed=number) for number in range(2000)}
    path = write(tmp_path / "m.safetensors", {name: entry for name, (_, entry) in content.items()})
    check(load(path, framework="numpy"), {name: values for name, (values, _) in content.items()})


def test_every_dtype_with_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    content: dict[str, tuple[str, tuple[int, ...], bytes]] = {
        dtype: (dtype, (3, 4), bytes(range(1, 12 * facts.bits // 8 + 1)) if dtype != "BOOL" else bytes([0, 1] * 6))
        for dtype, facts in DTYPES.items()
        if facts.torch
    }
    found = load(write(tmp_path / "m.safetensors", content))
    assert list(found) == list(content)
    for dtype, tensor in found.items():
        assert tensor.dtype == getattr(torch, DTYPES[dtype].torch)
        assert list(tensor.shape) == ([3, 2] if dtype == "F4" else [3, 4])
        assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == content[dtype][2]
    write(tmp_path / "odd.safetensors", {"x": ("F6_E2M3", (4,), bytes(3))})
    with pytest.raises(Unsupported, match="no F6_E2M3"):
        load(tmp_path / "odd.safetensors")


def test_as_safetensors_own_library_loads(tmp_path: Path) -> None:
    torch, library = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    tensors = {
        f"{number}.{dtype}": torch.from_numpy(random(16 * rows, number)).view(dtype).clone()
        for number, (rows, dtype) in enumerate([(1, torch.bfloat16), (90_000, torch.float16), (7, torch.float64)])
    }
    tensors["one"] = torch.tensor(2.5)
    library.save_file(tensors, tmp_path / "m.safetensors", metadata={"a": "b"})
    expected, found = library.load_file(tmp_path / "m.safetensors"), load(tmp_path / "m.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
        assert found[name].untyped_storage().nbytes() <= tensor.nbytes + 4096


@pytest.fixture
def tensors() -> dict[str, np.ndarray]:
    return {
        "large": np.random.default_rng(1).random((3000, 1000), np.float32),
        "small": np.arange(5, dtype=np.int8),
        "nothing": np.empty((0, 3), np.float64),
        "number": np.array(7, np.uint64),
        "ü": np.arange(6).reshape(2, 3),
    }


@pytest.mark.parametrize("how", [None, *LOCAL, *SERVED])
@pytest.mark.parametrize("budget", [MIB, 64 * MIB])
def test_saved_tensors_are_read_back(
    tmp_path: Path, tensors: dict[str, np.ndarray], how: str | None, budget: int
) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"what was there before")
    if how is None:
        save(tensors, path, metadata={"made": "here"}, budget=budget)
    else:
        with opened(tmp_path, how) as store:
            save(tensors, "m.safetensors", store, metadata={"made": "here"}, budget=budget)
    found = load(path, framework="numpy")
    check({name: found[name] for name in tensors}, tensors)
    assert [each.name for each in tmp_path.iterdir()] == ["m.safetensors"]


def test_safetensors_own_library_reads_what_is_saved(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    library, torch = pytest.importorskip("safetensors"), pytest.importorskip("torch")
    given = {name: torch.from_numpy(values) for name, values in tensors.items()}
    given["brain"] = torch.randn(1000, 3).to(torch.bfloat16)
    given["narrow"] = torch.randn(7).to(torch.float8_e5m2)
    save(given, tmp_path / "m.safetensors", metadata={"made": "hier, ü"})
    with library.safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata() == {"made": "hier, ü"}
        assert set(file.keys()) == set(given)
        for name, tensor in given.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype
            assert found.shape == tensor.shape
            assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"x": np.zeros((4, 4))[:, 1]}, "not contiguous"),
        ({"x": np.zeros(3, "U5")}, "no dtype"),
        ({"x": np.zeros(3, ">i4")}, "no dtype"),
        ({"x": [1, 2]}, "array of numpy or torch"),
        ({"x": np.ma.MaskedArray(np.arange(3.0), mask=[False, True, False])}, "mask would be lost"),
        ({1: np.zeros(1)}, "name is a string"),
        ({"__metadata__": np.zeros(1)}, "__metadata__"),
    ],
)
def test_tensors_that_cannot_be_saved(tmp_path: Path, given: Any, complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        save(given, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of every matrix
def test_a_matrix_is_saved_as_an_array(tmp_path: Path) -> None:
    matrix = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    save({"large": np.zeros(1 << 18), "matrix": matrix}, tmp_path / "m.safetensors")
    assert (load(tmp_path / "m.safetensors", framework="numpy")["matrix"] == np.asarray(matrix)).all()


def test_kernels_end_before_their_tensors_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written by no stream of torch's. A GPU is not needed to see that the wait comes first."""
    torch = pytest.importorskip("torch")
    order: list[str] = []
    written = storage.File.write_from

    def write_from(*given: Any, **options: Any) -> Any:
        order.append("write")
        return written(*given, **options)

    monkeypatch.setattr(frameworks.Torch, "finish", lambda _: order.append("finish"))
    monkeypatch.setattr(storage.File, "write_from", write_from)
    save({"x": torch.zeros(3 * MIB, dtype=torch.uint8)}, tmp_path / "m.safetensors")
    assert order[0] == "finish"
    assert set(order[1:]) == {"write"}


def test_a_saved_file_keeps_the_mode_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / ("名" * 84)  # as long as the system takes
    save({"x": np.arange(3)}, path)
    path.chmod(0o600)
    save({"x": np.arange(4)}, path)
    assert path.stat().st_mode & 0o777 == 0o600
    for folder in (f"{tmp_path}/", ""):
        with pytest.raises(ValueError, match="names a folder"):
            save({}, folder)


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.safetensors"
    save({"x": np.arange(3)}, path)
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> Any:
        raise StorageError("no room is left", errno=28)

    monkeypatch.setattr(storage.File, "fsync", full)
    with pytest.raises(StorageError, match="no room"):
        save({"x": np.zeros(MIB)}, path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["m.safetensors"]


def test_progress_is_shown_on_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m.safetensors", {"x": f32(100_000)[1]})
    load(path, framework="numpy")
    assert capfd.readouterr().err == ""
    load(path, framework="numpy", progress=True)
    assert "loading" in capfd.readouterr().err


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3 * MIB), max_size=12), start=st.integers(8, 5000), budget=st.sampled_from([1, 64])
)
def test_no_read_takes_more_than_its_slot(sizes: list[int], start: int, budget: int) -> None:
    """So the slots together take no more than the budget; and every byte of every tensor comes from its place."""
    slot = budget * MIB // 4
    wanted, at = [], start
    for size in sizes:
        part = Part((size,), np.zeros(min(size, 1), np.int64), size)
        wanted.append(planning.Wanted(0, at, part))
        at += size
    origin = [np.full(size, -1, np.int64) for size in sizes]
    for read in planning.plan(wanted, [at], slot):
        assert int((read.offsets + read.lengths).max()) <= at
        if read.tensor is not None:
            for offset, into, length in zip(read.offsets, read.into, read.lengths, strict=True):
                origin[read.tensor][into : into + length] = np.arange(offset, offset + length)
            continue
        assert read.room <= slot
        room = np.full(slot, -1, np.int64)
        for offset, into, length in zip(read.offsets, read.into, read.lengths, strict=True):
            room[into : into + length] = np.arange(offset, offset + length)
        for copy in read.copies:
            for which in range(copy.count):
                source, to = copy.source + which * copy.step, copy.at + which * copy.run
                origin[copy.tensor][to : to + copy.run] = room[source : source + copy.run]
    for each, found in zip(wanted, origin, strict=True):
        assert (found == np.arange(each.offset, each.offset + each.nbytes)).all()
