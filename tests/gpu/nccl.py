"""`python nccl.py RANK STORE`: a rank of NCCL and a Context in one process, both busy at once, for test_nccl.py."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist

import zerohop as zh

MIB = 1 << 20
NBYTES = 32 * MIB
ROUNDS = 50
LIMIT_S = 30.0


def main() -> None:
    rank, store = int(sys.argv[1]), sys.argv[2]
    other, device = 1 - rank, f"cuda:{rank}"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    ones: Any = torch.ones(MIB, device=device)
    dist.all_reduce(ones)  # NCCL makes its communicator at the first use
    with zh.Context(timeout=LIMIT_S) as context:
        inbox: Any = torch.zeros(NBYTES, dtype=torch.uint8, device=device)
        outbox: Any = torch.zeros(NBYTES, dtype=torch.uint8, device=device)
        torch.cuda.synchronize()  # a write of the other rank's does not wait for what fills these
        handles: list[Any] = [None, None]
        dist.all_gather_object(handles, bytes(context.register(inbox).share("rw")))
        target = zh.RemoteBuffer.from_bytes(handles[other])
        failures: list[str] = []

        def reduce() -> None:
            stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]
            with torch.cuda.stream(stream):
                for round_number in range(ROUNDS):
                    value: Any = torch.full((4 * MIB,), float(rank + round_number), device=device)
                    dist.all_reduce(value)
                    wrong = int((value != 2.0 * round_number + 1).sum().item())
                    if wrong:
                        failures.append(f"all_reduce {round_number}: {wrong} values")

        reducer = threading.Thread(target=reduce)
        reducer.start()
        arrived: set[int] = set()  # in any order: what is without data may overtake what the GPU announces

        def wait_for(value: int) -> None:
            while value not in arrived:
                arrived.add(context.notification(LIMIT_S).result().value)
            arrived.remove(value)

        path = ""
        for round_number in range(ROUNDS):
            outbox.fill_(10 + rank + round_number)
            operation = context.write(outbox, target, notify=round_number, stream=torch.cuda.current_stream())
            operation.wait_on(torch.cuda.current_stream())
            wait_for(round_number)
            wrong = int((inbox != 10 + other + round_number).sum().item())
            if wrong:
                failures.append(f"write {round_number}: {wrong} bytes")
            context.notify(target, 1000 + round_number).result(LIMIT_S)
            wait_for(1000 + round_number)
            path = str(operation.explain())
        reducer.join()
        dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"failures": failures, "path": path}), flush=True)


if __name__ == "__main__":
    main()
