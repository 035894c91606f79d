"""Measures the rows without a transfer: `register`, `idle`, `import` and `wheel`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from zerohop.cli.bench.rows import Row, Samples
from zerohop.cli.bench.session import TIMEOUT
from zerohop.cli.payload import digest, random_bytes

if TYPE_CHECKING:
    from zerohop.cli.bench.case import Case
    from zerohop.cli.bench.session import Effort, Session

_COLD: Final = 7
_CACHED: Final = 2000
_PROBE_BYTES: Final = 64 << 10
_IMPORT: Final = (
    "import time; a = time.perf_counter_ns(); import numpy; b = time.perf_counter_ns(); import zerohop; "
    "print(b - a, time.perf_counter_ns() - b)"
)


def measure_register(session: Session, case: Case) -> Row:
    """Register a numpy array whose pages are present: a new one each time ("cold"), or a registered one ("cached").

    Verified: the other process reads a part of it through a handle, and gets the right bytes.
    """
    register, clock = session.context.register, time.perf_counter_ns
    probe = min(_PROBE_BYTES, case.bytes)
    samples = Samples()
    array = np.ones(case.bytes, np.uint8)
    kept = register(array)
    for _ in range(_COLD if case.mode == "cold" else _CACHED):
        if case.mode == "cold":
            kept.close()
            array = np.ones(case.bytes, np.uint8)
        cpu = time.process_time_ns()
        start = clock()
        memory = register(array)
        samples.times_ns.append(clock() - start)
        samples.cpu_ns += time.process_time_ns() - cpu
        if case.mode == "cold":
            kept = memory
    array[-probe:] = random_bytes(case.bytes, probe)
    with register(array) as memory:
        handle = memory.share("r")[case.bytes - probe :]
        answer = session.peer.call("read_digest", handle=bytes(handle).hex())
        samples.verified = answer["digest"] == digest(array[-probe:])
    kept.close()
    return samples.row(case)


def measure_idle(session: Session, case: Case) -> Row:
    """Measure the processor time of both processes while they are connected and idle.

    Verified: a transfer before and one after the wait arrive as sent.
    """
    nbytes = 4096
    with session.local("host", nbytes) as local, session.remote("host", "ring", nbytes) as remote:
        verified = True
        seconds = session.effort.idle_seconds
        here = there = 0.0
        for seed in (1, 2):
            payload = random_bytes(seed, nbytes)
            local.put(payload)
            session.context.write(local.memory, remote).result(TIMEOUT)
            verified &= session.peer.call("digest", nbytes=nbytes)["digest"] == digest(payload)
            if seed == 1:
                time.sleep(0.2)
                there = session.peer.call("cpu_seconds")["seconds"]
                here = time.process_time()
                time.sleep(seconds)
                here = time.process_time() - here
                there = session.peer.call("cpu_seconds")["seconds"] - there
    return Row(
        name=case.name,
        provider=None,
        direct=None,
        src=None,
        dst=None,
        bytes=0,
        batch=1,
        cpu_us_per_op=round(here * 1e6, 1),
        verified=verified,
        seconds=seconds,
        cpu_s=round(here, 6),
        peer_cpu_s=round(there, 6),
    )


def measure_import(effort: Effort, case: Case) -> Row:
    """Time ``import zerohop`` after ``import numpy`` in fresh interpreters; the floor is the import of numpy."""
    samples = Samples()
    # An installed package is compiled once; so is this one, whatever PYTHONDONTWRITEBYTECODE says here.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(effort.imports + 1):  # the first one compiles, fills the file cache, and is dropped
        run = subprocess.run(
            [sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True, timeout=60, env=env
        )
        numpy_ns, zerohop_ns = (int(word) for word in run.stdout.split())
        samples.floor_ns.append(numpy_ns)
        samples.times_ns.append(zerohop_ns)
    del samples.floor_ns[0], samples.times_ns[0]
    row = samples.row(case, floor="import numpy")
    row.cpu_us_per_op = None
    return row


def weigh_wheel(case: Case) -> Row:
    """Make the row of a wheel whose size the plan has read."""
    return Row(name=case.name, provider=None, direct=None, src=None, dst=None, bytes=case.bytes, batch=1, verified=True)
