"""Limits that a user without rights meets: locked memory, descriptors, and how many regions a NIC takes."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.nobody import as_nobody
from support.options import Options
from support.pattern import pattern
from support.service import Service
from support.sizes import KIB, MIB
from support.world import Target

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer

REGIONS = 10_000

# Prints the outcome of a write of so many bytes, over verbs and then over whatever there is.
WRITER = """
import resource, sys
import numpy as np
import zerohop as zh

nbytes = int(sys.argv[1])
there = zh.Context(providers=["verbs", "tcp"], listen="127.0.0.1:0")
target = np.zeros(nbytes, np.uint8)
handle = zh.RemoteBuffer.from_bytes(bytes(there.register(target).share("rw")))
data = np.random.default_rng().integers(1, 255, nbytes, np.uint8)
for providers in (["verbs"], ["verbs", "tcp"]):
    target[:] = 0
    here = zh.Context(providers=providers)
    memory = here.register(data)
    try:
        here.write(memory, handle).result(60)
        path = here.explain(memory, handle)
        print("done" if np.array_equal(target, data) else "WRONG BYTES", path, path.details().replace("\\n", ";"))
    except zh.ZerohopError as error:
        print(type(error).__name__, error)
    here.close()
there.close()
"""


# Prints the outcome of a first write over verbs with so few descriptors left, and then with enough.
OPENER = """
import os, resource, sys
import numpy as np
import zerohop as zh

with zh.Context(providers=["verbs"]) as here:
    handle = zh.RemoteBuffer.from_bytes(bytes.fromhex(sys.argv[2]))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    taken = max(map(int, os.listdir("/proc/self/fd"))) + 1
    for limit in (taken + int(sys.argv[1]), most):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        try:
            here.write(np.ones(64, np.uint8), handle).result(60)
            print("done")
        except zh.ZerohopError as error:
            print(type(error).__name__, error)
"""


def _as_nobody(limit: int, which: int, program: str, *words: object) -> list[str]:
    """What the program printed, as a user with that limit."""

    def lower() -> None:
        resource.setrlimit(which, (limit, limit))

    ran = subprocess.run(
        [*as_nobody(), sys.executable, "-c", program, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        preexec_fn=lower,
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp"},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize("nbytes", [64 * KIB, 64 * MIB])
def test_locked_memory(nbytes: int) -> None:
    """Not enough for a lane, or for the region: the error says so and how to raise it, and tcp does without."""
    alone, beside_tcp = _as_nobody(16 * KIB if nbytes < MIB else 8 * MIB, resource.RLIMIT_MEMLOCK, WRITER, nbytes)
    assert "locked" in alone, alone
    assert "ulimit -l" in alone, alone
    assert beside_tcp.startswith("done"), beside_tcp
    assert "locked" in beside_tcp, beside_tcp


def test_descriptors_of_nobody(open_context: OpenContext) -> None:
    context = open_context(Options(providers=("verbs",)))
    memory = context.register(np.zeros(64, np.uint8))
    few, enough = _as_nobody(256, resource.RLIMIT_NOFILE, OPENER, 2, bytes(memory.share("rw")).hex())
    assert "descriptor" in few, few
    assert enough == "done", enough


def test_descriptors(open_context: OpenContext, start_peer: StartPeer) -> None:
    """However few are left when a NIC is first used: it works, or an error names them, and afterwards it works."""
    options = Options(providers=("verbs",), timeout=30.0)
    kinds = []
    for free in (0, 4, 8):
        context, peer = open_context(options), start_peer(options)
        memory = context.register(np.zeros(64, np.uint8))
        handle = bytes(memory.share("rw"))
        number = peer.call(Service.new, "numpy", 64, 0)
        peer.call(Service.leave_descriptors, free)
        outcome = peer.call(Service.try_write, handle, number, 64)
        peer.call(Service.lift_limits)
        kinds.append(outcome.kind)
        assert outcome.kind == "ok" or outcome.says("descriptor"), outcome
        assert peer.call(Service.try_write, handle, number, 64).kind == "ok"
        context.close()
    assert kinds[0] != "ok"


@pytest.mark.timeout(300)
def test_ten_thousand_regions(open_context: OpenContext, start_peer: StartPeer) -> None:
    """Each is registered, used, and given back."""
    options = Options(providers=("verbs",), timeout=60.0)
    context, peer = open_context(options), start_peer(options)
    target = Target(peer, "numpy", 4 * KIB)
    context.write(np.zeros(4 * KIB, np.uint8), target.handle).result(30)
    arrays = [np.full(4 * KIB, number % 251, np.uint8) for number in range(REGIONS)]
    memories = [context.register(array) for array in arrays]
    for memory in memories:
        context.write(memory, target.handle).result(30)
    path = context.explain(memories[-1], target.handle)
    assert (path.provider, path.form, path.direct) == ("verbs", "rdma", True), path.details()
    assert target.get(0, 4 * KIB) == arrays[-1].tobytes()
    for memory in memories:
        memory.close()
    data = pattern(1, 4 * KIB)
    context.write(data, target.handle).result(30)
    target.expect(0, 4 * KIB, 1)
