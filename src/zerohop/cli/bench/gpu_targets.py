"""Declares the targets of the numbers between two GPUs."""

from __future__ import annotations

from typing import Final

from zerohop.cli.bench.gpu_plan import LIST, PAGES, TENSOR_BYTES, TOGETHER
from zerohop.cli.bench.seed import SEED_US
from zerohop.cli.bench.target import Target

_KI, _MI = 1 << 10, 1 << 20
_PAIR: Final = {"provider": "p2p", "src": "cuda:0", "dst": "cuda:1"}
_SINGLE: Final = {**_PAIR, "batch": 1}
_EXPANDABLE: Final = "expandable"
_TCP: Final = {"provider": "tcp", "bytes": 256 * _MI, "batch": 1}
_WITHIN: Final = 0.95  # of the speed of the same row on memory of cudaMalloc


def _times_faster(nbytes: int) -> float:
    return 3 if nbytes < 4 * _MI else 5 if nbytes < 256 * _MI else 8


def _row(name: str, **fields: object) -> dict[str, object]:
    return {"name": name, "mode": None, **_SINGLE, **fields}


def _expandable(name: str, nbytes: int, batch: int = 1, mode: str | None = None) -> Target:
    plain = _row(name, bytes=nbytes, batch=batch, mode=mode)
    return Target({**plain, "mode": _EXPANDABLE}, min_of_row=_WITHIN, row=plain)


GPU_TARGETS: Final = (
    Target(_row("write", bytes=8 * _KI), max_times_floor=1.35),
    Target(_row("write", bytes=8 * _KI), max_cpu_us=10),
    Target(_row("write", bytes=8 * _KI, batch=TOGETHER), max_cpu_us=3),
    *(Target(_row(name, bytes=256 * _MI), min_of_floor=0.98) for name in ("write", "read")),
    *(
        Target(_row(name, bytes=nbytes), times_faster=_times_faster(nbytes), than_us=seed_us)
        for name in ("write", "transport_write")
        for nbytes, seed_us in SEED_US.items()
    ),
    Target(_row("write_notify", bytes=8 * _KI, mode="result"), max_us=12),
    Target(_row("write_pages", bytes=16 * _KI, batch=PAGES), min_of_floor=0.9),
    Target(_row("write_pages", bytes=1 * _KI, batch=PAGES), max_us=45),
    *(_expandable(name, nbytes) for name in ("write", "read") for nbytes in (8 * _KI, 256 * _MI)),
    _expandable("write_notify", 8 * _KI, mode="result"),
    *(_expandable("write_pages", nbytes, PAGES) for nbytes in (1 * _KI, 16 * _KI)),
    Target({"name": "register", "src": "cuda:0", "mode": "cached", "bytes": TENSOR_BYTES}, max_us=3),
    Target({"name": "register", "src": "cuda:0", "mode": "list", "batch": LIST}, max_us=20_000),
    *(
        Target(
            {"name": name, **_TCP, "src": "cuda:0", "dst": "cuda:1"},
            min_of_row=0.85,
            row={"name": name, **_TCP, "src": "host", "dst": "host"},
        )
        for name in ("write", "read")
    ),
    Target({"name": "all_pairs", "bytes": 256 * _MI}, min_of_floor=0.9),
    Target({"name": "stream_wait"}, max_cpu=0.01),
)
