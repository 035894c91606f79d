"""fastsafetensors reads through a Store with zerohop's copier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.stores import opened

torch = pytest.importorskip("torch")
library = pytest.importorskip("safetensors.torch")
fast = pytest.importorskip("fastsafetensors")


@pytest.fixture
def files(tmp_path: Path) -> tuple[list[str], dict[str, Any]]:
    tensors = {}
    for number in range(2):
        shard = {f"{number}.large": torch.randn(3000, 2000), f"{number}.small": torch.arange(5).to(torch.bfloat16)}
        library.save_file(shard, tmp_path / f"{number}.safetensors")
        tensors.update(shard)
    return sorted(str(path) for path in tmp_path.glob("*.safetensors")), tensors


def loaded(files: list[str], keep: Any = None, **options: Any) -> dict[str, Any]:
    from fastsafetensors.loader import BaseSafeTensorsFileLoader
    from fastsafetensors.st_types import Device

    from zerohop.integrations.fastsafetensors import register

    register()
    loader = BaseSafeTensorsFileLoader(None, Device.from_str("cpu"), "zerohop", **options)
    loader.set_tensor_filter(keep)
    loader.add_filenames({0: files})
    found = loader.copy_files_to_device()
    tensors = {name: found.get_tensor(name).clone() for name in loader.get_keys()}
    found.close()
    loader.close()
    return tensors


@pytest.mark.parametrize("how", ["auto", "threads", "served"])
def test_whole_files(files: tuple[list[str], dict[str, Any]], tmp_path: Path, how: str) -> None:
    paths, expected = files
    with opened(tmp_path, how) as store:
        found = loaded(paths, store=store, root=tmp_path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_files_of_this_machine_and_some_of_their_tensors(files: tuple[list[str], dict[str, Any]]) -> None:
    paths, expected = files
    found = loaded(paths, lambda name: name.endswith("small"))
    assert sorted(found) == ["0.small", "1.small"]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_a_file_that_became_shorter(
    files: tuple[list[str], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zerohop import EndOfFile
    from zerohop.integrations.fastsafetensors import StoreCopier

    submit = StoreCopier.submit_io

    def cut(copier: Any, *given: Any) -> Any:
        with (tmp_path / "0.safetensors").open("r+b") as file:
            file.truncate(1 << 20)
        return submit(copier, *given)

    monkeypatch.setattr(StoreCopier, "submit_io", cut)
    with pytest.raises(EndOfFile):
        loaded(files[0])


def test_another_file_in_the_store(files: tuple[list[str], dict[str, Any]], tmp_path: Path) -> None:
    """Its bytes would lie at other offsets than the header that was read here says."""
    other = tmp_path / "other"
    other.mkdir()
    for was, becomes in ((b"", b"more"), (b'"F32"', b'"I32"')):
        for path in files[0]:
            (other / Path(path).name).write_bytes(Path(path).read_bytes().replace(was, becomes, 1))
        with opened(other, "auto") as store, pytest.raises(ValueError, match="root= has to be the folder here"):
            loaded(files[0], store=store, root=Path(files[0][0]).parent)


def test_half_of_a_place(files: tuple[list[str], dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="or neither"):
        loaded(files[0], root=tmp_path)
