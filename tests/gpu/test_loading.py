"""Tensors of safetensors files onto a GPU, and from there into files: every byte, whole, in slices, and small ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpu.tensors import bytes_of, options, random_tensor
from support.patience import PATIENCE_S
from support.sizes import MIB
from zerohop import storage
from zerohop.integrations.safetensors import load, save

if TYPE_CHECKING:
    from pathlib import Path

    from support.fixtures import OpenContext

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)


def tensors_of_all_sizes() -> dict[str, Any]:
    """Small ones, those that are read straight into their memory, and odd offsets in the file between them."""
    sizes = [1, 3, 100, 4096, 5000, MIB - 1, MIB, 3 * MIB + 17, 20 * MIB + 4095, *[777] * 300]
    return {f"t{number}": random_tensor(nbytes) for number, nbytes in enumerate(sizes)}


@pytest.mark.parametrize("budget", [MIB, 64 * MIB])
def test_there_and_back(tmp_path: Path, budget: int) -> None:
    tensors = tensors_of_all_sizes()
    tensors["half"] = torch.randn(999, 1001, device="cuda:0", dtype=torch.float16)
    tensors["empty"] = torch.empty(0, 5, device="cuda:0")
    save(tensors, tmp_path / "model.safetensors", budget=budget)
    found = load(tmp_path, "cuda:0", budget=budget)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].device == tensor.device
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    safetensors = pytest.importorskip("safetensors.torch")
    for name, tensor in safetensors.load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, tensors[name].cpu()), name


def test_slices(tmp_path: Path) -> None:
    """Rows come in one run; columns are scattered by a kernel, or read run by run where they are long."""
    tensors = {
        "narrow": torch.randn(3000, 1024, device="cuda:0"),
        "wide": torch.randn(40, 200_000, device="cuda:0"),
        "deep": torch.randn(50, 60, 70, device="cuda:0"),
    }
    slices = {
        "narrow": (slice(5, 2990), slice(100, 612)),
        "wide": (slice(0, 40), slice(7, 150_007)),
        "deep": (slice(1, 49), slice(2, 3)),
    }
    save(tensors, tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors", "cuda:0", slices=slices)
    for name, chosen in slices.items():
        assert torch.equal(found[name], tensors[name][chosen]), name


def test_memory_that_a_kernel_still_writes_to(tmp_path: Path) -> None:
    """torch gives memory out again while work of before is queued, which nothing then orders before the reads."""
    source = random_tensor(64 * MIB)
    save({"x": source}, tmp_path / "model.safetensors")
    for _ in range(5):
        old = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda:0")
        torch.cuda._sleep(200_000_000)
        old.fill_(7)
        del old
        assert torch.equal(load(tmp_path, "cuda:0")["x"], source)


def test_tensors_that_a_kernel_still_writes_are_saved_whole(tmp_path: Path) -> None:
    tensor = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    tensor.fill_(7)
    save({"x": tensor}, tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path)["x"], torch.full((64 * MIB,), 7, dtype=torch.uint8))


def test_by_a_server(open_context: OpenContext, tmp_path: Path) -> None:
    tensors = tensors_of_all_sizes()
    with (
        storage.Server(tmp_path, ctx=open_context(options())) as server,
        storage.open_store(server.url, ctx=open_context(options())) as store,
    ):
        save(tensors, "model.safetensors", store=store)
        found = load("model.safetensors", "cuda:0", store=store, timeout=PATIENCE_S)
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor), name


def test_fastsafetensors(tmp_path: Path) -> None:
    pytest.importorskip("fastsafetensors")
    from fastsafetensors.loader import BaseSafeTensorsFileLoader
    from fastsafetensors.st_types import Device

    from zerohop.integrations import fastsafetensors

    tensors = tensors_of_all_sizes()
    save(tensors, tmp_path / "model.safetensors")
    fastsafetensors.register()
    loader = BaseSafeTensorsFileLoader(None, Device.from_str("cuda:0"), "zerohop")
    loader.add_filenames({0: [str(tmp_path / "model.safetensors")]})
    loaded = loader.copy_files_to_device()
    for name, tensor in tensors.items():
        assert bytes_of(loaded.get_tensor(name)) == bytes_of(tensor), name
    loaded.close()
    loader.close()
