"""More than 2 GiB in one operation, where the machine has the memory for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.pattern import POISON
from support.sizes import GIB, MIB
from support.world import PROVIDERS

if TYPE_CHECKING:
    from support.buffers import Kind
    from support.world import World

# Past 2**31 with a rest that no power of two divides; both ends at odd places. NICs have limits of their own.
NBYTES = (5 * GIB // 2 if "verbs" in PROVIDERS else 2 * GIB) + 5
# Of each transfer: through an emulated NIC half a minute and more. A test makes two of them, and checks them.
TIMEOUT_S = 600 if "verbs" in PROVIDERS else 120
# Source, target, and as much again for what the blocks are compared with and what is staged.
NEEDED = 3 * NBYTES
OFFSET = 3
BLOCK = 64 * MIB + 1

KINDS: tuple[Kind, ...] = ("numpy", "alloc", "sim")


def _available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no MemAvailable")


pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,  # two at once would need twice the memory that there was found to be
    pytest.mark.timeout(1200 if "verbs" in PROVIDERS else 300),
    pytest.mark.skipif(_available() < NEEDED, reason=f"needs {NEEDED >> 30} GiB of free memory"),
]


@pytest.mark.parametrize("target_kind", KINDS)
@pytest.mark.parametrize("world", [f"{provider}-other" for provider in PROVIDERS], indirect=True)
def test_write_and_read_back(world: World, target_kind: Kind) -> None:
    source = world.buffer("numpy", NBYTES + 2 * OFFSET)
    target = world.target(target_kind, NBYTES + 2 * OFFSET)
    # A stream of its own for each block, so that a block in the wrong place is seen.
    starts = range(0, NBYTES, BLOCK)
    for start in starts:
        source.fill(OFFSET + start, min(BLOCK, NBYTES - start), start)
    local = source.memory[OFFSET : OFFSET + NBYTES]
    remote = target.handle[OFFSET : OFFSET + NBYTES]
    assert world.here.write(local, remote, notify=1, timeout=TIMEOUT_S).result() == NBYTES
    world.expect_notification(1, NBYTES)
    for start in starts:
        target.expect(OFFSET + start, min(BLOCK, NBYTES - start), start)
    assert target.get(0, OFFSET) == target.get(OFFSET + NBYTES, OFFSET) == bytes([POISON]) * OFFSET
    source.poison(0, source.nbytes)
    assert world.here.read(remote, local, timeout=TIMEOUT_S).result() == NBYTES
    for start in starts:
        source.expect(OFFSET + start, min(BLOCK, NBYTES - start), start)
    source.expect_poison(0, OFFSET)
    source.expect_poison(OFFSET + NBYTES)
