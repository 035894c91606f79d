"""`python child.py NBYTES DEVICE`: another process with a GPU of its own, for tests that need one whose allocator,
devices or death differ from the tests' own. It says a line of JSON, then does as it is told on standard input."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import torch

import zerohop as zh


def main() -> None:
    nbytes, device = int(sys.argv[1]), sys.argv[2]
    context = zh.Context(timeout=10)
    tensor: Any = torch.full((nbytes,), 0xCC, dtype=torch.uint8, device=device)
    torch.cuda.synchronize(device)
    memory = context.register(tensor)
    say(handle=bytes(memory.share("rw")).hex(), device=memory.device, nbytes=memory.nbytes)
    transport: Any = None
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "sum":
            start, stop = map(int, arguments)
            torch.cuda.synchronize(device)
            say(sum=hashlib.sha256(tensor[start:stop].cpu().numpy().tobytes()).hexdigest())
        elif command == "fill":
            tensor.fill_(int(arguments[0]))
            torch.cuda.synchronize(device)
            say(done=True)
        elif command == "drop":
            # The tensor goes, and the allocator gives back what it can; the Memory keeps it while a peer has it.
            tensor = None
            torch.cuda.empty_cache()
            say(done=True)
        elif command == "close":
            memory.close(timeout=float(arguments[0]))
            torch.cuda.empty_cache()
            say(allocated=torch.cuda.memory_reserved(device))
        elif command == "notification":
            note = context.notification(timeout=10).result()
            say(value=note.value, nbytes=note.nbytes)
        elif command == "bind":
            transport = zh.Transport(tensor.device, ctx=context)
            say(url=transport.bind(), device=transport.device)
        elif command == "arrived":
            note = transport.wait_for_write(10).result()
            say(value=note.value, nbytes=note.nbytes)
        elif command == "push":
            # Its tensor, into what the handle is of.
            remote = zh.RemoteBuffer.from_bytes(bytes.fromhex(arguments[0]))
            say(moved=transport.write(tensor, remote, notify=int(arguments[1])).result(10))
        elif command == "end":
            context.close()
            say(done=True)
            return


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
