"""Counts the cycles that a kernel needs to write a NIC's work requests, ring the doorbell, and find completions.

    python bench/device/work_queue.py [--device cuda:0] [--json FILE|-]

No NIC takes part: the queue lies in memory of the GPU, its doorbell there or in memory of the host, and the kernel
itself writes the completion. So these are the costs of the kernel's side alone; not verified on hardware with a NIC.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any, Final

from zerohop.device import include_dir

POSTS: Final = 64  # of each lane
SLOTS: Final = 32 * POSTS
LAYOUT: Final = 0x7A686D6C78350003
LONG_NS: Final = 10**9
ROUNDS: Final = 5
# In the memory of the queue, behind it.
COMPLETION: Final = 1024
OUT: Final = 3072
NOTHING_YET: Final = -(1 << 60)  # the last byte of a completion is 0xF0
WAYS: Final = ((1, "alone"), (32, "alone"), (32, "together"))  # lanes, and how they post
SOURCE: Final = """
#include "zerohop/device/work_queue.hpp"
namespace zd = zerohop::device;
namespace mx = zerohop::device::mlx5;
using zd::Word;

// Writes the clock cycles of lane 0 for a post and for a poll, and a status.
template <zd::Scope kScope> __device__ void measure(const mx::WorkQueue* queue, Word* out, unsigned posts) {
    Word status = zd::kOk;
    mx::Posted posted{zd::kOk, 0, 0};
    __syncwarp();
    const long long begun = clock64();
    for (unsigned i = 0; i < posts; ++i) {
        posted = mx::PostWrite<kScope>(queue, 0x1000, 1, 0x2000, 2, 4096);
        mx::UpdateSendDbrRecord<kScope>(queue, posted);
        const Word rung = mx::RingDoorbell<kScope>(queue, posted);
        status = rung != zd::kOk ? rung : status;
    }
    __syncwarp();
    const long long written = clock64();
    if (threadIdx.x == 0) {
        const unsigned last = (blockDim.x * posts - 1) & 0xffff;
        const Word counter = static_cast<Word>(last >> 8) << 32 | static_cast<Word>(last & 0xff) << 40;
        zd::platform::store_release(queue->completions + 56, counter);
    }
    __syncwarp();
    const long long completed = clock64();
    for (unsigned i = 0; i < posts; ++i) {
        const Word polled = mx::PollCq<kScope>(queue, posted);
        status = polled != zd::kOk ? polled : status;
        mx::UpdateCqDbrRecord<kScope>(queue);
    }
    __syncwarp();
    if (threadIdx.x == 0) {
        out[0] = (written - begun) / posts;
        out[1] = (clock64() - completed) / posts;
    }
    if (status != zd::kOk) {
        out[2] = status;
    }
}
extern "C" __global__ void alone(const mx::WorkQueue* queue, Word* out, unsigned posts) {
    measure<zd::Scope::thread>(queue, out, posts);
}
extern "C" __global__ void together(const mx::WorkQueue* queue, Word* out, unsigned posts) {
    measure<zd::Scope::warp>(queue, out, posts);
}
"""


class UnattachedQueue:
    """Holds a queue that no NIC reads, as `WorkQueue` in `queue_steps.hpp` declares it."""

    def __init__(self, device: str, *, bell_on_host: bool) -> None:
        """Allocate it on a GPU, and its record and doorbell there or in memory of the host."""
        import torch

        self.words = torch.zeros(512, dtype=torch.int64, device=device)
        self.blocks = torch.zeros(SLOTS * 8, dtype=torch.int64, device=device)
        place: dict[str, Any] = {"pin_memory": True} if bell_on_host else {"device": device}
        self.bell = torch.zeros(512, dtype=torch.int64, **place)

    def reset(self) -> None:
        """Make it empty."""
        import torch

        at, bell = self.words.data_ptr(), self.bell.data_ptr()
        counters = at + 2048
        descriptor = (
            LAYOUT,
            7,
            SLOTS,
            self.blocks.data_ptr(),
            bell,
            bell + 256,
            at + COMPLETION,
            1,
            bell + 512,
            counters,
            counters + 128,
            counters + 256,
            counters + 384,
            LONG_NS,
            SLOTS,
        )
        words = torch.zeros(512, dtype=torch.int64)
        words[: len(descriptor)] = torch.tensor(descriptor, dtype=torch.int64)
        words[COMPLETION // 8 + 7] = NOTHING_YET
        self.words.copy_(words)
        torch.cuda.synchronize()

    def found(self, posts: int) -> tuple[int, int]:
        """Return cycles for a post and for a poll; end the program if anything is not as so many posts leave it."""
        post, poll, status = self.words[OUT // 8 : OUT // 8 + 3].tolist()
        record, doorbell = (int(self.bell[at]).to_bytes(8, "little", signed=True) for at in (0, 256 // 8))
        told = int.from_bytes(record[4:], "big"), int.from_bytes(doorbell[1:3], "big") + 1
        if status or told != (posts, posts):
            raise SystemExit(
                f"status {status}, {told[0]} posts in the record and {told[1]} in the doorbell, not {posts}"
            )
        return post, poll


def measure(device: str) -> list[dict[str, object]]:
    """Return a row for each place of the doorbell and number of lanes: medians of cycles."""
    from cuda import core

    gpu = core.Device(int(device.partition(":")[2]))
    gpu.set_current()
    stream = gpu.create_stream()
    options = core.ProgramOptions(std="c++17", arch=f"sm_{gpu.arch}", include_path=[include_dir()])
    code = core.Program(SOURCE, "c++", options).compile("cubin")
    rows: list[dict[str, object]] = []
    for on_host in (False, True):
        queue = UnattachedQueue(device, bell_on_host=on_host)
        for lanes, way in WAYS:
            kernel = code.get_kernel(way)
            costs = []
            for _ in range(ROUNDS):
                queue.reset()
                at = queue.words.data_ptr()
                arguments = [ctypes.c_uint64(at), ctypes.c_uint64(at + OUT), ctypes.c_uint32(POSTS)]
                core.launch(stream, core.LaunchConfig(grid=1, block=lanes), kernel, *arguments)
                stream.sync()
                costs.append(queue.found(lanes * POSTS))
            posts, polls = zip(*costs, strict=True)
            rows.append(
                {
                    "doorbell": "host" if on_host else "GPU",
                    "lanes": lanes,
                    "way": way,
                    "cycles_per_post": statistics.median(posts),
                    "cycles_per_poll": statistics.median(polls),
                }
            )
    return rows


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=re.sub(r"\n.*", "", __doc__ or "", flags=re.DOTALL))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", metavar="FILE|-")
    options = parser.parse_args()
    rows = measure(options.device)
    table = sys.stderr if options.json == "-" else sys.stdout
    for row in rows:
        costs = "{cycles_per_post:g} cycles for a post of each lane, {cycles_per_poll:g} for a poll"
        print(("doorbell in memory of the {doorbell}, {lanes} lanes, {way}: " + costs).format(**row), file=table)
    if options.json == "-":
        print(json.dumps({"rows": rows}, indent=1))
    elif options.json:
        Path(options.json).write_text(json.dumps({"rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
