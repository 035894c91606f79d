"""Measures the rows of GPUs that are no transfer between two memories: tensors, a waiting stream, all GPUs at once."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import zerohop
from zerohop._floors import copy_all_pairs
from zerohop.cli.bench.case import TENSOR_BYTES
from zerohop.cli.bench.rows import Row, Samples
from zerohop.cli.bench.session import TIMEOUT, import_torch, set_expandable
from zerohop.cli.payload import digest, random_bytes

if TYPE_CHECKING:
    from zerohop.cli.bench.case import Case
    from zerohop.cli.bench.session import Session

# Enough rounds that a new Context's first work, such as loading kernels, disturbs few of them.
_ROUNDS: Final = 15
_SECONDS: Final = 0.1
_STANDS_STILL_S: Final = 0.2
_RELEASED: Final = 7  # the notification that releases the stream


def measure_tensors(session: Session, case: Case) -> Row:
    """Register a tensor whose allocation is known, or a list of tensors in one new allocation.

    Verified: the other process reads the last tensor through a handle, and gets the right bytes.
    """
    torch = import_torch()
    set_expandable(on=False)
    register, clock = session.context.register, time.perf_counter_ns
    samples = Samples()
    for _ in range(_ROUNDS):
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
        ends = time.perf_counter() + (_SECONDS if case.mode == "cached" else 0)
        while made is None or time.perf_counter() < ends:
            made = None  # closed here, outside the measured time
            cpu, start = time.process_time_ns(), clock()
            made = register(what)
            samples.times_ns.append(clock() - start)
            samples.cpu_ns += time.process_time_ns() - cpu
        last = made[-1] if isinstance(made, list) else made
        answer = session.peer.call("read_digest", handle=bytes(last.share("r")).hex())
        samples.verified &= answer["digest"] == digest(payload)
        for memory in made if isinstance(made, list) else [made]:
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
    return Row(
        name=case.name,
        provider=None,
        direct=None,
        src=case.src,
        dst=None,
        bytes=0,
        batch=1,
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
    sources = {name: session.context.alloc(case.bytes, name) for name in names}
    targets = [
        zerohop.RemoteBuffer.from_bytes(
            bytes.fromhex(session.peer.call("allocate", kind=there, nbytes=case.bytes)["handle"])
        )
        for _, there in pairs
    ]
    samples = Samples()
    explanation = None
    try:
        payloads = {name: random_bytes(number, case.bytes) for number, name in enumerate(names)}
        for name, memory in sources.items():
            memory.write_bytes(0, payloads[name].tobytes())
        rounds = session.effort.repetitions(0.001e9, 10)
        explanation = session.context.explain(sources[pairs[0][0]], targets[0])
        samples.floor_ns += copy_all_pairs(len(names), case.bytes, rounds)
        for _ in range(3 + rounds):
            start, cpu = time.perf_counter_ns(), time.process_time_ns()
            operations = [
                session.context.write(sources[here], target) for (here, _), target in zip(pairs, targets, strict=True)
            ]
            zerohop.wait_all(operations).result(TIMEOUT)
            samples.times_ns.append(time.perf_counter_ns() - start)
            samples.cpu_ns += time.process_time_ns() - cpu
        del samples.times_ns[:3]  # connections and first uses
        for number, (here, _) in enumerate(pairs):
            found = session.peer.call("digest", nbytes=case.bytes, number=number)["digest"]
            samples.verified &= found == digest(np.asarray(payloads[here]))
        session.peer.call("release")
    finally:
        for memory in sources.values():
            memory.close()
    counted = replace(case, batch=max(1, len(pairs)))
    return samples.row(counted, operations=counted.batch, floor="C++ copies, all at once", path=explanation)
