"""A host loses its power: what the other one's operations come to. Run in two guests, see lab/suites.sh.

    lab/two_guests.sh host-loss 'python tests/lab/host_loss.py survivor' 'python tests/lab/host_loss.py doomed'

The doomed one shares memory over both its NIC and tcp; the survivor has operations of every kind in flight when it has
the other guest killed, and each of them ends with PeerLost within the heartbeat.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import zerohop as zh

OUT = Path(os.environ["ZEROHOP_LAB_OUT"])
HEARTBEAT_S = 3.0
# What an emulated machine adds, however late it lets anybody go on.
GRACE_S = 15.0 * float(os.environ.get("ZEROHOP_TEST_PATIENCE", "1"))
NBYTES = 1 << 20
# How long the other guest may take to come up.
PATIENCE_S = 120.0


def open_context(address: str) -> zh.Context:
    """With the NIC that leads to the other guest. No deadline can be taken for the loss."""
    return zh.Context(
        listen=f"{address}:0",
        secret="of the lab",
        providers=["verbs", "tcp"],
        nics="rxn",
        heartbeat=HEARTBEAT_S,
        timeout=300,
    )


def doomed() -> None:
    """Shares memory, and is there until it is not."""
    context = open_context("10.8.0.2")
    memory = context.register(np.zeros(NBYTES, np.uint8))
    (OUT / "handle.new").write_bytes(bytes(memory.share("rw")))
    (OUT / "handle.new").rename(OUT / "handle")
    time.sleep(PATIENCE_S)  # until its power is taken; longer than that is a failure of the other one


def wait_for(path: Path) -> None:
    """Until the other guest has written that file."""
    until = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < until, f"no {path.name}"
        time.sleep(0.05)  # no event crosses the folder that two guests share


def write_and_read_back(context: zh.Context, source: zh.Memory, handle: zh.RemoteBuffer, back: zh.Memory) -> None:
    """Move the bytes over RDMA there and back. What is lost is posted again, as the error says.

    A guest is a program to its host, which may hold it up for more than the half second that a NIC has to answer.
    """
    until = time.monotonic() + PATIENCE_S / 2
    while True:
        try:
            context.write(source, handle).result(60)
            context.read(handle, back).result(60)
            path = context.explain(source, handle)
            assert (path.provider, path.form, path.direct) == ("verbs", "rdma", True), path.details()
        except (zh.PeerLost, AssertionError) as error:
            if time.monotonic() > until:
                raise
            print(f"once more: {error}", flush=True)
            time.sleep(0.5)  # until the lane is replaced, for which there is no event
        else:
            break
    assert back.read_bytes() == source.read_bytes(), "wrong bytes"


def survivor() -> None:
    """Has the other guest killed in the middle of its work."""
    context = open_context("10.8.0.1")
    wait_for(OUT / "handle")
    handle = zh.RemoteBuffer.from_bytes((OUT / "handle").read_bytes())
    source, back = context.register(np.full(NBYTES, 5, np.uint8)), context.register(np.zeros(NBYTES, np.uint8))
    write_and_read_back(context, source, handle, back)
    connection = context.connect(handle.url).result(60)

    (OUT / "kill-b").touch()
    pending = [connection.recv(np.zeros(8, np.uint8))]
    while not (OUT / "killed-b").exists():
        pending += [
            context.write(source, handle),
            context.read(handle, back),
            context.fetch_add(handle, 1),
            context.write(source[:8], handle[:8], notify=1),
        ]
        while len(pending) > 40 and pending[-4].done():
            pending.pop(1)
    killed = time.monotonic()
    errors = [operation.exception(60) for operation in pending]
    seconds = time.monotonic() - killed
    lost = [error for error in errors if error is not None]
    assert lost, "everything was done before the guest was gone"
    assert all(isinstance(error, zh.PeerLost) for error in lost), lost
    assert seconds < HEARTBEAT_S + GRACE_S, f"{seconds:.1f} s"
    try:
        context.write(source, handle).result(60)
    except zh.PeerLost as error:
        print(f"afterwards: {error}")
    else:
        raise AssertionError("a write to a host that is gone was done")
    began = time.monotonic()
    context.close(timeout=2)
    assert time.monotonic() - began < 2 + GRACE_S
    print(f"{len(lost)} of {len(pending)} operations lost, the last {seconds:.2f} s after the power: {lost[-1]}")


if __name__ == "__main__":
    {"survivor": survivor, "doomed": doomed}[sys.argv[1]]()
