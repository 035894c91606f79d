#!/usr/bin/env python3
"""Compare loaders of safetensors: from the files of a checkpoint to tensors, each run in a process of its own.

The checkpoint is synthetic, with the tensor sizes of a language model of 1.2 billion parameters in BF16, in shards. The
loaders take turns, warm (all bytes in the page cache) and cold (none). Two times are taken: until the call has returned
all tensors ("loaded"), and until every byte of them was read once ("used"): safetensors maps files, and does its work
when the bytes are used. "cpu" is the processor time until loaded. "beside" is the peak of the process's own memory,
less the tensors and what the process had before; pages of mapped files do not count, nor do tensors that are mapped.

Usage: loaders.py --folder /mnt/disk [--device cuda:0] [--rounds 5] [--layers 16] [--shards 5] [--loaders zerohop,…]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HIDDEN, KEYS, INNER, WORDS = 2048, 512, 8192, 128_256


def shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name the tensors of the model, in the order of its layers."""
    yield "embed", (WORDS, HIDDEN)
    for layer in range(layers):
        yield f"{layer}.norm1", (HIDDEN,)
        yield f"{layer}.norm2", (HIDDEN,)
        yield f"{layer}.q", (HIDDEN, HIDDEN)
        yield f"{layer}.k", (KEYS, HIDDEN)
        yield f"{layer}.v", (KEYS, HIDDEN)
        yield f"{layer}.o", (HIDDEN, HIDDEN)
        yield f"{layer}.gate", (INNER, HIDDEN)
        yield f"{layer}.up", (INNER, HIDDEN)
        yield f"{layer}.down", (HIDDEN, INNER)


def make(folder: Path, layers: int, shards: int) -> None:
    """Write the checkpoint, unless it is there."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    if list(folder.glob("*.safetensors")):
        return
    named = list(shapes(layers))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    per_shard = sum(2 * torch.Size(shape).numel() for _, shape in named) // shards
    shard: dict[str, torch.Tensor] = {}
    number = 0
    for name, shape in named:
        numbers = torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16, device=device)
        shard[name] = numbers.view(torch.bfloat16).cpu()
        if sum(tensor.nbytes for tensor in shard.values()) >= per_shard or name == named[-1][0]:
            save_file(shard, folder / f"model-{number:05}.safetensors")
            number, shard = number + 1, {}
    os.sync()


def by_zerohop(files: list[str], device: str) -> dict[str, Any]:
    """Load with zerohop."""
    from zerohop.integrations.safetensors import load

    return load(files, device)


def by_zerohop_threads(files: list[str], device: str) -> dict[str, Any]:
    """Load with zerohop, and threads instead of io_uring."""
    from zerohop.integrations.safetensors import load
    from zerohop.storage import open_store

    with contextlib.closing(open_store("/", engine="threads")) as store:
        return load(files, device, store=store)


def by_safetensors(files: list[str], device: str) -> dict[str, Any]:
    """Load with safetensors, whose tensors on the host are mapped files."""
    from safetensors.torch import load_file

    return {name: tensor for file in files for name, tensor in load_file(file, device).items()}


def by_safetensors_pread(files: list[str], device: str) -> dict[str, Any]:
    """Load with safetensors, which reads into memory of the tensors."""
    from safetensors.torch import load_file

    return {name: tensor for file in files for name, tensor in load_file(file, device, backend="pread").items()}


def by_safetensors_copied(files: list[str], device: str) -> dict[str, Any]:
    """Load with safetensors, and copy each tensor, which then aliases nothing."""
    return {name: tensor.to(device, copy=True) for name, tensor in by_safetensors(files, "cpu").items()}


def by_fastsafetensors(files: list[str], device: str) -> dict[str, Any]:
    """Load with fastsafetensors without GDS; tensors of a file are parts of one buffer."""
    from fastsafetensors import SafeTensorsFileLoader

    loader = SafeTensorsFileLoader(None, device, nogds=True)
    loader.add_filenames({0: files})
    loaded = loader.copy_files_to_device()
    return {name: loaded.get_tensor(name) for name in loader.get_keys()}


def by_fastsafetensors_zerohop(files: list[str], device: str) -> dict[str, Any]:
    """Load with fastsafetensors, whose buffers zerohop fills."""
    from fastsafetensors.loader import BaseSafeTensorsFileLoader
    from fastsafetensors.st_types import Device

    from zerohop.integrations.fastsafetensors import register

    register()
    loader = BaseSafeTensorsFileLoader(None, Device.from_str(device), "zerohop")
    loader.add_filenames({0: files})
    loaded = loader.copy_files_to_device()
    return {name: loaded.get_tensor(name) for name in loader.get_keys()}


def by_instanttensor(files: list[str], device: str) -> dict[str, Any]:
    """Load with InstantTensor, onto a GPU."""
    from instanttensor import safe_open

    if not files:
        return {}
    with safe_open(files, framework="pt", device=device) as opened:
        return dict(opened.tensors())


def by_streamer(files: list[str], device: str) -> dict[str, Any]:
    """Load with the model streamer of run:ai; its tensors are parts of a buffer that it uses again."""
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        if files:
            streamer.stream_files(files, device=device)
        return {name: tensor.to(device, copy=True) for name, tensor in (streamer.get_tensors() if files else ())}


def by_kvikio(files: list[str], device: str) -> dict[str, Any]:
    """Load with KvikIO in its compatibility mode: one read for each tensor, all of them under way at once."""
    import kvikio
    import kvikio.defaults
    import torch

    from zerohop.integrations.safetensors import read_layout

    kvikio.defaults.set({"compat_mode": kvikio.CompatMode.ON, "num_threads": 16})
    found, reads = {}, []
    with contextlib.ExitStack() as opened:
        for file in files:
            handle, layout = opened.enter_context(kvikio.CuFile(file, "r")), read_layout(Path(file))
            for entry in layout.tensors:
                assert entry.dtype == "BF16"
                found[entry.name] = tensor = torch.empty(entry.shape, dtype=torch.bfloat16, device=device)
                flat = tensor.reshape(-1).view(torch.uint8)
                reads.append(handle.pread(flat, entry.nbytes, layout.data_start + entry.offset))
        for read in reads:
            read.get()
    return found


Loader = Callable[[list[str], str], dict[str, Any]]
LOADERS: dict[str, Loader] = {
    "zerohop": by_zerohop,
    "zerohop-threads": by_zerohop_threads,
    "safetensors": by_safetensors,
    "safetensors-pread": by_safetensors_pread,
    "safetensors-copied": by_safetensors_copied,
    "fastsafetensors": by_fastsafetensors,
    "fastsafetensors-zerohop": by_fastsafetensors_zerohop,
    "streamer": by_streamer,
    "instanttensor": by_instanttensor,
    "kvikio": by_kvikio,
}
ON_HOST = "zerohop,zerohop-threads,safetensors,safetensors-pread,safetensors-copied,fastsafetensors,streamer"


def memory_of_own() -> int:
    """Return the bytes of memory that this process has now, without pages of files."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def child(loader: str, device: str, files: list[str]) -> None:
    """Do one run, and print its numbers."""
    import threading

    import torch
    from safetensors.torch import save_file

    if device != "cpu":
        torch.ones(1, device=device)
    with tempfile.TemporaryDirectory() as folder:  # what a first load has to import and to open
        small = f"{folder}/small.safetensors"
        save_file({"a": torch.zeros(64, dtype=torch.bfloat16)}, small)
        LOADERS[loader]([small], device)
    before, peak, over = memory_of_own(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            peak[0] = max(peak[0], memory_of_own())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, started = os.times(), time.perf_counter()
    tensors = LOADERS[loader](files, device)
    if device != "cpu":
        torch.cuda.synchronize(device)
    loaded = time.perf_counter()
    over.set()
    watcher.join()
    spent = os.times()
    sums = [int(tensor.reshape(-1).view(torch.uint8).view(torch.int64).sum()) for tensor in tensors.values()]
    used = time.perf_counter()
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    on_host = nbytes if device == "cpu" else 0
    check = sum(sums) & ((1 << 64) - 1)
    print(
        json.dumps(
            {
                "loaded": loaded - started,
                "used": used - started,
                "cpu": spent.user + spent.system - start.user - start.system,
                "nbytes": nbytes,
                "beside": peak[0] - before - on_host,
                "check": check,
            }
        )
    )


def cached(file: int) -> int:
    """Return how many bytes of a file, one of each page of the huge ones, are in the page cache."""
    found = 0
    for offset in range(0, os.fstat(file).st_size, 2 << 20):
        with contextlib.suppress(BlockingIOError):
            found += os.preadv(file, [bytearray(1)], offset, os.RWF_NOWAIT)
    return found


def prepare(files: list[str], *, cold: bool) -> None:
    """Have all bytes in the page cache, or none."""
    for file in files:
        with Path(file).open("rb") as opened:
            if cold:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert cached(opened.fileno()) == 0, "the system keeps the file in its page cache"
            else:
                while opened.read(1 << 24):
                    pass


def main() -> None:
    """Take the runs, and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--shards", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--loaders", default=ON_HOST)
    parser.add_argument("--states", default="warm,cold")
    parser.add_argument("--child", nargs="+")
    given = parser.parse_args()
    if given.child:
        child(given.child[0], given.device, given.child[1:])
        return
    make(given.folder, given.layers, given.shards)
    files = sorted(str(path) for path in given.folder.glob("*.safetensors"))
    print(
        f"{len(files)} files, {sum(Path(file).stat().st_size for file in files) / 1e9:.2f} GB; load {os.getloadavg()}"
    )
    for state in given.states.split(","):
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in given.loaders.split(",")}
        for _ in range(given.rounds):
            for name, taken in runs.items():
                prepare(files, cold=state == "cold")
                command = [
                    sys.executable,
                    __file__,
                    "--folder",
                    str(given.folder),
                    "--device",
                    given.device,
                    "--child",
                    name,
                    *files,
                ]
                taken.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        assert len({run["check"] for taken in runs.values() for run in taken}) == 1, "loaders differ in their bytes"
        for name, taken in runs.items():
            loaded, used, cpu = (statistics.median(run[key] for run in taken) for key in ("loaded", "used", "cpu"))
            nbytes, beside = taken[0]["nbytes"], max(run["beside"] for run in taken)
            print(
                f"{state} {name:20} loaded {loaded:6.2f} s {nbytes / loaded / 1e9:6.2f} GB/s   used {used:6.2f} s "
                f"{nbytes / used / 1e9:6.2f} GB/s   cpu {cpu:5.2f} s   beside {beside / 2**20:7.0f} MiB"
            )


if __name__ == "__main__":
    main()
