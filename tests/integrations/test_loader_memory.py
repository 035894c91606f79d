"""Memory of a process that loads or saves tensors, as the kernel counts it: the tensors, and what is documented."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.pattern import pattern
from support.sandboxed import run_program
from support.sizes import MIB
from support.stores import served
from zerohop.integrations.safetensors import layout, save

if TYPE_CHECKING:
    from pathlib import Path

    from support.fixtures import StartPeer

PAGE = 4096
# The allocator and the interpreter keep some bytes, and the kernel's own count may be off by some for each processor.
_PROCESSORS = os.cpu_count() or 1
SPARE = 2 * MIB + 2 * _PROCESSORS * max(32, 2 * _PROCESSORS) * PAGE

# Counts from a moment at which everything was used once: a small file was loaded, or saved.
COUNTED = """
import gc, re, sys
from pathlib import Path

def kib(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

def counted(work):
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = kib("VmRSS")
    kept = work()
    return 1024 * (kib("VmHWM") - before), kept
"""
LOAD = (
    COUNTED
    + """
from zerohop.integrations.safetensors import load
folder, store, budget, framework, rows = sys.argv[1:]
options = {"store": store or None, "budget": int(budget), "framework": framework}
at = "" if store else folder + "/"
load(at + "small.safetensors", **options)
slices = None
if int(rows):
    slices = {name: (slice(0, int(rows)), slice(0, 1000)) for name in load(at + "names.safetensors", **options)}
paths = [at + name for name in sorted(each.name for each in Path(folder).glob("model-*.safetensors"))]
peak, tensors = counted(lambda: load(paths, slices=slices, **options))
print(peak, sum(each.nbytes for each in tensors.values()), sum(each.nbytes > 65536 for each in tensors.values()))
"""
)
SAVE = (
    COUNTED
    + """
import numpy as np
from zerohop.integrations.safetensors import save
folder, store, budget, count, nbytes = sys.argv[1:]
options = {"store": store or None, "budget": int(budget)}
tensors = {str(number): np.full(int(nbytes), number % 251, np.uint8) for number in range(int(count))}
at = "" if store else folder + "/"
save({"x": np.zeros(100)}, at + "small.safetensors", **options)
peak, _ = counted(lambda: save(tensors, at + "saved.safetensors", **options))
print(peak)
"""
)


def make(folder: Path, shapes: dict[str, list[tuple[int, ...]]]) -> None:
    """Make the files of a checkpoint, and small ones beside them."""
    save({"x": np.zeros(100)}, folder / "small.safetensors")
    names: dict[str, Any] = {}
    for number, (name, of_file) in enumerate(shapes.items()):
        tensors = {}
        for at, shape in enumerate(of_file):
            tensors[f"{number}.{at}"] = pattern(at, int(np.prod(shape))).reshape(shape)
            names[f"{number}.{at}"] = np.zeros((0, 0), np.uint8)
        save(tensors, folder / f"model-{name}.safetensors")
    save(names, folder / "names.safetensors")


def of_headers(folder: Path) -> int:
    """Return the bytes that reading the headers may take, as docs/loaders.md has it."""
    total = 0
    for path in folder.glob("model-*.safetensors"):
        found = layout.read_layout(path)
        with path.open("rb") as file:
            header = file.read(found.data_start)
        values = header.count(b",") + header.count(b"[") + header.count(b"{")
        total += 9 * len(header) + 250 * values
    return total


LARGE = {"a": [(2048, 8192)] * 2, "b": [(2048, 8192)] * 2}
SMALL = {"a": [(90, 100)] * 2000, "b": [(7, 11)] * 1000}
MIXED = {"a": [(2048, 8192), *[(90, 100)] * 500], "b": [(3000, 3001), (1,), (0, 5), (2, 2048, 1024)]}


@pytest.mark.parametrize(
    ("shapes", "budget", "rows", "where"),
    [
        pytest.param(LARGE, MIB, 0, "paths", id="large"),
        pytest.param(SMALL, 4 * MIB, 0, "paths", id="small"),
        pytest.param(LARGE, 2 * MIB, 1000, "paths", id="slices"),
        pytest.param(MIXED, 2 * MIB, 0, "server", id="mixed of a server"),
        pytest.param(MIXED, 2 * MIB, 0, "paths", id="mixed", marks=pytest.mark.slow),
        pytest.param(LARGE, MIB, 0, "server", id="large of a server", marks=pytest.mark.slow),
        pytest.param(SMALL, 4 * MIB, 0, "server", id="small of a server", marks=pytest.mark.slow),
        pytest.param(LARGE, 2 * MIB, 1000, "server", id="slices of a server", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("framework", ["numpy", pytest.param("torch", marks=pytest.mark.slow)])
def test_load(
    start_peer: StartPeer,
    tmp_path: Path,
    where: str,
    framework: str,
    shapes: dict[str, list[tuple[int, ...]]],
    budget: int,
    rows: int,
) -> None:
    """The peak is at most the tensors, the budget, a page for each large tensor, and what the headers take."""
    if framework == "torch":
        pytest.importorskip("torch")
    make(tmp_path, shapes)
    url = served(start_peer, tmp_path)[1] if where == "server" else ""
    ran = run_program(LOAD, str(tmp_path), url, str(budget), framework, str(rows))
    assert ran.returncode == 0, ran.stderr
    peak, nbytes, large = (int(each) for each in ran.stdout.split())
    if rows:
        assert nbytes == 4 * rows * 1000
    assert nbytes - SPARE <= peak <= nbytes + budget + large * PAGE + of_headers(tmp_path) + SPARE


@pytest.mark.parametrize("where", ["paths", "server"])
@pytest.mark.parametrize(("count", "nbytes"), [(4, 8 * MIB), (3000, 9001)], ids=["large", "small"])
def test_save(start_peer: StartPeer, tmp_path: Path, where: str, count: int, nbytes: int) -> None:
    """The peak is at most the budget, and the header."""
    url = served(start_peer, tmp_path)[1] if where == "server" else ""
    budget = 2 * MIB
    ran = run_program(SAVE, str(tmp_path), url, str(budget), str(count), str(nbytes))
    assert ran.returncode == 0, ran.stderr
    saved = tmp_path / "saved.safetensors"
    saved.rename(tmp_path / "model-saved.safetensors")
    assert int(ran.stdout) <= budget + of_headers(tmp_path) + SPARE
