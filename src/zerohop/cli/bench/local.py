"""Measures the rows that are no transfer between two memories, from `register` and `import` to all GPUs at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._floors import copy_all_pairs
from zerohop.cli.bench.rows import TENSOR_BYTES, Row, Samples
from zerohop.cli.bench.session import TIMEOUT
from zerohop.cli.bench.tensors import import_torch, set_expandable
from zerohop.cli.bench.transfers import measure_posts
from zerohop.cli.payload import random_bytes
from zerohop.cli.peer import accept

if TYPE_CHECKING:
    from zerohop.cli.bench.rows import Case
    from zerohop.cli.bench.session import Effort, Session

_COLD: Final = 7
_CACHED: Final = 2000
_PROBE_BYTES: Final = 64 << 10
# Enough rounds that a new Context's first work, such as loading kernels, disturbs few of them.
_TENSOR_ROUNDS: Final = 15
_TENSOR_SECONDS: Final = 0.1
_STANDS_STILL_S: Final = 0.2
_RELEASED: Final = 7  # the notification that releases the stream
_IMPORT: Final = (
    "import time; a = time.perf_counter_ns(); import numpy; b = time.perf_counter_ns(); import zerohop; "
    "print(b - a, time.perf_counter_ns() - b)"
)


def measure_register(session: Session, case: Case) -> Row:
    """Register a numpy array whose pages are present: a new one each time ("cold"), or a registered one ("cached").

    Verified: the other process reads a part of it through a handle, and gets the right bytes.
    """
    register = session.context.register
    probe = min(_PROBE_BYTES, case.bytes)
    samples = Samples()
    array = np.ones(case.bytes, np.uint8)
    kept = register(array)
    for _ in range(_COLD if case.mode == "cold" else _CACHED):
        if case.mode == "cold":
            kept.close()
            array = np.ones(case.bytes, np.uint8)
        memory = samples.measure(register, array)
        if case.mode == "cold":
            kept = memory
    array[-probe:] = random_bytes(case.bytes, probe)
    with register(array) as memory:
        samples.verified = session.readable(memory.share("r")[case.bytes - probe :], array[-probe:])
    kept.close()
    return samples.row(case)


def measure_idle(session: Session, case: Case) -> Row:
    """Measure the processor time of both processes while they are connected and idle.

    Verified: a transfer before and one after the wait arrive as sent.
    """
    nbytes = 4096
    with session.local("host", nbytes) as local, session.remote("host", "ring", nbytes) as remote:
        row = Row.of(case)
        row.verified, row.seconds = True, session.effort.idle_seconds
        here = there = 0.0
        for seed in (1, 2):
            payload = random_bytes(seed, nbytes)
            local.put(payload)
            session.context.write(local.memory, remote).result(TIMEOUT)
            row.verified &= session.arrived(payload)
            if seed == 1:
                time.sleep(0.2)
                there = session.peer.call("cpu_seconds")["seconds"]
                here = time.process_time()
                time.sleep(row.seconds)  # the measured time: the processor time of two idle processes
                here = time.process_time() - here
                there = session.peer.call("cpu_seconds")["seconds"] - there
    row.cpu_us_per_op = round(here * 1e6, 1)
    row.cpu_s, row.peer_cpu_s = round(here, 6), round(there, 6)
    return row


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
    return replace(Row.of(case), verified=True)


def measure_tensors(session: Session, case: Case) -> Row:
    """Register a tensor whose allocation is known, or a list of tensors in one new allocation.

    Verified: the other process reads the last tensor through a handle, and gets the right bytes.
    """
    torch = import_torch()
    set_expandable(on=False)
    register = session.context.register
    samples = Samples()
    for _ in range(_TENSOR_ROUNDS):
        torch.cuda.empty_cache()  # so that the allocation is new
        whole = torch.zeros(case.batch * TENSOR_BYTES, dtype=torch.uint8, device=case.src)
        tensors = [whole[i * TENSOR_BYTES : (i + 1) * TENSOR_BYTES] for i in range(case.batch)]
        payload = random_bytes(case.batch, TENSOR_BYTES)
        tensors[-1].copy_(torch.from_numpy(payload))
        torch.cuda.synchronize()
        what: Any = tensors if case.mode == "list" else tensors[0]
        made: Any = None
        if case.mode == "cached":
            register(whole)
        ends = time.perf_counter() + (_TENSOR_SECONDS if case.mode == "cached" else 0)
        while made is None or time.perf_counter() < ends:
            made = None  # closed here, outside the measured time
            made = samples.measure(register, what)
        memories = made if isinstance(made, list) else [made]
        samples.verified &= session.readable(memories[-1].share("r"), payload)
        for memory in memories:
            memory.close()
    return samples.row(case)


def measure_stream_wait(session: Session, case: Case) -> Row:
    """Measure the processor time of this process while a stream waits for a notification.

    Verified: the stream stands still until the notification comes, and goes on then.
    """
    torch = import_torch()
    seconds = session.effort.idle_seconds
    stream = torch.cuda.Stream(case.src)
    inbox = session.context.alloc(8)
    note = session.context.notification(timeout=seconds + TIMEOUT)
    note.wait_on(stream)
    time.sleep(_STANDS_STILL_S)  # long enough for a stream that does not wait to finish
    stood_still = not stream.query()
    used = time.process_time()
    time.sleep(seconds)  # the measured time: the processor time of doing nothing
    used = time.process_time() - used
    session.peer.call("notify", handle=bytes(inbox.share("w")).hex(), value=_RELEASED)
    came = note.result(TIMEOUT).value == _RELEASED
    stream.synchronize()
    inbox.close()
    return replace(
        Row.of(case),
        cpu_us_per_op=round(used * 1e6, 1),
        verified=stood_still and came,
        seconds=seconds,
        cpu_s=round(used, 6),
    )


def measure_all_pairs(session: Session, case: Case) -> Row:
    """Write from memory of every GPU of this process to memory of every other GPU of the peer, all at once.

    `batch` of the row is the number of pairs; one measurement lasts until the last write has ended.
    """
    names = [device.name for device in session.context.devices if device.kind == "cuda"]
    pairs = [(here, there) for here in names for there in names if here != there]
    targets = [accept(session.peer.call("allocate", kind=there, nbytes=case.bytes)["handle"]) for _, there in pairs]
    payloads = {name: random_bytes(number, case.bytes) for number, name in enumerate(names)}
    samples = Samples()
    write, limit = session.context.write, session.effort.limit
    with ExitStack() as opened:
        sources = {name: opened.enter_context(session.context.alloc(case.bytes, name)) for name in names}
        for name, memory in sources.items():
            memory.write_bytes(0, payloads[name].tobytes())
        moves = [(sources[here], target) for (here, _), target in zip(pairs, targets, strict=True)]
        rounds = session.effort.repetitions(0.001e9, 10)
        explanation = session.context.explain(*moves[0])
        samples.floor_ns += copy_all_pairs(len(names), case.bytes, rounds)
        measure_posts(write, moves, len(moves), 3, 0.0, limit)  # connections and first uses
        cpu = time.process_time_ns()
        samples.times_ns += measure_posts(write, moves, len(moves), rounds, 0.0, limit)
        samples.cpu_ns += time.process_time_ns() - cpu
        for number, (here, _) in enumerate(pairs):
            samples.verified &= session.arrived(payloads[here], number)
        session.peer.call("release")
    counted = replace(case, batch=len(pairs))
    return samples.row(counted, operations=counted.batch, floor="C++ copies, all at once", path=explanation)
