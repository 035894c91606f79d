"""Compares kernels that send through a Queue with kernels that do over NVSHMEM, in turn, on two GPUs of one host.

    python bench/device/nvshmem.py [--rounds N] [--json FILE|-]

It compiles `nvshmem.cu` by nvcc, with the headers and libraries of the wheel of NVSHMEM, which torch brings. Each round
runs that program and then `zerohop bench device_ping device_put`; the table has the medians of all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zerohop.cli.bench.device_plan import FEW_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT: Final = 120.0  # seconds that a program may take


class Key(NamedTuple):
    """Names a row: its name, bytes, and whether only few blocks take part."""

    name: str
    nbytes: int
    few: bool


def nvshmem_folder() -> Path:
    """Return the folder of NVSHMEM's wheel, or end the program with what is missing."""
    spec = find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec else ():
        folder = Path(place) / "nvshmem"
        if (folder / "include" / "nvshmem.h").exists():
            return folder
    raise SystemExit("NVSHMEM is missing: pip install nvidia-nvshmem-cu13")


def compile_nvshmem(folder: Path, into: Path) -> Path:
    """Compile `nvshmem.cu` for the GPU of this machine."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        raise SystemExit("nvcc is missing: it comes with NVIDIA's CUDA toolkit")
    library = folder / "lib"
    program = into / "nvshmem"
    source = Path(__file__).with_name("nvshmem.cu")
    command = [nvcc, "-std=c++17", "-O3", "-rdc=true", "-arch=native", f"-I{folder / 'include'}", str(source)]
    command += ["-o", str(program), f"-L{library}", "-lnvshmem_device", "-l:libnvshmem_host.so.3", "-lcuda"]
    subprocess.run([*command, "-Xlinker", f"-rpath={library}"], check=True, timeout=LIMIT)
    return program


def run_nvshmem(program: Path, folder: Path) -> Iterator[tuple[str, Key, float]]:
    """Run both processes; yield "NVSHMEM", the row and its nanoseconds for each repeat."""
    with tempfile.TemporaryDirectory() as place:
        meeting = str(Path(place) / "identifier")
        # NVSHMEM finds its bootstrap plugin by this path. One host needs no NIC, and no network but its own.
        environment = {
            "NVSHMEM_REMOTE_TRANSPORT": "none",
            "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
            "LD_LIBRARY_PATH": str(folder / "lib"),
        }
        ranks = [
            subprocess.Popen(
                [str(program), str(rank), meeting], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
            )
            for rank in (0, 1)
        ]
        try:
            printed = [rank.communicate(timeout=LIMIT)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"NVSHMEM's program ended with {[rank.returncode for rank in ranks]}")
    for line in printed[0].splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            yield "NVSHMEM", Key(row["name"], row["bytes"], row["blocks"] == FEW_BLOCKS), row["ns"]


def run_zerohop() -> Iterator[tuple[str, Key, float]]:
    """Run the benchmark; yield the language, the row and the nanoseconds of its median."""
    command = [sys.executable, "-m", "zerohop.cli", "bench", "device_ping", "device_put", "--filter", "p2p peer"]
    command += ["--src", "cuda:0", "--dst", "cuda:1", "--json", "-"]
    # It ends with an error if a target is missed; the rows are there all the same.
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT * 2)
    text = done.stdout
    if "}" not in text:
        raise SystemExit(f"zerohop bench ended with {done.returncode}, and has printed no rows")
    for row in json.loads(text[: text.rindex("}") + 1])["rows"]:
        if not row["verified"]:
            raise SystemExit(f"bytes are wrong: {row}")
        if row.get("form") != "proxy":
            language, _, blocks = row["mode"].partition(", ")
            yield language, Key(row["name"], row["bytes"], bool(blocks)), row["p50_us"] * 1000


def table(samples: dict[Key, dict[str, list[float]]]) -> Iterator[str]:
    """Yield the lines of a table of medians."""
    yield f"{'row':<36}{'NVSHMEM':>12}{'triton':>12}{'c++':>12}   times NVSHMEM's"
    for key, by in sorted(samples.items()):
        medians = {name: statistics.median(values) for name, values in by.items()}
        shown = [f"{_shown(key, medians[each])}" if each in medians else "–" for each in ("NVSHMEM", "triton", "c++")]
        peer = medians.get("NVSHMEM", 0.0)
        ratios = [f"{medians[each] / peer:.2f}" for each in ("triton", "c++") if each in medians and peer]
        title = f"{key.name} {key.nbytes} B{f', {FEW_BLOCKS} blocks' if key.few else ''}"
        yield f"{title:<36}{''.join(f'{each:>12}' for each in shown)}   {' / '.join(ratios)}"


def _shown(key: Key, nanoseconds: float) -> str:
    return f"{nanoseconds / 1000:.2f} µs" if key.name == "device_ping" else f"{key.nbytes / nanoseconds:.1f} GB/s"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=re.sub(r"\n.*", "", __doc__ or "", flags=re.DOTALL))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE|-")
    options = parser.parse_args()
    samples: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    folder = nvshmem_folder()
    with tempfile.TemporaryDirectory() as place:
        program = compile_nvshmem(folder, Path(place))
        for _ in range(options.rounds):
            for measured in (run_nvshmem(program, folder), run_zerohop()):
                for name, key, nanoseconds in measured:
                    samples[key][name].append(nanoseconds)
    print("\n".join(table(samples)), file=sys.stderr if options.json == "-" else sys.stdout)
    if options.json:
        rows: list[dict[str, Any]] = [
            {**key._asdict(), "by": name, "ns": values} for key, by in samples.items() for name, values in by.items()
        ]
        text = json.dumps({"rows": rows}, indent=1)
        if options.json == "-":
            print(text)
        else:
            Path(options.json).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
