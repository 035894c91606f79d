"""Arguments of load and save that mean nothing: an error says what to type, before anything is read or written."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.stores import opened
from zerohop import StorageError, Unsupported
from zerohop.integrations.safetensors import SafetensorsError, load, read_layout, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

URL = "zerohop://10.0.0.7:7000"
TENSOR = {"x": np.zeros((3, 4))}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with one tensor, in the current folder."""
    monkeypatch.chdir(tmp_path)
    save(TENSOR, "m.safetensors")
    (tmp_path / "empty").mkdir()
    return "m.safetensors"


def write(path: Path, dtype: str, shape: list[int], nbytes: int) -> Path:
    text = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, nbytes]}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(nbytes))
    return path


@pytest.mark.parametrize(
    ("paths", "kind", "complaint"),
    [
        (URL, ValueError, r'load\("FOLDER/model.safetensors", store="zerohop://HOST:PORT"\)'),
        (f"{URL}/m.safetensors", ValueError, "is the URL of a server, and not a path"),
        ([], ValueError, "paths is empty: name a file"),
        ("", ValueError, r'such as "\." for the current one'),
        (None, TypeError, "each a string or a Path, not None"),
        (5, TypeError, "each a string or a Path, not 5"),
        (b"m", TypeError, "each a string or a Path, not b'm'"),
        (TENSOR, TypeError, "each a string or a Path, not {"),
        (["m", 5], TypeError, "a path is a string or a Path, not 5"),
        (["m.safetensors"] * 2, ValueError, "m.safetensors twice"),
        ("model.safetensors.index.json", ValueError, "load its folder"),
        ("s3://bucket/m", FileNotFoundError, "'s3://bucket/m'"),
        ("no/such/folder/m", FileNotFoundError, "'no/such/folder/m'"),
    ],
)
def test_paths(path: str, paths: Any, kind: type[Exception], complaint: str) -> None:
    del path
    with pytest.raises(kind, match=complaint):
        load(paths, framework="numpy")


def test_a_path_with_a_null_character() -> None:
    for call in (lambda: load("x\0y", framework="numpy"), lambda: save({"x": np.zeros(3)}, "x\0y")):
        with pytest.raises(ValueError, match="a path has no null character"):
            call()


def test_an_open_file_is_no_path(path: str) -> None:
    with open(path, "rb") as file, pytest.raises(TypeError, match="pass the file's name"):  # noqa: PTH123  # as users do
        load(file, framework="numpy")  # type: ignore[arg-type]  # what is tested


def test_another_format(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(SafetensorsError, match=r"begins like a zip archive, which torch\.load\(\) reads"):
        load(tmp_path / "m.bin", framework="numpy")


@pytest.mark.parametrize(
    ("arguments", "kind", "complaint"),
    [
        ({"names": 5}, TypeError, "names of tensors, or a function that says so of each name, not 5"),
        ({"names": b"x"}, TypeError, "not b'x'"),
        ({"names": [5]}, TypeError, "names: the name of a tensor is a string, not 5"),
        ({"names": "y"}, ValueError, "no tensor 'y' is in these files"),
        ({"slices": 0}, TypeError, "slices is a mapping from names of tensors"),
        ({"slices": []}, TypeError, "slices is a mapping from names of tensors"),
        ({"slices": slice(1)}, TypeError, "slices is a mapping from names of tensors"),
        ({"slices": {5: slice(1)}}, TypeError, "slices: the name of a tensor is a string, not 5"),
        ({"slices": {"y": slice(1)}}, ValueError, "slices: no tensor 'y'"),
        ({"slices": {"x": 0}}, TypeError, r"such as \(slice\(0, 8\), slice\(None\)\), not 0"),
        ({"slices": {"x": None}}, TypeError, "not None"),
        ({"slices": {"x": [0, 1]}}, TypeError, r"not \[0, 1\]"),
        ({"slices": {"x": ...}}, TypeError, "not Ellipsis"),
        ({"slices": {"x": np.arange(3)}}, TypeError, "not array"),
        ({"framework": "jax"}, ValueError, 'framework is "torch" or "numpy", not \'jax\'; other libraries'),
        ({"framework": np}, ValueError, 'framework is "torch" or "numpy"'),
        ({"framework": None}, ValueError, 'framework is "torch" or "numpy"'),
        ({"device": "numpy"}, ValueError, "pass framework='numpy'"),
        ({"device": "cuda:0"}, ValueError, 'for a GPU pass framework="torch"'),
        ({"store": 5}, TypeError, "store is a Store, a folder, or the URL of a server, not int"),
        ({"store": ""}, ValueError, "store is empty"),
        ({"budget": "64MB"}, TypeError, "budget must be an int"),
        ({"timeout": "5"}, TypeError, "timeout must be a number of seconds"),
        ({"timeout": -1}, ValueError, "timeout must not be negative"),
        ({"progress": "no"}, TypeError, "progress must be True or False"),
    ],
)
def test_of_load(path: str, arguments: dict[str, Any], kind: type[Exception], complaint: str) -> None:
    with pytest.raises(kind, match=complaint):
        load(path, **({"framework": "numpy"} | arguments))


@pytest.mark.parametrize("device", [None, "gpu", "mps", "torch", str.upper])
def test_devices_that_torch_has_not(path: str, device: Any) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match='device is "cpu" or "cuda:0"') as caught:
        load(path, device)
    assert "\n" not in str(caught.value)


def test_the_names_that_safetensors_has_for_frameworks(path: str) -> None:
    torch = pytest.importorskip("torch")
    assert type(load(path, framework="np")["x"]) is np.ndarray
    assert type(load(path, framework="pt")["x"]) is torch.Tensor


def test_dtypes_of_less_than_a_byte(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    without = r"leave the tensor out: names=lambda name: name != 'x'"
    pairs, six = write(tmp_path / "f4", "F4", [4], 2), write(tmp_path / "f6", "F6_E2M3", [4], 3)
    odd = write(tmp_path / "odd", "F4", [2, 3], 3)
    for path, framework, complaint in (
        (pairs, "numpy", rf"tensor 'x': numpy has no F4\. Fix: load it with framework=\"torch\", or {without}"),
        (six, "numpy", rf"tensor 'x': numpy has no F6_E2M3\. Fix: {without}"),
        (six, "torch", rf"tensor 'x': torch .* has no F6_E2M3\. Fix: {without}"),
        (odd, "torch", rf"tensor 'x': torch has F4 in pairs alone, and the shape is \[2, 3\]\. Fix: {without}"),
    ):
        with pytest.raises(Unsupported, match=complaint):
            load(path, framework=framework)  # type: ignore[arg-type]  # one of the names
        assert load(path, framework="numpy", names=lambda name: name != "x") == {}
    with pytest.raises(ValueError, match="F4 has 4 bits, so begin and end at multiples of 2"):
        load(pairs, slices={"x": slice(1)})
    assert list(load(pairs, slices={"x": slice(2)})["x"].shape) == [1]


def test_dtypes_that_numpy_has_with_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(Unsupported, match=r"BF16 with ml_dtypes alone\. Fix: pip install ml_dtypes, or load it"):
        load(write(tmp_path / "m", "BF16", [4], 8), framework="numpy")


@pytest.mark.parametrize(
    ("tensors", "to", "kind", "complaint"),
    [
        ("m", TENSOR, TypeError, r"save\(tensors, path\)"),
        ([np.zeros(1)], "m", TypeError, r'such as \{"weight": tensor\}, not list'),
        (np.zeros(1), "m", TypeError, "not ndarray"),
        (None, "m", TypeError, "not NoneType"),
        (
            {"x": {"y": np.zeros(1)}},
            "m",
            TypeError,
            "tensor 'x': .* not 'dict': pass its tensors by names",
        ),
        ({"x": 1.0}, "m", TypeError, r"tensor 'x': .* not 'float': pass numpy.asarray\(x\)"),
        ({"x": np.zeros(1, ">f4")}, "m", TypeError, "tensor 'x': .*newbyteorder"),
        ({"\ud800": np.zeros(1)}, "m", ValueError, "must be text that UTF-8 can encode"),
        (TENSOR, f"{URL}/m", ValueError, r'save\(tensors, "FOLDER/model.safetensors", store="zerohop://HOST:PORT"\)'),
        (TENSOR, None, TypeError, "path is a string or a Path, not NoneType"),
        (TENSOR, b"m", TypeError, "path is a string or a Path, not bytes"),
        (TENSOR, "no/such/m", FileNotFoundError, "there is no such folder, make it first: 'no/such'"),
        (TENSOR, "empty", IsADirectoryError, "Is a directory: 'empty'"),
    ],
)
def test_of_save(path: str, tensors: Any, to: Any, kind: type[Exception], complaint: str, tmp_path: Path) -> None:
    del path
    with pytest.raises(kind, match=complaint):
        save(tensors, to)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "m.safetensors"]


@pytest.mark.parametrize("store", [None, "."])
def test_a_folder_has_the_name(path: str, store: str | None) -> None:
    del path
    with pytest.raises(IsADirectoryError, match="'empty'"):
        save(TENSOR, "empty", store)


@pytest.mark.parametrize(
    ("metadata", "kind", "complaint"),
    [
        (0, TypeError, "metadata is a mapping from texts to texts"),
        ([("a", "b")], TypeError, "metadata is a mapping from texts to texts"),
        ({"a": 1}, TypeError, r"metadata has texts alone, not 1: pass str\(\) or json.dumps\(\) of it"),
        ({"a": "\ud800"}, ValueError, "metadata must be text that UTF-8 can encode"),
    ],
)
def test_metadata(path: str, metadata: Any, kind: type[Exception], complaint: str) -> None:
    with pytest.raises(kind, match=complaint):
        save(TENSOR, path, metadata=metadata)


@pytest.mark.parametrize("how", ["auto", "served"])
def test_a_folder_of_a_store_that_is_not_there(tmp_path: Path, how: str) -> None:
    with opened(tmp_path, how) as store, pytest.raises(StorageError, match="No such file or directory: 'no/such'"):
        save(TENSOR, "no/such/m", store)


def test_a_layout_is_read_of_a_path_of_any_kind(path: str, tmp_path: Path) -> None:
    assert read_layout(path) == read_layout(tmp_path / path)
    wrong: Any = 5
    with pytest.raises(TypeError, match="a path is a string or a Path, not 5"):
        read_layout(wrong)


def test_metadata_in_the_place_of_the_store(path: str) -> None:
    """As safetensors' own save_file takes it."""
    meant: Any = {"format": "pt"}
    with pytest.raises(TypeError, match="goes by its name, metadata="):
        save(TENSOR, path, meant)


def test_modules_and_their_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module: Any = torch.nn.Linear(2, 3)
    with pytest.raises(TypeError, match=r"not a Linear: pass its state_dict\(\)"):
        save(module, tmp_path / "m")

    class Named(torch.Tensor):  # type: ignore[misc, name-defined]  # torch has no types here
        pass

    save({**dict(module.named_parameters()), "named": Named([1.0, 2.0])}, tmp_path / "m")
    found = load(tmp_path / "m")
    assert torch.equal(found["weight"], module.weight)
    assert found["named"].tolist() == [1.0, 2.0]
    assert module.weight.requires_grad


def test_tensors_of_torch_that_have_no_bytes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Elsewhere(torch.Tensor):  # type: ignore[misc, name-defined]  # torch has no types here
        @staticmethod
        def __new__(cls: Any, like: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)

        @classmethod
        def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
            raise AssertionError("its bytes were asked for")

    tensors: list[tuple[Callable[[], Any], str]] = [
        (lambda: Elsewhere(torch.ones(2)), "a Elsewhere keeps its values elsewhere: pass a plain tensor"),
        (lambda: torch.empty(2, device="meta"), "the device meta has no bytes"),
        (torch.nn.UninitializedParameter, "has no values yet: call the module once"),
    ]
    for tensor, complaint in tensors:
        with pytest.raises(TypeError, match=f"tensor 'x': .*{complaint}"):
            save({"x": tensor()}, tmp_path / "m")
    assert not list(tmp_path.iterdir())
