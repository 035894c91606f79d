#!/usr/bin/env python3
"""Compare loaders of safetensors: from files of a checkpoint to tensors on the host, each run in a process of its own.

The checkpoint is synthetic, with the tensor sizes of a language model of 1.2 billion parameters in BF16, in shards. The
loaders take turns, warm (all bytes in the page cache) and cold (none). Two times are taken: until the call has returned
all tensors ("loaded"), and until every byte of them was read once ("used"): safetensors maps files, and does its work
when the bytes are used. "cpu" is the processor time until loaded. "beside" is the peak of the process's own memory,
less the tensors and what the process had before; pages of mapped files do not count, nor do tensors that are mapped.

Usage: loaders.py --folder /mnt/disk [--rounds 5] [--layers 16] [--shards 5] [--loaders zerohop,safetensors]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    per_shard = sum(2 * torch.Size(shape).numel() for _, shape in named) // shards
    shard: dict[str, torch.Tensor] = {}
    number = 0
    for name, shape in named:
        shard[name] = torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16).view(torch.bfloat16)
        if sum(tensor.nbytes for tensor in shard.values()) >= per_shard or name == named[-1][0]:
            save_file(shard, folder / f"model-{number:05}.safetensors")
            number, shard = number + 1, {}
    os.sync()


def by_zerohop(files: list[str]) -> dict[str, Any]:
    """Load with zerohop."""
    from zerohop.integrations.safetensors import load

    return load(files)


def by_zerohop_threads(files: list[str]) -> dict[str, Any]:
    """Load with zerohop, and threads instead of io_uring."""
    from zerohop.integrations.safetensors import load
    from zerohop.storage import open_store

    with contextlib.closing(open_store("/", engine="threads")) as store:
        return load(files, store=store)


def by_safetensors(files: list[str]) -> dict[str, Any]:
    """Load with safetensors, whose tensors on the host are mapped files."""
    from safetensors.torch import load_file

    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def by_safetensors_pread(files: list[str]) -> dict[str, Any]:
    """Load with safetensors, which reads into memory of the tensors."""
    from safetensors.torch import load_file

    return {name: tensor for file in files for name, tensor in load_file(file, backend="pread").items()}


def by_safetensors_copied(files: list[str]) -> dict[str, Any]:
    """Load with safetensors, and copy each tensor, which then aliases nothing."""
    return {name: tensor.clone() for name, tensor in by_safetensors(files).items()}


def by_fastsafetensors(files: list[str]) -> dict[str, Any]:
    """Load with fastsafetensors without GDS; tensors of a file are parts of one buffer."""
    from fastsafetensors import SafeTensorsFileLoader

    loader = SafeTensorsFileLoader(None, "cpu", nogds=True)
    loader.add_filenames({0: files})
    loaded = loader.copy_files_to_device()
    return {name: loaded.get_tensor(name) for name in loader.get_keys()}


LOADERS: dict[str, Callable[[list[str]], dict[str, Any]]] = {
    "zerohop": by_zerohop,
    "zerohop-threads": by_zerohop_threads,
    "safetensors": by_safetensors,
    "safetensors-pread": by_safetensors_pread,
    "safetensors-copied": by_safetensors_copied,
    "fastsafetensors": by_fastsafetensors,
}


def memory_of_own() -> int:
    """Return the bytes of memory that this process has now, without pages of files."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def child(loader: str, files: list[str]) -> None:
    """Do one run, and print its numbers."""
    import threading

    import torch

    LOADERS[loader]([])  # the imports; a load of no file
    before, peak, over = memory_of_own(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            peak[0] = max(peak[0], memory_of_own())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, started = os.times(), time.perf_counter()
    tensors = LOADERS[loader](files)
    loaded = time.perf_counter()
    over.set()
    watcher.join()
    spent = os.times()
    sums = [int(tensor.reshape(-1).view(torch.uint8).view(torch.int64).sum()) for tensor in tensors.values()]
    used = time.perf_counter()
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    check = sum(sums) & ((1 << 64) - 1)
    print(
        json.dumps(
            {
                "loaded": loaded - started,
                "used": used - started,
                "cpu": spent.user + spent.system - start.user - start.system,
                "nbytes": nbytes,
                "peak": peak[0] - before,
                "check": check,
            }
        )
    )


def cached(file: str) -> int:
    """Return how many bytes of a file are in the page cache."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", file]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def prepare(files: list[str], *, cold: bool) -> None:
    """Have all bytes in the page cache, or none."""
    for file in files:
        with Path(file).open("rb") as opened:
            if cold:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert cached(file) == 0, "the system keeps the file in its page cache"
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
    parser.add_argument("--loaders", default=",".join(LOADERS))
    parser.add_argument("--states", default="warm,cold")
    parser.add_argument("--child", nargs="+")
    given = parser.parse_args()
    if given.child:
        child(given.child[0], given.child[1:])
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
                command = [sys.executable, __file__, "--folder", str(given.folder), "--child", name, *files]
                taken.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        assert len({run["check"] for taken in runs.values() for run in taken}) == 1, "loaders differ in their bytes"
        for name, taken in runs.items():
            loaded, used, cpu = (statistics.median(run[key] for run in taken) for key in ("loaded", "used", "cpu"))
            nbytes, peak = taken[0]["nbytes"], max(run["peak"] for run in taken)
            print(
                f"{state} {name:20} loaded {loaded:6.2f} s {nbytes / loaded / 1e9:6.2f} GB/s   used {used:6.2f} s "
                f"{nbytes / used / 1e9:6.2f} GB/s   cpu {cpu:5.2f} s   beside {(peak - nbytes) / 2**20:7.0f} MiB"
            )


if __name__ == "__main__":
    main()
