"""Calls NCCL through torch: the checks of tensors, the communicator, and the request for each kind of collective.

ProcessGroupNCCL is used by itself. Nothing of torch.distributed that a whole process shares is made or changed.
"""

from __future__ import annotations

import datetime as dt
import functools
import importlib.util
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from zerohop.errors import Closed, DeviceFailed, Unsupported
from zerohop.group.collectives.operands import is_tensor
from zerohop.group.collectives.tags import NCCL_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    # Hands one collective to a process group of torch, and returns its Work.
    Issue = Callable[[Any], Any]

_ABORTED: Final = "the communicator of NCCL was aborted"
_LEAVE_OUT: Final = "leave backend out"
# Makes ProcessGroupNCCL start no thread of its own. That thread would end the whole process once a rank is lost.
_NO_WATCHDOG: Final = "TORCH_NCCL_BLOCKING_WAIT"
# The only name that torch gives the time limit of a communicator.
_TIMEOUT: Final = "_timeout"
# Seconds that an abort may take.
_ABORT_S: Final = 60.0
# Seconds for which the end is looked for all the time, and the shortest and the longest pause after that.
_SPIN_S: Final = 200e-6
_PAUSE_S: Final = 20e-6
_LONGEST_PAUSE_S: Final = 500e-6
_making = threading.Lock()


class NcclLibrary:
    """Makes and uses communicators of NCCL. All methods but the checks may block."""

    def check(self, name: str, x: Any) -> None:
        """Raise an error unless NCCL takes a tensor.

        Raises:
            TypeError: it is no CUDA tensor.
            Unsupported: this torch has no NCCL.
        """
        takes = 'backend="nccl" takes CUDA tensors of torch'
        if not is_tensor(x):
            kind = type(x)
            what = "numpy arrays" if kind.__module__ == "numpy" else f"{kind.__module__}.{kind.__name__}"
            missing = "" if importlib.util.find_spec("torch") else ", and torch is not installed (pip install torch)"
            raise TypeError(f"{name}: {takes}, not {what}{missing}. Fix: {_LEAVE_OUT}")
        if x.device.type != "cuda":
            raise TypeError(f"{name}: {takes}, and this one is on {x.device}. Fix: {_LEAVE_OUT}, or pass {name}.cuda()")
        why = why_not_available()
        if why:
            raise Unsupported(f'backend="nccl": {why}', fix=_LEAVE_OUT)

    def identity(self, device: Any) -> str:
        """Return what tells a GPU from all others."""
        import torch

        return str(torch.cuda.get_device_properties(device).uuid)

    def open(self, store: Any, rank: int, size: int, device: Any) -> Any:
        """Connect the ranks on their devices, and return the communicator."""
        import torch
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        setattr(options, _TIMEOUT, dt.timedelta(seconds=_ABORT_S))
        with _making, torch.cuda.device(device):
            before = os.environ.get(_NO_WATCHDOG)
            os.environ[_NO_WATCHDOG] = "1"
            try:
                group = ProcessGroupNCCL(store, rank, size, options)
            finally:
                if before is None:
                    del os.environ[_NO_WATCHDOG]
                else:
                    os.environ[_NO_WATCHDOG] = before
        with torch.cuda.device(device):
            group.eager_connect_single_device(device)
        return group

    def carry_out(self, group: Any, issue: Issue, device: Any, stopped: threading.Event) -> None:
        """Carry out a collective, and wait until its result is in the memory of the device.

        Raises:
            DeviceFailed: NCCL has failed.
            Closed: ``stopped`` was set meanwhile.
        """
        import torch

        stream = _stream_of(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            issue_and_wait(group, issue, stopped)
            # In gather and scatter torch copies this rank's own part on this stream, beside what NCCL does.
            stream.synchronize()

    def abort(self, group: Any) -> None:
        """End all work of a communicator, which is of no use any more."""
        group.abort()


def why_not_available() -> str:
    """Return why torch cannot call NCCL; empty: it can."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_nccl_available():
        return "this torch was built without NCCL"
    if not all(hasattr(dist.ProcessGroupNCCL, name) for name in ("abort", "eager_connect_single_device")):
        return "this torch is too old (pip install --upgrade torch)"
    return ""


def check_type(name: str, dtype: str) -> None:
    """Raise TypeError if NCCL does not reduce elements of a type."""
    if dtype not in NCCL_TYPES:
        text = f"{name}: NCCL does not reduce {dtype}, but {', '.join(NCCL_TYPES[1:])}"
        raise TypeError(f"{text}. Fix: {_LEAVE_OUT}, or convert {name}")


def issue_and_wait(group: Any, issue: Issue, stopped: threading.Event) -> None:
    """Hand a collective to a process group of torch, and wait until it has ended, or ``stopped`` is set."""
    if stopped.is_set():
        raise Closed(_ABORTED)
    try:
        work = issue(group)
        spins_until = time.monotonic() + _SPIN_S
        pause = _PAUSE_S
        # Once it is aborted, a question would wait for the abort, and hold Python's lock meanwhile.
        while not stopped.is_set() and not work.is_completed():
            if time.monotonic() < spins_until:
                time.sleep(0)  # other threads get their turn
            else:
                time.sleep(pause)  # torch has no event for the end of a work that a thread could wait for and abort
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        if not stopped.is_set():
            work.wait()  # it has ended, and this raises its error
    except RuntimeError as error:
        if not stopped.is_set():
            raise failed(error) from None
    if stopped.is_set():
        raise Closed(_ABORTED)


def failed(error: RuntimeError) -> DeviceFailed:
    """Return the error for one of torch's."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return DeviceFailed(f"NCCL: {lines[0]}", fix="set NCCL_DEBUG=WARN, and NCCL says more")


@functools.cache
def _stream_of(device: Any) -> Any:
    """Return a stream that no other work holds up."""
    import torch

    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]  # torch has no types for it


def flat(x: Any) -> Any:
    """Return the elements of a contiguous tensor in one row."""
    return x.detach().reshape(-1)


def flat_bytes(x: Any) -> Any:
    """Return the bytes of a contiguous tensor; NCCL moves any type so."""
    import torch

    return flat(x).view(torch.uint8)
