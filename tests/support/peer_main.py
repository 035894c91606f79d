"""The peer process: `python -m support.peer_main FD`, driven over the pipe that FD is an end of."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

from support.messages import Command, Failure, Result
from support.outcomes import outcome_of
from support.service import Service

_PR_SET_PDEATHSIG = 1


def main() -> None:
    # A test process that is killed takes its peers with it, stopped ones included.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        return
    pipe = Connection(int(sys.argv[1]))
    # Started with the first shared memory otherwise, and then held against the test that happened to be the first.
    resource_tracker.ensure_running()
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
