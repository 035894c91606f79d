"""`python -m support.peer_main FD`: the process that peers are forked from (see nursery.py), and what a peer then does,
which is driven over a pipe."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import signal
import socket
import sys
import traceback
import warnings
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

from support.buffers import GPUS
from support.messages import Command, Failure, Result
from support.nursery import MOST_BYTES
from support.outcomes import outcome_of
from support.service import Service
from zerohop import StagedPathWarning

_PR_SET_PDEATHSIG = 1
# What the library imports when a Context is opened, or connects.
_LATER = (
    "runtime.event_loops",
    "runtime.control_thread",
    "control.handshake",
    "control.listener",
    "lanes.nic_choice",
    "lanes.lane_setup",
    "peers.peers",
    "peers.session",
    "peers.import_client",
)


def main() -> None:
    tester = os.getppid()
    _die_with_parent(tester)
    for name in _LATER:
        importlib.import_module(f"zerohop.core.{name}")
    # Started with the first shared memory otherwise, and then held against the test that happened to be the first.
    resource_tracker.ensure_running()
    # What is there now stays, and a collection in a peer need not write to all of it.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        while True:
            wish, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 2)
            if not wish:
                return
            if _forked(requests, tester):
                break
            for descriptor in descriptors:
                os.close(descriptor)
    os.environ.clear()
    os.environ.update(pickle.loads(wish))
    if GPUS > 1 and "CUDA_VISIBLE_DEVICES" not in os.environ:
        # In another order than the tests see them: numbers of devices mean nothing to a peer.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, reversed(range(GPUS))))
    pipe, errors = descriptors
    os.dup2(errors, 2)
    os.close(errors)
    serve(Connection(pipe))


def _forked(requests: socket.socket, tester: int) -> bool:
    """True in the new process, which is a child of the tests'; that gets its number."""
    parted, part = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork():
            os._exit(0)
        os.close(part)
        os.read(parted, 1)
        os.close(parted)
        _die_with_parent(tester)
        requests.send(str(os.getpid()).encode())
        return True
    os.waitpid(between, 0)
    os.close(parted)
    os.close(part)  # the new process has its new parent now
    return False


def _die_with_parent(parent: int) -> None:
    """A test process that is killed takes its peers with it, stopped ones included."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def serve(pipe: Connection) -> None:
    """Until the other end is closed, or says that it is enough."""
    # What is staged between real GPUs says so; all other warnings are errors.
    warnings.simplefilter("ignore", StagedPathWarning)
    service: Service | None = None
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            break
        if message is None:
            if service is not None:
                service.shutdown()
            break
        answer: Result | Failure
        try:
            if isinstance(message, Command):
                answer = Result(getattr(service, message.method)(*message.args, **message.kwargs))
            else:
                service = Service(message)
                answer = Result(service.identity())
        except Exception as error:
            answer = Failure(outcome_of(error), traceback.format_exc())
        with contextlib.suppress(BrokenPipeError):
            pipe.send(answer)


if __name__ == "__main__":
    main()
